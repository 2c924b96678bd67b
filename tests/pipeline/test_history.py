"""The history: what is written when, what is asked of it, and a file that cannot be used."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import events
from orchestrator.errors import HISTORY, EnginefarmError
from orchestrator.pipeline import history as module
from orchestrator.pipeline.history import History
from orchestrator.pipeline.history_db import MIGRATIONS, SCHEMA_VERSION
from orchestrator.pipeline.runfolder import EVENTS

COMMAND = ("build", "lane.onnx", "-t", "cpu")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".enginefarm" / "history.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., History]]:
    """Histories of this test's file; their notes go to ``history.notes``."""
    histories: list[History] = []

    def make(**options: Any) -> History:
        notes: list[str] = []
        history = History(path, say=notes.append, command=COMMAND, **options)
        history.notes = notes  # type: ignore[attr-defined]
        histories.append(history)
        return history

    yield make
    for history in histories:
        history.close()


def start(history: History, run: str, *builds: tuple[str, int | None, str], folder: Path | None = None) -> Path:
    folder = folder or history.path.parent / "runs" / run
    history(events.RunStarted(run=run, builds=len(builds), folder=str(folder)))
    history.planned(builds)
    return folder


def step(history: History, model: str, target: str, seconds: float, *, name: str = "build", runner: str = "local", ok: bool = True) -> None:
    history(events.StepStarted(model=model, target=target, step=name, runner=runner))
    history(events.StepFinished(model=model, target=target, step=name, ok=ok, seconds=seconds))


def end(history: History, model: str, target: str, status: str = "passed", **fields: Any) -> None:
    history(events.BuildFinished(model=model, target=target, status=status, detail=f"{status}.", **fields))


def finish(history: History, run: str, code: int = 0, *, interrupted: tuple[str, ...] = (), counts: dict[str, int] | None = None) -> None:
    history(events.RunFinished(run=run, exit_code=code, counts=counts or {}, interrupted=interrupted, manifests=(), seconds=12.5))


def whole_run(history: History, run: str, builds: dict[tuple[str, str], tuple[str, float]]) -> None:
    """One run in which each (model, target) ended with (status, seconds of its build)."""
    start(history, run, *((model, 1, target) for model, target in builds))
    for (model, target), (status, seconds) in builds.items():
        if status not in ("reused", "skipped"):
            step(history, model, target, seconds)
        end(history, model, target, "passed" if status == "reused" else status, seconds=seconds, cached=status == "reused")
    finish(history, run)


class Holder:
    """Holds the lock of a run's folder as the run itself does."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.file = (folder / EVENTS).open("w")
        fcntl.flock(self.file, fcntl.LOCK_SH)

    def release(self) -> None:
        self.file.close()


def test_a_run_and_its_builds_are_written_with_everything_that_is_known(opened: Callable[..., History]) -> None:
    history = opened()
    start(history, "r1", ("lane", 3, "rtx-ada"), ("lane", 3, "jetson"))
    step(history, "lane", "rtx-ada", 7.0, ok=False, runner="first")
    step(history, "lane", "rtx-ada", 4.0, runner="second")
    step(history, "lane", "rtx-ada", 1.5, name="validate", runner="gpu")
    end(history, "lane", "rtx-ada", seconds=6.0, size_bytes=910_000)
    end(history, "lane", "jetson", "skipped", problem={"code": "EF310", "what": "no runner"})
    finish(history, "r1", 3, counts={"passed": 1, "skipped": 1})
    (run,) = opened().runs()
    assert (run.id, run.command, run.exit_code, run.counts) == ("r1", COMMAND, 3, {"passed": 1, "skipped": 1})
    assert (run.seconds, run.pid, run.host, run.pending, run.state) == (12.5, None, None, (), "failed")
    assert run.folder == history.path.parent / "runs" / "r1"
    built, skipped = history.builds("r1")
    assert (built.model, built.model_version, built.target, built.status, built.cached) == ("lane", 3, "rtx-ada", "passed", False)
    assert (built.seconds, built.build_seconds, built.validate_seconds, built.runner) == (6.0, 4.0, 1.5, "first")
    assert (built.size_bytes, built.problem) == (910_000, None)
    assert (skipped.status, skipped.problem, skipped.build_seconds, skipped.runner) == ("skipped", "EF310", None, None)


def test_ten_thousand_builds_are_few_writes_and_a_failed_one_is_written_at_once(
    opened: Callable[..., History], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FLUSH_SECONDS", 3600.0)
    history, other = opened(), opened()
    start(history, "r1")
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    assert history._database is not None
    history._database.connection.set_trace_callback(count)
    for number in range(10_000):
        end(history, f"m{number}", "cpu", cached=True)
    assert commits <= 1
    assert len(other.builds("r1")) <= 1
    end(history, "bad", "cpu", "failed")
    assert len(other.builds("r1")) == 10_001
    end(history, "late", "cpu")
    finish(history, "r1")
    assert len(other.builds("r1")) == 10_002
    assert commits <= 4


CHILD = """
import os, sys, time
from pathlib import Path
from orchestrator import events
from orchestrator.pipeline.history import History
history = History(Path(sys.argv[1]), command=["build"])
folder = Path(sys.argv[1]).parent / "runs" / sys.argv[2]
history(events.RunStarted(run=sys.argv[2], builds=40, folder=str(folder)))
history.planned([("lane", 1, f"t{number}") for number in range(40)])
for number in range(20):
    history(events.BuildFinished(model="lane", target=f"t{number}", status="passed", detail=""))
while True:
    sys.stdout.write("ended\\n"), sys.stdout.flush()
    time.sleep(0.05)
"""


def test_a_kill_loses_only_what_ended_just_now(path: Path, opened: Callable[..., History]) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), "r1"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    reader: History | None = None
    for _ in child.stdout:
        # the builds all ended before the first line; nothing happens in the child any more but time
        reader = reader or opened()
        if len(reader.builds("r1")) == 20:
            break
    child.send_signal(signal.SIGKILL)
    child.communicate()
    history = opened()
    (run,) = history.runs()
    assert run.state == "killed"
    assert run.counts == {"passed": 20}
    assert history.failed_last() == {("lane", f"t{number}") for number in range(20, 40)}


def test_a_run_is_running_while_its_folder_is_locked_and_killed_after(opened: Callable[..., History]) -> None:
    history = opened()
    folder = start(history, "r1", ("lane", 1, "cpu"))
    holder = Holder(folder)
    (run,) = history.runs()
    assert (run.state, run.pid) == ("running", os.getpid())
    assert run.as_dict()["pid"] == os.getpid()
    assert history.failed_last() == frozenset()
    holder.release()
    assert history.runs()[0].state == "killed"
    assert history.failed_last() == {("lane", "cpu")}
    (folder / EVENTS).unlink()
    folder.rmdir()
    assert history.runs()[0].state == "killed"


@pytest.mark.parametrize(
    ("code", "counts", "state"),
    [
        (0, {"passed": 2}, "done"),
        (1, {"failed": 1}, "failed"),
        (3, {"unvalidated": 1}, "failed"),
        (130, {}, "interrupted"),
        (1, {"failed": 1, "interrupted": 2}, "interrupted"),
    ],
)
def test_how_a_run_ended(opened: Callable[..., History], code: int, counts: dict[str, int], state: str) -> None:
    history = opened()
    start(history, "r1")
    finish(history, "r1", code, counts=counts)
    assert history.runs()[0].state == state


def test_what_failed_last_is_the_newest_end_of_each_pair(opened: Callable[..., History]) -> None:
    history = opened()
    names = ["mended", "broken", "still", "skipped-since"]
    whole_run(history, "r1", {("lane", name): ("failed", 1.0) for name in names} | {("lane", "fine"): ("passed", 1.0)})
    whole_run(
        history,
        "r2",
        {
            ("lane", "mended"): ("passed", 1.0),
            ("lane", "fine"): ("failed", 1.0),
            ("lane", "broken"): ("reused", 0.0),
            ("lane", "skipped-since"): ("skipped", 0.0),
        },
    )
    assert history.failed_last() == {("lane", "fine"), ("lane", "still"), ("lane", "skipped-since")}


@pytest.mark.parametrize("told", [True, False])
def test_what_an_interrupted_run_did_not_end_failed_last_until_a_later_run_ends_it(opened: Callable[..., History], told: bool) -> None:
    history = opened()
    start(history, "r1", *(("la ne", 1, target) for target in ("a", "b", "c", "d")) if told else ())
    end(history, "la ne", "a")
    end(history, "la ne", "d", "skipped")
    finish(history, "r1", 130, interrupted=("la ne b", "la ne c"))
    assert history.failed_last() == {("la ne", "b"), ("la ne", "c")}
    assert set(history.runs()[0].pending) == {("la ne", "b"), ("la ne", "c")}
    whole_run(history, "r2", {("la ne", "b"): ("passed", 1.0)})
    assert history.failed_last() == {("la ne", "c")}


def test_expected_seconds_are_of_the_pair_else_of_the_target_else_unknown(opened: Callable[..., History]) -> None:
    history = opened()
    for number, seconds in enumerate((100.0, 1.0, 2.0, 3.0, 9.0, 50.0)):
        whole_run(history, f"r{number}", {("lane", "cpu"): ("passed", seconds)})
    whole_run(history, "failed", {("lane", "cpu"): ("failed", 1000.0)})
    whole_run(history, "reused", {("lane", "cpu"): ("reused", 0.1), ("sign", "cpu"): ("unvalidated", 4.0)})
    fresh = opened()
    assert fresh.expected_seconds("lane", "cpu") == 3.0
    assert fresh.expected_seconds("sign", "cpu") == 4.0
    assert fresh.expected_seconds("other", "cpu") == statistics.median([4.0, 50.0, 9.0, 3.0, 2.0])
    assert fresh.expected_seconds("lane", "jetson") is None


def test_validating_an_engine_again_says_nothing_of_how_long_a_build_takes(opened: Callable[..., History]) -> None:
    history = opened()
    start(history, "r1")
    step(history, "lane", "cpu", 60.0)
    step(history, "lane", "cpu", 5.0, name="validate")
    end(history, "lane", "cpu", seconds=66.0)
    finish(history, "r1")
    start(history, "r2")
    step(history, "lane", "cpu", 7.0, name="validate")
    end(history, "lane", "cpu", seconds=8.0)
    finish(history, "r2")
    fresh = opened()
    assert fresh.expected_seconds("lane", "cpu") == 66.0
    assert fresh.expected_seconds("lane", "cpu", "validate") == 6.0


def test_a_plan_asks_the_file_once(opened: Callable[..., History]) -> None:
    history = opened()
    whole_run(history, "r1", {(f"m{number}", "cpu"): ("passed", 2.0) for number in range(100)})
    statements: list[str] = []
    assert history._database is not None
    history._database.connection.set_trace_callback(statements.append)
    assert {history.expected_seconds(f"m{number % 200}", "cpu") for number in range(50_000)} == {2.0}
    assert len(statements) == 1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from(["passed", "failed", "reused", "skipped"]))))
def test_failed_last_agrees_with_reading_the_runs_in_order(
    tmp_path_factory: pytest.TempPathFactory, builds: list[tuple[str, str, str]]
) -> None:
    history = History(tmp_path_factory.mktemp("history") / "history.db", command=())
    newest: dict[tuple[str, str], str] = {}
    for number, (model, target, status) in enumerate(builds):
        whole_run(history, f"r{number}", {(model, target): (status, 1.0)})
        if status != "skipped":
            newest[model, target] = status
    assert history.failed_last() == {pair for pair, status in newest.items() if status == "failed"}
    history.close()


def test_the_past_of_a_target_a_model_and_a_pair(opened: Callable[..., History]) -> None:
    history = opened()
    whole_run(history, "r1", {("lane", "cpu"): ("passed", 1.0), ("lane", "rtx-ada"): ("failed", 2.0)})
    whole_run(history, "r2", {("sign", "cpu"): ("passed", 3.0), ("lane", "cpu"): ("reused", 0.0)})
    assert [(row.run, row.model) for row in history.of_target("cpu")] == [("r2", "lane"), ("r2", "sign"), ("r1", "lane")]
    assert [(row.run, row.target) for row in history.of_model("lane", 2)] == [("r2", "cpu"), ("r1", "rtx-ada")]
    assert [row.cached for row in history.of_pair("lane", "cpu")] == [True, False]
    assert history.names() == (["lane", "sign"], ["cpu", "rtx-ada"])
    assert [run.id for run in history.runs(1)] == ["r2"]


def test_reused_builds_do_not_make_the_file_grow_for_ever(opened: Callable[..., History], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_IDLE", 20)
    history = opened()
    whole_run(history, "r0", {("lane", "cpu"): ("passed", 5.0), ("old", "cpu"): ("failed", 5.0)})
    whole_run(history, "r1", {("old", "cpu"): ("reused", 5.0)})
    for number in range(2, 50):
        whole_run(history, f"r{number}", {("lane", "cpu"): ("reused", 0.0), ("lane", "jetson"): ("skipped", 0.0)})
    rows = history.of_target("cpu") + history.of_target("jetson")
    assert len(rows) < 40
    assert history.expected_seconds("lane", "cpu") == 5.0
    assert history.failed_last() == frozenset()
    assert len(history.runs()) == 50


def test_the_first_schema_is_migrated_and_keeps_its_rows(path: Path, opened: Callable[..., History]) -> None:
    path.parent.mkdir()
    old = sqlite3.connect(path)
    for statement in MIGRATIONS[0]:
        old.execute(statement)
    old.execute("PRAGMA user_version=1")
    columns = "id, folder, command, started_at, finished_at, seconds, exit_code, counts"
    old.execute(f"INSERT INTO runs ({columns}) VALUES ('r1', 'runs/r1', '[]', 1, 2, 1, 0, '{{}}')")
    for number, (status, seconds) in enumerate((("passed", 4.0), ("failed", 9.0))):
        values = (number + 1, f"t{number}", status, seconds)
        old.execute("INSERT INTO builds VALUES (?, 1, 'lane', ?, ?, '', 0, ?, NULL, NULL, 1.5)", values)
    old.commit()
    old.close()
    history = opened()
    assert history.notes == []  # type: ignore[attr-defined]
    assert [(row.target, row.seconds, row.runner) for row in history.builds("r1")] == [("t0", 4.0, None), ("t1", 9.0, None)]
    assert history.expected_seconds("lane", "t0") == 4.0
    assert history.failed_last() == {("lane", "t1")}
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    whole_run(history, "r2", {("lane", "t1"): ("passed", 1.0)})
    assert history.failed_last() == frozenset()


def test_a_migration_that_is_killed_half_way_is_none(path: Path, opened: Callable[..., History], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.pipeline.history_db.MIGRATIONS", (MIGRATIONS[0], (*MIGRATIONS[1], "SELECT broken(")))
    opened()
    monkeypatch.undo()
    history = opened()
    whole_run(history, "r1", {("lane", "cpu"): ("passed", 1.0)})
    assert [run.id for run in opened().runs()] == ["r1"]
    assert history.notes == []  # type: ignore[attr-defined]


def spoil_head(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


def spoil_rows(path: Path) -> None:
    """The first page is sound: the damage shows only when rows are read."""
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)


def spoil_other_program(path: Path) -> None:
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE runs (something)")
    other.commit()
    other.close()


def spoil_newer(path: Path) -> None:
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    newer.commit()
    newer.close()


SPOILED = [
    pytest.param(spoil_head, "damaged", id="head"),
    pytest.param(spoil_rows, "damaged", id="rows"),
    pytest.param(spoil_other_program, "damaged", id="other-program"),
    pytest.param(spoil_newer, "newer", id="newer"),
]


@pytest.mark.parametrize(("spoil", "state"), SPOILED)
def test_a_file_that_cannot_be_used_is_set_aside_and_a_new_one_begins(
    path: Path, opened: Callable[..., History], spoil: Callable[[Path], None], state: str
) -> None:
    first = opened()
    whole_run(first, "r1", {(f"m{number}", "cpu"): ("failed", 1.0) for number in range(200)})
    first.close()
    spoil(path)
    content = path.read_bytes()
    history = opened()
    assert history.failed_last() == frozenset()
    (note,) = history.notes  # type: ignore[attr-defined]
    (aside,) = path.parent.glob(f"history.{state}-*.db")
    assert aside.name in note
    assert aside.read_bytes() == content
    whole_run(history, "r2", {("lane", "cpu"): ("passed", 1.0)})
    assert [run.id for run in opened().runs()] == ["r2"]


@pytest.mark.parametrize(("spoil", "state"), SPOILED)
def test_whoever_only_looks_changes_nothing_and_gets_words(
    path: Path, opened: Callable[..., History], spoil: Callable[[Path], None], state: str
) -> None:
    first = opened()
    whole_run(first, "r1", {(f"m{number}", "cpu"): ("failed", 1.0) for number in range(200)})
    first.close()
    spoil(path)
    content = path.read_bytes()
    with pytest.raises(EnginefarmError) as caught:
        opened(reading=True).failed_last()
    assert (caught.value.kind, caught.value.exit) == (HISTORY, 4)
    assert ("newer" if state == "newer" else "damaged") in caught.value.what
    assert path.read_bytes() == content


def test_a_file_that_another_run_uses_is_not_taken_away(
    path: Path, opened: Callable[..., History], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.pipeline.history_db._OTHERS_SECONDS", 0.05)
    opened()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    newer.commit()
    history = opened()
    assert "another run has it open" in history.notes[0]  # type: ignore[attr-defined]
    whole_run(history, "r1", {("lane", "cpu"): ("passed", 1.0)})
    assert newer.execute("SELECT count(*) FROM runs").fetchone() == (0,)
    assert [entry.name for entry in path.parent.glob("history.newer*")] == []
    newer.close()


def test_no_right_to_write_costs_a_note_and_nothing_else(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history.db", say=notes.append)
    whole_run(history, "r1", {("lane", "cpu"): ("passed", 1.0)})
    assert (history.runs(), history.failed_last(), history.expected_seconds("lane", "cpu")) == ([], frozenset(), None)
    assert len(notes) == 1
    assert "is not recorded" in notes[0]


def test_damage_in_the_middle_of_a_run_ends_its_recording_with_one_note(path: Path, opened: Callable[..., History]) -> None:
    history = opened()
    whole_run(history, "r1", {(f"m{number}", "cpu"): ("passed", 1.0) for number in range(200)})
    history.close()
    history = opened()
    start(history, "r2")
    assert history._database is not None
    history._database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    history._database.connection.execute("PRAGMA shrink_memory")
    spoil_rows(path)
    for number in range(300):
        end(history, f"m{number}", "cpu", "failed")
    finish(history, "r2")
    assert len(history.notes) == 1  # type: ignore[attr-defined]
    whole_run(history, "r3", {("lane", "cpu"): ("passed", 1.0)})
    assert [run.id for run in opened().runs()] == ["r3"]


MANY = """
import sys
from pathlib import Path
from orchestrator import events
from orchestrator.pipeline.history import History
sys.stdin.readline()
notes = []
history = History(Path(sys.argv[1]), say=notes.append, command=[])
run = sys.argv[2]
history(events.RunStarted(run=run, builds=30, folder=run))
for number in range(30):
    history(events.BuildFinished(model=run, target=f"t{number}", status="failed", detail=""))
history(events.RunFinished(run=run, exit_code=1, counts={"failed": 30}, manifests=(), seconds=1.0))
history.close()
sys.stdout.write("\\n".join(notes))
"""


@pytest.mark.parametrize("spoil", [None, spoil_head], ids=["no-file", "damaged-file"])
def test_several_processes_at_once_lose_no_row(path: Path, opened: Callable[..., History], spoil: Callable[[Path], None] | None) -> None:
    path.parent.mkdir()
    if spoil is not None:
        spoil(path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([sys.executable, "-c", MANY, str(path), f"r{number}"], **pipes) for number in range(6)]  # type: ignore[call-overload]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    notes = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0] * 6
    assert len([note for note in notes if note]) == (0 if spoil is None else 1)
    history = opened()
    assert sorted(run.id for run in history.runs()) == [f"r{number}" for number in range(6)]
    assert all(len(history.builds(f"r{number}")) == 30 for number in range(6))
    assert len(list(path.parent.glob("history.damaged-*"))) == (0 if spoil is None else 1)


def test_a_row_is_json(opened: Callable[..., History]) -> None:
    history = opened()
    whole_run(history, "r1", {("lane", "cpu"): ("passed", 1.0)})
    run = json.loads(json.dumps(history.runs()[0].as_dict()))
    assert run["command"] == list(COMMAND)
    assert "pid" not in run
    assert json.loads(json.dumps(history.builds("r1")[0].as_dict()))["build_seconds"] == 1.0
