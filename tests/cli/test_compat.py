"""``enginefarm compat`` as it is called."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from orchestrator.cli.compat import compat_command
from orchestrator.errors import EnginefarmError

app = typer.Typer()
app.command()(compat_command)


def _release() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "verdict" / "compat_release.py"
    spec = importlib.util.spec_from_file_location("compat_release_for_cli", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


RELEASE = _release()
HOST: dict[str, Any] = {
    "schema": "enginefarm.host/1",
    "platform": "linux/amd64",
    "gpus": [{"name": "NVIDIA GeForce RTX 4090", "compute_capability": "8.9", "memory_bytes": 24 << 30}],
    "driver": {"version": "580.65.06", "cuda": "13.0"},
    "jetson": None,
    "container": False,
    "backends": {"tensorrt-rtx": {"version": "1.7.1.116", "cuda": "13.0"}, "onnxruntime": {"version": "1.23.0", "providers": ["cpu"]}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    RELEASE.write_release(tmp_path / "art")
    (tmp_path / "host.json").write_text(json.dumps(HOST))
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_one_pair_is_told_in_full_with_its_exit_code(folder: Path) -> None:
    done = call("art/lane_v3_cpu.onnx", "--on", "host.json")

    assert done.exit_code == 0
    assert done.output.startswith("lane_v3_cpu.onnx on host.json: loads\n")


def test_the_grid_as_json_and_html(folder: Path) -> None:
    done = call("art/lane_v3.json", "--on", "host.json,ampere-cu122", "--json", "--html", "grid.html")
    answer = json.loads(done.output)

    assert done.exit_code == 1
    verdicts = {(pair["engine"], pair["host"]): pair["verdict"] for pair in answer["pairs"]}
    assert verdicts["lane_v3_rtx-ada.unvalidated.engine", "host.json"] == "loads-with-warning"  # nothing checked it
    assert verdicts["lane_v3_rtx-ada.unvalidated.engine", "ampere-cu122"] == "does-not-load"
    assert (folder / "grid.html").read_text().startswith("<!DOCTYPE html>")


def test_unknown_gives_exit_code_3(folder: Path) -> None:
    (folder / "host.json").write_text(json.dumps(HOST | {"backends": {}}))

    assert call("art/lane_v3_cpu.onnx", "--on", "host.json").exit_code == 3


def test_try_loads_on_this_machine_and_holds_it_against_the_prediction(folder: Path) -> None:
    done = call("art/lane_v3_cpu.onnx", "--on", "this", "--try", "--soak", "0.05", "--json")
    pair = json.loads(done.output)["pairs"][0]

    assert done.exit_code == 0
    assert pair["verdict"] == "loads"
    assert (pair["trial"]["outcome"], pair["trial"]["agrees"]) == ("loads", True)


def test_try_needs_a_runner(folder: Path) -> None:
    done = call("art/lane_v3_cpu.onnx", "--on", "host.json", "--try")

    assert isinstance(done.exception, EnginefarmError)
    assert "--on this" in str(done.exception.fix)
