"""The file of the history: SQLite, its schema and its migrations; a file that cannot be used is set aside, never in anybody's way."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_BUSY_SECONDS = 5.0
_OTHERS_SECONDS = 2.0  # as long as another process may take to set the same file aside

# one script per schema version; a new file runs them all, so every migration is what every file went through
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE runs (
            number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, folder TEXT NOT NULL, command TEXT NOT NULL,
            started_at REAL NOT NULL, finished_at REAL, seconds REAL, exit_code INTEGER, counts TEXT, pid INTEGER, host TEXT)""",
        """CREATE TABLE builds (
            number INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs (number), model TEXT NOT NULL, target TEXT NOT NULL,
            status TEXT NOT NULL, detail TEXT NOT NULL, cached INTEGER NOT NULL, seconds REAL NOT NULL, size_bytes INTEGER, problem TEXT,
            ended_at REAL NOT NULL)""",
    ),
    (
        "ALTER TABLE runs ADD COLUMN pending TEXT",
        "ALTER TABLE builds ADD COLUMN model_version INTEGER",
        "ALTER TABLE builds ADD COLUMN runner TEXT",
        "ALTER TABLE builds ADD COLUMN build_seconds REAL",
        "ALTER TABLE builds ADD COLUMN validate_seconds REAL",
        "CREATE INDEX builds_by_pair ON builds (model, target, number)",
        "CREATE INDEX builds_by_target ON builds (target, number)",
        "CREATE INDEX builds_by_run ON builds (run)",
    ),
)
SCHEMA_VERSION = len(MIGRATIONS)
# read when a file is opened: a file that lacks one of these is not ours
RUN_COLUMNS = "id, folder, command, started_at, finished_at, seconds, exit_code, counts, pid, host, pending"
BUILD_COLUMNS = (
    "model, model_version, target, status, detail, cached, seconds, build_seconds, validate_seconds, runner, size_bytes, problem, ended_at"
)


class Unusable(Exception):  # noqa: N818  (a state of a file, told in words of its own)
    """The file is no history that this version can use; ``state`` is ``damaged`` or ``newer``."""

    def __init__(self, state: str, why: str) -> None:
        super().__init__(why)
        self.state = state


class Database:
    """An open history. While it is open a shared lock on ``history.lock`` says so: a file is only set aside when nobody uses it,
    because SQLite removes its side files by name."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, made and migrated as needed. Raises Unusable, sqlite3.OperationalError and OSError."""
        self.path = path
        self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            self.connection = _connect(path)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.connection.close()
        with suppress(OSError):
            os.close(self._lock)


def set_aside(path: Path) -> Path | None:
    """Rename a history that cannot be used; returns its new name, or None when another process was faster.

    Raises BlockingIOError when another process has it open.
    """
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _alone(lock)
        state = _fault(path)
        if state is None:
            return None
        aside = _free_name(path, state)
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
        return aside
    finally:
        os.close(lock)


def _alone(lock: int) -> None:
    deadline = time.monotonic() + _OTHERS_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _fault(path: Path) -> str | None:
    """``damaged``, ``newer``, or None for a sound file; reads all of it."""
    try:
        connection = _connect(path)
    except Unusable as error:
        return error.state
    try:
        return None if connection.execute("PRAGMA quick_check(1)").fetchone() == ("ok",) else "damaged"
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return "damaged"
    finally:
        connection.close()


def _free_name(path: Path, state: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    names = (path.with_name(f"{path.stem}.{state}-{stamp}{f'-{number}' if number else ''}{path.suffix}") for number in range(1000))
    return next(name for name in names if not name.exists())


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        # a stranger's file, or a newer one, is not touched; tables first: another process may be making ours, with the version, at once
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,) and _version(connection) == 0:
            raise Unusable("damaged", "it holds something else")
        _patiently(lambda: _write_ahead(connection))
        # a kill loses nothing that was committed; a power cut may lose the last transactions, never the file
        connection.execute("PRAGMA synchronous=NORMAL")
        _migrate(connection)
        connection.execute(f"SELECT {RUN_COLUMNS} FROM runs LIMIT 1").fetchone()  # noqa: S608  (our own column names)
        connection.execute(f"SELECT {BUILD_COLUMNS} FROM builds LIMIT 1").fetchone()  # noqa: S608
    except Unusable:
        connection.close()
        raise
    except sqlite3.DatabaseError as error:
        connection.close()
        if not isinstance(error, sqlite3.OperationalError) or "no such" in str(error) or "already exists" in str(error):
            raise Unusable("damaged", str(error)) from error
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Readers and one writer at a time do not wait for each other. File systems that cannot do it keep SQLite's default."""
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        connection.execute("PRAGMA journal_mode=WAL")


def _migrate(connection: sqlite3.Connection) -> None:
    if _version(connection) == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # another process may have migrated it while this one waited
        for version in range(_version(connection), SCHEMA_VERSION):
            for statement in MIGRATIONS[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={version + 1}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise Unusable("newer", f"its schema is version {version}, this enginefarm knows {SCHEMA_VERSION}")
    return version


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
