from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from orchestrator.errors import PRECISION_IMPOSSIBLE, EnginefarmError
from orchestrator.models import convert
from orchestrator.models.convert import convert_precision, fp16_warnings
from orchestrator.models.half import ordered
from orchestrator.models.load import load_model

F, I64 = TensorProto.FLOAT, TensorProto.INT64
N = helper.make_node
RNG = np.random.default_rng(3)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array((RNG.standard_normal(shape) * 0.1).astype(np.float32), name)


def constant(name: str, value: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def conv_net(make: Any) -> onnx.ModelProto:
    """Strided convolutions, BatchNormalization, Resize to the skip's size, Concat, Sigmoid."""
    nodes = [
        N("Conv", ["x", "c1"], ["a1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        N("BatchNormalization", ["a1", "s", "b", "m", "v"], ["a2"]),
        N("Relu", ["a2"], ["skip"]),
        N("Conv", ["skip", "c2"], ["a3"], pads=[1, 1, 1, 1], strides=[2, 2]),
        N("Resize", ["a3", "", "scales"], ["up"], mode="linear"),
        N("Concat", ["up", "skip"], ["cat"], axis=1),
        N("ConvTranspose", ["cat", "c3"], ["a4"], strides=[2, 2]),
        N("Sigmoid", ["a4"], ["y"]),
    ]
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    tensors = [weight("c1", 8, 3, 3, 3), weight("c2", 8, 8, 3, 3), weight("c3", 16, 1, 2, 2)]
    tensors += [constant("s", ones), constant("b", zeros), constant("m", zeros), constant("v", ones)]
    tensors += [constant("scales", np.array([1, 1, 2, 2], np.float32))]
    return make.model(nodes, [make.value("x", ["n", 3, 32, 32])], [make.value("y", ["n", 1, 32, 32])], tensors)


def transformer(make: Any) -> onnx.ModelProto:
    """Attention with a mask from integers, LayerNormalization, Gemm, Erf, residuals."""
    nodes = [
        N("LayerNormalization", ["x", "g", "o"], ["h"], epsilon=1e-12),
        *(N("MatMul", ["h", f"w{c}"], [c]) for c in "qkv"),
        N("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        N("MatMul", ["q", "kt"], ["s0"]),
        N("Div", ["s0", "scale"], ["s1"]),
        N("Cast", ["mask"], ["mf"], to=F),
        N("Sub", ["one", "mf"], ["mi"]),
        N("Mul", ["mi", "minus"], ["ma"]),
        N("Unsqueeze", ["ma", "axis1"], ["mb"]),
        N("Add", ["s1", "mb"], ["s2"]),
        N("Softmax", ["s2"], ["p"], axis=-1),
        N("MatMul", ["p", "v"], ["ctx"]),
        N("Add", ["ctx", "x"], ["r"]),
        N("Reshape", ["r", "flat"], ["r2"]),
        N("Gemm", ["r2", "wg", "bg"], ["u"]),
        N("Erf", ["u"], ["e"]),
        N("Mul", ["u", "e"], ["ge"]),
        N("Shape", ["x"], ["sh"]),
        N("Reshape", ["ge", "sh"], ["y"]),
    ]
    tensors = [constant("g", np.ones(16, np.float32)), constant("o", np.zeros(16, np.float32)), constant("scale", np.float32(4))]
    tensors += [constant("one", np.float32(1)), constant("minus", np.float32(-1e12)), constant("axis1", np.array([1]))]
    tensors += [constant("flat", np.array([-1, 16])), weight("wg", 16, 16), weight("bg", 16), *(weight(f"w{c}", 16, 16) for c in "qkv")]
    inputs = [make.value("x", ["n", 12, 16]), make.value("mask", ["n", 12], I64)]
    return make.model(nodes, inputs, [make.value("y", ["n", 12, 16])], tensors)


def grid(make: Any) -> onnx.ModelProto:
    """Coordinates from sizes (Range, Cast, arithmetic) that meet the data late, as detection heads make them."""
    nodes = [
        N("Shape", ["x"], ["sh"]),
        N("Gather", ["sh", "three"], ["w"]),
        N("Range", ["zero", "w", "one"], ["r"]),
        N("Cast", ["r"], ["rf"], to=F),
        N("Add", ["rf", "half"], ["rc"]),
        N("Mul", ["rc", "stride"], ["rs"]),
        N("Conv", ["x", "c"], ["a"], pads=[1, 1, 1, 1]),
        N("Mul", ["a", "rs"], ["y"]),
    ]
    tensors = [constant("three", 3), constant("zero", 0), constant("one", 1), constant("half", np.float32(0.5))]
    tensors += [constant("stride", np.float32(8)), weight("c", 4, 3, 3, 3)]
    return make.model(nodes, [make.value("x", ["n", 3, 16, 16])], [make.value("y", ["n", 4, 16, 16])], tensors)


def einsum(make: Any) -> onnx.ModelProto:
    nodes = [
        N("Gather", ["table", "x"], ["emb"]),
        N("Einsum", ["emb", "w"], ["a"], equation="nsd,de->nse"),
        N("ReduceMax", ["a"], ["m"], axes=[1], keepdims=0),
        N("Min", ["m", "cap"], ["y"]),
    ]
    tensors = [weight("table", 20, 16), weight("w", 16, 8), constant("cap", np.float32(0.3))]
    return make.model(nodes, [make.value("x", ["n", 6], I64)], [make.value("y", ["n", 8])], tensors)


def branches(make: Any) -> onnx.ModelProto:
    """An If whose branches use values from outside."""
    then = helper.make_graph([N("Mul", ["a", "two"], ["t"])], "t", [], [make.value("t", ["n", 4])])
    other = helper.make_graph([N("Neg", ["a"], ["e"])], "e", [], [make.value("e", ["n", 4])])
    nodes = [N("MatMul", ["x", "w"], ["a"]), N("If", ["flag"], ["b"], then_branch=then, else_branch=other), N("Relu", ["b"], ["y"])]
    tensors = [weight("w", 4, 4), constant("two", np.float32(2)), constant("flag", np.array(True))]
    return make.model(nodes, [make.value("x", ["n", 4])], [make.value("y", ["n", 4])], tensors)


MODELS = [conv_net, transformer, grid, einsum, branches]


def converted(make: Any, model: onnx.ModelProto, folder: Path, precision: str = "fp16") -> tuple[Path, tuple[str, ...]]:
    loaded = load_model(make.save(model), stage=folder / "stage", deep=False)
    warnings = convert_precision(loaded, folder / "stage", folder / "out", precision)
    return folder / "out" / "model.onnx", warnings


def refused(make: Any, model: onnx.ModelProto, folder: Path, precision: str) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        converted(make, model, folder, precision)
    assert caught.value.kind == PRECISION_IMPOSSIBLE
    return caught.value


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    found = {}
    for value in model.graph.input:
        shape = [dim.dim_value or 2 for dim in value.type.tensor_type.shape.dim]
        integers = value.type.tensor_type.elem_type == I64
        found[value.name] = RNG.integers(0, 2, shape) if integers else RNG.random(shape, dtype=np.float32)
    return found


def run(path: Path | bytes, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path if isinstance(path, bytes) else str(path), options)
    return session.run(None, values)


@pytest.mark.parametrize("build", MODELS, ids=[build.__name__ for build in MODELS])
def test_fp16_keeps_the_signature_and_the_meaning(make: Any, tmp_path: Path, build: Any) -> None:
    model = build(make)
    path, _ = converted(make, model, tmp_path)
    half = onnx.load(path)
    onnx.checker.check_model(half, full_check=True)
    for before, after in ((model.graph.input, half.graph.input), (model.graph.output, half.graph.output)):
        assert [(value.name, value.type) for value in before] == [(value.name, value.type) for value in after]
    heavy = [node for node in half.graph.node if node.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum")]
    types = {tensor.name: tensor.data_type for tensor in half.graph.initializer}
    assert {types[name] for node in heavy for name in node.input if name in types} == {TensorProto.FLOAT16}
    values = feeds(model)
    for expected, found in zip(run(model.SerializeToString(), values), run(path, values), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-2)


BUILD = """
import json, sys
import tensorrt_rtx_bindings as trt

def build(path, profile, capability):
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(path):
        return [parser.get_error(i).desc() for i in range(parser.num_errors)][0]
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    shapes = builder.create_optimization_profile()
    for name, sizes in profile.items():
        shapes.set_shape(name, *sizes)
    config.add_optimization_profile(shapes)
    return builder.build_serialized_network(network, config) is not None

print(json.dumps({c: build(sys.argv[1], json.loads(sys.argv[2]), c) for c in sys.argv[3:]}))
"""
CAPABILITIES = ("SM75", "SM80", "SM89", "SM120")


def rtx_build(path: Path, model: onnx.ModelProto, sizes: dict[str, Any] | None = None) -> dict[str, Any]:
    profile = sizes or {
        value.name: [[dim.dim_value or n for dim in value.type.tensor_type.shape.dim] for n in (1, 2, 4)] for value in model.graph.input
    }
    command = [sys.executable, "-c", BUILD, str(path), json.dumps(profile), *CAPABILITIES]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.rtx
@pytest.mark.parametrize("build", [conv_net, transformer, grid, einsum], ids=lambda build: build.__name__)
def test_fp16_builds_for_every_rtx_generation(make: Any, tmp_path: Path, build: Any) -> None:
    model = build(make)
    path, _ = converted(make, model, tmp_path)
    assert rtx_build(path, model) == dict.fromkeys(CAPABILITIES, True)


@pytest.mark.rtx
def test_equal_placeholders_no_longer_tie_different_sizes(make: Any, tmp_path: Path) -> None:
    nodes = [N("Conv", ["x", "c"], ["a"], pads=[1, 1, 1, 1]), N("GlobalAveragePool", ["a"], ["y"])]
    model = make.model(nodes, [make.value("x", [-1, 3, "?", "?"])], [make.value("y", None)], [weight("c", 4, 3, 3, 3)])
    path, warnings = converted(make, model, tmp_path, "fp32")
    sizes = {"x": [[1, 3, 48, 192], [2, 3, 48, 192], [4, 3, 48, 192]]}
    assert warnings == ()
    assert rtx_build(path, model, sizes) == dict.fromkeys(CAPABILITIES, True)
    as_it_was = rtx_build(tmp_path / "stage" / "model.onnx", model, sizes)
    assert True not in as_it_was.values()


def test_sizes_stay_float32(make: Any, tmp_path: Path) -> None:
    path, _ = converted(make, grid(make), tmp_path)
    half = onnx.load(path)
    kinds = {value.name: value.type.tensor_type.elem_type for value in onnx.shape_inference.infer_shapes(half).graph.value_info}
    cast = next(node for node in half.graph.node if node.op_type == "Cast" and node.input[0] == "r")
    assert kinds[cast.output[0]] == F
    coordinates = [node for node in half.graph.node if node.op_type in ("Add", "Mul") and kinds.get(node.output[0]) == F]
    assert len(coordinates) == 2


def test_normalization_with_a_variance_beyond_float16_stays_float32(make: Any, tmp_path: Path) -> None:
    """Clamped to 65504 such a variance scales its channel wrongly: seen in a public text detection model."""
    nodes = [
        N("Constant", [], ["v"], value=constant("big_variance", np.full(3, 1e8, np.float32))),
        N("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"]),
    ]
    ones, zeros = np.full(3, 100, np.float32), np.zeros(3, np.float32)
    tensors = [constant("s", ones), constant("b", zeros), constant("m", zeros)]
    model = make.model(nodes, [make.value("x", ["n", 3, 4, 4])], [make.value("y", ["n", 3, 4, 4])], tensors)
    path, warnings = converted(make, model, tmp_path)
    values = feeds(model)
    np.testing.assert_allclose(run(path, values)[0], run(model.SerializeToString(), values)[0], rtol=1e-2)
    assert warnings == ()
    assert len(fp16_warnings(tmp_path / "stage")) == 1


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([np.inf] + [1.0] * 63, "inf, beyond float16"),
        ([-1e12] + [1.0] * 63, "-1e+12, beyond float16 (65504): it is clamped"),
        ([1e-9] * 64, "64 of 64 non-zero values are below float16's smallest number"),
        ([1e-3] * 64, None),
        ([1e-9] + [1.0] * 63, None),
        ([0.0] * 64, None),
        ([65504.0] * 64, None),
    ],
)
def test_constants_that_half_precision_cannot_hold_are_told(make: Any, tmp_path: Path, values: list[float], text: str | None) -> None:
    _, warnings = converted(make, make.add(make.weight(np.array(values, np.float32))), tmp_path)
    if text is None:
        assert warnings == ()
    else:
        assert len(warnings) == 1
        assert "'w'" in warnings[0]
        assert text in warnings[0]


def test_a_model_in_float16_passes_through(make: Any, tmp_path: Path) -> None:
    weights = make.weight(np.ones(64, np.float16))
    half = [make.value(name, dtype=TensorProto.FLOAT16) for name in "xy"]
    path, warnings = converted(make, make.add(weights, inputs=half[:1], outputs=half[1:]), tmp_path)
    assert path.read_bytes() == (tmp_path / "stage" / "model.onnx").read_bytes()
    assert warnings == ()


def test_external_data_goes_along(make: Any, tmp_path: Path) -> None:
    (make.folder / "sub").mkdir()
    (make.folder / "sub" / "w.bin").write_bytes(np.full(64, 3, np.float32).tobytes())
    model = make.add(make.external("sub/w.bin"))
    path, _ = converted(make, model, tmp_path, "fp32")
    x = np.zeros(64, np.float32)
    assert run(path, {"x": x})[0].tolist() == [3.0] * 64
    whole = converted(make, model, tmp_path / "half")[0]
    assert run(whole, {"x": x})[0].tolist() == [3.0] * 64
    assert [tensor.data_type for tensor in onnx.load(whole).graph.initializer] == [TensorProto.FLOAT16]


@pytest.mark.parametrize(("precision", "word"), [("bf16", "bfloat16"), ("int8", "QDQ"), ("fp8", "modelopt")])
def test_what_must_be_in_the_model_is_not_made_up(make: Any, tmp_path: Path, precision: str, word: str) -> None:
    error = refused(make, make.add(make.weight()), tmp_path, precision)
    assert precision in error.what
    assert word in str(error.fix)


def test_a_quantized_model_is_taken_for_int8(make: Any, tmp_path: Path) -> None:
    nodes = [N("QuantizeLinear", ["x", "s", "z"], ["q"]), N("DequantizeLinear", ["q", "s", "z"], ["y"])]
    model = make.model(nodes, initializers=[constant("s", np.float32(0.1)), constant("z", np.int8(0))])
    path, _ = converted(make, model, tmp_path, "int8")
    assert path.read_bytes() == (tmp_path / "stage" / "model.onnx").read_bytes()
    assert "float8" in refused(make, model, tmp_path / "second", "fp8").why


def test_a_model_over_the_protobuf_limit_is_refused(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "MAX_BYTES", 100)
    error = refused(make, make.add(make.weight()), tmp_path, "fp16")
    assert "the limit is 100" in error.what


def test_a_conversion_that_fails_is_an_answer(make: Any, tmp_path: Path) -> None:
    """Types that onnx can no longer infer: the library asserts on a name that two graphs use."""
    inner = helper.make_graph([N("Add", ["x", "w"], ["t"])], "t", [], [make.value("t")], [make.weight()])
    nodes = [N("If", ["flag"], ["b"], then_branch=inner, else_branch=inner), N("Add", ["b", "w"], ["y"])]
    model = make.model(nodes, initializers=[constant("flag", np.array(True)), make.weight()])
    error = refused(make, model, tmp_path, "fp16")
    assert "could not be converted" in error.what
    assert "fp32" in str(error.fix)


def test_unsorted_nodes_are_sorted(make: Any, tmp_path: Path) -> None:
    nodes = [N("Neg", ["b"], ["y"]), N("Add", ["a", "w"], ["b"]), N("Neg", ["x"], ["a"])]
    path, _ = converted(make, make.model(nodes, initializers=[make.weight()]), tmp_path)
    onnx.checker.check_model(onnx.load(path))


def test_a_long_chain_in_reverse_is_ordered_without_recursion(make: Any) -> None:
    count = 5000
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    nodes = [N("Neg", [names[i]], [names[i + 1]]) for i in range(count)]
    graph = make.model(nodes[::-1]).graph
    assert [node.output[0] for node in ordered(graph)] == names[1:]
