"""``enginefarm doctor`` as it is called: this machine, and saved descriptions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from orchestrator.cli.doctor import doctor_command
from orchestrator.errors import CONFIG_VALUE, RUNNER_BROKEN, EnginefarmError

app = typer.Typer()
app.command()(doctor_command)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_this_machine_is_examined_saved_and_judged_again_from_the_file(tmp_path: Path) -> None:
    saved = tmp_path / "host.json"
    first = json.loads(call("--json", "--save", str(saved)).output)
    again = json.loads(call("--json", "--host", str(saved)).output)

    assert first["schema"] == "enginefarm.doctor/1"
    assert json.loads(saved.read_text()) == first["host"]
    assert again == first
    assert first["host"]["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_broken_host_gives_exit_code_4(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    driver = {"kernel": "535.104.05", "user": "550.54.15", "user_path": "/usr/lib/libcuda.so.1", "devices": []}
    path.write_text(json.dumps({"schema": "enginefarm.host/1", "gpus": [], "details": {"driver": driver}}))

    done = call("--host", str(path))

    assert done.exit_code == 4
    assert "D103 error    kernel driver 535.104.05 and libcuda 550.54.15 differ" in done.output.replace("  D103  ", "D103 ")
    assert done.output.splitlines()[-1].endswith("1 error")


@pytest.mark.parametrize("content", [{"gpus": "x", "backends": [1]}, {"backends": {"tensorrt": 3}}, {"details": {"libraries": [1]}}])
def test_a_damaged_description_is_told_and_never_a_traceback(tmp_path: Path, content: dict[str, object]) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"schema": "enginefarm.host/1", **content}))

    done = call("--host", str(path))

    assert isinstance(done.exception, EnginefarmError)
    assert done.exception.kind is CONFIG_VALUE


@pytest.mark.parametrize("python", ["/bin/false", "/no/such/python"])
def test_an_interpreter_that_does_not_work_is_told(python: str) -> None:
    done = call("--python", python)

    assert isinstance(done.exception, EnginefarmError)
    assert done.exception.kind is RUNNER_BROKEN
