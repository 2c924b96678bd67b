"""What was found out about files, for as long as they do not change: digests, and whatever else callers read out of them.

An answer is given again only while every file that it rests on has the status that it had before it was read (store/fingerprint.py). The
memo may be lost at any time: it is then made anew, one file after the other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from orchestrator.store.fingerprint import TICK_NS, fingerprint, is_settled, tick_of

if TYPE_CHECKING:
    from orchestrator.store.memo_file import MemoFile, Name, Row

_CHUNK = 1 << 20  # bytes
_TRIES = 3
_FLUSH_SECONDS = 0.25
_DIGEST = "digest"
_DIGEST_VERSION = "sha256"
_Answer = TypeVar("_Answer")


class Memo:
    """Safe to use from several threads, and from several processes with the same ``path``.

    Nothing here fails because of the memo's own file: without one every answer is found out again.

    ``hashed_bytes`` counts what :meth:`digest` had to read.
    """

    def __init__(self, path: Path) -> None:
        """``path`` is made by the first answer that is kept."""
        self.hashed_bytes = 0
        self._path = path
        self._opened = time.time_ns()
        self._guard = threading.RLock()
        self._rows: dict[Name, Row] = {}
        self._unsaved: dict[Name, Row] = {}
        self._saved_at = 0.0
        self._file: MemoFile | None = None
        self._broken = False
        self._hashing: dict[str, threading.Lock] = {}

    def get(self, kind: str, subject: str, version: str) -> Any | None:
        """The JSON value that was put, None when there is none or a file that it rests on is not as it was."""
        row = self._row((kind, subject, version))
        if row is None:
            return None
        files, value = row
        try:
            for path, *before in json.loads(files):
                if fingerprint(os.stat(path)) != tuple(before):  # noqa: PTH116  (called for every file of a plan)
                    return None
        except (OSError, ValueError):
            return None
        return json.loads(value)

    def put(
        self,
        kind: str,
        subject: str,
        version: str,
        files: Sequence[tuple[Path, os.stat_result]],
        value: Any,
        *,
        since: int | None = None,
    ) -> None:
        """Keep what was read from ``files``; each status is from before the file was read.

        ``since`` is a moment before all of them (``time.time_ns()``, or what :meth:`settle` gave), by default when this object was made.
        Nothing is kept when a file changed so shortly before that moment that its status may hide another change.
        """
        moment = self._opened if since is None else since
        if all(is_settled(status, moment) for _, status in files):
            self._keep((kind, subject, version), files, value)

    def settle(self, paths: Iterable[Path]) -> int:
        """Wait, 20 ms at most, until files that were changed just now can be told from files that change from now on.

        Returns the moment to give to :meth:`put` as ``since`` with statuses that are read after this.
        """
        for path in paths:
            with contextlib.suppress(OSError):
                _wait_out_tick(path)
        return time.time_ns()

    def digest(self, path: Path) -> str:
        """``sha256:<hex>`` of a regular file, hashed only when it changed since; constant memory. Raises OSError."""
        subject = str(path.absolute())
        found = self.get(_DIGEST, subject, _DIGEST_VERSION)
        if found is None:
            with self._guard:
                turn = self._hashing.setdefault(subject, threading.Lock())
            with turn:
                # another thread may have hashed it meanwhile
                found = self.get(_DIGEST, subject, _DIGEST_VERSION) or self._hash(path, subject)
        return str(found)

    def know(self, files: Sequence[tuple[Path, str, os.stat_result]]) -> None:
        """Keep the digests of files that this process wrote: each with its status when the last byte was in it (renamed since, it is still
        the same file with the same mtime). What was changed or is gone by now is left out."""
        since = self.settle(path for path, _, _ in files)
        for path, digest, written in files:
            with contextlib.suppress(OSError):
                status = path.stat()
                if all(getattr(status, name) == getattr(written, name) for name in ("st_dev", "st_ino", "st_size", "st_mtime_ns")):
                    self.put(_DIGEST, str(path.absolute()), _DIGEST_VERSION, [(path, status)], digest, since=since)

    def close(self) -> None:
        """Save what is not saved yet. The object can still be used; what it then keeps is saved by the next ``close``."""
        with self._guard:
            self._save()
            if self._file is not None:
                self._file.close()
                self._file = None

    def _hash(self, path: Path, subject: str) -> str:
        digest = ""
        for _ in range(_TRIES):
            with _open_regular(path) as file:
                number = file.fileno()
                _wait_out_tick(number)
                moment = time.time_ns()
                before = os.fstat(number)
                digest = self._stream(file)
                same = fingerprint(before) == fingerprint(os.fstat(number)) == fingerprint(path.stat())
            if same:
                if is_settled(before, moment):
                    self._keep((_DIGEST, subject, _DIGEST_VERSION), [(Path(subject), before)], digest)
                break
        return digest

    def _stream(self, file: BinaryIO) -> str:
        sha = hashlib.sha256()
        size = 0
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
            size += len(chunk)
        with self._guard:
            self.hashed_bytes += size
        return f"sha256:{sha.hexdigest()}"

    def _keep(self, name: Name, files: Sequence[tuple[Path, os.stat_result]], value: Any) -> None:
        named = [[str(path.absolute()), *fingerprint(status)] for path, status in files]
        row = (json.dumps(named), json.dumps(value, separators=(",", ":")))
        with self._guard:
            self._rows[name] = self._unsaved[name] = row
            if time.monotonic() - self._saved_at > _FLUSH_SECONDS:
                self._save()

    def _row(self, name: Name) -> Row | None:
        with self._guard:
            row = self._rows.get(name)
            if row is None and (self._file is not None or self._path.exists()):
                row = self._with_file(lambda file: file.find(name))
                if row is not None:
                    self._rows[name] = row
            return row

    def _save(self) -> None:
        if not self._unsaved:
            return
        rows = list(self._unsaved.items())
        self._unsaved.clear()
        self._with_file(lambda file: file.save(rows))
        self._saved_at = time.monotonic()

    def _with_file(self, action: Callable[[MemoFile], _Answer]) -> _Answer | None:
        """What ``action`` gives; None when the file cannot be used, which is not tried a second time after damage."""
        if self._broken:
            return None
        import sqlite3

        from orchestrator.store.memo_file import MemoFile, is_damage, set_aside

        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = MemoFile(self._path)
            return action(self._file)
        except sqlite3.Error as error:
            if self._file is None or is_damage(error):
                self._broken = True
            if self._file is not None and is_damage(error):
                self._file.close()
                self._file = None
                with contextlib.suppress(OSError):
                    self._broken = not set_aside(self._path)
        except OSError:
            self._broken = True
        return None


@contextlib.contextmanager
def _open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file; OSError for anything else: a pipe would wait for a writer for ever."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from error  # a NUL in the name
    with os.fdopen(handle, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        yield file


def _wait_out_tick(file: Path | int) -> None:
    """Sleep once when a file changed within the last tick; not for the long ticks of coarse file systems."""
    now = time.time_ns()
    found = os.stat(file)  # noqa: PTH116  (of an open file too)
    newest = max(found.st_ctime_ns, min(found.st_mtime_ns, now))
    if tick_of(found, now) == TICK_NS and now - TICK_NS <= newest <= now + TICK_NS:
        time.sleep((newest - now + TICK_NS) / 1e9 + 0.001)
