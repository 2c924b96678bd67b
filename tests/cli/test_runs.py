"""``enginefarm runs`` and ``history``: over a history and run folders as builds leave them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .conftest import ENGINEFARM, Call, Past, on_terminal

# runs


def test_runs_are_listed_newest_first_with_how_they_ended(four_runs: Past, call: Call) -> None:
    answer = call("runs")
    assert answer.code == 0
    head, *lines = answer.lines
    assert head.split() == ["RUN", "STATE", "STARTED", "TOOK", "RESULT", "COMMAND"]
    state, result = head.index("STATE"), head.index("RESULT")
    assert [(line[: state - 2], line[state : head.index("STARTED")].strip()) for line in lines] == [
        ("20260104-000000-dddddd", "running"),
        ("20260103-000000-cccccc", "killed"),
        ("20260102-000000-bbbbbb", "failed (exit 1)"),
        ("20260101-000000-aaaaaa", "done"),
    ]
    assert [line[result : head.index("COMMAND")].strip() for line in lines] == [
        "1 passed, 1 to do",
        "1 passed, 1 not ended",
        "1 failed",
        "1 passed, 1 unvalidated",
    ]
    assert {line[head.index("COMMAND") :] for line in lines} == {"enginefarm build lane.onnx"}
    assert len(call("runs", "-n", "2").lines) == 3


def test_runs_as_json(four_runs: Past, call: Call) -> None:
    answer = json.loads(call("runs", "--json").out)
    assert answer["schema"] == "enginefarm.runs/1"
    running, killed, failed, done = answer["runs"]
    assert (running["state"], running["pid"], running["pending"]) == ("running", os.getpid(), [])
    assert (killed["state"], killed["finished_at"], killed["pending"]) == ("killed", None, [{"model": "sign", "target": "cpu"}])
    assert (failed["exit_code"], failed["counts"]) == (1, {"failed": 1})
    assert (done["seconds"], "pid" in done, done["command"]) == (65.0, False, ["build", "lane.onnx"])


@pytest.mark.parametrize("words", [("runs",), ("runs", "--json")])
def test_without_a_history_there_is_nothing_to_list_and_nothing_is_made(tmp_path: Path, call: Call, words: tuple[str, ...]) -> None:
    answer = call(*words)
    assert answer.code == 0
    assert answer.out == b"" if len(words) == 1 else json.loads(answer.out)["runs"] == []
    assert list(tmp_path.iterdir()) == []


def test_the_project_is_found_from_a_folder_below_it(four_runs: Past, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "enginefarm.yaml").write_text("# nothing\n")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    assert len(call("runs").lines) == 5
    assert call("logs", "lane/cpu", "--path").out == b"../.enginefarm/runs/20260101-000000-aaaaaa/logs/lane/cpu.build.log\n"


def test_a_damaged_history_is_exit_4_for_who_looks(four_runs: Past, call: Call) -> None:
    four_runs.history.close()
    (four_runs.state / "history.db").write_bytes(b"nothing of the kind" * 100)
    answer = call("runs")
    assert (answer.code, answer.out) == (4, b"")
    assert "error[EF403]: .enginefarm/history.db is damaged" in answer.err


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        (200, ["RUN", "STATE", "STARTED", "TOOK", "RESULT", "COMMAND"]),
        (95, ["RUN", "STATE", "STARTED", "TOOK", "RESULT"]),
        (75, ["RUN", "STATE", "TOOK", "RESULT"]),
        (40, ["RUN", "STATE"]),
    ],
)
def test_a_table_fits_its_terminal(four_runs: Past, tmp_path: Path, columns: int, kept: list[str]) -> None:
    lines = on_terminal(tmp_path, "runs", columns=columns, NO_COLOR="1").decode().splitlines()
    assert lines[0].split() == kept
    hidden = [name for name in ("RUN", "STATE", "STARTED", "TOOK", "RESULT", "COMMAND") if name not in kept]
    hint = f"too narrow for {', '.join(hidden)}: widen the terminal, or give --json" if hidden else ""
    assert " ".join(lines[5:]) == hint
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("columns", [120, 40])
def test_a_past_fits_its_terminal(four_runs: Past, tmp_path: Path, columns: int) -> None:
    lines = on_terminal(tmp_path, "history", "rtx-ada", columns=columns, NO_COLOR="1").decode().splitlines()
    assert max(map(len, lines)) <= columns
    hint = " ".join(lines[3:-3])
    assert hint == ("" if columns == 120 else "too narrow for ENDED, BUILD, SIZE, NOTE: widen the terminal, or give --json")


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": "", "TERM": "vt100"}, True)],
)
def test_colour_on_a_terminal(four_runs: Past, tmp_path: Path, environment: dict[str, str], coloured: bool) -> None:
    assert (b"\x1b[1;31m20260102" in on_terminal(tmp_path, "runs", **environment)) == coloured


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)]
)
def test_colour_in_a_pipe(four_runs: Past, tmp_path: Path, environment: dict[str, str], coloured: bool) -> None:
    done = subprocess.run([*ENGINEFARM, "runs"], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, check=True)
    assert (b"\x1b[" in done.stdout) == coloured
    assert done.stderr == b""


# history


def seen(call: Call, *words: str) -> tuple[list[str], list[str]]:
    answer = call("history", *words)
    assert answer.code == 0, answer.err
    gap = answer.lines.index("")
    return answer.lines[:gap], answer.lines[gap + 1 :]


def test_the_past_of_a_target_of_a_model_and_of_a_pair(four_runs: Past, call: Call) -> None:
    builds, pairs = seen(call, "rtx-ada")
    assert [line.split()[2:6] for line in builds[1:]] == [["lane", "v2", "rtx-ada", "failed"], ["lane", "v2", "rtx-ada", "unvalidated"]]
    assert builds[1].endswith("EF302")
    assert [line.split() for line in pairs[1:]] == [["lane", "rtx-ada", "never", "4.0s"]]
    builds, pairs = seen(call, "lane")
    assert len(builds) == 5
    assert builds[-1] == "1 reused or skipped not shown: --all"
    assert [line.split()[:2] for line in pairs[1:]] == [["lane", "cpu"], ["lane", "rtx-ada"]]
    builds, _ = seen(call, "lane/cpu", "--all")
    assert ["passed, reused" in line for line in builds[1:]] == [True, False]
    builds, _ = seen(call, "lane", "-n", "1", "--all")
    assert builds[-1] == "3 older not shown: -n 4"


def test_a_build_that_became_slower_says_so(past: Past, call: Call) -> None:
    past.start("r1")
    for seconds in (4.0, 5.0, 4.0, 4.2, 9.0, 4.1):
        past.build("lane", "cpu", seconds=seconds)
    for seconds in (0.1, 0.1, 0.1, 0.9):
        past.build("tiny", "cpu", seconds=seconds)
    past.end()
    builds, _ = seen(call, "cpu")
    assert [line.split()[6] for line in builds if "slower" in line] == ["9.0s"] or [line for line in builds if "2.2x slower" in line]
    assert len([line for line in builds if "slower" in line]) == 1
    answer = json.loads(call("history", "lane", "--json").out)
    assert answer["schema"] == "enginefarm.history/1"
    assert [build["slower"] for build in answer["builds"]] == [None, pytest.approx(9.0 / 4.1), None, None, None, None]


@pytest.mark.parametrize(
    ("name", "said"), [("rtx-adda", "did you mean rtx-ada?"), ("zzz", "there are cpu, rtx-ada, lane, sign"), ("lane/x", "")]
)
def test_a_past_that_there_is_not_is_exit_2(four_runs: Past, call: Call, name: str, said: str) -> None:
    answer = call("history", name, "--json")
    assert answer.code == 2
    assert said in answer.err
    assert json.loads(answer.out)["problems"][0]["code"] == "EF108"
