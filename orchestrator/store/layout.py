"""The folder of the store, and how files come into it.

::

    CACHEDIR.TAG                     backup tools leave the folder out
    memo.db                          store/memo.py
    gc.lock                          held by gc alone while it removes, shared by everybody for a moment (see Layout.shared)
    blobs/<aa>/<sha256>              content, read-only
    results/<kind>/<aa>/<sha256>     results by key (store/results.py)
    locks/<sha256>.lock              one maker per key (store/locks.py)
    sessions/*.pins                  what live sessions use (store/pins.py)
    tmp/*.tmp                        files in the making, locked by whoever makes them

Only names of this shape are ever removed, and no link in the folder is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.store.faults import unwritable

# https://bford.info/cachedir/
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of enginefarm: enginefarm cache gc empties it.\n"
_HEX = re.compile(r"[0-9a-f]{64}")
_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")


def blob_hex(digest: str) -> str:
    """The hex part of ``sha256:<hex>``; ValueError for anything else."""
    if not digest.startswith("sha256:") or not _HEX.fullmatch(digest, 7):
        raise ValueError(f"{digest!r} is not a sha256 digest")
    return digest[7:]


def key_hex(key: str) -> str:
    """A key as a file name: its own hex for ``sha256:<hex>``, else a hash of it."""
    if key.startswith("sha256:") and _HEX.fullmatch(key, 7):
        return key[7:]
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def is_hex(name: str) -> bool:
    return _HEX.fullmatch(name) is not None


def is_kind(name: str) -> bool:
    return _KIND.fullmatch(name) is not None


def is_folder(path: Path) -> bool:
    """Whether a real folder is there, no link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


class Layout:
    """Paths of the store at ``root``; nothing is made before something is written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.blobs = root / "blobs"
        self.results = root / "results"
        self.locks = root / "locks"
        self.sessions = root / "sessions"
        self.tmp = root / "tmp"
        self._blobs = f"{self.blobs}{os.sep}"
        self._results = f"{self.results}{os.sep}"
        self._mutex = threading.Lock()
        self._gc_lock: int | None = None

    def __del__(self) -> None:
        if self._gc_lock is not None:
            os.close(self._gc_lock)

    def blob(self, digest: str) -> Path:
        name = blob_hex(digest)
        return self.blobs / name[:2] / name

    def result_shard(self, kind: str, shard: str) -> str:
        """The folder of results whose key begins with ``shard``; a plain string, as plans ask for thousands. ValueError for a bad kind."""
        if not is_kind(kind):
            raise ValueError(f"{kind!r} is not a kind of result")
        return f"{self._results}{kind}{os.sep}{shard}"

    def result(self, kind: str, key: str) -> str:
        """The file of a result."""
        name = key_hex(key)
        return f"{self.result_shard(kind, name[:2])}{os.sep}{name}"

    def blob_size(self, digest: str) -> int | None:
        """Size in bytes of a blob; None when it is not there as a regular file in a real folder."""
        name = blob_hex(digest)
        shard = self._blobs + name[:2]
        try:
            if not stat.S_ISDIR(os.lstat(shard).st_mode):
                return None
            status = os.lstat(f"{shard}{os.sep}{name}")
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def has_temporary(self) -> bool:
        """Whether a temporary file is there: of a process that writes now, or of one that was killed."""
        try:
            with os.scandir(self.tmp) as entries:
                return next(entries, None) is not None
        except OSError:
            return False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """While gc is not removing. Whoever takes something notes it inside this, and only then looks whether it is there: gc reads the
        notes and removes in one go (:meth:`alone`), so it comes wholly before or wholly after. Held for moments, never nested.

        Where nothing can be locked (a folder that may only be read) this is no lock: what is removed too early is made again.
        """
        with self._mutex:
            locked = self._try_lock()
            try:
                yield
            finally:
                if locked and self._gc_lock is not None:
                    fcntl.flock(self._gc_lock, fcntl.LOCK_UN)

    def _try_lock(self) -> bool:
        try:
            if self._gc_lock is None:
                self._gc_lock = self._open_gc_lock()
            fcntl.flock(self._gc_lock, fcntl.LOCK_SH)
        except OSError:
            return False
        return True

    def _open_gc_lock(self) -> int:
        return os.open(self.root / "gc.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    @contextlib.contextmanager
    def alone(self, *, wait: bool = True) -> Iterator[bool]:
        """While nobody takes anything new; gives False when another gc is at it and this one should not ``wait``. Raises OSError."""
        handle = self._open_gc_lock()
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(handle)

    def make(self) -> None:
        """Make the root. Raises OSError."""
        tag = self.root / "CACHEDIR.TAG"
        if not tag.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError), tag.open("xb") as file:
                file.write(_TAG)

    def make_folder(self, folder: Path) -> None:
        """Make a folder below the root. Raises OSError, also for a link that lies in its place."""
        self.make()
        missing = [folder, *(parent for parent in folder.parents if self.root in parent.parents)]
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
            if not is_folder(path):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))

    @contextlib.contextmanager
    def new_file(self) -> Iterator[tuple[BinaryIO, Path]]:
        """A temporary file; it is gone afterwards, unless it was renamed. gc removes it when this process dies.

        Raises StoreUnwritable when it cannot be made.
        """
        path = self.tmp / f"{os.getpid()}-{secrets.token_hex(6)}.tmp"
        with unwritable(self.root):
            self.make_folder(self.tmp)
            # gc must not see the file before its lock
            with self.shared():
                file = path.open("xb")
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        try:
            yield file, path
        finally:
            # a buffer that does not fit on the disk is of no use any more
            for end in (file.close, path.unlink):
                with contextlib.suppress(OSError):
                    end()

    def discard(self, path: Path) -> bool:
        """Take a file, link or whatever lies there out of the store at once; False when it is gone already. Raises OSError."""
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                return False
            path.unlink()
        except FileNotFoundError:
            return False
        return True
