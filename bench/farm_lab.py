"""What the farm's measurements stand on: engines of their own, an image, small steps, and what the machine did meanwhile."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import resource
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from orchestrator.runners.base import Step

ROOT = Path(__file__).resolve().parent.parent
IMAGE = "enginefarm-bench/ort:1"
_OPTIONS = {
    "provider": "cpu",
    "compute_capability": [],
    "precision": "fp32",
    "strongly_typed": False,
    "tf32": True,
    "workspace": None,
    "optimization_level": None,
    "hardware_compatibility": "none",
    "version_compatible": False,
    "plugins": [],
    "profiles": [{"x": {"min": [2, 8], "opt": [2, 8], "max": [2, 8]}}],
}


def borrowed(name: str) -> ModuleType:
    """A module of tests/docker: engines and images are made as for the tests."""
    full = f"enginefarm_bench_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, ROOT / "tests" / "docker" / f"{name}.py")
        if spec is None or spec.loader is None:
            raise SystemExit(f"tests/docker/{name}.py is not there")
        sys.modules[full] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[full]


@contextlib.contextmanager
def work_folder(needs_bytes: int) -> Iterator[Path]:
    """A folder that goes with the measurement. Ends the program when its disk has less than ``needs_bytes`` free."""
    folder = Path(tempfile.mkdtemp(prefix="enginefarm-bench-"))
    try:
        free = shutil.disk_usage(folder).free
        if free < needs_bytes:
            raise SystemExit(f"{folder} has {free / 1e9:.1f} GB free; {needs_bytes / 1e9:.1f} GB are needed (set TMPDIR)")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def engine_with_image(folder: Path) -> Iterator[Any]:
    """A Docker engine (tests/docker/engines.py) that has IMAGE: this Python with ONNX Runtime."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("unshare") is None:
        raise SystemExit("this needs root, dockerd and unshare")
    engine = borrowed("engines").LocalEngine("bench")
    try:
        engine.start()
        images = borrowed("images")
        tar = folder / "image.tar"
        images.write_image(tar, images.ORT)
        client = engine.client()
        images.import_image(client.api, tar, IMAGE)
        client.close()
        tar.unlink()
        yield engine
    finally:
        engine.stop()


def small_model(folder: Path) -> Path:
    """x[2,8] @ w -> y[2,8]; the folder that holds model.onnx."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = numpy_helper.from_array(np.arange(64, dtype=np.float32).reshape(8, 8) / 64, "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
    return folder


def build_step(model: Path, digest: str) -> Step:
    """A build by ONNX Runtime; the model is an input that steps share."""
    request = {"step": "build", "backend": "onnxruntime", "model": "model/model.onnx", "engine": "engine.onnx", "options": _OPTIONS}
    inputs = {f"model/{path.name}": path for path in sorted(model.iterdir())}
    return Step(request=request, inputs=inputs, image=IMAGE, timeout_seconds=600.0, memory_bytes=2 << 30, shared_inputs={"model": digest})


def validate_step(engine: Path, folder: Path) -> Step:
    """A validation of what ``build_step`` built, on one sample."""
    sample = folder / "x.bin"
    sample.write_bytes(np.ones((2, 8), np.float32).tobytes())
    tensor = {"name": "x", "dtype": "float32", "shape": [2, 8], "file": "samples/0/0.bin"}
    request: dict[str, Any] = {"step": "validate", "backend": "onnxruntime", "provider": "cpu", "engine": engine.name, "plugins": []}
    request |= {"samples": [{"name": "ones", "inputs": [tensor]}], "warmup": 1, "runs": 3, "soak_seconds": 0.0}
    inputs = {engine.name: engine, "samples/0/0.bin": sample}
    return Step(request=request, inputs=inputs, image=IMAGE, timeout_seconds=600.0, memory_bytes=2 << 30)


def own_cpu_seconds() -> float:
    """User and system time of this process and of the children that it waited for."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def daemon_cpu_seconds(engine: Any) -> float:
    """User and system time of an engine's daemon and of its children that ended (it packs and unpacks in processes of their own)."""
    fields = Path(f"/proc/{engine.daemon_pid()}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def load() -> list[float]:
    """The system's load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def rounded(values: Sequence[float], digits: int = 4) -> list[float]:
    return [round(value, digits) for value in values]


def median(values: Sequence[float], digits: int = 4) -> float:
    return round(statistics.median(values), digits)
