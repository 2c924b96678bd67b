"""The file of the history: killed writers, older schemas, damage, and several processes at once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import HISTORY, EnginefarmError
from orchestrator.pipeline.history import History
from orchestrator.pipeline.history_db import MIGRATIONS, SCHEMA_VERSION

from .rows import end, finish, start, whole_run

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


def test_a_kill_loses_only_what_ended_just_now(history_path: Path, opened: Callable[..., History]) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(history_path), "r1"], stdout=subprocess.PIPE, text=True)
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


def test_the_first_schema_is_migrated_and_keeps_its_rows(history_path: Path, opened: Callable[..., History]) -> None:
    history_path.parent.mkdir()
    old = sqlite3.connect(history_path)
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
    assert sqlite3.connect(history_path).execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    whole_run(history, "r2", {("lane", "t1"): ("passed", 1.0)})
    assert history.failed_last() == frozenset()


def test_a_migration_that_is_killed_half_way_is_none(
    history_path: Path, opened: Callable[..., History], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    history_path: Path, opened: Callable[..., History], spoil: Callable[[Path], None], state: str
) -> None:
    first = opened()
    whole_run(first, "r1", {(f"m{number}", "cpu"): ("failed", 1.0) for number in range(200)})
    first.close()
    spoil(history_path)
    content = history_path.read_bytes()
    history = opened()
    assert history.failed_last() == frozenset()
    (note,) = history.notes  # type: ignore[attr-defined]
    (aside,) = history_path.parent.glob(f"history.{state}-*.db")
    assert aside.name in note
    assert aside.read_bytes() == content
    whole_run(history, "r2", {("lane", "cpu"): ("passed", 1.0)})
    assert [run.id for run in opened().runs()] == ["r2"]


@pytest.mark.parametrize(("spoil", "state"), SPOILED)
def test_whoever_only_looks_changes_nothing_and_gets_words(
    history_path: Path, opened: Callable[..., History], spoil: Callable[[Path], None], state: str
) -> None:
    first = opened()
    whole_run(first, "r1", {(f"m{number}", "cpu"): ("failed", 1.0) for number in range(200)})
    first.close()
    spoil(history_path)
    content = history_path.read_bytes()
    with pytest.raises(EnginefarmError) as caught:
        opened(reading=True).failed_last()
    assert (caught.value.kind, caught.value.exit) == (HISTORY, 4)
    assert ("newer" if state == "newer" else "damaged") in caught.value.what
    assert history_path.read_bytes() == content


def test_a_file_that_another_run_uses_is_not_taken_away(
    history_path: Path, opened: Callable[..., History], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.pipeline.history_db._OTHERS_SECONDS", 0.05)
    opened()
    newer = sqlite3.connect(history_path)
    newer.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    newer.commit()
    history = opened()
    assert "another run has it open" in history.notes[0]  # type: ignore[attr-defined]
    whole_run(history, "r1", {("lane", "cpu"): ("passed", 1.0)})
    assert newer.execute("SELECT count(*) FROM runs").fetchone() == (0,)
    assert [entry.name for entry in history_path.parent.glob("history.newer*")] == []
    newer.close()


def test_no_right_to_write_costs_a_note_and_nothing_else(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history.db", say=notes.append)
    whole_run(history, "r1", {("lane", "cpu"): ("passed", 1.0)})
    assert (history.runs(), history.failed_last(), history.expected_seconds("lane", "cpu")) == ([], frozenset(), None)
    assert len(notes) == 1
    assert "is not recorded" in notes[0]


def test_damage_in_the_middle_of_a_run_ends_its_recording_with_one_note(history_path: Path, opened: Callable[..., History]) -> None:
    history = opened()
    whole_run(history, "r1", {(f"m{number}", "cpu"): ("passed", 1.0) for number in range(200)})
    history.close()
    history = opened()
    start(history, "r2")
    assert history._database is not None
    history._database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    history._database.connection.execute("PRAGMA shrink_memory")
    spoil_rows(history_path)
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
def test_several_processes_at_once_lose_no_row(
    history_path: Path, opened: Callable[..., History], spoil: Callable[[Path], None] | None
) -> None:
    history_path.parent.mkdir()
    if spoil is not None:
        spoil(history_path)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([sys.executable, "-c", MANY, str(history_path), f"r{number}"], **pipes) for number in range(6)]  # type: ignore[call-overload]
    for child in children:
        child.stdin.write("\n")
        child.stdin.flush()
    notes = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0] * 6
    assert len([note for note in notes if note]) == (0 if spoil is None else 1)
    history = opened()
    assert sorted(run.id for run in history.runs()) == [f"r{number}" for number in range(6)]
    assert all(len(history.builds(f"r{number}")) == 30 for number in range(6))
    assert len(list(history_path.parent.glob("history.damaged-*"))) == (0 if spoil is None else 1)
