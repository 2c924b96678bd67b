"""The store: what was made once is taken from here. See store/layout.py for the folder; nothing in it is ever needed, only saves time."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.store import blobs, locks, results
from orchestrator.store.faults import StoreUnwritable, unwritable
from orchestrator.store.layout import Layout, key_hex
from orchestrator.store.memo import Memo
from orchestrator.store.pins import BLOB, Pins

if TYPE_CHECKING:
    from orchestrator.store.sweep import Entry, Report

DEFAULT_LIMIT = 50 << 30
"""Bytes that a store may hold after a session has put something into it."""
_TOUCH_SECONDS = 3600.0


class Store:
    """Safe to use from several threads and processes. Making one touches nothing; where nothing was stored, reading finds nothing.

    Keys and digests are ``sha256:<hex>``. A session that put something removes what was least recently used when it ends, down to
    ``limit`` bytes (None: never). What goes over the whole store is in sweep.py, which most runs do not import.
    """

    def __init__(self, root: Path, *, limit: int | None = DEFAULT_LIMIT) -> None:
        self.root = root
        self.memo = Memo(root / "memo.db")
        self._limit = limit
        self._layout = Layout(root)
        self._pins = Pins(self._layout)
        self._written = False
        self._names: dict[tuple[str, str], set[str]] = {}
        self._guard = threading.Lock()

    def put(self, path: Path, *, digest: str | None = None) -> str:
        """Copy a file in; returns its digest. Given the right ``digest``, a file whose blob is there is not read.

        Raises StoreUnwritable, EnginefarmError(DIGEST_MISMATCH) when the file is not what ``digest`` says, OSError when it cannot be read.
        """
        if digest is not None:
            self._pins.add([_blob_pin(digest)])
        found = blobs.put(self._layout, path, digest)
        if digest is None:
            self._pins.add([_blob_pin(found)])
            if self._layout.blob_size(found) is None:
                # gc came between: now that it is pinned it stays
                blobs.put(self._layout, path, found)
        self._written = True
        return found

    def path(self, digest: str) -> Path | None:
        """The file of a blob, None when it is not there; its bytes are not looked at."""
        self._pins.add([_blob_pin(digest)])
        return None if self._layout.blob_size(digest) is None else self._layout.blob(digest)

    def take(self, digest: str, dest: Path) -> None:
        """Copy a blob out into the new file ``dest`` (mode 0644), hashed on the way.

        Raises BlobLost when it is missing or damaged (it is then removed), EnginefarmError(DISK) when ``dest`` cannot be written.
        """
        self._pins.add([_blob_pin(digest)])
        blobs.take(self._layout, digest, dest)

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """The value of a result; None when it is absent or damaged, or a blob that it names is missing or of another size."""
        path = self._layout.result(kind, key)
        record = results.read(path)
        if record is not None and record.known and (record.kind, record.key) == (kind, key):
            self._pins.add([f"{kind} {key_hex(key)}", *(_blob_pin(digest) for digest in record.blobs)])
            if self._is_whole(record):
                _touch(path, record.used)
                return dict(json.loads(record.value))
        self._note(kind, key, there=False)
        return None

    def is_broken(self, kind: str, key: str) -> bool:
        """Whether what lies under a key is of no use to anybody: it is damaged, or a blob that it names is not there. A result of another
        release is none of ours."""
        path = self._layout.result(kind, key)
        if not os.path.lexists(path):
            return False
        record = results.read(path)
        if record is None or (record.kind, record.key) != (kind, key):
            return os.path.lexists(path)
        return record.known and not self._is_whole(record)

    def _is_whole(self, record: results.Record) -> bool:
        return all(self._layout.blob_size(digest) == size for digest, size in record.blobs.items())

    def put_result(self, kind: str, key: str, value: Mapping[str, Any], blobs: Mapping[str, int]) -> None:
        """Put a JSON value in the place of whatever the key has. ``blobs`` are the digests that it names, with their sizes in bytes;
        ``value["what"]`` is what :meth:`ls` calls it. Raises StoreUnwritable."""
        self._pins.add([f"{kind} {key_hex(key)}", *(_blob_pin(digest) for digest in blobs)])
        results.write(self._layout, kind, key, value, blobs)
        self._written = True
        self._note(kind, key, there=True)

    def has(self, kind: str, key: str) -> bool:
        """Whether there is a result, without reading it; each folder is looked into once (see :meth:`refresh`)."""
        name = key_hex(key)
        found = self._names.get((kind, name[:2]))
        if found is None:
            found = self._look(kind, name[:2])
        return name in found

    def refresh(self) -> None:
        """Let :meth:`has` see what other processes did meanwhile."""
        with self._guard:
            self._names.clear()

    def exclusive(
        self, kind: str, key: str, *, cancel: Callable[[], bool], on_wait: Callable[[str], None]
    ) -> contextlib.AbstractContextManager[None]:
        """One maker per key: a second waits, ``on_wait`` is told once for whom, and should look again (:meth:`get`) when it is let in.

        A holder that dies lets go. Raises StoreCancelled when ``cancel`` turns true while waiting, StoreUnwritable; both on entering.
        """
        return locks.exclusive(self._layout, kind, key, cancel, on_wait)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """While it is open, no gc removes what this object has put, got or taken."""
        self._pins.begin()
        try:
            yield
        finally:
            if self._pins.end() and (self._written or self._layout.has_temporary()):
                limit = self._limit if self._written else None
                self._written = False
                from orchestrator.store import sweep

                with contextlib.suppress(StoreUnwritable), unwritable(self.root):
                    sweep.tidy(self._layout, limit)

    def ls(self) -> Iterator[Entry]:
        """All results, the most recently used first."""
        from orchestrator.store import sweep

        return iter(sweep.entries(self._layout))

    def size(self) -> int:
        """Bytes of all blobs and results."""
        from orchestrator.store import sweep

        return sweep.size(self._layout)

    def gc(self, keep: int) -> Report:
        """Remove results, the least recently used first, until at most ``keep`` bytes are left; then blobs that no result names and what
        dead processes left. What a live session uses stays. Raises StoreUnwritable."""
        from orchestrator.store import sweep

        with unwritable(self.root):
            report = sweep.gc(self._layout, keep)
        self.refresh()
        return report

    def verify(self) -> Report:
        """Read every byte; removes damaged blobs, damaged results, and results whose blobs are not whole. Raises StoreUnwritable."""
        from orchestrator.store import sweep

        with unwritable(self.root):
            report = sweep.verify(self._layout)
        self.refresh()
        return report

    def _look(self, kind: str, shard: str) -> set[str]:
        try:
            found = set(os.listdir(self._layout.result_shard(kind, shard)))  # noqa: PTH208  (gives names)
        except OSError:
            found = set()
        with self._guard:
            return self._names.setdefault((kind, shard), found)

    def _note(self, kind: str, key: str, *, there: bool) -> None:
        name = key_hex(key)
        with self._guard:
            found = self._names.get((kind, name[:2]))
            if found is not None:
                (found.add if there else found.discard)(name)


def _blob_pin(digest: str) -> str:
    return f"{BLOB} {digest[7:]}"


def _touch(path: str, used: float) -> None:
    """Note that a result is used; hardly ever more than once an hour, as writing costs more than reading. ``used`` is when it was last,
    which lies in the future when the clock was set back."""
    if not 0 <= time.time() - used < _TOUCH_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)
