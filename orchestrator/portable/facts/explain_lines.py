"""Reads a log of any size as lines of text: any encoding and line end, without what CI, containers and loggers put around a line."""

import codecs
import json
import re
from collections import deque
from typing import Any, BinaryIO, Deque, Dict, Iterator, List, NamedTuple, Optional, Tuple

CHUNK = 1 << 16
PIECE = 1 << 12
"""Longest text looked at in one go, in characters; a longer line is read in pieces that overlap."""
OVERLAP = 1 << 10
JSON_LIMIT = 1 << 18
AROUND = 3
"""Lines before and after one that tells something that may belong to its message."""

Line = NamedTuple("Line", [("number", int), ("source", str), ("text", str), ("starts", bool)])
"""``number`` counts from 1; ``source`` is the container, pod or target that a prefix names, else ""; ``starts`` is whether
the text begins a record of its own (so it continues no line before it)."""


def read_lines(stream: BinaryIO, sieve: Any = None) -> Iterator[Line]:
    """Lines of ``stream`` in order, with constant memory; one line of a file may give several (carriage returns, JSON, glued records).

    Raw lines that ``sieve`` (explain_sieve.Sieve) calls quiet are left out, unless they may be part of a message with one that is not:
    the AROUND lines before a line that begins no record of its own, and those after one that left a message open, up to the next record.
    """
    reader = _Reader()
    before: Deque[Tuple[int, str]] = deque(maxlen=AROUND)
    after = 0
    for number, text in _numbered(stream):
        if sieve is None:
            yield from reader.read(number, text)
        elif not sieve.quiet(text):
            lines = list(reader.read(number, text))
            if before and not (lines and lines[0].starts):
                for early in before:
                    yield from reader.read(*early)
            before.clear()
            sieve.open = sieve.told = False
            yield from lines
            after = AROUND if sieve.open else 0
            if not sieve.told:
                sieve.forget()
        elif after:
            lines = list(reader.read(number, text))
            after = 0 if lines and lines[0].starts else after - 1
            yield from lines
        elif text:
            before.append((number, text))
    yield from reader.rest()


class _Reader:
    """Takes raw lines apart; a container runtime splits long lines, P marks the parts and F the last."""

    def __init__(self) -> None:
        self._carried: Dict[str, str] = {}
        self._number = 0

    def read(self, number: int, text: str) -> Iterator[Line]:
        self._number = number
        for source, plain, whole in _unwrapped(text):
            if source in self._carried:
                plain = self._carried.pop(source) + plain
            if not whole and len(plain) < PIECE:
                self._carried[source] = plain
                continue
            for part in _records(plain):
                if part.strip():
                    yield Line(number, source, part.strip(), bool(_RECORD.match(part)))

    def rest(self) -> Iterator[Line]:
        for source, plain in self._carried.items():
            yield Line(self._number, source, plain.strip(), True)


class Encoded:
    """Presents texts as a stream of UTF-8 bytes, one line each."""

    def __init__(self, texts: Iterator[str]) -> None:
        self._texts = texts

    def read(self, _size: int) -> bytes:
        for text in self._texts:
            return (text.rstrip("\n") + "\n").encode("utf-8", "replace")
        return b""


def encoding_of(head: bytes) -> str:
    """Python's name of the encoding that ``head``, the first bytes of a log, is written in."""
    for mark, name in ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")):
        if head.startswith(mark):
            return name
    even, odd = head[0:4096:2].count(b"\0"), head[1:4096:2].count(b"\0")
    pairs = max(1, len(head[:4096]) // 2)
    if max(even, odd) > 0.6 * pairs and min(even, odd) < 0.1 * pairs:
        return "utf-16-le" if odd > even else "utf-16-be"
    return "utf-8-sig"


def _numbered(stream: BinaryIO) -> Iterator[Tuple[int, str]]:
    """(line number, text) of ``stream``; texts end at a line feed or a lone carriage return and are at most JSON_LIMIT long."""
    head = stream.read(CHUNK)
    while 0 < len(head) < 64:
        more = stream.read(CHUNK)
        if not more:
            break
        head += more
    decoder = codecs.getincrementaldecoder(encoding_of(head))("replace")
    number, rest, chunk = 1, "", head
    while chunk:
        # NULs are left of UTF-16 that a shell appended to another encoding
        rest += decoder.decode(chunk).replace("\0", "")
        *whole, rest = rest.split("\n")
        for text in whole:
            if "\r" in text:
                for part in text.split("\r"):
                    yield number, part
            else:
                yield number, text
            number += 1
        if len(rest) > JSON_LIMIT:
            yield number, rest
            rest = rest[-OVERLAP:]
        chunk = stream.read(CHUNK)
    for part in (rest + decoder.decode(b"", True)).split("\r"):
        yield number, part


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9]|[@-Z\\-_=>])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufeff\u200b]+")
QUOTES = str.maketrans("\u2018\u2019\u201c\u201d\u00b4\u00a0", "''\"\"' ")

PARTS = ("stdout p ", "stderr p ")
"""Marks, in lower case, of a part of a line that a container runtime split."""
VERBOSE = ("[V] [TRT] ", "[TRT] [V] ", "[TensorRT] VERBOSE: ", "VERBOSE: [TRT]")
"""Marks of TensorRT's own account of a build: what it tried and left, which is no failure however it is worded."""

_STAMP = r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
_WORDS = r"(?!(?:error|warning|info|name|gpu|failed|passed|total|line)[ \]])"  # no names of containers
_PREFIX = re.compile(
    "|".join(
        (
            r"\s*" + _STAMP + r"(?: \d\d[OE][ +]?)?(?: (?:stdout|stderr) (?P<part>[PF]) )?\s?",  # GitHub, GitLab, docker logs -t, CRI
            r"section_(?:start|end):\d+:[\w.\[\]=,-]+",
            r"\[pod/(?P<pod>[\w./-]+)\] ",
            r"(?P<compose>" + _WORDS + r"[a-z0-9][\w.-]{0,63}) {1,40}\| ?",  # docker compose logs
            r"\[(?P<name>" + _WORDS + r"[a-z][a-z0-9_.+-]{0,40}\d[a-z0-9_.+-]{0,20})\] ",  # ROS launch, parallel steps
            r" {2}(?P<target>[\w.-]+ [\w.+-]+): (?=\[(?:verbose|info|warning|error)\] )",  # enginefarm build -v
            r"\[ {0,6}\d{1,7}\.\d{2,6}\] (?=\w)",  # dmesg
            r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ (?=[\w.@/-]+(?:\[\d+\])?: )",  # syslog
        )
    )
)
_RECORD = re.compile(
    r"\s*(?:\[\d\d/\d\d/\d{4}-|\[?(?:TRT|TensorRT)\b|\[[A-Z!]\]|(?:ERROR|WARNING|WARN|INFO|DEBUG|FATAL|VERBOSE|CRITICAL)\b"
    r"|[EWIF]\d{4} |\d{4}-\d\d-\d\d|\d{1,2}: \[|Traceback|#\d+ |##\[|::\w+|\$ |\w+Error: |docker: |&&&& )"
)
# two records on one line: a message's end directly followed by TensorRT's own beginning of the next
_GLUED = re.compile(r"(?<=[.)\]])(?=\d{1,2}: \[\w+\.(?:cpp|cu|h)::)|(?<=[.)\]\w])(?=\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[[A-Z]\])")


def _records(text: str) -> Iterator[str]:
    """The records of a line."""
    start = 0
    if "::" in text or "] [" in text:
        for match in _GLUED.finditer(text):  # re.split takes no empty matches before Python 3.7
            yield text[start : match.start()]
            start = match.start()
    yield text[start:]


def _unwrapped(text: str) -> Iterator[Tuple[str, str, bool]]:
    """(source, text, whether the text is complete) without escape codes, timestamps and container names; JSON lines as their messages."""
    source, text, whole = _without_prefixes(_CONTROL.sub("", _ANSI.sub("", text)))
    told = _from_json(text) if text[:1] == "{" and len(text) < JSON_LIMIT else None
    if told is not None:
        named, messages = told
        for line in "\n".join(messages).split("\n"):
            yield source or named, line, True
        return
    for start in range(0, max(1, len(text)), PIECE - OVERLAP):
        yield source, text[start : start + PIECE], whole
        if start + PIECE >= len(text):
            return


def _without_prefixes(text: str) -> Tuple[str, str, bool]:
    """(source, text, whether it is complete) of a line: containers, CI and loggers put up to four prefixes before a message."""
    source, position, whole = "", 0, True
    for _round in range(4):
        match = _PREFIX.match(text, position)
        if match is None or match.end() == position:
            break
        names = match.groupdict()
        whole = names.pop("part", None) != "P"
        source = source or next((name for name in names.values() if name), "")
        position = match.end()
    return source, text[position:], whole


_MESSAGE = (
    "log",
    "message",
    "msg",
    "text",
    "line",
    "error",
    "exception",
    "stderr",
    "stdout",
    "detail",
    "why",
    "what",
    "problem",
    "reason",
    "errorDetail",
)
_SOURCE = ("target", "container_name", "container", "pod", "service", "runner", "job")


def _from_json(text: str) -> Optional[Tuple[str, List[str]]]:
    """(source, messages) of a JSON line, or None when it is no JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    named = next((value[key] for key in _SOURCE if isinstance(value.get(key), str)), "")
    messages = []  # type: List[str]
    code = value.get("code")
    if isinstance(code, str) and re.match(r"EF\d{3}$", code):
        messages.append("error[" + code + "]")  # an event of enginefarm
    for key in _MESSAGE:
        _strings(value.get(key), messages, 4)
    return named, messages or [text]


def _strings(value: Any, found: List[str], depth: int) -> None:
    """Append the texts inside ``value``."""
    if isinstance(value, str):
        found.append(_ANSI.sub("", value))
    elif depth and isinstance(value, dict):
        for item in value.values():
            _strings(item, found, depth - 1)
    elif depth and isinstance(value, list):
        for item in value[:1000]:
            _strings(item, found, depth - 1)
