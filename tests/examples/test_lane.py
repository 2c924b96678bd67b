from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from onnx.reference import ReferenceEvaluator

FOLDER = Path(__file__).resolve().parents[2] / "examples"
MODEL = FOLDER / "lane.onnx"


@pytest.fixture(scope="module")
def script(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("examples/lane.py")


@pytest.fixture(scope="module")
def image() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(7).random((1, 3, 160, 320), dtype=np.float32)


def test_the_script_writes_the_committed_bytes(script: ModuleType, tmp_path: Path) -> None:
    script.main(tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == MODEL.read_bytes()


def test_the_model_is_valid_old_enough_for_every_target_and_about_a_megabyte() -> None:
    model = onnx.load(MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (6, 11)
    assert 0.5e6 < MODEL.stat().st_size < 1.5e6
    assert {node.op_type for node in model.graph.node} == {"Conv", "ConvTranspose", "Relu", "Add", "Concat", "Sigmoid"}


def test_only_the_batch_is_dynamic() -> None:
    graph = onnx.load(MODEL).graph
    shapes = {
        tensor.name: [dim.dim_param or dim.dim_value for dim in tensor.type.tensor_type.shape.dim]
        for tensor in [*graph.input, *graph.output]
    }
    assert shapes == {"image": ["batch", 3, 160, 320], "lanes": ["batch", 4, 160, 320]}


def test_the_yaml_beside_it_covers_the_batch() -> None:
    config = yaml.safe_load((FOLDER / "lane.yaml").read_text())
    assert config["name"] == "lane"
    profile = config["shapes"]["image"]
    assert [profile[key] for key in ("min", "opt", "max")] == [[1, 3, 160, 320], [1, 3, 160, 320], [4, 3, 160, 320]]


def test_masks_are_probabilities_that_differ_from_place_to_place(image: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    (lanes,) = onnxruntime.InferenceSession(str(MODEL)).run(["lanes"], {"image": image})
    assert lanes.shape == (1, 4, 160, 320)
    assert lanes.min() > 0
    assert lanes.max() < 1
    assert lanes.std() > 0.05, "a saturated or constant output would agree with anything"


def test_onnxruntime_and_the_reference_evaluator_agree(image: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    (lanes,) = onnxruntime.InferenceSession(str(MODEL)).run(["lanes"], {"image": image})
    (expected,) = ReferenceEvaluator(str(MODEL)).run(["lanes"], {"image": image})
    np.testing.assert_allclose(lanes, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.rtx
@pytest.mark.parametrize("capabilities", [["SM75"], ["SM80", "SM86"], ["SM89"], ["SM120"]], ids="+".join)
def test_tensorrt_rtx_builds_it_in_fp32(capabilities: list[str]) -> None:
    trt = importlib.import_module("tensorrt_rtx_bindings")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, logger).parse_from_file(str(MODEL))
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("image", (1, 3, 160, 320), (1, 3, 160, 320), (4, 3, 160, 320))
    config.add_optimization_profile(profile)
    config.num_compute_capabilities = len(capabilities)
    for index, name in enumerate(capabilities):
        assert config.set_compute_capability(getattr(trt.ComputeCapability, name), index)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    assert plan.nbytes > 1_000_000
