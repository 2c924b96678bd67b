"""The TensorRT code paths over doubles of its API, release by release.

This proves which calls are made with which names, never what TensorRT does with them: no real TensorRT runs here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.portable.backends import trt, trt_network, trt_run
from orchestrator.portable.worker.errors import StepError
from orchestrator.portable.worker.events import Events

VERSIONS = ("7.1", "8.2", "8.4", "8.6.1", "10.3.0", "11.4.0.106")
PROFILE = {"x": {"min": [1, 4], "opt": [2, 4], "max": [8, 4]}}


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Events]:
    with (tmp_path / "events").open("wb") as file:
        yield Events(file.fileno(), "n")


def build(world: Any, monkeypatch: pytest.MonkeyPatch, doubles: ModuleType, folder: Path, events: Events, **options: Any) -> dict[str, Any]:
    monkeypatch.setattr(trt, "import_tensorrt", lambda: world.module)
    monkeypatch.setattr(trt, "Cuda", doubles.DoubleCuda)
    (folder / "model.onnx").write_bytes(options.pop("model", b"model"))
    request = {"model": "model.onnx", "engine": "engine.plan", "options": {"profiles": [PROFILE], **options}}
    return trt.build(request, str(folder), events)


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch, doubles: ModuleType, tmp_path: Path, events: Events) -> Any:
    """Build with a release's double; gives the double and the answer."""

    def run(version: str, prepare: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        world = doubles.DoubleTensorRT(version)
        if prepare is not None:
            prepare(world)
        return world, build(world, monkeypatch, doubles, tmp_path, events, **options)

    return run


@pytest.mark.parametrize("version", VERSIONS)
def test_every_release_builds_a_plan(attempt: Any, tmp_path: Path, version: str) -> None:
    world, answer = attempt(version, workspace=1 << 30, tf32=False, compute_capability=["8.6"])

    assert (tmp_path / "engine.plan").read_bytes() == b"plan"
    assert answer["engine"]["size_bytes"] == 4
    assert answer["backend_version"] == version
    assert answer["io"][0] == {"name": "x", "mode": "input", "dtype": "float32", "shape": [-1, 4]}
    assert answer["details"]["device"]["compute_capability"] == "8.6"
    assert ("set_shape", "x", (1, 4), (2, 4), (8, 4)) in world.calls
    assert ("init_libnvinfer_plugins", "") in world.calls
    assert "TF32" not in world.flags


@pytest.mark.parametrize(
    ("version", "call"), [("7.1", "build_engine"), ("8.2", "build_serialized_network"), ("11.4.0.106", "build_serialized_network")]
)
def test_the_plan_comes_from_the_call_that_the_release_has(attempt: Any, version: str, call: str) -> None:
    world, _ = attempt(version)

    assert [made[0] for made in world.calls if made[0].startswith("build")] == [call]


@pytest.mark.parametrize(("version", "call"), [("7.1", "parse"), ("8.2", "parse_from_file"), ("11.4.0.106", "parse_from_file")])
def test_the_model_is_parsed_from_its_file_where_the_release_can(attempt: Any, version: str, call: str) -> None:
    world, _ = attempt(version)

    assert (call,) in world.calls


@pytest.mark.parametrize(
    ("version", "pool"), [("7.1", False), ("8.2", False), ("8.4", True), ("8.6.1", True), ("10.3.0", True), ("11.4.0.106", True)]
)
def test_workspace_is_a_memory_pool_since_8_4(attempt: Any, version: str, pool: bool) -> None:
    world, _ = attempt(version, workspace=1 << 20)

    assert (("set_memory_pool_limit", "WORKSPACE", 1 << 20) in world.calls) == pool
    if not pool:
        assert world.config.max_workspace_size == 1 << 20


@pytest.mark.parametrize(
    ("version", "strongly_typed", "flags"),
    [
        ("7.1", False, {"EXPLICIT_BATCH"}),
        ("10.3.0", False, {"EXPLICIT_BATCH"}),
        ("10.3.0", True, {"EXPLICIT_BATCH", "STRONGLY_TYPED"}),
        ("11.4.0.106", False, set()),
        ("11.4.0.106", True, {"STRONGLY_TYPED"}),
    ],
)
def test_networks_are_created_with_flags_by_name(attempt: Any, version: str, strongly_typed: bool, flags: set[str]) -> None:
    world, _ = attempt(version, strongly_typed=strongly_typed)

    assert world.network_flags == flags


@pytest.mark.parametrize(("version", "precision", "flag"), [("7.1", "fp16", "FP16"), ("8.6.1", "fp16", "FP16"), ("10.3.0", "bf16", "BF16")])
def test_a_lower_precision_is_a_builder_flag(attempt: Any, version: str, precision: str, flag: str) -> None:
    world, _ = attempt(version, precision=precision)

    assert flag in world.flags


@pytest.mark.parametrize(("version", "precision"), [("11.4.0.106", "fp16"), ("8.6.1", "bf16"), ("7.1", "fp8")])
def test_a_precision_without_a_flag_is_refused_not_ignored(attempt: Any, version: str, precision: str) -> None:
    with pytest.raises(StepError, match="no builder flag for"):
        attempt(version, precision=precision)


def test_a_strongly_typed_build_sets_no_precision_flag(attempt: Any) -> None:
    world, _ = attempt("10.3.0", strongly_typed=True, precision="fp16")

    assert world.flags == {"TF32"}


def test_int8_needs_quantized_nodes(attempt: Any) -> None:
    class Layer:
        def __init__(self, kind: Any) -> None:
            self.type = kind

    def quantized(world: Any) -> None:
        world.layers = [Layer(world.module.LayerType.CONVOLUTION), Layer(world.module.LayerType.QUANTIZE)]

    with pytest.raises(StepError, match="needs a model with QuantizeLinear"):
        attempt("8.6.1", precision="int8")
    assert "INT8" in attempt("8.6.1", prepare=quantized, precision="int8")[0].flags


@pytest.mark.parametrize(
    ("version", "options", "text"),
    [
        ("8.4", {"hardware_compatibility": "ampere_plus"}, "no hardware compatibility"),
        ("8.6.1", {"hardware_compatibility": "same_compute_capability"}, "no hardware compatibility same_compute_capability"),
        ("8.4", {"version_compatible": True}, "no version compatible plans"),
        ("8.4", {"optimization_level": 3}, "no optimization level"),
        ("8.6.1", {"strongly_typed": True}, "no strongly typed networks"),
    ],
)
def test_what_a_release_cannot_do_is_refused_not_ignored(attempt: Any, version: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(StepError) as caught:
        attempt(version, **options)

    assert caught.value.kind == "bad-request"
    assert text in caught.value.message


def test_compatibility_is_set_by_name(attempt: Any) -> None:
    options = {"hardware_compatibility": "same_compute_capability", "version_compatible": True, "optimization_level": 5}
    world, _ = attempt("10.9.0.34", **options)

    assert world.config.hardware_compatibility_level.name == "SAME_COMPUTE_CAPABILITY"
    assert world.config.builder_optimization_level == 5
    assert "VERSION_COMPATIBLE" in world.flags


@pytest.mark.parametrize("version", ["7.1", "8.6.1", "11.4.0.106"])
def test_a_build_that_gives_nothing_fails_with_the_logs_reason(attempt: Any, version: str, tmp_path: Path) -> None:
    def refuse(world: Any) -> None:
        world.refuse = (
            "10: [optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not find any implementation for node {c}.)"
        )

    with pytest.raises(StepError) as caught:
        attempt(version, prepare=refuse)

    assert caught.value.kind == "build-failed"
    assert caught.value.message == "the builder gave no engine: Could not find any implementation for node {c}."
    assert not (tmp_path / "engine.plan").exists()


def test_memory_texts_decide_the_kind(attempt: Any) -> None:
    def refuse(world: Any) -> None:
        world.refuse = "2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)"

    with pytest.raises(StepError) as caught:
        attempt("8.6.1", prepare=refuse)

    assert caught.value.kind == "out-of-memory"


@pytest.mark.parametrize(("version", "place"), [("8.6.1", "node number 3"), ("10.3.0", 'operator Det at node "det"')])
def test_parser_errors_name_what_the_release_tells(attempt: Any, version: str, place: str) -> None:
    with pytest.raises(StepError) as caught:
        attempt(version, model=b"unsupported")

    assert caught.value.kind == "unsupported-op"
    assert caught.value.message == f"{place}: the parser does not support it"


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (
            "Plugin not found, are the plugin name, version, and namespace correct?",
            "name the library that has it in `plugins:` of the target, or export the model without this operator",
        ),
        (
            "creator && NonZero plugin creator version 1 was not found in plugin registry.",
            (
                "name the library that has it in `plugins:` of the target, or build the model for ONNX Runtime (--target cpu), "
                "or export the model without this operator"
            ),
        ),
    ],
)
def test_where_plugins_exist_naming_one_is_a_way_out(text: str, fix: str) -> None:
    problem = {"text": text, "needs_plugin": True}

    assert trt_network._operator_fix(problem, takes_plugins=True) == fix


def test_a_file_without_a_network_is_refused(attempt: Any) -> None:
    with pytest.raises(StepError, match="the file holds no network"):
        attempt("8.6.1", model=b"empty")


def test_a_builder_that_does_not_start_is_a_missing_device(attempt: Any) -> None:
    def broken(world: Any) -> None:
        def no_builder(logger: Any) -> Any:
            logger.log(world.module.ILogger.Severity.ERROR, "CUDA initialization failure with error: 35")
            raise TypeError("pybind11::init(): factory function returned nullptr")

        world.module.Builder = no_builder

    with pytest.raises(StepError) as caught:
        attempt("10.3.0", prepare=broken)

    assert caught.value.kind == "no-device"
    assert "CUDA initialization failure with error: 35" in caught.value.message


def test_a_plugin_that_does_not_load_is_named(attempt: Any, tmp_path: Path) -> None:
    (tmp_path / "p.so").write_bytes(b"no library")

    with pytest.raises(StepError) as caught:
        attempt("8.6.1", plugins=["p.so"])

    assert caught.value.kind == "load-failed"
    assert "p.so" in caught.value.message


def validate(
    world: Any, monkeypatch: pytest.MonkeyPatch, doubles: ModuleType, folder: Path, events: Events, rows: tuple[int, ...] = (2, 3)
) -> dict[str, Any]:
    monkeypatch.setattr(trt_run, "import_tensorrt", lambda: world.module)
    monkeypatch.setattr(trt_run, "Cuda", doubles.DoubleCuda)
    samples = []
    for number, count in enumerate(rows):
        (folder / f"{number}.bin").write_bytes(struct.pack(f"<{4 * count}f", *range(4 * count)))
        tensor = {"name": "x", "dtype": "float32", "shape": [count, 4], "file": f"{number}.bin"}
        samples.append({"name": f"s{number}", "inputs": [tensor]})
    request = {"engine": "engine.plan", "plugins": [], "samples": samples, "warmup": 1, "runs": 3, "soak_seconds": 0.01}
    return trt_run.validate_tensorrt(request, str(folder), events)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_release_runs_all_samples(
    version: str, monkeypatch: pytest.MonkeyPatch, doubles: ModuleType, tmp_path: Path, events: Events
) -> None:
    (tmp_path / "engine.plan").write_bytes(b"plan")

    answer = validate(doubles.DoubleTensorRT(version), monkeypatch, doubles, tmp_path, events)

    assert [item["sample"] for item in answer["outputs"]] == ["s0", "s1"]
    for count, item in zip((2, 3), answer["outputs"], strict=True):
        (output,) = item["outputs"]
        assert output["shape"] == [count, 4]
        found = struct.unpack(f"<{4 * count}f", (tmp_path / output["file"]).read_bytes())
        assert found == tuple(2.0 * value for value in range(4 * count))
    assert len(answer["timings"]["run_ms"]) == 3
    assert answer["soak"]["stable"] is True
    assert answer["device"] == "Double GPU (compute capability 8.6)"


@pytest.mark.parametrize("version", ["8.4", "10.3.0"])
def test_a_plan_that_does_not_load_fails_with_the_logs_reason(
    version: str, monkeypatch: pytest.MonkeyPatch, doubles: ModuleType, tmp_path: Path, events: Events
) -> None:
    (tmp_path / "engine.plan").write_bytes(b"other")

    with pytest.raises(StepError) as caught:
        validate(doubles.DoubleTensorRT(version), monkeypatch, doubles, tmp_path, events)

    assert caught.value.kind == "load-failed"
    assert caught.value.message == "the engine does not load: Magic tag does not match"


@pytest.mark.parametrize("version", ["8.4", "10.3.0"])
def test_a_shape_outside_the_profile_is_a_failed_run(
    version: str, monkeypatch: pytest.MonkeyPatch, doubles: ModuleType, tmp_path: Path, events: Events
) -> None:
    (tmp_path / "engine.plan").write_bytes(b"plan")

    with pytest.raises(StepError) as caught:
        validate(doubles.DoubleTensorRT(version), monkeypatch, doubles, tmp_path, events, rows=(9,))

    assert caught.value.kind == "run-failed"
    assert 'input "x" cannot have shape 9x4' in caught.value.message
