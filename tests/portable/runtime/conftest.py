"""A model's folder as the farm writes it, with real tiny engines; and the loader as a package of its own for other interpreters."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, TensorRecord, Verdict
from orchestrator.portable.runtime import files, host
from orchestrator.portable.runtime.package import write_package

DOUBLES = Path(__file__).with_name("doubles")
WANTED = ("3.6", "3.8", "3.10", "3.13")
PROFILE = {"x": {"min": (1, 4), "opt": (1, 4), "max": (8, 4)}}
X = TensorRecord(name="x", dtype="float32", shape=(-1, 4))
Y = TensorRecord(name="y", dtype="float32", shape=(-1, 4))
GPU = {"index": 0, "name": "NVIDIA A10", "uuid": None, "compute_capability": "8.6", "memory_bytes": 24 << 30, "sm_count": 72}


def interpreters() -> list[str]:
    """Python 3.6, 3.8, 3.10 and 3.13: ENGINEFARM_PYTHONS (colon-separated), else those on PATH or of pyenv."""
    given = os.environ.get("ENGINEFARM_PYTHONS")
    if given:
        return given.split(":")
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for version in WANTED:
        of_pyenv = sorted(root.glob(f"{version}.*/bin/python3"))
        path = str(of_pyenv[0]) if of_pyenv else shutil.which(f"python{version}")
        found += [path] if path else []
    return found


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Folder:
    """``lane/v3`` with engines; ``write`` makes the manifest (through the farm's own schema) and latest.json."""

    def __init__(self, root: Path) -> None:
        self.model = root / "lane"
        self.path = self.model / "v3"
        self.path.mkdir(parents=True)
        self.records: list[EngineRecord] = []
        self.fallback: dict[str, str] | None = None

    def add(self, target: str, data: bytes | None, *, status: str = "passed", name: str | None = None, **fields: Any) -> Path:
        backend = fields.setdefault("backend", "onnxruntime")
        if backend == "onnxruntime":
            fields = {"provider": "cpu", "platform": "any", **fields}
        name = name or f"lane_v3_{target}{'' if status == 'passed' else '.unvalidated'}{'.onnx' if backend == 'onnxruntime' else '.engine'}"
        verdict = Verdict.model_validate({"status": status, "reason": "as it is", "reference": "onnx.reference"})
        described = {"file": name, "digest": digest_of(data), "size_bytes": len(data)} if data is not None else {}
        defaults: dict[str, Any] = {"platform": "linux/amd64", "precision": "fp32", "inputs": (X,), "outputs": (Y,), "profiles": PROFILE}
        self.records.append(
            EngineRecord.model_validate({**defaults, **described, **fields, "target": target, "tag": target, "verdict": verdict})
        )
        if data is not None:
            (self.path / name).write_bytes(data)
        return self.path / name

    def write(self, **changes: Any) -> Path:
        manifest = Manifest(
            model=ModelRecord(name="lane", version=3, digest=digest_of(b"lane"), source="lane.onnx", inputs=(X,), outputs=(Y,)),
            revision=2, run="r", created_at="2026-01-01T00:00:00Z", enginefarm="0", engines=tuple(self.records), fallback=self.fallback,
        )  # fmt: skip
        content = {**json.loads(manifest.as_json()), **changes}
        raw = json.dumps(content).encode()
        path = self.path / "lane_v3.json"
        path.write_bytes(raw)
        self.latest(digest_of(raw))
        return path

    def latest(self, digest: str, manifest: str = "v3/lane_v3.json") -> Path:
        path = self.model / "latest.json"
        content = {"schema": "enginefarm.latest/1", "model": "lane", "version": 3, "revision": 2, "manifest": manifest, "digest": digest}
        path.write_text(json.dumps({**content, "targets": {}}))
        return path


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    yield
    files.forget()
    host._GPUS.clear()


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that this process sees a GPU; backends stay what they are."""

    def pretend(**changes: Any) -> None:
        facts = {
            "platform": "linux/amd64",
            "gpus": [{**GPU, **changes}],
            "driver": {"version": "580.65.06", "cuda": "13.0"},
            "jetson": None,
        }
        monkeypatch.setattr(host.ThisProcess, "facts", lambda self: facts)

    return pretend


def _onnx(nodes: list[Any], weights: list[Any]) -> bytes:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, ["n", 4])], [value("y", TensorProto.FLOAT, ["n", 4])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


@pytest.fixture(scope="session")
def doubling() -> bytes:
    """An ONNX model of y = 2 x."""
    import numpy as np
    from onnx import helper, numpy_helper

    return _onnx([helper.make_node("Mul", ["x", "two"], ["y"])], [numpy_helper.from_array(np.float32(2), "two")])


@pytest.fixture(scope="session")
def tripling() -> bytes:
    """An ONNX model of y = 3 x, of the size of ``doubling``."""
    import numpy as np
    from onnx import helper, numpy_helper

    return _onnx([helper.make_node("Mul", ["x", "two"], ["y"])], [numpy_helper.from_array(np.float32(3), "two")])


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``enginefarm_runtime`` in it."""
    path = tmp_path_factory.mktemp("package")
    write_package(str(path), "1.2.3")
    return path


@pytest.fixture
def run_code(package: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a process of its own that can import enginefarm_runtime, and the double of onnxruntime when ``double``."""

    def run(code: str, *arguments: object, python: str = sys.executable, double: bool = False, timeout: float = 120) -> Any:
        path = os.pathsep.join([str(DOUBLES), str(package)] if double else [str(package)])
        command = [python, "-c", code, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=timeout, check=False)

    return run
