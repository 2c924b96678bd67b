"""The body of a run that tests fork from a server (crash.py).

It may be told to note each point at which it changes something that outlives it, and to die by SIGKILL at one of them. A point is what
Python's audit hooks tell (sys.addaudithook), or a commit of SQLite: the production code knows nothing of it, and code that is new has its
points at once. A flush to the disk is none: a kill loses nothing that was written, so it is the same before and after.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

Point = tuple[str, int]
"""What is about to be done, and how often it was done before."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# what differs between two runs that do the same
_NAMES = (
    (r"\d{8}-\d{6}-[0-9a-f]{6}", "RUN"),
    (r"\b(?:[0-9a-f]{2}/)?[0-9a-f]{64}", "KEY"),
    (r"/(blobs|results/[a-z]+)/[0-9a-f]{2}$", r"/\1/SHARD"),
    (r"cache/tmp/\d+-[0-9a-f]+\.tmp", "cache/tmp/TMP"),
    (r"sessions/.*\.pins", "sessions/PINS"),
    (r"\.stage-\w+", ".stage"),
    (r"((?:samples|reference|runtime)-)[0-9a-f]{12}", r"\1KEY"),
    (r"taken/0/[0-9a-f]{16}", "taken/0/BLOB"),
    (r"^(tmp/(?:enginefarm-[a-z]+-)?)\w+", r"\1NAME"),
)


class Fate(NamedTuple):
    """What else is to happen to a run: a file for its points, the point at which it dies, or so many seconds later; seconds that its clock
    is wrong by."""

    record: str | None = None
    die_at: Point | None = None
    later: float = 0.0
    clock: float = 0.0


def points_in(path: Path) -> list[Point]:
    """The points of a run that noted them. Of many in a row below a run's working folders, which nobody else ever reads, one will do."""
    count: Counter[str] = Counter()
    found: list[Point] = []
    row = False
    for point in path.read_text(encoding="utf-8").splitlines():
        inside = re.search(r" tmp/|/RUN/work/", point) is not None and not point.startswith("start")
        if not (inside and row):
            found.append((point, count[point]))
        row = inside
        count[point] += 1
    return found


def _point_of(event: str, args: tuple[Any, ...]) -> str | None:
    """The name of what is about to happen; None for what changes nothing here."""
    if event == "subprocess.Popen":
        return f"start {_name(args[2]) or 'a process'}"
    name = _name(args[1] if event in ("os.rename", "os.symlink", "os.link") else args[0])
    if not name:
        return None
    if event == "open":
        return f"write {name}" if args[2] & _WRITING else None
    if event == "os.mkdir":
        # a folder is tried before those above it
        return f"make {name}" if Path(args[0]).parent.exists() and not Path(args[0]).exists() else None
    if event == "os.remove":
        # inside a removed folder it is one of many
        return f"remove {name}" if args[1] == -1 and os.path.lexists(args[0]) else None
    words = {"os.rename": "rename to", "os.symlink": "link", "os.link": "link", "os.truncate": "cut", "shutil.rmtree": "empty"}
    words |= {"tests.commit": "commit", "tests.close": "close"}
    return f"{words[event]} {name}" if event in words else None


def _name(path: object) -> str:
    """A path of this project with whatever differs between runs taken out; empty for anything else."""
    if not isinstance(path, str | os.PathLike):
        return ""
    full = os.path.abspath(os.fspath(path))  # noqa: PTH100  (links stay as they are)
    here = os.getcwd() + os.sep  # noqa: PTH109
    if not full.startswith(here) or full.endswith(" (deleted)"):
        return ""
    name = full[len(here) :]
    for pattern, put in _NAMES:
        name = re.sub(pattern, put, name)
    return name


class _Connection(sqlite3.Connection):
    """Tells the hook when it is about to commit and when it closes, which writes too."""

    def __init__(self, database: Any, *args: Any, **options: Any) -> None:
        super().__init__(database, *args, **options)
        self._named = str(database).removeprefix("file:").partition("?")[0]

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" or sql.startswith("PRAGMA journal_mode="):
            sys.audit("tests.commit", self._named)
        return super().execute(sql, *args)

    def close(self) -> None:
        sys.audit("tests.close", self._named)
        super().close()


def _die(later: float) -> None:
    def now() -> None:
        time.sleep(later)
        os.kill(os.getpid(), signal.SIGKILL)

    if later:
        threading.Thread(target=now, daemon=True).start()
    else:
        now()


def _watch(record: str | None, die_at: Point | None, later: float) -> None:
    """From here on note every point, and die at one."""
    from orchestrator.pipeline import history

    # whatever the machine's speed, a commit for each build
    history.FLUSH_SECONDS = 0.0
    seen: Counter[str] = Counter()
    guard = threading.Lock()
    busy = threading.local()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if getattr(busy, "now", False) or not event.startswith(("open", "os.", "shutil.rmtree", "subprocess.", "tests.")):
            return
        busy.now = True
        try:
            point = _point_of(event, args) if args else None
            if point is None:
                return
            with guard:
                if die_at == (point, seen[point]):
                    _die(later)
                seen[point] += 1
                if record is not None:
                    with Path(record).open("a", encoding="utf-8") as file:
                        file.write(f"{point}\n")
        finally:
            busy.now = False

    sqlite3.connect = functools.partial(sqlite3.connect, factory=_Connection)  # type: ignore[assignment]
    sys.addaudithook(hook)


def _set_clock(shift: float) -> None:
    """A clock that is wrong by some seconds; what the kernel stamps on files is right."""
    seconds, nanoseconds, broken_down = time.time, time.time_ns, time.gmtime
    time.time = lambda: seconds() + shift
    time.time_ns = lambda: nanoseconds() + int(shift * 1e9)
    time.gmtime = lambda at=None: broken_down(seconds() + shift if at is None else at)


def _command(folder: str, words: list[str], outs: tuple[str, str], environment: dict[str, str], fate: Fate) -> None:
    """The body of a forked run."""
    # what the server imported is garbage in no run
    gc.freeze()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    temporary = Path(folder, "tmp")
    temporary.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    for number, out in enumerate(outs, start=1):
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.argv = ["enginefarm", *words]
    if fate.clock:
        _set_clock(fate.clock)
    if fate.record is not None or fate.die_at is not None:
        _watch(fate.record, fate.die_at, fate.later)
    from orchestrator.cli.main import run

    run(words)


if __name__ == "forked":
    _folder, _words, _outs, _environment, _fate = globals()["JOB"]
    _command(_folder, _words, _outs, _environment, Fate(*_fate))
