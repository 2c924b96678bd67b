"""runners.yaml, and the command that lists runners."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator import errors
from orchestrator.cli.runners import app
from orchestrator.errors import EnginefarmError, flatten
from orchestrator.runners.load import load_runners
from orchestrator.runners.process import MOST_SLOTS, ProcessRunner


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "runners.yaml"
    path.write_text(text)
    return path


def problems(tmp_path: Path, text: str) -> list[EnginefarmError]:
    with pytest.raises(EnginefarmError) as caught:
        load_runners(write(tmp_path, text))
    return list(flatten(caught.value))


def test_without_a_file_there_is_one_local_runner_on_this_interpreter() -> None:
    (runner,) = load_runners()

    assert isinstance(runner, ProcessRunner)
    assert (runner.name, runner.kind, runner.python) == ("local", "process", sys.executable)
    assert 1 <= runner.slots <= MOST_SLOTS


def test_the_local_runner_takes_a_named_interpreter() -> None:
    (runner,) = load_runners(python=sys.executable)

    assert isinstance(runner, ProcessRunner)
    assert runner.python == sys.executable


def test_a_named_interpreter_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(EnginefarmError, match="no-such-python is not a program") as caught:
        load_runners(python="no-such-python")

    assert caught.value.kind is errors.USAGE


def test_a_file_lists_runners_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("HERE", str(tmp_path))
    path = write(
        tmp_path,
        "runners:\n"
        "  zeta:\n    type: process\n    python: ${env:HERE}/venv/python\n    slots: 3\n    labels: [fast, gpu]\n"
        "  alpha: {python: venv/python}\n",
    )

    zeta, alpha = load_runners(path)

    assert isinstance(zeta, ProcessRunner)
    assert isinstance(alpha, ProcessRunner)
    assert (zeta.name, zeta.slots, zeta.labels) == ("zeta", 3, ("fast", "gpu"))
    # the link itself, not what it points to: its place decides which packages belong to it
    assert zeta.python == alpha.python == str(tmp_path / "venv" / "python")


def test_all_problems_of_a_file_come_at_once_with_their_places(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        "runners:\n"
        "  a:\n    type: podman\n"
        "  b:\n    slot: 2\n"
        "  c:\n    slots: 0\n"
        "  d:\n    python: ${env:NOT_SET_ANYWHERE}/python\n"
        "  e:\n    python: ./nothing\n"
        "  no:\n    type: process\n"
        "  Bad Name:\n    type: process\n"
        "  f: text\n",
    )

    where = [(problem.where.line, problem.where.column) if problem.where else None for problem in found]
    texts = "\n".join(f"{problem.what} / {problem.fix}" for problem in found)
    assert sorted(place for place in where if place) == [(3, 11), (5, 5), (7, 12), (9, 13), (11, 13), (12, 3), (14, 3), (16, 6)]
    assert 'cannot be "podman"' in texts
    assert "did you mean" in texts
    assert "slots is between 1 and 256, not 0" in texts
    assert "environment variable NOT_SET_ANYWHERE is not set" in texts
    assert "./nothing is not a program" in texts
    assert "YAML reads no as false" in texts
    assert '"Bad Name" cannot be the name of a runner' in texts
    assert "runners.f needs lines of the form name: value" in texts
    assert {problem.exit for problem in found} == {errors.Exit.USAGE}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "the file is empty"),
        ("runner:\n  a: {}\n", '"runner" is not a field'),
        ("runners: [a]\n", "runners needs lines of the form name: value"),
        ("runners: {}\n", "the file lists no runner"),
        ("runners:\n\ta: {}\n", "tab"),
    ],
)
def test_files_that_list_nothing_say_why(tmp_path: Path, text: str, what: str) -> None:
    assert what in "\n".join(problem.what + str(problem.why) for problem in problems(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnginefarmError, match="does not exist"):
        load_runners(tmp_path / "runners.yaml")


def test_the_command_lists_backends_and_platform() -> None:
    done = CliRunner().invoke(app, [])

    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("local  process  ")
    assert any(line.startswith("  onnxruntime   ") and "cpu" in line for line in lines)
    assert any(line.startswith("  host          ") for line in lines)


def test_the_command_prints_json() -> None:
    document = json.loads(CliRunner().invoke(app, ["--json"]).stdout)

    (runner,) = document["runners"]
    assert document["schema"] == "enginefarm.runners/1"
    assert runner["name"] == "local"
    assert runner["host"]["schema"] == "enginefarm.host/1"


def test_a_broken_runner_is_listed_with_the_reason_beside_the_others_and_fails_the_command(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 5\n")
    broken.chmod(0o755)
    path = write(tmp_path, f"runners:\n  bad: {{python: {broken}}}\n  good: {{python: {sys.executable}}}\n")

    done = CliRunner().invoke(app, ["--runners", str(path)])

    assert isinstance(done.exception, EnginefarmError)
    assert done.exception.kind is errors.RUNNER_BROKEN
    assert "does not work: runner bad cannot be asked what it is" in done.stdout
    assert "good  process" in done.stdout


def test_a_null_is_as_good_as_no_line(tmp_path: Path) -> None:
    path = tmp_path / "runners.yaml"
    path.write_text("runners:\n  here:\n    python: null\n    slots: null\n")
    (runner,) = load_runners(path)
    assert isinstance(runner, ProcessRunner)
    assert runner.python == sys.executable
    assert runner.slots >= 1
