"""Tells at small cost which raw lines of a log cannot be part of a failure's message: nearly all of them, in a log of any length."""

from typing import Set

from .explain_lines import QUOTES, VERBOSE
from .explain_match import Index, words_of

TEMPLATES = 1 << 14
"""Kinds of lines that are remembered to have told nothing."""
_DIGITS = {ord(digit): "0" for digit in "123456789"}
SEAM = 160
"""Characters on both sides of a line's end in which a message broken there is looked for."""


class Sieve:
    """Looks at raw lines in order.

    ``lines`` counts those that are not blank. Who reads what is left sets ``open`` (the next lines may complete a message) and ``told``
    (there was something in the line, or another line like it with other digits may have something).
    """

    def __init__(self, index: Index) -> None:
        self.lines = 0
        self.open = False
        self.told = False
        self._index = index
        self._template = ""
        self._dull: Set[str] = set()
        self._before = ""
        self._hits: Set[str] = set()
        self._last = ""

    def quiet(self, text: str) -> bool:
        """Whether no pattern can match in the line, nor where it and the lines before it meet."""
        words = words_of(text)
        if not words:
            self.lines += bool(text.strip())
            return True
        self.lines += 1
        plain = self._index.plain
        seam, self._last = self._last + words[0], words[-1]
        if not self._hits and seam in plain and plain.issuperset(words):
            self._before = text
            return True
        if any(mark in text for mark in VERBOSE):
            self._hits = set()
            self._before = ""
            return True
        self._template = text.translate(_DIGITS)
        if self._template in self._dull:
            self._hits = set()
            self._before = text
            return True
        return not self._loud(text, self._index.hits(words), self._index.hits((seam,)))

    def forget(self) -> None:
        """Take the line that was not quiet, and told nothing when it was read, for quiet from now on."""
        if len(self._dull) >= TEMPLATES:
            self._dull.clear()
        self._dull.add(self._template)

    def _loud(self, text: str, hits: Set[str], broken: Set[str]) -> bool:
        earlier, self._hits = self._hits, hits
        before, self._before = self._before, text
        if not (hits or broken or earlier):
            return False
        if "\x1b" in text or text[:1] == "{":
            return True  # what lies inside the words is taken out later
        lowered = _plain(text)
        if self._index.needed(lowered, hits):
            return True
        tail = _plain(before[-SEAM:])
        head = lowered[:SEAM]
        if earlier:
            self._before = tail + " " + lowered  # a message may be broken more than once
        hits = hits | broken | earlier
        return self._index.needed_across(tail + " ", head, hits) or self._index.needed_across(tail, head, hits)


def _plain(text: str) -> str:
    if len(text.encode("utf-8", "replace")) != len(text):
        text = text.translate(QUOTES)
    return " ".join(text.split()).lower()
