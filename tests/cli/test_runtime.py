from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import __version__
from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, TensorRecord, Verdict
from orchestrator.cli.runtime import app
from orchestrator.errors import EnginefarmError

X = TensorRecord(name="x", dtype="float32", shape=(1, 4))


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def refused(*arguments: object) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        run(*arguments)
    return caught.value


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    folder = tmp_path / "lane" / "v3"
    folder.mkdir(parents=True)
    common: dict[str, Any] = {"precision": "fp32", "inputs": (X,), "outputs": (X,)}
    engines = []
    for target, fields in (
        ("t4", {"backend": "tensorrt", "backend_version": "10.11.0.33", "compute_capability": ("7.5",), "platform": "linux/amd64"}),
        ("cpu", {"backend": "onnxruntime", "provider": "cpu", "platform": "any"}),
    ):
        file, data = f"lane_v3_{target}.engine", target.encode()
        (folder / file).write_bytes(data)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        verdict = Verdict(status="passed", reason="as it is", reference="onnx.reference")
        described = {"target": target, "tag": target, "file": file, "digest": digest, "size_bytes": len(data), "verdict": verdict}
        engines.append(EngineRecord.model_validate({**common, **fields, **described}))
    model = ModelRecord(name="lane", version=3, digest="sha256:" + "0" * 64, source="lane.onnx", inputs=(X,), outputs=(X,))
    path = folder / "lane_v3.json"
    path.write_bytes(Manifest(model=model, revision=1, run="r", created_at="t", enginefarm="0", engines=tuple(engines)).as_json())
    return path


def test_export_writes_a_package_that_imports_alone(tmp_path: Path) -> None:
    said = run("export", tmp_path / "out")

    assert said == f"{tmp_path / 'out' / 'enginefarm_runtime'}: enginefarm_runtime {__version__}\n"
    code = "import enginefarm_runtime; print(enginefarm_runtime.__version__, enginefarm_runtime.load.__name__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "out", env={}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [__version__, "load"]


def test_export_leaves_a_foreign_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "enginefarm_runtime").mkdir()

    assert refused("export", tmp_path).kind.code == "EF111"


def test_triton_says_what_it_wrote_and_what_it_left_out(manifest: Path, tmp_path: Path) -> None:
    said = run("triton", manifest, tmp_path / "repo")

    assert f"{tmp_path / 'repo' / 'lane'}: t4\n" in said
    assert "left out cpu: a Triton model has one backend\n" in said
    assert "note: Triton has to bring TensorRT 10.11.0.33\n" in said
    assert 'cc_model_filenames { key: "7.5" value: "model_t4.plan" }' in (tmp_path / "repo" / "lane" / "config.pbtxt").read_text()


def test_ort_package_takes_the_onnx_engines(manifest: Path, tmp_path: Path) -> None:
    said = run("ort-package", manifest, tmp_path / "package")

    assert f"{tmp_path / 'package'}: cpu\n" in said
    content = json.loads((tmp_path / "package" / "manifest.json").read_text())
    assert (content["package_name"], content["package_version"]) == ("lane", "3")


def test_refusals_have_codes(manifest: Path, tmp_path: Path) -> None:
    run("triton", manifest, tmp_path / "repo")

    assert refused("triton", manifest, tmp_path / "repo").kind.code == "EF111"
    assert refused("triton", manifest, tmp_path / "other", "--target", "x").kind.code == "EF100"
    assert refused("triton", manifest, tmp_path / "other", "--backend", "openvino").kind.code == "EF100"
    assert refused("ort-package", manifest, tmp_path / "other", "--target", "t4").kind.code == "EF313"
    assert refused("ort-package", tmp_path / "none.json", tmp_path / "other").kind.code == "EF602"
    assert not (tmp_path / "other").exists()
