"""YAML with positions: every key and value knows its line, column, raw text and whether it was quoted.

Reads libyaml's event stream with a stack of its own, so that neither deep nesting nor aliases of aliases cost
more than the limits below. All problems of a file are collected; a tab in the indentation is named on each of its lines.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import CONFIG_SYNTAX, CONFIG_TRAP, EnginefarmError, Where
from orchestrator.matrix import yaml_syntax

MAX_BYTES = 1 << 20
MAX_NESTING = 20
MAX_NODES = 20_000
MAX_ALIASES = 64
EMPTY = "the file is empty"

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Scalar:
    """``text`` is what was written, without quotes; ``plain`` is False for quoted and block text."""

    text: str
    plain: bool
    where: Where


@dataclass(frozen=True)
class Sequence:
    items: tuple[Node, ...]
    where: Where


@dataclass(frozen=True)
class Mapping:
    """Keys in the order of the file; ``keys`` holds the same names with their positions."""

    entries: dict[str, Node]
    keys: dict[str, Scalar]
    where: Where


Node = Scalar | Sequence | Mapping


@dataclass
class Document:
    """What could be read: ``root`` is None when nothing could, ``problems`` says why; ``empty`` when there is nothing but comments,
    which is a problem too, unless the reader of the file takes it for one that sets nothing."""

    root: Mapping | None
    problems: list[EnginefarmError]
    empty: bool = False


def display(path: Path) -> str:
    """A path as people want to see it: relative below the current folder, absolute elsewhere."""
    here, text = os.getcwd(), str(path)  # noqa: PTH109  (called for every file of a matrix, some of them often)
    if text == here:
        return "."
    return text.removeprefix(here if here.endswith(os.sep) else here + os.sep)


def read_file(path: Path) -> Document:
    """Read one file of at most 1 MiB. Never raises for what is in the file, or for a file that cannot be read."""
    name = display(path)
    try:
        if not path.is_file():
            what = f"{name} is not a file" if path.exists() else f"{name} does not exist"
            return Document(None, [EnginefarmError(CONFIG_SYNTAX, what, where=Where(file=name), fix="check the path")])
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return Document(None, [EnginefarmError(CONFIG_SYNTAX, f"{name} cannot be read: {error.strerror}", where=Where(file=name))])
    return read_bytes(raw, name)


def read_bytes(raw: bytes, name: str) -> Document:
    """Read the bytes of a file called ``name``."""
    if len(raw) > MAX_BYTES:
        why = f"it has more than {MAX_BYTES} bytes"
        return Document(
            None, [EnginefarmError(CONFIG_SYNTAX, f"{name} is too large for a configuration file", where=Where(file=name), why=why)]
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return Document(
            None,
            [
                EnginefarmError(
                    CONFIG_SYNTAX,
                    f"{name} is not UTF-8 text",
                    where=Where(file=name, line=line),
                    why=f"byte 0x{raw[error.start]:02x} at offset {error.start} cannot be decoded",
                    fix="save the file as UTF-8",
                )
            ],
        )
    return read_text(text, name)


def read_text(text: str, name: str) -> Document:
    """Read YAML text; positions name the file ``name``."""
    reader = _Reader(name)
    try:
        reader.feed(text)
    except yaml.YAMLError as error:
        tabs = yaml_syntax.tabs(text, name)
        if not tabs:
            reader.problems.append(yaml_syntax.explain(error, text, name))
            return Document(None, reader.problems)
        return _past_tabs(text, name, tabs)
    except _StopReading:
        return Document(None, reader.problems)
    root = reader.finish()
    return Document(root, reader.problems, empty=reader.empty and len(reader.problems) == 1)


def _past_tabs(text: str, name: str, tabs: list[EnginefarmError]) -> Document:
    """Report the tabs and read on as if each were two spaces, or none; columns count the file's own characters."""
    for spaces in ("  ", ""):
        lines = text.splitlines(keepends=True)
        shift = {}
        for number, line in enumerate(lines):
            lead = yaml_syntax.indentation(line)
            if "\t" in lead:
                shift[number] = lead.count("\t") * (len(spaces) - 1)
                lines[number] = lead.replace("\t", spaces) + line[len(lead) :]
        reader = _Reader(name, shift)
        try:
            reader.feed("".join(lines))
        except (yaml.YAMLError, _StopReading):
            continue
        return Document(reader.finish(), tabs + reader.problems)
    return Document(None, tabs)


class _StopReading(Exception):  # noqa: N818  (control flow inside this module, never an error of ours)
    """A limit was passed: the problem is recorded, the rest of the file is not looked at."""


@dataclass
class _Open:
    """A collection that is being read."""

    is_mapping: bool
    where: Where
    anchor: str | None
    items: list[Node] = field(default_factory=list)
    entries: dict[str, Node] = field(default_factory=dict)
    keys: dict[str, Scalar] = field(default_factory=dict)
    pending: Scalar | None = None
    skip_value: bool = False
    expects_key: bool = True
    size: int = 1


class _Reader:
    def __init__(self, name: str, shift: dict[int, int] | None = None) -> None:
        self.name = name
        self.shift = shift or {}
        self.problems: list[EnginefarmError] = []
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Node | None, int]] = {}
        self.root: Node | None = None
        self.documents = 0
        self.nodes = 0
        self.aliases = 0

    def feed(self, text: str) -> None:
        for event in yaml.parse(text, Loader=_LOADER):
            self._event(event)

    @property
    def empty(self) -> bool:
        return self.root is None or (isinstance(self.root, Scalar) and self.root.plain and not self.root.text)

    def finish(self) -> Mapping | None:
        if isinstance(self.root, Mapping):
            return self.root
        if self.empty:
            fix = "write lines of the form name: value, or remove the file"
            self.problems.append(EnginefarmError(CONFIG_SYNTAX, EMPTY, where=Where(file=self.name, line=1, column=1), fix=fix))
        elif self.root is not None:
            kind = "a list" if isinstance(self.root, Sequence) else f'the text "{yaml_syntax.short(self.root.text)}"'
            self.problems.append(
                EnginefarmError(
                    CONFIG_SYNTAX, f"the file holds {kind}", where=self.root.where, why="it must hold lines of the form name: value"
                )
            )
        return None

    def _where(self, event: Any) -> Where:
        line, column = event.start_mark.line, event.start_mark.column
        return Where(file=self.name, line=line + 1, column=column + 1 - self.shift.get(line, 0))

    def _stop(self, what: str, where: Where, why: str) -> None:
        self.problems.append(EnginefarmError(CONFIG_SYNTAX, what, where=where, why=why))
        raise _StopReading

    def _event(self, event: Any) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                self._stop("a second document starts here", self._where(event), "--- may stand only once, at the top")
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._open(event)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._close()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.ScalarEvent):
            where = self._where(event)
            self._refuse_tag(event, where)
            node = Scalar(event.value, not event.style, where)
            if event.anchor:
                self.anchors[event.anchor] = (node, 1)
            self._count(1, where)
            self._add(node, 1)

    def _refuse_tag(self, event: Any, where: Where) -> None:
        if event.tag is not None:
            self.problems.append(
                EnginefarmError(
                    CONFIG_SYNTAX,
                    f"the YAML tag {yaml_syntax.short(event.tag)} is not used here",
                    where=where,
                    fix="write the value without a tag",
                )
            )

    def _open(self, event: Any) -> None:
        where = self._where(event)
        self._refuse_tag(event, where)
        self._count(1, where)
        if len(self.stack) >= MAX_NESTING:
            self._stop("the file is nested too deeply", where, f"at most {MAX_NESTING} levels are read")
        if event.anchor:
            self.anchors[event.anchor] = (None, 0)
        self.stack.append(_Open(isinstance(event, yaml.MappingStartEvent), where, event.anchor))

    def _close(self) -> None:
        done = self.stack.pop()
        node: Node = Mapping(done.entries, done.keys, done.where) if done.is_mapping else Sequence(tuple(done.items), done.where)
        if done.anchor:
            self.anchors[done.anchor] = (node, done.size)
        self._add(node, done.size)

    def _alias(self, event: Any) -> None:
        where = self._where(event)
        self.aliases += 1
        if event.anchor not in self.anchors:
            self.problems.append(
                EnginefarmError(
                    CONFIG_TRAP,
                    f"*{event.anchor} is a YAML alias, and nothing here is called &{event.anchor}",
                    where=where,
                    why="a plain text that starts with * is never a pattern to YAML",
                    fix=f'write it in quotes: "*{event.anchor}"',
                )
            )
            self._add(Scalar("*" + event.anchor, False, where), 1)
            return
        node, size = self.anchors[event.anchor]
        if node is None:
            self._stop(f"*{event.anchor} stands inside the value that it names", where, "such a value never ends")
        elif self.aliases > MAX_ALIASES:
            self._stop("the file has too many aliases", where, f"at most {MAX_ALIASES} are read")
        else:
            self._count(size, where)
            self._add(node, size)

    def _count(self, size: int, where: Where) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES:
            self._stop("the file holds too many values", where, f"at most {MAX_NODES} are read, aliases counted as what they stand for")

    def _add(self, node: Node, size: int) -> None:
        if not self.stack:
            self.root = node
            return
        parent = self.stack[-1]
        parent.size += size
        if not parent.is_mapping:
            parent.items.append(node)
        elif parent.expects_key:
            parent.expects_key = False
            self._key(parent, node)
        else:
            parent.expects_key = True
            if not parent.skip_value and parent.pending is not None:
                parent.entries[parent.pending.text] = node
                parent.keys[parent.pending.text] = parent.pending

    def _key(self, parent: _Open, node: Node) -> None:
        parent.skip_value = True
        if not isinstance(node, Scalar):
            self.problems.append(
                EnginefarmError(
                    CONFIG_SYNTAX,
                    f"a {'list' if isinstance(node, Sequence) else 'mapping'} stands where a name is needed",
                    where=node.where,
                    why="{ and [ at the start of a plain text open a collection",
                    fix="put the text in quotes",
                )
            )
        elif node.plain and node.text == "<<":
            self.problems.append(
                EnginefarmError(
                    CONFIG_SYNTAX, "merge keys (<<) are not read", where=node.where, fix="use `extends: NAME` to start from another target"
                )
            )
        elif node.text in parent.entries:
            first = parent.keys[node.text].where
            self.problems.append(
                EnginefarmError(
                    CONFIG_SYNTAX,
                    f'"{yaml_syntax.short(node.text)}" is given twice',
                    where=node.where,
                    why=f"the first is on line {first.line}; YAML would silently keep only one",
                    fix="remove one of the two lines",
                )
            )
        else:
            parent.pending, parent.skip_value = node, False
