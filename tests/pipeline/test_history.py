"""The history: what is written when, and what is asked of it."""

from __future__ import annotations

import fcntl
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.pipeline import history as module
from orchestrator.pipeline.history import History
from orchestrator.pipeline.runfolder import EVENTS

from .rows import COMMAND, end, finish, start, step, whole_run


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


def test_a_row_is_json(opened: Callable[..., History]) -> None:
    history = opened()
    whole_run(history, "r1", {("lane", "cpu"): ("passed", 1.0)})
    run = json.loads(json.dumps(history.runs()[0].as_dict()))
    assert run["command"] == list(COMMAND)
    assert "pid" not in run
    assert json.loads(json.dumps(history.builds("r1")[0].as_dict()))["build_seconds"] == 1.0
