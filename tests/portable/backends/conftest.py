"""Real small models, steps run by the real worker file in a process of its own, and the TensorRT doubles."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.runners.bundle import write_pyz


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def doubles() -> ModuleType:
    return _load("trt_double")


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worker") / "worker.pyz"
    write_pyz(path)
    return path


@pytest.fixture
def run_step(worker: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run one step in ``tmp_path`` with this interpreter; gives ``result.json``, with the printed text as ``stdout``."""

    def run(request: dict[str, Any], model: bytes | None = None) -> dict[str, Any]:
        if model is not None:
            (tmp_path / "model").mkdir(exist_ok=True)
            (tmp_path / "model" / "model.onnx").write_bytes(model)
        whole = {"schema": "enginefarm.request/1", "nonce": "n0", "model": "model/model.onnx", **request}
        (tmp_path / "request.json").write_text(json.dumps(whole))
        done = subprocess.run(
            [sys.executable, "-I", worker, "request.json"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
        )
        return {**json.loads((tmp_path / "result.json").read_text()), "stdout": done.stdout, "stderr": done.stderr}

    return run


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any], opset: list[Any]) -> bytes:
    from onnx import helper

    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, weights), opset_imports=opset)
    model.ir_version = 8
    return bytes(model.SerializeToString())


@pytest.fixture(scope="session")
def models() -> dict[str, bytes]:
    """Tiny ONNX models by what they are for."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    value, opset = helper.make_tensor_value_info, [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    fp32, fp16 = TensorProto.FLOAT, TensorProto.FLOAT16
    square = random.standard_normal((16, 16))
    product = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]

    def matmul(kind: int, dtype: str) -> bytes:
        weights = [numpy_helper.from_array(square.astype(dtype), "w")]
        return _model(product, [value("x", kind, [4, 16])], [value("y", kind, [4, 16])], weights, opset)

    kernel = numpy_helper.from_array(random.standard_normal((8, 3, 3, 3)).astype("float32"), "k")
    convolution = [helper.make_node("Conv", ["x", "k"], ["c"], "conv", pads=[1] * 4), helper.make_node("Relu", ["c"], ["y"], "relu")]
    dynamic = [value("x", fp32, ["N", 3, 8, 8])], [value("y", fp32, ["N", 8, 8, 8])]
    reshape = [helper.make_node("Reshape", ["x", "s"], ["y"], "reshape")]
    shaped = [value("x", fp32, [4, 6]), value("s", TensorProto.INT64, [2])]
    halves = [
        helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["b", "w"], ["p"], "product"),
        helper.make_node("Cast", ["p"], ["y"], to=fp32),
    ]
    bf16 = helper.make_tensor("w", TensorProto.BFLOAT16, [16, 16], square.flatten().tolist())
    flat = [value("x", fp32, [4, 16])], [value("y", fp32, [4, 16])]
    found = [value("x", fp32, [4, 4])], [value("y", TensorProto.INT64, [2, None])]
    return {
        "matmul_fp32": matmul(fp32, "float32"),
        "matmul_fp16": matmul(fp16, "float16"),
        "matmul_bf16": _model(halves, *flat, [bf16], opset),
        "conv": _model(convolution, *dynamic, [kernel], opset),
        "reshape": _model(reshape, shaped, [value("y", fp32, ["a", "b"])], [], opset),
        "custom_op": _model([helper.make_node("Mish2", ["x"], ["y"], "bad\x01name", domain="acme")], *flat, [], opset),
        "det": _model([helper.make_node("Det", ["x"], ["y"], "det")], [value("x", fp32, [4, 4])], [value("y", fp32, [])], [], opset),
        "non_zero": _model([helper.make_node("NonZero", ["x"], ["y"], "find")], *found, [], opset),
        "empty": b"",
        "garbage": b"\x08\x07garbage!!!!",
    }
