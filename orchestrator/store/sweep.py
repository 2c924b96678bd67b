"""Looking through the whole store: what is in it, what may go, what is damaged."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from orchestrator.store import results
from orchestrator.store.blobs import CHUNK, open_regular
from orchestrator.store.layout import Layout, is_hex, is_kind, key_hex
from orchestrator.store.pins import BLOB, pinned, remove_left_over

_OURS = {"CACHEDIR.TAG", "gc.lock", "blobs", "results", "locks", "sessions", "tmp", ".gitignore"}
_REMOVED = "removed"


class Entry(NamedTuple):
    """A result: ``bytes`` with its blobs, which other results may name too; ``used`` is when it was used last (seconds since 1970)."""

    kind: str
    key: str
    what: str
    bytes: int
    used: float


@dataclass(frozen=True)
class Report:
    """What is left after gc or verify (``results``, ``blobs``, ``bytes``) and what happened.

    ``removed`` are the results that went, ``freed`` the bytes; ``in_use`` counts results that stayed only because a live session uses them;
    ``damaged`` and ``foreign`` are lines for people: what was damaged or missing, and what does not belong here and was left alone.
    """

    results: int = 0
    blobs: int = 0
    bytes: int = 0
    removed: tuple[Entry, ...] = ()
    freed: int = 0
    in_use: int = 0
    damaged: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Item:
    """A file with the name of a blob or a result; ``record`` is None for a blob, and for a result that cannot be read."""

    path: Path
    kind: str
    status: os.stat_result
    record: results.Record | None = None

    @property
    def regular(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)

    @property
    def pin(self) -> str:
        return f"{self.kind} {self.path.name}"


@dataclass
class _Walk:
    """Walks over the store without following links; ``foreign`` collects what is not ours."""

    layout: Layout
    foreign: list[str] = field(default_factory=list)

    def blobs(self) -> Iterator[_Item]:
        yield from self._items(self.layout.blobs, BLOB)

    def results(self, *, reading: bool = True) -> Iterator[_Item]:
        for path, status in self._children(self.layout.results):
            if is_kind(path.name) and stat.S_ISDIR(status.st_mode):
                for item in self._items(path, path.name):
                    yield _Item(item.path, item.kind, item.status, _record(item) if reading else None)
            else:
                self._foreign(path)

    def top(self) -> None:
        for path, _ in self._children(self.layout.root):
            if path.name not in _OURS and not path.name.startswith("memo.db"):
                self._foreign(path)

    def _items(self, folder: Path, kind: str) -> Iterator[_Item]:
        for shard, status in self._children(folder):
            if len(shard.name) != 2 or not stat.S_ISDIR(status.st_mode):
                self._foreign(shard)
                continue
            for path, found in self._children(shard):
                if is_hex(path.name) and path.name.startswith(shard.name) and not stat.S_ISDIR(found.st_mode):
                    yield _Item(path, kind, found)
                else:
                    self._foreign(path)

    def _children(self, folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
        try:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise NotADirectoryError
            with os.scandir(folder) as entries:
                found = list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in found:
            with contextlib.suppress(FileNotFoundError):
                yield Path(entry.path), entry.stat(follow_symlinks=False)

    def _foreign(self, path: Path) -> None:
        self.foreign.append(str(path.relative_to(self.layout.root)))


def _record(item: _Item) -> results.Record | None:
    """The result in a file, when it belongs there."""
    record = results.read(item.path) if item.regular else None
    if record is None or record.kind != item.kind or key_hex(record.key) != item.path.name:
        return None
    return record


def _entry(item: _Item, record: results.Record) -> Entry:
    return Entry(record.kind, record.key, record.what, item.status.st_size + sum(record.blobs.values()), item.status.st_mtime)


def entries(layout: Layout) -> list[Entry]:
    """All readable results, the most recently used first."""
    found = [_entry(item, item.record) for item in _Walk(layout).results() if item.record is not None]
    return sorted(found, key=lambda entry: entry.used, reverse=True)


def gc(layout: Layout, keep: int) -> Report:
    """See Store.gc. Raises OSError."""
    if not layout.root.is_dir():
        return Report()
    with layout.alone():
        return _Sweep(layout).run(keep)


def tidy(layout: Layout, limit: int | None) -> None:
    """After a session: a gc if the store is larger than ``limit`` bytes (None: never), and what killed processes left goes in any case.

    Does nothing while another process takes something or cleans up: the next session does it. Raises OSError.
    """
    with layout.alone(wait=False) as ours:
        if not ours:
            return
        pinned(layout)
        remove_left_over(layout)
        if limit is not None and size(layout) > limit:
            _Sweep(layout).run(limit)


def size(layout: Layout) -> int:
    """Bytes of all blobs and results."""
    walk = _Walk(layout)
    return sum(item.status.st_size for item in [*walk.blobs(), *walk.results(reading=False)])


class _Sweep:
    """One gc, inside ``layout.alone()``: nobody can begin to use anything meanwhile."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._used = pinned(layout)
        self._freed = remove_left_over(layout)
        walk = _Walk(layout)
        self._blobs = {item.path.name: item for item in walk.blobs() if item.regular}
        self._results = list(walk.results())
        self._names: Counter[str] = Counter()
        self._removed: list[Entry] = []
        self._in_use = 0
        self._left = 0

    def run(self, keep: int) -> Report:
        whole = [item for item in self._results if self._is_whole(item)]
        self._names.update(name for item in whole for name in _blob_names(item))
        for name in list(self._blobs):
            self._release(name)
        self._left = sum(item.status.st_size for item in [*whole, *self._blobs.values()])
        now = time.time()
        kept = []
        for item in sorted(whole, key=lambda item: item.status.st_mtime):
            if not self._goes(item, keep):
                kept.append(item)
                if item.status.st_mtime > now:
                    # from when the clock was wrong: from now on it ages like the others
                    os.utime(item.path, follow_symlinks=False)
        return Report(len(kept), len(self._blobs), self._left, tuple(self._removed), self._freed, self._in_use)

    def _is_whole(self, item: _Item) -> bool:
        """Keep a result whose blobs are all there; the others are of no use to anybody."""
        record = item.record
        if record is not None and all(self._size(digest[7:]) == size for digest, size in record.blobs.items()):
            return True
        if record is not None and (item.pin in self._used or not record.known):
            return True
        if self._layout.discard(item.path):
            self._freed += item.status.st_size
        return False

    def _size(self, name: str) -> int | None:
        return self._blobs[name].status.st_size if name in self._blobs else None

    def _goes(self, item: _Item, keep: int) -> bool:
        """Remove one result, unless there is room for it, it is in use, or it is one of a newer release."""
        record = item.record
        if record is None or self._left <= keep or not record.known:
            return False
        if item.pin in self._used:
            self._in_use += 1
            return False
        # first the result, then its blobs: a kill in between leaves no result without them
        self._layout.discard(item.path)
        self._left -= item.status.st_size
        self._freed += item.status.st_size
        self._removed.append(_entry(item, record))
        self._names.subtract(_blob_names(item))
        for name in _blob_names(item):
            self._left -= self._release(name)
        return True

    def _release(self, name: str) -> int:
        """Remove a blob when neither a result nor a session needs it; returns the bytes."""
        if name not in self._blobs or self._names[name] > 0 or f"{BLOB} {name}" in self._used:
            return 0
        item = self._blobs.pop(name)
        self._layout.discard(item.path)
        self._freed += item.status.st_size
        return item.status.st_size


def _blob_names(item: _Item) -> list[str]:
    return [digest[7:] for digest in item.record.blobs] if item.record is not None else []


def verify(layout: Layout) -> Report:
    """See Store.verify. Nothing is locked, so whatever changes meanwhile is left to its owner. Raises OSError."""
    walk = _Walk(layout)
    walk.top()
    damaged: list[str] = []
    removed: list[Entry] = []
    count: Counter[str] = Counter()
    for item in walk.blobs():
        problem = _blob_problem(item)
        if problem is None:
            count.update(blobs=1, bytes=item.status.st_size)
        elif ending := _drop(layout, item):
            damaged.append(f"blob sha256:{item.path.name} {problem}; {ending}")
            count.update(freed=item.status.st_size if ending == _REMOVED else 0)
    for item in walk.results():
        problem = _result_problem(layout, item)
        if problem is None:
            count.update(results=1, bytes=item.status.st_size)
        elif ending := _drop(layout, item):
            what = f" ({item.record.what})" if item.record is not None and item.record.what else ""
            damaged.append(f"{item.kind} sha256:{item.path.name}{what} {problem}; {ending}")
            count.update(freed=item.status.st_size if ending == _REMOVED else 0)
            removed += [_entry(item, item.record)] if item.record is not None and ending == _REMOVED else []
    return Report(
        count["results"],
        count["blobs"],
        count["bytes"],
        tuple(removed),
        count["freed"],
        damaged=tuple(damaged),
        foreign=tuple(sorted(walk.foreign)),
    )


def _blob_problem(item: _Item) -> str | None:
    if not item.regular:
        return "is no regular file"
    sha = hashlib.sha256()
    try:
        with open_regular(item.path) as file:
            while chunk := file.read(CHUNK):
                sha.update(chunk)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None if sha.hexdigest() == item.path.name else "does not hold what its name says"


def _result_problem(layout: Layout, item: _Item) -> str | None:
    if item.record is None:
        return "is damaged" if item.regular else "is no regular file"
    for digest, size in item.record.blobs.items():
        if layout.blob_size(digest) != size:
            return f"names a blob that is not there any more: {digest}"
    return None


def _drop(layout: Layout, item: _Item) -> str:
    """Remove what was found damaged; returns how that went, empty when another process removed or replaced it meanwhile."""
    try:
        if not os.path.samestat(item.path.lstat(), item.status):
            return ""
        layout.discard(item.path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"it cannot be removed: {error.strerror}"
    return _REMOVED
