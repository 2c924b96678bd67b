"""The file of the memo: SQLite in write-ahead mode. One that cannot be used is set aside; nothing in it is worth an error."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

SCHEMA_VERSION = 1
KEPT_ROWS = 200_000
_BUSY_SECONDS = 5.0
_ALONE_SECONDS = 1.0
_TABLE = """CREATE TABLE memo (
    kind TEXT NOT NULL, subject TEXT NOT NULL, version TEXT NOT NULL, files TEXT NOT NULL, value TEXT NOT NULL, crc INTEGER NOT NULL,
    UNIQUE (kind, subject, version))"""
_FIND = "SELECT files, value, crc FROM memo WHERE kind = ? AND subject = ? AND version = ?"
_SAVE = "INSERT OR REPLACE INTO memo (kind, subject, version, files, value, crc) VALUES (?, ?, ?, ?, ?, ?)"
# a replaced row gets a new number, so the lowest numbers are those that were written longest ago
_TRIM = "DELETE FROM memo WHERE rowid <= (SELECT max(rowid) FROM memo) - ?"

Name = tuple[str, str, str]  # kind, subject, version
Row = tuple[str, str]  # files, value: both JSON


class _Unusable(Exception):  # noqa: N818  (a state of a file)
    """Damaged, or of a newer schema."""


class MemoFile:
    """An open memo; not safe for use from several threads at once. Every method may raise sqlite3.Error.

    While it is open a shared lock on ``<path>.lock`` says so: a file is only set aside when nobody uses it, because SQLite removes its side
    files by name.
    """

    def __init__(self, path: Path) -> None:
        """Open or make ``path``. Raises sqlite3.Error and OSError when there is no way to use it now."""
        self._lock: int | None = None
        try:
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            # a cache that may only be read
            self._connection = _connect(path, "ro")
            return
        try:
            self._connection = _usable(path, self._lock)
        except BaseException:
            os.close(self._lock)
            raise

    def find(self, name: Name) -> Row | None:
        found = self._connection.execute(_FIND, _bound(name)).fetchone()
        if found is None:
            return None
        files, value, crc = found
        # SQLite does not notice when a disk changes a byte inside a row
        return (files, value) if _crc(name, (files, value)) == crc else None

    def save(self, rows: Iterable[tuple[Name, Row]]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(_SAVE, [(*_bound(name), *row, _crc(name, row)) for name, row in rows])
            connection.execute(_TRIM, (KEPT_ROWS,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _bound(name: Name) -> tuple[str, str | bytes, str]:
    """For SQLite, whose text is UTF-8, which names of files need not be."""
    kind, subject, version = name
    return (kind, subject if subject.isascii() else subject.encode("utf-8", "surrogatepass"), version)


def _crc(name: Name, row: Row) -> int:
    return zlib.crc32("\0".join((*name, *row)).encode("utf-8", "surrogatepass"))


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is at fault, not its surroundings (a full disk, a busy file)."""
    if isinstance(error, sqlite3.OperationalError):
        return "no such" in str(error) or "has no column" in str(error)
    return isinstance(error, sqlite3.DatabaseError)


def set_aside(path: Path) -> bool:
    """Set a damaged file aside; False when another process has it open."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not _alone(lock):
            return False
        _rename(path)
        return True
    finally:
        os.close(lock)


def _usable(path: Path, lock: int) -> sqlite3.Connection:
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        return _connect(path, "rwc")
    except _Unusable as error:
        if not _alone(lock):
            raise sqlite3.OperationalError(f"the memo is in use and {error}") from error
    try:
        # another process may have set it aside while this one waited
        return _connect(path, "rwc")
    except _Unusable:
        _rename(path)
        return _connect(path, "rwc")
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)


def _alone(lock: int) -> bool:
    deadline = time.monotonic() + _ALONE_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        else:
            return True
        time.sleep(0.02)


def _rename(path: Path) -> None:
    """One file is kept for whoever wants to know; the next one replaces it."""
    for suffix in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").replace(f"{path}.unusable{suffix}")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    where = f"file:{quote(str(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(where, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        if mode != "ro":
            _patiently(lambda: _write_ahead(connection))
            # a power cut may lose the newest rows, never the file
            connection.execute("PRAGMA synchronous=NORMAL")
            _make(connection)
        if _version(connection) != SCHEMA_VERSION:
            raise _Unusable("of another schema")
        connection.execute(_FIND, ("", "", "")).fetchone()
    except sqlite3.Error as error:
        connection.close()
        if is_damage(error):
            raise _Unusable("damaged") from error
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


def _make(connection: sqlite3.Connection) -> None:
    if _version(connection) != 0:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # another process may have made it while this one waited
        if _version(connection) == 0:
            connection.execute(_TABLE)
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Readers and one writer at a time do not wait for each other. File systems that cannot do it keep SQLite's default."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode=WAL")


def _patiently(action: Callable[[], None]) -> None:
    """SQLite does not wait by itself when several processes switch a new file to write-ahead logging."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
