"""The catalogue of known failures: what products print, what it means, what to do. Data, from docs/facts/failures.yaml."""

import re
from typing import Any, Dict, List, Optional, Tuple

from .data import load

ROLES = ("cause", "warning", "guess", "symptom", "harmless", "success", "context")
"""What a line does to a verdict.

cause: it failed because of this. warning: blamed only when no cause is found and nothing says that all went well.
guess: the same, searched only in lines where nothing else is found. symptom: follows from a cause.
harmless: never blamed beside anything else. success: the work went well.
context: says something about the machine, decides between causes that print the same.
"""

SURE = ("certain", "likely", "possible")


_SHORT = (
    (r"%(\d+)%", r".{0,\1}?"),
    ("%CUDA%", r"cuda[\\w ]{0,24}(?:error|failure|fail)(?: code| in \\w+)?[ :=(]{1,4}"),
)


class Pattern:
    """One regular expression over a line whose runs of blanks are single spaces; every match holds one of ``anchors``."""

    __slots__ = ("_compiled", "anchors", "digits", "text")

    def __init__(self, text: str) -> None:
        for short, long in _SHORT:
            text = re.sub(short, long, text)
        self.text = text
        self.anchors = required_texts(text)
        self.digits = any(token.isdigit() for token in _TOKEN.findall(text))  # whether it asks for certain numbers
        self._compiled = None  # type: Any

    @property
    def compiled(self) -> Any:
        if self._compiled is None:  # most logs need a handful of the patterns
            self._compiled = re.compile(self.text, re.IGNORECASE)
        return self._compiled


class Entry:
    """One row of the catalogue; the fields are described at the top of docs/facts/failures.yaml."""

    __slots__ = (
        "absorbs",
        "causes",
        "code",
        "fix",
        "instead",
        "kind",
        "others",
        "patterns",
        "rank",
        "role",
        "sentences",
        "since",
        "sure",
        "then",
    )

    def __init__(self, code: str, row: Dict[str, Any], kinds: Dict[str, Any]) -> None:
        self.code = code
        self.kind = row.get("kind")  # type: Optional[str]
        self.role = row.get("role", "cause")  # type: str
        self.rank = row.get("rank", 60)  # type: int
        self.sure = row.get("sure", "likely")  # type: str
        self.patterns = [Pattern(text) for text in row.get("patterns", ())]
        self.sentences = row.get("says", [])  # type: List[str]
        self.fix = row.get("fix") or (kinds[self.kind]["fix"] if self.kind else "")  # type: str
        self.causes = frozenset(row.get("causes", ()))
        self.absorbs = frozenset(row.get("absorbs", ()))
        self.instead = row.get("instead", {})  # type: Dict[str, str]
        self.others = row.get("or", {})  # type: Dict[str, str]
        self.since = row.get("since", "")  # type: str
        self.then = row.get("then", "")  # type: str

    def sentence(self, figures: Dict[str, Any]) -> str:
        """The first sentence all of whose figures are known; the last one needs none."""
        for text in self.sentences:
            if all(name in figures for name in re.findall(r"\{(\w+)\}", text)):
                return text.format(**figures)
        return self.sentences[-1] if self.sentences else ""


class Catalogue:
    """All entries by code, and what each kind means (``kinds[kind]["means"]`` and ``["fix"]``)."""

    def __init__(self, table: Dict[str, Any]) -> None:
        self.kinds = table["kinds"]  # type: Dict[str, Dict[str, str]]
        self.entries = {code: Entry(code, row, self.kinds) for code, row in sorted(table["entries"].items())}  # type: Dict[str, Entry]

    def of_kind(self, kind: str) -> List[Entry]:
        """Entries that answer with ``kind``, in order of their codes."""
        return [entry for entry in self.entries.values() if entry.kind == kind]


_LOADED = []  # type: List[Catalogue]


def catalogue() -> Catalogue:
    """The catalogue, read once."""
    if not _LOADED:
        _LOADED.append(Catalogue(load("failures")))
    return _LOADED[0]


# One element of a regular expression: escape, class, group bracket, alternation, quantifier or one character
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:P<\w+>|[:=!]|<[=!]))?|\)|\||[*+?]\??|\{\d*,?\d*\}\??|.", re.DOTALL)
_SHORTEST = 3
_OPTIONAL = re.compile(r"[*?]|\{0?,")
_QUANTIFIER = re.compile(r"[*+?]|\{\d")
_SPECIAL = frozenset(".^$*+?()[]|")


def required_texts(pattern: str) -> Tuple[str, ...]:
    """Texts in lower case of which every match of ``pattern`` holds at least one, so that a line without them need not be searched.

    Raises ValueError when there are none with a word in them.
    """
    found, _ = _alternatives(_TOKEN.findall(pattern), 0)
    if not found:
        raise ValueError("no text with a word in it is in every match of: {}".format(pattern))
    return found


def _alternatives(tokens: List[str], position: int) -> Tuple[Tuple[str, ...], int]:
    """Required texts of the alternatives that begin at ``position``, and the position behind them."""
    found = []  # type: List[str]
    complete = True
    while True:
        texts, position = _sequence(tokens, position)
        complete = complete and bool(texts)
        found += texts
        if position >= len(tokens) or tokens[position] != "|":
            return (tuple(sorted(set(found))) if complete else ()), position
        position += 1


def _sequence(tokens: List[str], position: int) -> Tuple[Tuple[str, ...], int]:
    best = ()  # type: Tuple[str, ...]
    run = ""
    while position < len(tokens) and tokens[position] not in ("|", ")"):
        token = tokens[position]
        group = ()  # type: Tuple[str, ...]
        literal = ""
        position += 1
        if token[0] == "(":
            group, position = _alternatives(tokens, position)
            position += 1
            if token[1:] in ("?!", "?<!"):
                group = ()
        else:
            literal = _literal(token)
        quantifier = tokens[position] if position < len(tokens) else ""
        if _OPTIONAL.match(quantifier):
            group, literal = (), ""
        if literal and not _QUANTIFIER.match(quantifier):
            run += literal.lower()
            continue
        best = max(best, (run + literal.lower(),), group, key=_worth)
        run = ""
    return max(best, (run,), key=_worth), position


def _worth(texts: Tuple[str, ...]) -> Tuple[int, int, int]:
    """How well a line is told by one of ``texts`` being in it; the first number is 0 when it is not told at all."""
    telling = min((_telling(telling_word(text)) for text in texts), default=0)
    return (telling, min(12, *map(len, texts)), -len(texts)) if telling else (0, 0, 0)


def _literal(token: str) -> str:
    """The character that a token stands for, "" for what stands for several."""
    if len(token) == 2 and token[0] == "\\":
        return "" if token[1].isalnum() else token[1]
    return "" if len(token) > 1 or token in _SPECIAL else token


# Words that say little, since logs of builds that go well are full of them: a text with another word in it is looked for first
_PLAIN_WORDS = """
binding build cache code completed config container cuda data default device dimension dims docker driver dynamic element elements
engine find for from gpu image information input inputs layer library limit load loading max maximum memory min model module name
network node number nvcr nvidia only open opening operator output outputs parser parsing plan plugin profile python rank require
result runtime serialized set shape shapes size sm specified status strategy supported tactic tensor tensorrt than that the this
timing trt type use using value version volume weights with
"""
_SEMI_PLAIN_WORDS = "expected found loaded must not required tolerance upgrade"
_PLAIN = frozenset(_PLAIN_WORDS.split())
_SEMI_PLAIN = frozenset(_SEMI_PLAIN_WORDS.split())
_LEVELS = (" e ", " f ")  # [E] and [F]
_WORD = re.compile(r"(?<![a-z])[a-z]+(?![a-z])")


def telling_word(text: str) -> str:
    """The word of a text in lower case by which lines that may hold the text are found; "" when there is none.

    A blank on a side of the word says that it ends there; where there is none, a line's word may go on.
    """
    words = [(" " if match.start() else "") + match.group() + (" " if match.end() < len(text) else "") for match in _WORD.finditer(text)]
    return max(words, key=lambda word: (_telling(word), len(word)), default="")


def _telling(word: str) -> int:
    """3 for a word that logs of builds that go well seldom hold, 1 for one they are full of, 0 for none."""
    plain = word.strip()
    if len(word) < _SHORTEST:
        return 0
    if plain in _PLAIN or (len(plain) < _SHORTEST and word not in _LEVELS):
        return 1
    return 2 if plain in _SEMI_PLAIN or len(word) == _SHORTEST else 3


def kind_of(code: str) -> Tuple[Optional[str], str]:
    """Kind and fix of a catalogue code; raises KeyError for a code that the catalogue does not hold."""
    entry = catalogue().entries[code]
    return entry.kind, entry.fix
