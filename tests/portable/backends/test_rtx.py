"""Real TensorRT-RTX builds of tiny models, without a GPU. Texts and rules: docs/facts/rtx.yaml."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.rtx

PROFILE = {"x": {"min": [1, 3, 8, 8], "opt": [2, 3, 8, 8], "max": [4, 3, 8, 8]}}
MASK_OFFSET, MASK = 32, {"7.5": 1, "8.0": 2, "8.6": 4, "8.9": 8, "12.0": 16}  # docs/facts/plan_header.yaml

Run = Callable[..., dict[str, Any]]


def request(*capabilities: str, **options: Any) -> dict[str, Any]:
    return {
        "step": "build",
        "backend": "tensorrt-rtx",
        "engine": "engine.plan",
        "options": {"compute_capability": list(capabilities), "precision": "fp32", "strongly_typed": True, "tf32": True, **options},
    }


@pytest.mark.parametrize("capabilities", [("8.6",), ("7.5", "8.0", "8.6"), ("12.0",)])
def test_a_plan_is_built_for_exactly_the_capabilities_asked_for(
    run_step: Run, models: dict[str, bytes], tmp_path: Path, capabilities: tuple[str, ...]
) -> None:
    result = run_step(request(*capabilities, profiles=[PROFILE]), models["conv"])

    assert result["ok"], result["error"]
    plan = (tmp_path / "engine.plan").read_bytes()
    assert plan[:4] == b"vtrt"
    assert plan[MASK_OFFSET] == sum(MASK[capability] for capability in capabilities)
    assert result["engine"] == {"file": "engine.plan", "size_bytes": len(plan), "sha256": hashlib.sha256(plan).hexdigest()}
    assert result["io"] == [
        {"name": "x", "mode": "input", "dtype": "float32", "shape": [-1, 3, 8, 8]},
        {"name": "y", "mode": "output", "dtype": "float32", "shape": [-1, 8, 8, 8]},
    ]
    assert bytes(int(part) for part in result["backend_version"].split(".")) == plan[24:28]


def test_phases_are_events_and_nothing_else_is_between_the_markers(run_step: Run, models: dict[str, bytes]) -> None:
    result = run_step(request("8.6", profiles=[PROFILE]), models["conv"])

    lines = result["stdout"].strip().splitlines()
    assert lines[0] == "===enginefarm-events n0 begin==="
    assert lines[-1] == "===enginefarm-events n0 end==="
    events = [json.loads(line) for line in lines[1:-1]]
    phases = [event["phase"] for event in events if event["event"] == "phase"]
    assert phases[0] == "parsing"
    assert phases[-1] == "writing"
    assert "Building engine" in phases
    assert all(first != second for first, second in itertools.pairwise(phases))


def test_fp32_matrix_products_are_refused_by_turing_by_name_and_the_others_named_as_willing(
    run_step: Run, models: dict[str, bytes], tmp_path: Path
) -> None:
    error = run_step(request("8.6", "7.5", "8.9"), models["matmul_fp32"])["error"]

    assert error["kind"] == "capability-refused"
    assert error["message"] == ('compute capability 7.5 refuses fp32 matrix products (operation "product"); 8.6 and 8.9 would build')
    assert error["details"]["capability"] == "7.5"
    assert error["details"]["fix"] == "precision: fp16 builds for 7.5, or leave 7.5 out of the target"
    assert error["details"]["accepted"] == ["8.6", "8.9"]
    assert "FP32 GEMM is not supported" in error["details"]["reason"]
    assert "/_src" not in error["details"]["reason"]
    assert not (tmp_path / "engine.plan").exists()


def test_the_fix_for_turing_is_true(run_step: Run, models: dict[str, bytes]) -> None:
    assert run_step(request("7.5", "8.6", precision="fp16"), models["matmul_fp16"])["ok"]


def test_bf16_is_refused_by_turing_alone(run_step: Run, models: dict[str, bytes]) -> None:
    error = run_step(request("7.5"), models["matmul_bf16"])["error"]

    assert error["kind"] == "capability-refused"
    assert error["message"] == "compute capability 7.5 refuses bf16"


def test_a_capability_that_the_builder_does_not_know_is_refused_with_the_known_ones(run_step: Run, models: dict[str, bytes]) -> None:
    error = run_step(request("8.7"), models["matmul_fp16"])["error"]

    assert error["kind"] == "capability-refused"
    assert error["message"] == 'TensorRT-RTX has no compute capability "8.7"'
    assert "7.5, 8.0, 8.6, 8.9, 12.0" in error["details"]["reason"]


@pytest.mark.parametrize(
    ("model", "kind", "text"),
    [
        ("custom_op", "unsupported-op", r'operator Mish2 at node "bad\x01name": Plugin not found'),
        ("det", "unsupported-op", 'operator Det at node "det": the parser does not support it'),
        ("non_zero", "unsupported-op", 'operator NonZero at node "find": NonZero plugin creator'),
        ("garbage", "parse-failed", "Failed to parse the ONNX model"),
        ("empty", "parse-failed", "the file holds no network"),
    ],
)
def test_what_the_parser_refuses_is_told_with_node_and_operator(
    run_step: Run, models: dict[str, bytes], model: str, kind: str, text: str
) -> None:
    error = run_step(request("8.6"), models[model])["error"]

    assert error["kind"] == kind
    assert text in error["message"]


@pytest.mark.parametrize(
    ("model", "fix"),
    [
        ("custom_op", "export the model without this operator"),
        ("det", "build the model for ONNX Runtime (--target cpu), or export the model without this operator"),
        ("non_zero", "build the model for ONNX Runtime (--target cpu), or export the model without this operator"),
    ],
)
def test_an_operator_that_the_parser_refuses_comes_with_what_to_do(run_step: Run, models: dict[str, bytes], model: str, fix: str) -> None:
    assert run_step(request("8.6"), models[model])["error"]["details"]["fix"] == fix


@pytest.mark.parametrize(
    ("profiles", "text"),
    [
        ([], 'no optimization profile for the dynamic input "x"'),
        ([{"z": PROFILE["x"]}], 'the profile names "z", the model\'s inputs are "x"'),
        ([{"x": {"min": [4, 3, 8, 8], "opt": [2, 3, 8, 8], "max": [1, 3, 8, 8]}}], "MIN<=OPT<=MAX"),
        ([{"x": {"min": [3, 8, 8], "opt": [3, 8, 8], "max": [3, 8, 8]}}], "dimensions"),
    ],
)
def test_a_profile_that_does_not_fit_fails_with_the_reason(run_step: Run, models: dict[str, bytes], profiles: list[Any], text: str) -> None:
    error = run_step(request("8.6", profiles=profiles), models["conv"])["error"]

    assert error["kind"] == "build-failed"
    assert text in error["message"]
    assert "cudaError 35" not in error["message"]


def test_an_input_that_carries_a_shape_takes_its_values_as_profile(run_step: Run, models: dict[str, bytes]) -> None:
    values = {"s": {"min": [6, 4], "opt": [6, 4], "max": [6, 4]}}

    assert run_step(request("8.6", profiles=[values]), models["reshape"])["ok"]
    assert 'input "s"' in run_step(request("8.6"), models["reshape"])["error"]["message"]


def test_building_works_within_a_limit_smaller_than_the_builders_own_library(run_step: Run, models: dict[str, bytes]) -> None:
    assert run_step({**request("8.6", profiles=[PROFILE]), "limits": {"memory_bytes": 200 << 20}}, models["conv"])["ok"]


@pytest.mark.parametrize("option", [{"plugins": ["p.so"]}, {"version_compatible": True}, {"hardware_compatibility": "ampere_plus"}])
def test_options_that_rtx_does_not_have_are_refused_not_ignored(run_step: Run, models: dict[str, bytes], option: dict[str, Any]) -> None:
    assert run_step(request("8.6", **option), models["matmul_fp16"])["error"]["kind"] == "bad-request"


def test_options_that_rtx_has_are_accepted(run_step: Run, models: dict[str, bytes]) -> None:
    result = run_step(request("8.6", workspace=1 << 30, optimization_level=5, tf32=False), models["matmul_fp16"])

    assert result["ok"], result["error"]


def test_without_a_driver_validation_says_that_there_is_no_device(run_step: Run, tmp_path: Path) -> None:
    import ctypes.util

    if ctypes.util.find_library("cuda"):
        pytest.skip("this machine has an NVIDIA driver")
    (tmp_path / "engine.plan").write_bytes(b"vtrt")

    error = run_step({"step": "validate", "backend": "tensorrt-rtx", "engine": "engine.plan", "samples": []})["error"]

    assert error["kind"] == "no-device"
    assert "no NVIDIA driver" in error["message"]
