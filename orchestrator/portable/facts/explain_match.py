"""Finds the patterns of the catalogue in a line without searching for each of them: most lines hold none of the words they need.

Every pattern needs one of a few texts (failures.required_texts), and every such text holds a telling word. A log's own words are looked
up: a word without a telling word in it is remembered as plain, and a line of plain words needs no more than that.
"""

from typing import Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from .explain_figures import figures_of
from .failures import Entry, Pattern, telling_word

Patterns = List[Tuple[Entry, Pattern]]
GUESSED = 2000
"""Characters of a line in which entries of role guess are searched: their patterns are broad."""
VOCABULARY = 1 << 16
"""Words of a log that are remembered."""
_LETTERS = {code: chr(code | 32) if chr(code).isalpha() else " " for code in range(128)}


def words_of(text: str) -> List[str]:
    """The words of a text: its runs of letters, in lower case."""
    return text.translate(_LETTERS).split()


class Index:
    """Patterns by the texts that they need, and these by a telling word."""

    def __init__(self, entries: Iterable[Entry], also: Iterable[str] = ()) -> None:
        """``also``: texts that lines are told by though no pattern needs them."""
        self._patterns: Dict[str, Patterns] = {}
        for entry in entries:
            for pattern in entry.patterns:
                for text in pattern.anchors:
                    self._patterns.setdefault(text, []).append((entry, pattern))
        self._texts: Dict[str, List[str]] = {}
        for text in sorted({*self._patterns, *also}):
            self._texts.setdefault(telling_word(text), []).append(text)
        self._telling: Dict[str, Tuple[str, ...]] = {}
        self.plain: Set[str] = set()

    def hits(self, words: Iterable[str]) -> Set[str]:
        """Those of a line's :func:`words_of` that say that a needed text may be in it."""
        return {word for word in set(words) - self.plain if self._tells(word)}

    def _tells(self, word: str) -> bool:
        if word in self._telling:
            return True
        padded = " " + word + " "
        texts = tuple(text for telling, found in self._texts.items() if telling in padded for text in found)
        if len(self._telling) + len(self.plain) >= VOCABULARY:
            self._telling.clear()
            self.plain.clear()
        if texts:
            self._telling[word] = texts
        else:
            self.plain.add(word)
        return bool(texts)

    def needed(self, lowered: str, hits: Iterable[str]) -> bool:
        """Whether a needed text is in ``lowered``, whose :meth:`hits` these are."""
        for hit in hits:
            for text in self._telling.get(hit, ()):
                if text in lowered:
                    return True
        return False

    def needed_across(self, before: str, after: str, hits: Iterable[str]) -> bool:
        """Whether a needed text begins in ``before`` and ends in ``after``."""
        joined = before + after
        for hit in hits:
            for text in self._telling.get(hit, ()):
                inside = len(text) - 1
                if text in joined and text in before[-inside:] + after[:inside]:
                    return True
        return False

    def candidates(self, lowered: str, hits: Iterable[str]) -> Patterns:
        """Patterns that may match ``lowered``, whose :meth:`hits` these are; in the order of the catalogue."""
        found = {}  # type: Dict[int, Tuple[Entry, Pattern]]
        for hit in hits:
            for text in self._telling.get(hit, ()):
                if text in lowered:
                    found.update((id(pair[1]), pair) for pair in self._patterns.get(text, ()))
        return sorted(found.values(), key=lambda pair: (pair[0].code, pair[0].patterns.index(pair[1])))


def matches(text: str, candidates: Patterns, missed: Optional[List[Pattern]] = None) -> Iterator[Tuple[Entry, Dict[str, Any]]]:
    """(entry, figures) of each place of ``text`` where one matches; an entry without figures counts once.

    Patterns that match nowhere are appended to ``missed``.
    """
    taken = set()  # type: Set[Tuple[str, int]]
    seen = set()  # type: Set[str]
    for entry, pattern in candidates:
        match = None
        for match in pattern.compiled.finditer(text):
            figures = figures_of(match.groupdict())
            if (entry.code, match.end()) not in taken and (figures or entry.code not in seen):
                taken.add((entry.code, match.end()))
                seen.add(entry.code)
                yield entry, figures
        if match is None and missed is not None:
            missed.append(pattern)
