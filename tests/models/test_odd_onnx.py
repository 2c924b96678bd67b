"""Awkward models that are warned about or accepted, and what is known of them, one small file for each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from orchestrator.models.load import load_model

from .pieces import F, doubling_functions, load, node, wrap


def declared_shape_wrong(make: Any) -> Any:
    return make.neg(outputs=[make.value("y", [63])])


def custom_domain(make: Any) -> Any:
    nodes = [helper.make_node("DCNv2", ["x"], ["y"], name="deform", domain="mmdeploy")]
    return make.model(nodes, domains=["mmdeploy"])


def custom_default_domain(make: Any) -> Any:
    return make.model([node("DCNv2", ["x"], ["y"], name="deform")])


def mish_too_early(make: Any) -> Any:
    return make.model([node("Mish", ["x"], ["y"], name="act")], opset=12)


def ml_domain(make: Any) -> Any:
    return make.model([helper.make_node("Scaler", ["x"], ["y"], name="scale", domain="ai.onnx.ml")], domains=["ai.onnx.ml"])


def opset_99(make: Any) -> Any:
    return make.neg(opset=99)


def io_double(make: Any) -> Any:
    return make.neg(inputs=[make.value("x", dtype=TensorProto.DOUBLE)], outputs=[make.value("y", dtype=TensorProto.DOUBLE)])


def _identity(make: Any, dtype: int) -> Any:
    return make.model([node("Identity", ["x"], ["y"])], [make.value("x", dtype=dtype)], [make.value("y", dtype=dtype)])


def io_uint64(make: Any) -> Any:
    return _identity(make, TensorProto.UINT64)


def io_int4(make: Any) -> Any:
    return _identity(make, TensorProto.INT4)


def io_float4e2m1(make: Any) -> Any:
    return _identity(make, TensorProto.FLOAT4E2M1)


def optional_input(make: Any) -> Any:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(F, [64]))
    return make.model([node("OptionalGetElement", ["x"], ["y"])], [helper.make_value_info("x", kind)])


def sequence_output(make: Any) -> Any:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F, [64]))
    return make.model([node("SequenceConstruct", ["x"], ["y"])], None, [helper.make_value_info("y", kind)])


def nan_weight(make: Any) -> Any:
    return make.add(make.weight(np.full(64, np.nan, np.float32)))


def nan_float_data(make: Any) -> Any:
    return make.add(helper.make_tensor("w", F, [64], [1.0] * 63 + [float("nan")]))


def no_inputs(make: Any) -> Any:
    return make.model([node("Neg", ["w"], ["y"])], [], None, [make.weight()])


def output_is_input(make: Any) -> Any:
    return make.neg(outputs=[make.value("y"), make.value("x")])


def random_op(make: Any) -> Any:
    return make.model([node("RandomNormalLike", ["x"], ["y"])])


def dropout_training(make: Any) -> Any:
    extra = [numpy_helper.from_array(np.float32(0.5), "r"), numpy_helper.from_array(np.array(True), "t")]
    return make.model([node("Dropout", ["x", "r", "t"], ["y"])], initializers=extra)


def unsorted_but_acyclic(make: Any) -> Any:
    return make.model([node("Neg", ["a"], ["y"], name="last"), node("Neg", ["x"], ["a"], name="first")])


def unknown_field(make: Any) -> Any:
    return make.neg().SerializeToString() + wrap(999, b"appended by someone")


WARNED: list[tuple[Callable[[Any], Any], str]] = [
    (declared_shape_wrong, "(64) vs (63)"),
    (custom_domain, "node 'deform' uses operator 'DCNv2' of domain 'mmdeploy': it needs a plugin"),
    (custom_default_domain, "node 'deform' uses operator 'DCNv2'"),
    (mish_too_early, "came with opset 18"),
    (ml_domain, "not in TensorRT"),
    (opset_99, "opset 99"),
    (io_double, "float64"),
    (io_uint64, "uint64"),
    (io_int4, "only into DequantizeLinear"),
    (io_float4e2m1, "only into DequantizeLinear"),
    (optional_input, "optional"),
    (sequence_output, "sequence"),
    (nan_weight, "NaN in initializer 'w'"),
    (nan_float_data, "NaN in initializer 'w'"),
    (no_inputs, "no inputs"),
    (output_is_input, "'x' is also an input"),
    (random_op, "RandomNormalLike"),
    (dropout_training, "Dropout"),
    (unsorted_but_acyclic, "topological order"),
    (unknown_field, "field 999"),
]


DEEP = (declared_shape_wrong, nan_weight, nan_float_data)


@pytest.mark.parametrize(("build", "text"), WARNED, ids=[case[0].__name__ for case in WARNED])
def test_is_warned_about(make: Any, build: Callable[[Any], Any], text: str) -> None:
    # a child process for each case would take most of the time: only where the answer comes from it
    warnings = load_model(make.save(build(make)), deep=build in DEEP).warnings
    assert any(text in warning for warning in warnings), warnings
    assert all(warning.isprintable() for warning in warnings)


def io_bool(make: Any) -> Any:
    return _identity(make, TensorProto.BOOL)


def loop_forever(make: Any) -> Any:
    """Builds and loads everywhere; only a run with a time limit can tell."""
    body_in = [make.value("i", [], TensorProto.INT64), make.value("c", [], TensorProto.BOOL), make.value("a")]
    body_out = [make.value("c2", [], TensorProto.BOOL), make.value("a2")]
    nodes = [node("Identity", ["c"], ["c2"], name="n1"), node("Neg", ["a"], ["a2"], name="n2")]
    body = helper.make_graph(nodes, "body", body_in, body_out)
    condition = numpy_helper.from_array(np.array(True), "go")
    return make.model([node("Loop", ["", "go", "x"], ["y"], body=body)], initializers=[condition])


def input_shadowed_right(make: Any) -> Any:
    return make.add(make.weight(), inputs=[make.value("x"), make.value("w")])


def empty_tensor(make: Any) -> Any:
    return make.model(
        [node("Concat", ["x", "w"], ["y"], axis=0)], initializers=[onnx.TensorProto(name="w", data_type=F, dims=[0], raw_data=b"")]
    )


def two_outputs_same_shape(make: Any) -> Any:
    return make.model([node("Neg", ["x"], ["y"]), node("Abs", ["x"], ["z"])], None, [make.value("y"), make.value("z")])


def plain(make: Any) -> Any:
    return make.add(make.weight())


def function_used_twice(make: Any) -> Any:
    nodes = [helper.make_node("f0", ["x"], ["m"], domain="loc"), helper.make_node("f0", ["m"], ["y"], domain="loc")]
    return make.model(nodes, functions=doubling_functions(5), domains=["loc"])


ACCEPTED = [io_bool, loop_forever, input_shadowed_right, empty_tensor, two_outputs_same_shape, plain, function_used_twice]


@pytest.mark.parametrize("build", ACCEPTED, ids=[case.__name__ for case in ACCEPTED])
def test_is_accepted_without_a_word(make: Any, build: Callable[[Any], Any]) -> None:
    model = load_model(make.save(build(make)), deep=build in (plain, loop_forever))
    assert model.warnings == ()
    assert model.gpu_blockers == ()


@pytest.mark.parametrize("build", [io_uint64, io_int4, optional_input, sequence_output, ml_domain])
def test_no_gpu_engine_can_exist_and_the_model_says_why(make: Any, build: Callable[[Any], Any]) -> None:
    assert len(load(make, build).gpu_blockers) >= 1


def test_custom_and_random_operators_are_facts_of_the_model(make: Any) -> None:
    assert load(make, custom_domain).custom_ops == ("mmdeploy::DCNv2",)
    assert load(make, random_op).random_ops == ("RandomNormalLike",)
    nonzero = make.model([node("NonZero", ["x"], ["y"])], None, [make.value("y", None, TensorProto.INT64)])
    assert load_model(make.save(nonzero), deep=False).data_dependent_ops == ("NonZero",)


def test_a_function_of_the_model_is_no_custom_operator(make: Any) -> None:
    model = load(make, function_used_twice)
    assert model.custom_ops == ()
    assert model.op_types["Neg"] == 2
