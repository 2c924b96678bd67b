"""Real builds through the process runner."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Cancel, Step, StepResult
from orchestrator.runners.process import ProcessRunner


def run(step: Step, folder: Path) -> StepResult:
    return ProcessRunner("test").run(step, folder, lambda _: None, Cancel())


def model(tmp_path: Path) -> Path:
    from onnx import TensorProto, helper, save

    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, [4, 4])], [value("y", TensorProto.FLOAT, [4, 4])])
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    whole.ir_version = 8
    save(whole, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def build(backend: str, engine: str, **options: Any) -> dict[str, Any]:
    return {"step": "build", "backend": backend, "model": "model/model.onnx", "engine": engine, "options": options}


def test_a_real_onnxruntime_build_goes_through(tmp_path: Path) -> None:
    step = Step(request=build("onnxruntime", "engine.onnx", provider="cpu"), inputs={"model/model.onnx": model(tmp_path)})

    done = run(step, tmp_path / "step")

    assert done.result["ok"], done.result["error"]
    assert (done.folder / done.result["engine"]["file"]).is_file()


@pytest.mark.rtx
def test_a_real_rtx_build_goes_through_and_several_run_at_once(tmp_path: Path) -> None:
    source = model(tmp_path)
    found: dict[str, StepResult] = {}

    def one(capability: str) -> None:
        request = build("tensorrt-rtx", "engine.plan", compute_capability=[capability])
        found[capability] = run(Step(request=request, inputs={"model/model.onnx": source}), tmp_path / capability)

    threads = [threading.Thread(target=one, args=(capability,)) for capability in ("8.0", "8.6", "12.0")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {capability: done.result["ok"] for capability, done in found.items()} == {"8.0": True, "8.6": True, "12.0": True}
    assert len({done.result["engine"]["sha256"] for done in found.values()}) == 3


@pytest.mark.rtx
def test_an_rtx_build_without_memory_gives_no_engine_and_no_survivor(tmp_path: Path) -> None:
    """Under a very small limit the builder fails, dies or hangs, as it happens; each has its own end here."""
    request = build("tensorrt-rtx", "engine.plan", compute_capability=["8.6"])
    step = Step(request=request, inputs={"model/model.onnx": model(tmp_path)}, memory_bytes=52 << 20, timeout_seconds=20)
    try:
        kind = run(step, tmp_path / "step").result["error"]["kind"]
    except EnginefarmError as error:
        kind = error.kind

    assert kind in ("out-of-memory", errors.STEP_MEMORY, errors.STEP_TIMEOUT)
    assert not (tmp_path / "step" / "engine.plan").exists()
