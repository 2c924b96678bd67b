"""What live sessions use: a file per session, locked while it lives, that gc reads before it removes anything."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.store.layout import Layout

BLOB = "@"  # no kind of result
_SUFFIX = ".pins"


class Pins:
    """The pins of one session; safe to use from several threads. A name is ``@ <hex>`` for a blob, ``<kind> <hex>`` for a result."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._names: set[str] = set()
        self._open = 0
        self._file: int | None = None
        self._path: Path | None = None
        self._guard = threading.Lock()

    def begin(self) -> None:
        with self._guard:
            self._open += 1

    def end(self) -> bool:
        """Let everything go with the last of the sessions that were begun; whether this was the last."""
        with self._guard:
            self._open -= 1
            if self._open:
                return False
            self._names.clear()
            if self._path is not None:
                with contextlib.suppress(OSError):
                    self._path.unlink()
            if self._file is not None:
                os.close(self._file)
            self._file = self._path = None
            return True

    def add(self, names: Iterable[str]) -> None:
        """Pin before looking whether it is there. Never fails: without a pin, what gc removes is found missing and made again."""
        if not self._open:
            return
        with self._guard:
            fresh = [name for name in names if name not in self._names]
            if not fresh or not self._open:
                return
            with contextlib.suppress(OSError), self._layout.shared():
                if self._file is None:
                    self._file = self._new_file()
                os.write(self._file, "".join(f"{name}\n" for name in fresh).encode())
                self._names.update(fresh)

    def _new_file(self) -> int:
        self._layout.make_folder(self._layout.sessions)
        self._path = self._layout.sessions / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file


def pinned(layout: Layout) -> set[str]:
    """What live sessions use; removes what dead ones left. Only inside ``layout.alone()``."""
    names: set[str] = set()
    for path in _files(layout.sessions, _SUFFIX):
        with contextlib.suppress(FileNotFoundError):
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(file, "r", encoding="ascii", errors="replace") as lines:
                if is_free(file):
                    path.unlink()
                else:
                    names.update(line.rstrip("\n") for line in lines)
    return names


def remove_left_over(layout: Layout) -> int:
    """Remove temporary files and locks of processes that are gone; returns their bytes. Only inside ``layout.alone()``."""
    freed = 0
    for path in [*_files(layout.tmp, ".tmp"), *_files(layout.locks, ".lock")]:
        with contextlib.suppress(FileNotFoundError):
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if is_free(file):
                    freed += os.fstat(file).st_size
                    path.unlink()
            finally:
                os.close(file)
    return freed


def is_free(file: int) -> bool:
    """Whether nobody holds a lock on an open file; if so it is locked now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)
