"""What was built, when, how it ended and how long it took: a row per run and per build, in SQLite (``<state>/history.db``).

It outlives the run folders, tells how long a build will take and what failed last. Nothing depends on it: a history that cannot be written
or read costs a note, never a build.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from orchestrator import events
from orchestrator.errors import HISTORY, EnginefarmError
from orchestrator.pipeline.history_db import BUILD_COLUMNS, RUN_COLUMNS, Database, Unusable, set_aside
from orchestrator.pipeline.history_rows import WORKED, BuildRow, RunRow, build_row, run_row

FILE_NAME = "history.db"
FLUSH_SECONDS = 1.0
"""What a kill may cost: the builds that ended in this last while. Failed ones are written at once."""
MEDIAN_OF = 5
KEPT_IDLE = 50_000
"""Rows of builds that did no work (reused, skipped) that are kept, beside the newest of each pair; rows of work are kept for good."""

Pair = tuple[str, str]
"""(model, target)"""
Times = dict[Any, list[float]]
_ENDED = "SELECT model, target, status FROM builds WHERE run = ?"
_OF_BUILDS = ", ".join(f"builds.{column}" for column in BUILD_COLUMNS.split(", "))


class History:
    """Subscriber of the bus that writes the rows, and the questions that a plan and the commands have.

    ``say`` gets notes for people, in the thread of the caller; ``command`` is how the process was called (its arguments by default).
    ``reading`` is for commands that only look: a file that cannot be used is left where it is and raised as EnginefarmError(HISTORY), or
    noted with ``repair=False``, for those that can do without.
    """

    def __init__(
        self,
        path: Path,
        *,
        say: Callable[[str], None] | None = None,
        command: Sequence[str] | None = None,
        reading: bool = False,
        repair: bool = True,
    ) -> None:
        self.path = path
        self._reading = reading
        self._repair = repair
        self._say = say or (lambda _text: None)
        self._command = list(sys.argv[1:] if command is None else command)
        self._lock = threading.RLock()
        self._notes: list[str] = []
        self._database: Database | None = None
        self._run: int | None = None
        self._plan: dict[Pair, int | None] = {}
        self._steps: dict[Pair, dict[str, Any]] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._flushed = 0.0
        self._timer: threading.Timer | None = None
        self._medians: tuple[Times, Times] | None = None
        self._open()
        self._tell()

    # being written

    def planned(self, builds: Iterable[tuple[str, int | None, str]]) -> None:
        """(model, model version, target) of every build of the run, before or after RunStarted: what of it is lost when it is killed."""
        with self._lock:
            self._plan = {(model, target): version for model, version, target in builds}
            if self._run is not None:
                self._write_pending()

    def __call__(self, event: events.Event) -> None:
        """Never raises: from the first thing that cannot be written on, the run is not recorded any more."""
        with self._lock:
            if isinstance(event, events.BuildEvent):
                self._of_build(event)
            elif isinstance(event, events.RunStarted):
                self._started(event)
            elif isinstance(event, events.RunFinished):
                self._finished(event)
        self._tell()

    def close(self) -> None:
        """Write what is left. A run whose RunFinished never came stays unfinished: it was killed, or is about to be."""
        with self._lock:
            self._flush()
            if self._database is not None:
                self._database.close()
                self._database = None

    def _started(self, event: events.RunStarted) -> None:
        folder, state = Path(event.folder).absolute(), self.path.absolute().parent
        named = folder.relative_to(state) if folder.is_relative_to(state) else folder
        values = (event.run, str(named), json.dumps(self._command), event.at, os.getpid(), socket.gethostname(), _grouped(self._plan))
        columns = "id, folder, command, started_at, pid, host, pending"

        def insert(connection: sqlite3.Connection) -> None:
            self._run = connection.execute(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", values).lastrowid  # noqa: S608

        self._write(insert)

    def _write_pending(self) -> None:
        values = (_grouped(self._plan), self._run)
        self._write(lambda connection: connection.execute("UPDATE runs SET pending = ? WHERE number = ?", values))

    def _of_build(self, event: events.BuildEvent) -> None:
        pair = event.model, event.target
        if isinstance(event, events.StepStarted) and event.step in ("build", "validate"):
            self._steps.setdefault(pair, {}).setdefault(f"{event.step} runner", event.runner)
        elif isinstance(event, events.StepFinished) and event.step in ("build", "validate"):
            # a step that was tried again on another runner counts as the try that ended it
            self._steps.setdefault(pair, {})[event.step] = event.seconds
        elif isinstance(event, events.BuildFinished) and self._run is not None:
            steps = self._steps.pop(pair, {})
            runner = steps.get("build runner", steps.get("validate runner"))
            code = (event.problem or {}).get("code")
            outcome = (event.status, event.detail, event.cached, event.seconds, steps.get("build"), steps.get("validate"))
            self._rows.append((event.model, self._plan.get(pair), event.target, *outcome, runner, event.size_bytes, code, event.at))
            self._soon(at_once=event.status == "failed")

    def _soon(self, *, at_once: bool) -> None:
        """Write now when the last time is a while ago, else a little later: thousands of builds that were reused end at once."""
        if at_once or time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._flush()
        elif self._timer is None:
            self._timer = threading.Timer(FLUSH_SECONDS, self._flush)
            self._timer.daemon = True
            self._timer.start()

    def _flush(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            rows, self._rows = [(self._run, *row) for row in self._rows], []
            if not rows or self._run is None:
                return
            query = f"INSERT INTO builds (run, {BUILD_COLUMNS}) VALUES ({', '.join('?' * len(rows[0]))})"  # noqa: S608  (our own names)
            self._write(lambda connection: connection.executemany(query, rows))
            self._flushed = time.monotonic()

    def _finished(self, event: events.RunFinished) -> None:
        self._flush()
        pending = None
        if event.interrupted and self._run is not None:
            ended = {(model, target) for model, target, _ in self._ask(_ENDED, (self._run,))}
            # a target's name has no blanks
            stopped = self._plan or dict.fromkeys((name.rpartition(" ")[0], name.rpartition(" ")[2]) for name in event.interrupted)
            pending = _grouped(pair for pair in stopped if pair not in ended)
        values = (event.at, event.seconds, event.exit_code, json.dumps(event.counts), pending, self._run)

        def update(connection: sqlite3.Connection) -> None:
            fields = "finished_at = ?, seconds = ?, exit_code = ?, counts = ?, pending = ?, pid = NULL, host = NULL"
            connection.execute(f"UPDATE runs SET {fields} WHERE number = ?", values)  # noqa: S608
            self._forget_idle(connection)

        if self._run is not None:
            self._write(update)
        self._run = None

    def _forget_idle(self, connection: sqlite3.Connection) -> None:
        """Reused builds add rows without end and tell nothing new; looked at once in a while."""
        newest = connection.execute("SELECT max(number) FROM builds").fetchone()[0] or 0
        mine = connection.execute("SELECT count(*) FROM builds WHERE run = ?", (self._run,)).fetchone()[0]
        step = KEPT_IDLE // 2
        if (newest - mine) // step != newest // step:
            connection.execute(
                "DELETE FROM builds WHERE (cached OR status = 'skipped') AND number <= ? AND number NOT IN"
                " (SELECT max(number) FROM builds WHERE status != 'skipped' GROUP BY model, target)",
                (newest - KEPT_IDLE,),
            )

    # being asked

    def expected_seconds(self, model: str, target: str, step: Literal["build", "validate"] = "build") -> float | None:
        """Median of the last builds of this pair that did this work and gave an engine, else of the target over all models, else None.

        ``build``: a whole build with its validation; ``validate``: its validate step alone. The first call reads all that it needs.
        """
        if self._medians is None:
            self._medians = self._load_times()
        times = self._medians[step == "validate"]
        found = times.get((model, target)) or times.get(target)
        from statistics import median

        return median(found) if found else None

    def _load_times(self) -> tuple[Times, Times]:
        """The newest times by pair and by target: of whole builds, and of validate steps."""
        whole: Times = {}
        validate: Times = {}
        marks = ", ".join(f"'{status}'" for status in WORKED)
        query = f"SELECT model, target, seconds, build_seconds, validate_seconds FROM builds WHERE NOT cached AND status IN ({marks})"  # noqa: S608
        for model, target, seconds, build, validation in self._ask(f"{query} ORDER BY number DESC"):
            for key in ((model, target), target):
                # an engine that was only validated again took no build's time
                if build is not None or validation is None:
                    _add(whole, key, seconds)
                if validation is not None:
                    _add(validate, key, validation)
        return whole, validate

    def failed_last(self) -> frozenset[Pair]:
        """Pairs whose newest ended build failed, or that a run still had to do when it was interrupted or killed. A skip says nothing."""
        newest = {
            (model, target): (run, status)
            for model, target, status, run, _ in self._ask(
                "SELECT model, target, status, run, max(number) FROM builds WHERE status != 'skipped' GROUP BY model, target"
            )
        }
        found = {pair for pair, (_, status) in newest.items() if status == "failed"}
        for number, run in self._runs("WHERE pending IS NOT NULL"):
            if run.state != "running":
                found |= {pair for pair in run.pending if newest.get(pair, (0, ""))[0] < number}
        return frozenset(found)

    def runs(self, limit: int | None = None) -> list[RunRow]:
        """The newest runs, newest first."""
        return [run for _, run in self._runs("", limit)]

    def run(self, run_id: str) -> RunRow | None:
        return next((run for _, run in self._runs("WHERE id = ?", 1, (run_id,))), None)

    def _runs(self, where: str, limit: int | None = None, values: tuple[Any, ...] = ()) -> list[tuple[int, RunRow]]:
        query = f"SELECT number, {RUN_COLUMNS} FROM runs {where} ORDER BY number DESC LIMIT ?"  # noqa: S608  (our own words)
        found = self._ask(query, (*values, -1 if limit is None else limit))
        return [(number, self._so_far(number, run_row(columns, self.path.parent))) for number, *columns in found]

    def _so_far(self, number: int, run: RunRow) -> RunRow:
        """What a run that has not said how it ended came to; others as they are."""
        if run.finished_at is not None:
            return run
        ended = {(model, target): status for model, target, status in self._ask(_ENDED, (number,))}
        return replace(run, counts=dict(Counter(ended.values())), pending=tuple(pair for pair in run.pending if pair not in ended))

    def builds(self, run: str) -> list[BuildRow]:
        """All ended builds of a run, in the order in which they ended."""
        return self._builds("runs.id = ?", (run,), "builds.number")

    def of_target(self, target: str, limit: int | None = None) -> list[BuildRow]:
        """Builds of a target, newest first."""
        return self._builds("target = ?", (target,), "builds.number DESC", limit)

    def of_model(self, model: str, limit: int | None = None) -> list[BuildRow]:
        """Builds of a model, newest first."""
        return self._builds("model = ?", (model,), "builds.number DESC", limit)

    def of_pair(self, model: str, target: str, limit: int | None = None) -> list[BuildRow]:
        """Builds of one model for one target, newest first."""
        return self._builds("model = ? AND target = ?", (model, target), "builds.number DESC", limit)

    def names(self) -> tuple[list[str], list[str]]:
        """Every model and every target that was ever built, sorted."""
        pairs = self._ask("SELECT DISTINCT model, target FROM builds")
        return sorted({model for model, _ in pairs}), sorted({target for _, target in pairs})

    def _builds(self, where: str, values: tuple[Any, ...], order: str, limit: int | None = None) -> list[BuildRow]:
        query = f"SELECT runs.id, {_OF_BUILDS} FROM builds JOIN runs ON runs.number = run WHERE {where} ORDER BY {order} LIMIT ?"  # noqa: S608
        return [build_row(columns) for columns in self._ask(query, (*values, -1 if limit is None else limit))]

    # the file

    def _ask(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """All rows; none when the history cannot be read."""
        with self._lock:
            if self._database is None:
                return []
            try:
                return self._database.connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                self._fail(error)
        self._tell()
        return []

    def _write(self, action: Callable[[sqlite3.Connection], object]) -> None:
        """One transaction. What goes wrong in it ends the recording of this run."""
        if self._database is None:
            return
        connection = self._database.connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            action(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._fail(error)

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = Database(self.path)
        except (OSError, sqlite3.Error, Unusable) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """A damaged file makes place for a new one; anything else (a full disk, no right to write) leaves it as it is."""
        if self._database is not None:
            self._database.close()
        self._database = self._run = None
        if self._reading:
            raise _as_problem(self.path, error) from error
        if not self._repair:
            self._notes.append(f"{self.path} cannot be used ({error}): how long builds take, and what failed, is not known")
            return None
        damaged = isinstance(error, Unusable) or (
            isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
        )
        try:
            if damaged:
                return self._replace(error)
        except (OSError, sqlite3.Error, Unusable) as another:
            error = another
        self._notes.append(f"{self.path} cannot be used ({error}): this run is not recorded")
        return None

    def _replace(self, fault: Exception) -> None:
        what = _what(fault)
        try:
            aside = set_aside(self.path)
        except BlockingIOError:
            self._notes.append(f"{self.path} {what} and another run has it open: this run is not recorded")
            return
        self._database = Database(self.path)
        if aside is not None:
            self._notes.append(f"{self.path} {what}: it is now {aside.name}, and a new history begins")

    def _tell(self) -> None:
        """Hand on what went wrong, also in the thread of the timer, without holding the lock: whoever listens may emit events."""
        with self._lock:
            notes, self._notes = self._notes, []
        for note in notes:
            self._say(note)


def _what(fault: Exception) -> str:
    return f"was written by a newer enginefarm ({fault})" if getattr(fault, "state", "") == "newer" else f"is damaged ({fault})"


def _as_problem(path: Path, error: Exception) -> EnginefarmError:
    if isinstance(error, (OSError, sqlite3.OperationalError)):
        return EnginefarmError(HISTORY, f"{path} cannot be read", why=str(error), fix="check its rights and the free space")
    fix = "update enginefarm" if getattr(error, "state", "") == "newer" else "the next build sets it aside and begins a new one"
    return EnginefarmError(HISTORY, f"{path} {_what(error)}", fix=fix)


def _grouped(pairs: Iterable[Pair]) -> str | None:
    """{model: [targets]} as JSON."""
    grouped: dict[str, list[str]] = {}
    for model, target in pairs:
        grouped.setdefault(model, []).append(target)
    return json.dumps(grouped) if grouped else None


def _add(times: Times, key: Any, seconds: float) -> None:
    known = times.setdefault(key, [])
    if len(known) < MEDIAN_OF:
        known.append(seconds)
