from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from orchestrator.matrix.schema import Profile
from orchestrator.models.arrays import read_raw
from orchestrator.models.load import load_model
from orchestrator.models.reference import Reference, reference_outputs
from orchestrator.models.samples import make_samples

N = helper.make_node


def evaluate(
    make: Any, model: onnx.ModelProto, folder: Path, budget: float = 60.0, memory: int | None = None, cancel: Any = None
) -> Reference:
    loaded = load_model(make.save(model), stage=folder / "stage", deep=False)
    profiles = {
        info.name: Profile(
            min=tuple(dim if isinstance(dim, int) else 1 for dim in info.shape),
            opt=tuple(dim if isinstance(dim, int) else 2 for dim in info.shape),
            max=tuple(dim if isinstance(dim, int) else 4 for dim in info.shape),
        )
        for info in loaded.inputs
        if info.is_dynamic and info.shape is not None
    }
    samples = make_samples(loaded, profiles, folder / "samples")
    assert loaded.staged is not None
    found = reference_outputs(loaded.staged, samples, folder / "out", budget_seconds=budget, memory_bytes=memory, cancel=cancel)
    if found.outputs is not None:
        session = onnxruntime.InferenceSession(str(loaded.staged))
        for sample, tensors in zip(samples, found.outputs, strict=True):
            expected = session.run(None, {tensor["name"]: read_raw(tensor) for tensor in sample["inputs"]})
            for value, tensor in zip(expected, tensors, strict=True):
                assert list(value.shape) == tensor["shape"]
                np.testing.assert_allclose(read_raw(tensor).astype(np.float64), value.astype(np.float64), rtol=1e-4, atol=1e-5)
    return found


def test_outputs_of_every_sample_agree_with_another_runtime(make: Any, tmp_path: Path) -> None:
    weight = make.weight(np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32))
    nodes = [N("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), N("Relu", ["a"], ["y"]), N("ArgMax", ["a"], ["z"], axis=1)]
    outputs = [make.value("y", None), make.value("z", None, TensorProto.INT64)]
    found = evaluate(make, make.model(nodes, [make.value("x", ["n", 3, 16, 16])], outputs, [weight]), tmp_path)
    assert found.kind == "onnx.reference"
    assert found.reason is None
    assert [[tensor["name"] for tensor in tensors] for tensors in found.outputs or []] == [["y", "z"], ["y", "z"]]


@pytest.mark.parametrize("opset", [9, 13, 14, 17])
def test_normalization_runs_in_inference_mode_at_every_opset(make: Any, tmp_path: Path, opset: int) -> None:
    arrays = {"s": np.array([1, 2, 3.0]), "b": np.ones(3), "m": np.array([5, 6, 7.0]), "v": np.array([1, 4, 9.0])}
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in arrays.items()]
    node = N("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], momentum=0.9)
    model = make.model([node], [make.value("x", [2, 3, 4, 4])], [make.value("y", None)], tensors, opset=opset)
    assert evaluate(make, model, tmp_path).reason is None


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_global_max_pool_takes_any_rank(make: Any, tmp_path: Path, rank: int) -> None:
    shape = [2, 3, 5, 4, 6][:rank]
    model = make.model([N("GlobalMaxPool", ["x"], ["y"])], [make.value("x", shape)], [make.value("y", None)])
    assert evaluate(make, model, tmp_path).reason is None


def test_nodes_out_of_order_are_no_obstacle(make: Any, tmp_path: Path) -> None:
    model = make.model([N("Neg", ["a"], ["y"], name="last"), N("Abs", ["x"], ["a"], name="first")])
    assert evaluate(make, model, tmp_path).reason is None


def test_external_data_is_read(make: Any, tmp_path: Path) -> None:
    (make.folder / "w.bin").write_bytes(np.full(64, 3, np.float32).tobytes())
    assert evaluate(make, make.add(make.external("w.bin")), tmp_path).reason is None


def dropout(make: Any) -> onnx.ModelProto:
    extra = [numpy_helper.from_array(np.float32(0.5), "r"), numpy_helper.from_array(np.array(True), "t")]
    return make.model([N("Dropout", ["x", "r", "t"], ["y"])], initializers=extra)


def in_branch(make: Any) -> onnx.ModelProto:
    branch = helper.make_graph([N("RandomNormalLike", ["x"], ["b"])], "b", [], [make.value("b")])
    flag = numpy_helper.from_array(np.array(True), "c")
    return make.model([N("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], initializers=[flag])


@pytest.mark.parametrize(
    ("build", "op"),
    [
        (lambda make: make.model([N("RandomNormalLike", ["x"], ["y"])]), "RandomNormalLike"),
        (lambda make: make.model([N("Bernoulli", ["x"], ["y"])]), "Bernoulli"),
        (dropout, "Dropout"),
        (in_branch, "RandomNormalLike"),
    ],
)
def test_random_outputs_have_no_reference(make: Any, tmp_path: Path, build: Any, op: str) -> None:
    found = evaluate(make, build(make), tmp_path)
    assert found.outputs is None
    assert op in str(found.reason)


def test_an_unknown_operator_is_the_reason(make: Any, tmp_path: Path) -> None:
    model = make.model([N("DCNv2", ["x"], ["y"], domain="mmdeploy")], domains=["mmdeploy"])
    found = evaluate(make, model, tmp_path)
    assert found.outputs is None
    assert "DCNv2" in str(found.reason)


def forever(make: Any) -> onnx.ModelProto:
    body_in = [make.value("i", [], TensorProto.INT64), make.value("c", [], TensorProto.BOOL), make.value("a")]
    body_out = [make.value("c2", [], TensorProto.BOOL), make.value("a2")]
    nodes = [N("Identity", ["c"], ["c2"]), N("Neg", ["a"], ["a2"])]
    body = helper.make_graph(nodes, "body", body_in, body_out)
    flag = numpy_helper.from_array(np.array(True), "go")
    return make.model([N("Loop", ["", "go", "x"], ["y"], body=body)], initializers=[flag])


def test_a_loop_that_never_ends_runs_out_of_its_budget(make: Any, tmp_path: Path) -> None:
    found = evaluate(make, forever(make), tmp_path, budget=2.0)
    assert found == Reference("onnx.reference", None, "onnx.reference took longer than 2 s")


def test_memory_is_limited(make: Any, tmp_path: Path) -> None:
    """Each doubling is small in the file; together they ask for 256 TiB."""
    names = ["x", *(f"v{i}" for i in range(40))]
    nodes = [N("Concat", [names[i], names[i]], [names[i + 1]], axis=0) for i in range(40)]
    nodes.append(N("ReduceSum", [names[-1]], ["y"]))
    found = evaluate(make, make.model(nodes, None, [make.value("y", None)]), tmp_path, memory=1500 << 20)
    assert found.outputs is None
    assert "memory" in str(found.reason)


def test_cancelling_ends_it(make: Any, tmp_path: Path) -> None:
    flag = threading.Event()
    flag.set()
    found = evaluate(make, forever(make), tmp_path, budget=60.0, cancel=flag)
    assert found.reason == "cancelled"


def test_a_sequence_output_is_the_reason(make: Any, tmp_path: Path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [64]))
    model = make.model([N("SequenceConstruct", ["x"], ["y"])], None, [helper.make_value_info("y", kind)])
    assert "no tensor" in str(evaluate(make, model, tmp_path).reason)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [9, 11, 12, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_the_softmax_family_follows_its_opset(make: Any, tmp_path: Path, op: str, opset: int, axis: int | None) -> None:
    if axis == -1 and opset < 11:
        axis = 3
    node = N(op, ["x"], ["y"], **({} if axis is None else {"axis": axis}))
    model = make.model([node], [make.value("x", [2, 3, 4, 5])], [make.value("y", None)], opset=opset)
    assert evaluate(make, model, tmp_path).reason is None


def loop_without_condition(make: Any) -> onnx.ModelProto:
    model = forever(make)
    count = numpy_helper.from_array(np.array(3), "n")
    model.graph.node[0].input[0], model.graph.node[0].input[1] = "n", ""
    model.graph.initializer.append(count)
    return model


def roi_align(make: Any) -> onnx.ModelProto:
    inputs = [make.value("x", [1, 1, 8, 8]), make.value("r", [1, 4]), make.value("b", [1], TensorProto.INT64)]
    return make.model([N("RoiAlign", ["x", "r", "b"], ["y"])], inputs, [make.value("y", None)], opset=11)


def pool(make: Any, auto_pad: str) -> onnx.ModelProto:
    node = N("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], auto_pad=auto_pad)
    return make.model([node], [make.value("x", [1, 1, 5, 5])], [make.value("y", None)])


def resize(make: Any) -> onnx.ModelProto:
    node = N("Resize", ["x", "", "s"], ["y"], mode="linear", coordinate_transformation_mode="align_corners")
    scales = numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "s")
    return make.model([node], [make.value("x", [1, 1, 4, 4])], [make.value("y", None)], [scales])


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (loop_without_condition, "Loop without a condition"),
        (roi_align, "RoiAlign of opset 11"),
        (lambda make: pool(make, "SAME_LOWER"), "MaxPool with auto_pad SAME_LOWER"),
        (resize, "Resize with align_corners"),
    ],
)
def test_what_is_computed_otherwise_there_has_no_reference(make: Any, tmp_path: Path, build: Any, what: str) -> None:
    found = evaluate(make, build(make), tmp_path)
    assert found == Reference("onnx.reference", None, f"onnx.reference computes {what} differently from the standard")
    assert evaluate(make, pool(make, "SAME_UPPER"), tmp_path / "upper").reason is None
