from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, TensorRecord, Verdict
from orchestrator.cli.select import select_command
from orchestrator.errors import EnginefarmError

app = typer.Typer()
app.command()(select_command)

X = TensorRecord(name="x", dtype="float32", shape=(1, 4))
A10 = {"index": 0, "name": "NVIDIA A10", "uuid": None, "compute_capability": "8.6", "memory_bytes": 24 << 30, "sm_count": 72}
HOST = {
    "schema": "enginefarm.host/1", "platform": "linux/amd64", "gpus": [A10], "driver": {"version": "580.65.06", "cuda": "13.0"},
    "jetson": None, "container": False,
    "backends": {"tensorrt": {"version": "10.11.0.33"}, "onnxruntime": {"version": "1.20.0", "providers": ["cpu"]}},
}  # fmt: skip


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is None:
        return SimpleNamespace(out=result.stdout, problem=None)
    assert isinstance(result.exception, EnginefarmError), result.exception
    return SimpleNamespace(out=result.stdout, problem=result.exception)


def record(target: str, data: bytes, **fields: Any) -> EngineRecord:
    described = {"file": f"lane_v3_{target}.engine", "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size_bytes": len(data)}
    verdict = Verdict(status=fields.pop("status", "passed"), reason="as it is", reference="onnx.reference")
    common = {"target": target, "tag": target, "platform": "linux/amd64", "precision": "fp32", "inputs": (X,), "outputs": (X,)}
    return EngineRecord.model_validate({**common, **described, **fields, "verdict": verdict})


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """An engine for an A10, one for a T4 and an ONNX file."""
    folder = tmp_path / "lane" / "v3"
    folder.mkdir(parents=True)
    engines = (
        record("a10", b"plan", backend="tensorrt", backend_version="10.11.0.33", compute_capability=("8.6",), cuda="12.9"),
        record("t4", b"plan of a T4", backend="tensorrt", backend_version="10.11.0.33", compute_capability=("7.5",), cuda="12.9"),
        record("cpu", b"onnx", backend="onnxruntime", provider="cpu", platform="any"),
    )
    for engine, data in zip(engines, (b"plan", b"plan of a T4", b"onnx"), strict=True):
        (folder / str(engine.file)).write_bytes(data)
    model = ModelRecord(name="lane", version=3, digest="sha256:" + "0" * 64, source="lane.onnx", inputs=(X,), outputs=(X,))
    path = folder / "lane_v3.json"
    path.write_bytes(Manifest(model=model, revision=1, run="r", created_at="t", enginefarm="0", engines=engines).as_json())
    return path


@pytest.fixture
def host(tmp_path: Path) -> Path:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(HOST))
    return path


def test_the_engine_for_the_described_host_is_taken(manifest: Path, host: Path) -> None:
    found = run(manifest, "--on", host)

    assert found.problem is None
    assert "lane v3, revision 1, on linux/amd64, NVIDIA A10 (8.6), onnxruntime 1.20.0, tensorrt 10.11.0.33" in found.out
    assert "takes  a10" in found.out
    assert "TensorRT, passed" in found.out
    assert "degraded" not in found.out


def test_why_not_is_said_where_it_falls_back(manifest: Path, host: Path) -> None:
    host.write_text(json.dumps({**HOST, "backends": {**HOST["backends"], "tensorrt": {"version": "10.3.0.26"}}}))

    found = run(manifest, "--on", host)

    assert "takes  cpu" in found.out
    assert "degraded: a10 is for this GPU: built by TensorRT 10.11.0.33, this host has 10.3.0.26" in found.out
    assert "built for compute capability 7.5, this GPU is NVIDIA A10" in found.out


def test_json_holds_the_whole_decision(manifest: Path, host: Path) -> None:
    answer = json.loads(run(manifest, "--on", host, "--json").out)

    assert answer["chosen"]["target"] == "a10"
    assert answer["degraded"] is False
    assert answer["refused"] == []
    assert answer["host"].startswith("linux/amd64")


def test_a_changed_file_is_seen_without_loading_it(manifest: Path, host: Path) -> None:
    (manifest.parent / "lane_v3_a10.engine").write_bytes(b"plam")

    answer = json.loads(run(manifest, "--on", host, "--json").out)

    assert answer["chosen"]["target"] == "cpu"
    assert answer["refused"][0]["stage"] == "file"
    assert answer["degraded"] is True


def test_nothing_that_fits_is_exit_3_with_the_table(manifest: Path, host: Path) -> None:
    found = run(manifest, "--on", host, "--require", "tensorrt-rtx")

    assert (found.problem.kind.code, found.problem.exit) == ("EF313", 3)
    assert "require=tensorrt-rtx forbids it" in found.out


def test_this_machine_is_the_default(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.portable.worker import probe

    monkeypatch.setattr(probe, "describe_host", lambda: {**HOST, "gpus": []})

    answer = json.loads(run(manifest, "--json").out)

    assert answer["chosen"]["target"] == "cpu"
    assert answer["host"] == "linux/amd64, no NVIDIA GPU, onnxruntime 1.20.0, tensorrt 10.11.0.33"


@pytest.mark.parametrize(
    ("content", "text"),
    [("{", "it is not JSON"), ("[]", "it is no enginefarm.host/1"), ('{"schema": "enginefarm.host/2"}', "it is no enginefarm.host/1")],
)
def test_a_host_description_that_is_none_is_a_usage_error(manifest: Path, host: Path, content: str, text: str) -> None:
    host.write_text(content)

    problem = run(manifest, "--on", host).problem

    assert (problem.kind.code, problem.exit) == ("EF103", 2)
    assert text in problem.why


def test_what_is_no_manifest_is_refused(manifest: Path, host: Path, tmp_path: Path) -> None:
    assert run(host).problem.kind.code == "EF602"
    assert run(tmp_path / "none.json", "--on", host).problem.kind.code == "EF602"
    assert run(manifest, "--on", host, "--require", "tensort").problem.kind.code == "EF100"
    assert run(manifest, "--on", tmp_path / "none.json").problem.kind.code == "EF103"
