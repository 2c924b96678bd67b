"""Real ONNX Runtime builds and validations on the CPU provider."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Run = Callable[..., dict[str, Any]]

BUILD = {"step": "build", "backend": "onnxruntime", "engine": "engine.onnx", "options": {"provider": "cpu", "precision": "fp32"}}


def validate(*inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    samples = [{"name": f"s{number}", "inputs": [tensor]} for number, tensor in enumerate(inputs)]
    base = {"step": "validate", "backend": "onnxruntime", "engine": "engine.onnx", "provider": "cpu", "samples": samples}
    return {**base, "warmup": 1, "runs": 2, "soak_seconds": 0, **more}


def sample(folder: Path, name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    (folder / f"{name}.bin").write_bytes(array.tobytes())
    return {"name": "x", "dtype": array.dtype.name, "shape": list(array.shape), "file": f"{name}.bin"}


def outputs_of(folder: Path, result: dict[str, Any], number: int) -> np.ndarray[Any, Any]:
    described = result["outputs"][number]["outputs"][0]
    return np.fromfile(folder / described["file"], dtype=described["dtype"]).reshape(described["shape"])


def reference(model: bytes, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    found: np.ndarray[Any, Any] = ReferenceEvaluator(onnx.load_from_string(model)).run(None, {"x": x})[0]
    return found


def test_an_engine_is_one_onnx_file_with_pure_onnx_operators(run_step: Run, models: dict[str, bytes], tmp_path: Path) -> None:
    import onnx

    result = run_step(BUILD, models["conv"])

    assert result["ok"], result["error"]
    data = (tmp_path / "engine.onnx").read_bytes()
    assert result["engine"] == {"file": "engine.onnx", "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert {node.domain for node in onnx.load_from_string(data).graph.node} == {""}
    assert result["io"] == [
        {"name": "x", "mode": "input", "dtype": "float32", "shape": [-1, 3, 8, 8]},
        {"name": "y", "mode": "output", "dtype": "float32", "shape": [-1, 8, 8, 8]},
    ]
    assert result["details"]["provider"] == "cpu"
    assert not list(tmp_path.glob("*.tmp"))


def test_two_builds_give_the_same_bytes(run_step: Run, models: dict[str, bytes], tmp_path: Path) -> None:
    first = run_step(BUILD, models["conv"])["engine"]["sha256"]
    (tmp_path / "engine.onnx").unlink()

    assert run_step(BUILD, models["conv"])["engine"]["sha256"] == first


def test_validation_hands_back_raw_outputs_of_every_sample(run_step: Run, models: dict[str, bytes], tmp_path: Path) -> None:
    run_step(BUILD, models["conv"])
    random = np.random.default_rng(1)
    arrays = [random.standard_normal((count, 3, 8, 8)).astype("float32") for count in (1, 3)]

    result = run_step(validate(*(sample(tmp_path, f"x{number}", array) for number, array in enumerate(arrays))))

    assert result["ok"], result["error"]
    assert [item["sample"] for item in result["outputs"]] == ["s0", "s1"]
    for number, array in enumerate(arrays):
        np.testing.assert_allclose(outputs_of(tmp_path, result, number), reference(models["conv"], array), rtol=1e-4, atol=1e-4)
    assert len(result["timings"]["run_ms"]) == 2
    assert all(value > 0 for value in [result["timings"]["load_seconds"], *result["timings"]["run_ms"]])
    assert result["soak"] is None
    assert isinstance(result["device"], str)


def test_the_engine_needs_no_model_beside_it(run_step: Run, models: dict[str, bytes], tmp_path: Path) -> None:
    run_step(BUILD, models["matmul_fp32"])
    (tmp_path / "model" / "model.onnx").unlink()

    assert run_step(validate(sample(tmp_path, "x", np.ones((4, 16), "float32"))))["ok"]


def test_soaking_says_whether_the_outputs_stayed_the_same(run_step: Run, models: dict[str, bytes], tmp_path: Path) -> None:
    run_step(BUILD, models["matmul_fp32"])

    soak = run_step(validate(sample(tmp_path, "x", np.ones((4, 16), "float32")), soak_seconds=0.05))["soak"]

    assert soak["stable"] is True
    assert soak["runs"] >= 1
    assert soak["seconds"] >= 0.05


@pytest.mark.parametrize("rows", [0, 4])
def test_a_tensor_without_elements_travels_too(run_step: Run, tmp_path: Path, rows: int) -> None:
    from onnx import TensorProto, helper

    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    graph = helper.make_graph(nodes, "g", [value("x", TensorProto.FLOAT, ["N", 4])], [value("y", TensorProto.FLOAT, ["N", 4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    run_step(BUILD, model.SerializeToString())

    result = run_step(validate(sample(tmp_path, "x", np.ones((rows, 4), "float32"))))

    assert result["ok"], result["error"]
    assert outputs_of(tmp_path, result, 0).shape == (rows, 4)


@pytest.mark.parametrize(
    ("model", "kind", "text"),
    [
        ("custom_op", "unsupported-op", "operator acme.Mish2: ONNX Runtime has no implementation of it"),
        ("matmul_bf16", "unsupported-op", 'operator MatMul at node "product": ONNX Runtime has no implementation of it'),
        ("garbage", "parse-failed", "ONNX Runtime refuses the model: Protobuf parsing failed."),
        ("empty", "parse-failed", "ONNX Runtime refuses the model: No graph was found in the protobuf."),
    ],
)
def test_what_onnxruntime_refuses_is_told_without_its_codes_and_paths(
    run_step: Run, models: dict[str, bytes], model: str, kind: str, text: str
) -> None:
    error = run_step(BUILD, models[model])["error"]

    assert error["kind"] == kind
    assert error["message"] == text


def test_a_missing_cuda_provider_is_an_error_and_never_the_cpu(run_step: Run, models: dict[str, bytes], tmp_path: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this interpreter has the CUDA provider")

    error = run_step({**BUILD, "options": {"provider": "cuda"}}, models["conv"])["error"]

    assert error["kind"] == "backend-missing"
    assert "onnxruntime-gpu" in error["message"]
    assert not (tmp_path / "engine.onnx").exists()


def test_a_session_that_fell_back_to_the_cpu_is_refused() -> None:
    from orchestrator.portable.backends.ort_common import open_session
    from orchestrator.portable.worker.errors import StepError

    class DoubleRuntime:
        """An onnxruntime whose CUDA provider does not start; it does then what the real one does: goes on with the CPU."""

        class InferenceSession:
            def __init__(self, path: str, options: Any, providers: list[Any]) -> None:
                self.given = providers

            def disable_fallback(self) -> None:
                pass

            def get_providers(self) -> list[str]:
                return ["CPUExecutionProvider"]

    class Options:
        log_severity_level = 0

    with pytest.raises(StepError) as caught:
        open_session(DoubleRuntime, "m.onnx", Options(), [("CUDAExecutionProvider", {}), "CPUExecutionProvider"], "load-failed")

    assert caught.value.kind == "no-device"
    assert "fell back to CPUExecutionProvider" in caught.value.message


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"samples": []}, "bad-request", "at least one sample"),
        ({"provider": "tpu"}, "bad-request", '"tpu"'),
        ({"samples": [{"name": "s", "inputs": []}]}, "bad-request", 'no input "x"'),
        ({"engine": "../engine.onnx"}, "bad-request", "does not stay in the step's folder"),
        ({"engine": "nothing.onnx"}, "load-failed", "nothing.onnx"),
    ],
)
def test_bad_validate_requests_are_told_apart(
    run_step: Run, models: dict[str, bytes], tmp_path: Path, change: dict[str, Any], kind: str, text: str
) -> None:
    run_step(BUILD, models["matmul_fp32"])

    error = run_step({**validate(sample(tmp_path, "x", np.ones((4, 16), "float32"))), **change})["error"]

    assert error["kind"] == kind
    assert text in error["message"]


def test_an_input_of_the_wrong_shape_is_a_failed_run(run_step: Run, models: dict[str, bytes], tmp_path: Path) -> None:
    run_step(BUILD, models["matmul_fp32"])

    error = run_step(validate(sample(tmp_path, "x", np.ones((4, 7), "float32"))))["error"]

    assert error["kind"] == "run-failed"


def test_running_out_of_the_memory_limit_is_told_as_that(run_step: Run, models: dict[str, bytes], tmp_path: Path) -> None:
    run_step(BUILD, models["conv"])
    with (tmp_path / "big.bin").open("wb") as file:
        file.truncate(1 << 30)  # a sparse file: costs nothing until it is read
    tensor = {"name": "x", "dtype": "float32", "shape": [1 << 20, 4, 8, 8], "file": "big.bin"}

    result = run_step({**validate(tensor), "limits": {"memory_bytes": 600 << 20}})

    assert result["error"]["kind"] == "out-of-memory"


def test_a_model_that_one_file_cannot_hold_is_refused_before_anything_runs(run_step: Run, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with (tmp_path / "model" / "weights.bin").open("wb") as file:
        file.truncate(3 << 30)

    error = run_step(BUILD, b"")["error"]

    assert error["kind"] == "build-failed"
    assert "3.0 GiB" in error["message"]


def test_events_are_json_lines(run_step: Run, models: dict[str, bytes]) -> None:
    lines = run_step(BUILD, models["conv"])["stdout"].strip().splitlines()

    assert [json.loads(line) for line in lines[1:-1]] == [
        {"event": "phase", "phase": "optimising"},
        {"event": "phase", "phase": "writing"},
    ]
