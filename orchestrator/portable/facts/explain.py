"""From a log to causes: matches lines against the catalogue and keeps what was found, with constant memory."""

from collections import OrderedDict, deque
from typing import Any, BinaryIO, Dict, Iterable, List, Optional, Set, Tuple

from .explain_figures import figures_of
from .explain_lines import AROUND, PARTS, QUOTES, VERBOSE, Encoded, Line, read_lines
from .explain_match import GUESSED, Index, Patterns, matches, words_of
from .explain_sieve import Sieve
from .explain_verdict import verdict
from .failures import Catalogue, Entry, Pattern, catalogue

WINDOW = AROUND  # lines that a wrapped message may have before the line that ends it
WRAPPED = 400  # characters of a line that are joined with its neighbours
NEAR = 6  # lines within which one message explains another
EVIDENCE = 3
FIGURES = 32  # different sets of figures kept for one code
SOURCES = 64
SHOWN = 400
_ERROR_WORDS = ("error", "fail", "fatal", "denied", "cannot", "could not", "unable", "exception", "abort", "core dumped", "not found")


class Finding:
    """One entry of the catalogue found in one source with one set of figures."""

    __slots__ = ("count", "entry", "evidence", "figures", "first", "last", "source")

    def __init__(self, entry: Entry, source: str, figures: Dict[str, Any]) -> None:
        self.entry = entry
        self.source = source
        self.figures = figures
        self.evidence: Dict[int, str] = OrderedDict()
        self.count = 0
        self.first = 0
        self.last = 0

    def add(self, lines: List[Line]) -> None:
        """One more occurrence, on ``lines``."""
        self.count += 1
        self.first = self.first or lines[0].number
        self.last = lines[-1].number
        if len(self.evidence) < EVIDENCE:
            for line in lines:
                self.evidence.setdefault(line.number, line.text[:SHOWN])

    def drop(self, number: int) -> None:
        """Take one occurrence, at line ``number``, back."""
        self.count -= 1
        self.evidence.pop(number, None)
        if self.evidence:
            self.first = next(iter(self.evidence))


class Explainer:
    """Give it a log, ask for the verdict. Memory does not grow with the number of lines."""

    def __init__(self, table: Optional[Catalogue] = None) -> None:
        self.table = table or catalogue()
        self.findings: Dict[Tuple[Any, ...], Finding] = OrderedDict()
        self.unknown: Dict[int, str] = OrderedDict()
        self._index = Index(self.table.entries.values(), _ERROR_WORDS + PARTS)
        self._sieve = Sieve(self._index)
        self._windows: Dict[str, Any] = {}
        self._recent: Any = deque(maxlen=64)
        self._figure_sets: Dict[Tuple[str, str], int] = {}

    def read(self, stream: BinaryIO) -> Dict[str, Any]:
        """The verdict over a log; see :func:`explain`."""
        for line in read_lines(stream, self._sieve):
            self._feed(line)
        return verdict(self.table, list(self.findings.values()), self._sieve.lines, self.unknown)

    def _feed(self, line: Line) -> None:
        """Take the next line that may tell something."""
        if line.source not in self._windows and len(self._windows) >= SOURCES:
            line = line._replace(source="")
        window = self._windows.setdefault(line.source, deque(maxlen=WINDOW))
        if line.starts or (window and window[-1][0].number == line.number):
            window.clear()  # pieces of one long line overlap already
        if any(mark in line.text for mark in VERBOSE):
            return
        text = " ".join(line.text.translate(QUOTES).split())
        lowered = text.lower()
        hits = self._index.hits(words_of(text))
        known: Patterns = []
        guesses: Patterns = []
        for pair in self._index.candidates(lowered, hits):
            (guesses if pair[0].role == "guess" else known).append(pair)
        found = set()  # type: Set[str]
        missed: List[Pattern] = []
        for entry, figures in matches(text, known, missed):
            found.add(entry.code)
            self._occurrence(entry, figures, [line])
        self._sieve.open |= bool(missed)
        self._sieve.told |= any(pattern.digits for pattern in missed)
        if window:
            self._wrapped(line, text, hits, window, found)
        window.append((line, text[-WRAPPED:], hits))
        if not found:
            self._guess(line, text[:GUESSED], guesses)

    def _wrapped(self, line: Line, text: str, hits: Set[str], window: Any, found: Set[str]) -> None:
        """Matches that begin on an earlier line and end on this one: messages broken at blanks, or anywhere."""
        own = bool(found)
        some = hits.union(*(old for _, _, old in window))
        broken = self._index.hits(["".join(words_of(window[-1][1])[-1:] + words_of(text)[:1])])
        if not some and not broken:
            return
        for joint in (" ", ""):
            before = joint.join(old for _, old, _ in window) + joint
            joined = before + text[:WRAPPED]
            lowered = joined.lower()
            seam = len(before)
            if not joint:
                some = self._index.hits(words_of(lowered))
            for entry, pattern in self._index.candidates(lowered, some):
                if entry.code in found or entry.role == "guess":
                    continue
                for match in pattern.compiled.finditer(joined):
                    if match.start() < seam - len(joint) and match.end() > seam:
                        # a line that says something of its own continues no message that was whole before it
                        if own and pattern.compiled.match(before, match.start()):
                            continue
                        found.add(entry.code)
                        lines = [*_spanned(window, joint, match.start()), line]
                        self._occurrence(entry, figures_of(match.groupdict()), lines)
                        break

    def _guess(self, line: Line, text: str, guesses: Patterns) -> None:
        """Nothing known is in the line: what its words are about, and whether it looks like an error at all."""
        missed: List[Pattern] = []
        for entry, figures in matches(text, guesses, missed):
            self._occurrence(entry, figures, [line])
        self._sieve.told |= any(pattern.digits for pattern in missed)
        lowered = text[:SHOWN].lower()
        if any(word in lowered for word in _ERROR_WORDS):
            self._sieve.told = True
            self.unknown[line.number] = text[:SHOWN]
            if len(self.unknown) > EVIDENCE:
                self.unknown.pop(next(iter(self.unknown)))

    def _occurrence(self, entry: Entry, figures: Dict[str, Any], lines: List[Line]) -> None:
        self._sieve.told = True
        source, number = lines[-1].source, lines[-1].number
        for then, place, finding in list(self._recent):
            if place != source or number - then > NEAR:
                continue
            if entry.code in finding.entry.absorbs:
                finding.add(lines)
                finding.count -= 1
                return
            if finding.entry.code in entry.absorbs and finding.count > 0:
                finding.drop(then)
                self._recent.remove((then, place, finding))
        finding = self._finding(entry, source, figures)
        finding.add(lines)
        self._recent.append((number, source, finding))

    def _finding(self, entry: Entry, source: str, figures: Dict[str, Any]) -> Finding:
        key = (source, entry.code, *sorted((name, str(value)) for name, value in figures.items()))
        if key not in self.findings:
            sets = self._figure_sets.get((source, entry.code), 0)
            if sets >= FIGURES:
                return next(found for found in self.findings.values() if found.entry is entry and found.source == source)
            self._figure_sets[(source, entry.code)] = sets + 1
            self.findings[key] = Finding(entry, source, figures)
        return self.findings[key]


def _spanned(window: Any, joint: str, start: int) -> List[Line]:
    """The lines of ``window`` from the one that holds position ``start`` of the joined text."""
    position = 0
    for index, (_, text, _) in enumerate(window):
        position += len(text) + len(joint)
        if start < position:
            return [line for line, _, _ in list(window)[index:]]
    return []


def explain(stream: BinaryIO) -> Dict[str, Any]:
    """Causes of the failure that a log (bytes, any encoding, any size) tells of.

    Gives ``causes``, best first: dicts with ``kind``, ``code``, ``figures``, ``sentence``, ``fix``, ``confidence`` (certain, likely,
    possible), ``evidence`` (dicts of ``line`` from 1 and ``text``), ``consequences``, ``or`` (what else prints the same) and ``source``
    (container or target, when the log names several); ``harmless`` (seen and not blamed), ``unknown`` (lines that look like errors and are
    not in the catalogue, only without causes), ``mixed`` (whether the log holds the output of several sources) and ``lines``.
    """
    return Explainer().read(stream)


def explain_text(texts: Iterable[str]) -> Dict[str, Any]:
    """:func:`explain` for lines already decoded; one str is split at its line feeds."""
    return explain(Encoded(iter(texts.split("\n") if isinstance(texts, str) else texts)))  # type: ignore[arg-type]
