"""Finds the patterns of the catalogue in a line without searching for each of them: most lines hold none of the texts they need."""

from collections import Counter
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Set, Tuple

from .explain_figures import figures_of
from .failures import Entry, Pattern

Patterns = List[Tuple[Entry, Pattern]]
_SIZE = 3
GUESSED = 2000
"""Characters of a line in which entries of role guess are searched: their patterns are broad."""


def grams(lowered: str) -> Set[str]:
    """All pieces of three characters of a text in lower case."""
    return {lowered[start : start + _SIZE] for start in range(len(lowered) - _SIZE + 1)}


class Index:
    """Patterns by the texts that they need, and these by their rarest piece of three characters."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._patterns: Dict[str, Patterns] = {}
        for entry in entries:
            for pattern in entry.patterns:
                for text in pattern.anchors:
                    self._patterns.setdefault(text, []).append((entry, pattern))
        often = Counter(gram for text in self._patterns for gram in grams(text))
        self._texts: Dict[str, List[str]] = {}
        for text in self._patterns:
            rarest = min(sorted(grams(text)), key=lambda gram: often[gram])
            self._texts.setdefault(rarest, []).append(text)
        self._keys: FrozenSet[str] = frozenset(self._texts)

    def hits(self, pieces: Set[str]) -> Set[str]:
        """Those of a text's :func:`grams` that say that a needed text may be in it."""
        return pieces & self._keys

    def candidates(self, lowered: str, hits: Iterable[str]) -> Patterns:
        """Patterns that may match ``lowered``, whose :meth:`hits` these are; in the order of the catalogue."""
        found = {}  # type: Dict[int, Tuple[Entry, Pattern]]
        for hit in hits:
            for text in self._texts[hit]:
                if text in lowered:
                    found.update((id(pair[1]), pair) for pair in self._patterns[text])
        return sorted(found.values(), key=lambda pair: (pair[0].code, pair[0].patterns.index(pair[1])))


def matches(text: str, candidates: Patterns) -> Iterator[Tuple[Entry, Dict[str, Any]]]:
    """(entry, figures) of each place of ``text`` where one matches; an entry without figures counts once."""
    taken = set()  # type: Set[Tuple[str, int]]
    seen = set()  # type: Set[str]
    for entry, pattern in candidates:
        for match in pattern.compiled.finditer(text):
            figures = figures_of(match.groupdict())
            if (entry.code, match.end()) not in taken and (figures or entry.code not in seen):
                taken.add((entry.code, match.end()))
                seen.add(entry.code)
                yield entry, figures
