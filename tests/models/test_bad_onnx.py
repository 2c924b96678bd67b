"""Hostile and damaged models are refused, one small file for each kind (external data: test_bad_external.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from orchestrator.errors import (
    MODEL_DAMAGED,
    MODEL_HOSTILE,
    MODEL_INVALID,
    MODEL_NOT_ONNX,
    EnginefarmError,
    Kind,
    flatten,
)
from orchestrator.models.load import load_model

from .conftest import assert_refused
from .pieces import F, doubling_functions, load, node, wrap


def _deep_if(levels: int) -> bytes:
    """Graph in attribute in node in graph ..., written from the inside out."""
    graph = b""
    for _ in range(levels):
        graph = wrap(1, wrap(4, b"If") + wrap(5, wrap(1, b"then_branch") + wrap(6, graph)))
    return b"\x08\x0a" + wrap(7, graph) + wrap(8, b"\x10\x11")


def _chained_functions(count: int) -> list[onnx.FunctionProto]:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)]
    calls = [(f"f{i + 1}", "loc") for i in range(count - 1)] + [("Neg", "")]
    return [
        helper.make_function("loc", f"f{index}", ["a"], ["c"], [helper.make_node(op, ["a"], ["c"], domain=domain)], opsets)
        for index, (op, domain) in enumerate(calls)
    ]


def bomb_constantofshape(make: Any) -> Any:
    shape = numpy_helper.from_array(np.array([2**20, 2**20]), "s")
    return make.model([node("ConstantOfShape", ["s"], ["y"])], [], [make.value("y", ["a", "b"])], [shape])


def bomb_expand_constant_node(make: Any) -> Any:
    nodes = [node("Constant", [], ["s"], value_ints=[2**20, 2**20, 64]), node("Expand", ["x", "s"], ["y"])]
    return make.model(nodes, None, [make.value("y", None)])


def bomb_tile(make: Any) -> Any:
    return make.model([node("Tile", ["x", "n"], ["y"])], None, [make.value("y", None)], [numpy_helper.from_array(np.array([2**40]), "n")])


def bomb_random(make: Any) -> Any:
    return make.model([node("RandomNormal", [], ["y"], shape=[2**30, 4])], [], [make.value("y", None)])


def bomb_range(make: Any) -> Any:
    ends = [numpy_helper.from_array(np.array(value), name) for name, value in (("a", 0), ("b", 2**50), ("c", 1))]
    return make.model([node("Range", ["a", "b", "c"], ["y"])], [], [make.value("y", None, TensorProto.INT64)], ends)


def bomb_input_dims(make: Any) -> Any:
    return make.neg(inputs=[make.value("x", [2**31, 2**31])], outputs=[make.value("y", None)])


def cyclic(make: Any) -> Any:
    nodes = [
        node("Add", ["x", "b"], ["a"], name="first"),
        node("Neg", ["a"], ["b"], name="second"),
        node("Neg", ["b"], ["y"], name="third"),
    ]
    return make.model(nodes)


def cyclic_in_subgraph(make: Any) -> Any:
    nodes = [node("Neg", ["q"], ["p"], name="one"), node("Neg", ["p"], ["q"], name="two")]
    branch = helper.make_graph(nodes, "b", [], [make.value("q")])
    condition = numpy_helper.from_array(np.array(True), "c")
    return make.model([node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], initializers=[condition])


def dup_input_name(make: Any) -> Any:
    return make.neg(inputs=[make.value("x"), make.value("x")])


def dup_output_name(make: Any) -> Any:
    return make.neg(outputs=[make.value("y"), make.value("y")])


def dup_definition(make: Any) -> Any:
    return make.model([node("Neg", ["x"], ["y"], name="one"), node("Abs", ["x"], ["y"], name="two")])


def undefined_value(make: Any) -> Any:
    return make.model([node("Add", ["x", "nowhere"], ["y"])])


def undefined_output(make: Any) -> Any:
    return make.neg(outputs=[make.value("y"), make.value("z")])


def function_recursive(make: Any) -> Any:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)]
    body = [helper.make_node("f", ["a"], ["b"], domain="loc")]
    function = helper.make_function("loc", "f", ["a"], ["b"], body, opsets)
    return make.model([helper.make_node("f", ["x"], ["y"], domain="loc")], functions=[function], domains=["loc"])


def function_recursive_two(make: Any) -> Any:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)]
    first = helper.make_function("loc", "f", ["a"], ["b"], [helper.make_node("g", ["a"], ["b"], domain="loc")], opsets)
    second = helper.make_function("loc", "g", ["a"], ["b"], [helper.make_node("f", ["a"], ["b"], domain="loc")], opsets)
    return make.model([helper.make_node("f", ["x"], ["y"], domain="loc")], functions=[first, second], domains=["loc"])


def function_bomb(make: Any) -> Any:
    return make.model([helper.make_node("f0", ["x"], ["y"], domain="loc")], functions=doubling_functions(60), domains=["loc"])


def function_deep(make: Any) -> Any:
    return make.model([helper.make_node("f0", ["x"], ["y"], domain="loc")], functions=_chained_functions(2000), domains=["loc"])


def html_page(make: Any) -> Any:
    return b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>\n"


def if_depth_3000_bytes(make: Any) -> Any:
    return _deep_if(3000)


def if_depth_40(make: Any) -> Any:
    return _deep_if(40)


def init_dims_overflow(make: Any) -> Any:
    return make.add(onnx.TensorProto(name="w", data_type=F, dims=[2**32, 2**32], raw_data=b""))


def init_dims_negative(make: Any) -> Any:
    return make.add(onnx.TensorProto(name="w", data_type=F, dims=[-1], raw_data=bytes(4)))


def init_raw_too_short(make: Any) -> Any:
    return make.add(onnx.TensorProto(name="w", data_type=F, dims=[64], raw_data=bytes(12)))


def init_raw_too_long(make: Any) -> Any:
    return make.add(onnx.TensorProto(name="w", data_type=F, dims=[64], raw_data=bytes(260)))


def init_float_data_short(make: Any) -> Any:
    return make.add(onnx.TensorProto(name="w", data_type=F, dims=[64], float_data=[1.0] * 3))


def init_int64_data_short(make: Any) -> Any:
    return make.add(onnx.TensorProto(name="w", data_type=TensorProto.INT64, dims=[64], int64_data=[1] * 3))


def init_no_data(make: Any) -> Any:
    return make.add(onnx.TensorProto(name="w", data_type=F, dims=[64]))


def init_int4_short(make: Any) -> Any:
    return make.add(onnx.TensorProto(name="w", data_type=TensorProto.INT4, dims=[65], raw_data=bytes(32)))


def init_unknown_type(make: Any) -> Any:
    return make.add(onnx.TensorProto(name="w", data_type=99, dims=[1], raw_data=bytes(4)))


def init_twice(make: Any) -> Any:
    return make.model([node("Add", ["x", "w"], ["y"])], initializers=[make.weight(), make.weight()])


def sparse_bomb(make: Any) -> Any:
    model = make.add(make.weight())
    sparse = model.graph.sparse_initializer.add(dims=[2**40])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "s"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "i"))
    return model


def input_shadowed_wrong_shape(make: Any) -> Any:
    return make.add(make.weight(np.ones(1, np.float32)), inputs=[make.value("x"), make.value("w")])


def input_shadowed_wrong_type(make: Any) -> Any:
    return make.add(make.weight(np.ones(64, np.float64)), inputs=[make.value("x"), make.value("w")])


def ir_99(make: Any) -> Any:
    model = make.neg()
    model.ir_version = 99
    return model


def ir_missing(make: Any) -> Any:
    model = make.neg()
    model.ClearField("ir_version")
    return model


def names_control(make: Any) -> Any:
    return make.neg(inputs=[make.value("x\x1b[31m")])


def names_long(make: Any) -> Any:
    return make.neg(inputs=[make.value("x" * 20_000)])


def names_nul(make: Any) -> Any:
    return make.neg(inputs=[make.value("x\x00a"), make.value("x\x00b")])


def name_of_node_nul(make: Any) -> Any:
    return make.model([node("Neg", ["x"], ["y"], name="a\x00b")])


def no_outputs(make: Any) -> Any:
    return make.neg(outputs=[])


def no_graph(make: Any) -> Any:
    model = make.neg()
    model.ClearField("graph")
    return model


def nodes_300k(make: Any) -> Any:
    node = helper.make_node("Neg", ["x"], ["x1"]).SerializeToString()
    graph = wrap(1, node) * 300_000
    return b"\x08\x0a" + wrap(7, graph) + wrap(8, b"\x10\x11")


def opset_missing(make: Any) -> Any:
    model = make.neg()
    del model.opset_import[:]
    return model


def output_no_type(make: Any) -> Any:
    return make.neg(outputs=[onnx.ValueInfoProto(name="y")])


def truncated(make: Any) -> Any:
    return make.add(make.weight()).SerializeToString()[:-40]


def trailing_garbage(make: Any) -> Any:
    return make.neg().SerializeToString() + b"\xff\xfe garbage"


def two_models_glued(make: Any) -> Any:
    return make.neg().SerializeToString() * 2


def type_twice(make: Any) -> Any:
    """A tensor whose data type field stands twice: readers take the last, or the first."""
    tensor = make.weight().SerializeToString() + b"\x10\x0b"
    graph = make.add(make.weight()).graph
    del graph.initializer[:]
    return b"\x08\x0a" + wrap(7, graph.SerializeToString() + wrap(5, tensor)) + wrap(8, b"\x10\x11")


REFUSED: list[tuple[Callable[[Any], Any], Kind, str]] = [
    (bomb_constantofshape, MODEL_HOSTILE, "1,099,511,627,776 elements"),
    (bomb_expand_constant_node, MODEL_HOSTILE, "expand"),
    (bomb_tile, MODEL_HOSTILE, "tile"),
    (bomb_random, MODEL_HOSTILE, "randomnormal"),
    (bomb_range, MODEL_HOSTILE, "range"),
    (bomb_input_dims, MODEL_HOSTILE, "4,611,686,018,427,387,904"),
    (cyclic, MODEL_INVALID, "cycle"),
    (cyclic_in_subgraph, MODEL_INVALID, "cycle"),
    (dup_input_name, MODEL_INVALID, "input 'x'"),
    (dup_output_name, MODEL_INVALID, "output 'y'"),
    (dup_definition, MODEL_INVALID, "'y'"),
    (undefined_value, MODEL_INVALID, "'nowhere'"),
    (undefined_output, MODEL_INVALID, "'z'"),
    (function_recursive, MODEL_HOSTILE, "'f' -> 'f'"),
    (function_recursive_two, MODEL_HOSTILE, "cycle"),
    (function_bomb, MODEL_HOSTILE, "expand"),
    (function_deep, MODEL_HOSTILE, "levels deep"),
    (html_page, MODEL_NOT_ONNX, "web page"),
    (if_depth_3000_bytes, MODEL_HOSTILE, "nested"),
    (if_depth_40, MODEL_HOSTILE, "nested"),
    (init_dims_overflow, MODEL_INVALID, "18,446,744,073,709,551,616"),
    (init_dims_negative, MODEL_INVALID, "negative"),
    (init_raw_too_short, MODEL_DAMAGED, "12 of 256 bytes"),
    (init_raw_too_long, MODEL_DAMAGED, "260 bytes"),
    (init_float_data_short, MODEL_DAMAGED, "3 of 64"),
    (init_int64_data_short, MODEL_DAMAGED, "3 of 64"),
    (init_no_data, MODEL_DAMAGED, "0 of 64"),
    (init_int4_short, MODEL_DAMAGED, "32 of 33 bytes"),
    (init_unknown_type, MODEL_INVALID, "99"),
    (init_twice, MODEL_INVALID, "'w'"),
    (sparse_bomb, MODEL_HOSTILE, "sparse"),
    (input_shadowed_wrong_shape, MODEL_INVALID, "[64]"),
    (input_shadowed_wrong_type, MODEL_INVALID, "float64"),
    (ir_99, MODEL_INVALID, "99"),
    (ir_missing, MODEL_INVALID, "ir_version"),
    (names_control, MODEL_HOSTILE, r"x\x1b[31m"),
    (names_long, MODEL_HOSTILE, "20,000 bytes"),
    (names_nul, MODEL_HOSTILE, r"x\x00a"),
    (name_of_node_nul, MODEL_HOSTILE, r"a\x00b"),
    (no_outputs, MODEL_INVALID, "no outputs"),
    (no_graph, MODEL_NOT_ONNX, "no ONNX graph"),
    (nodes_300k, MODEL_HOSTILE, "200,000 nodes"),
    (opset_missing, MODEL_INVALID, "opset"),
    (output_no_type, MODEL_INVALID, "no type"),
    (truncated, MODEL_DAMAGED, "cut off"),
    (trailing_garbage, MODEL_DAMAGED, "altered"),
    (two_models_glued, MODEL_DAMAGED, "altered"),
    (type_twice, MODEL_DAMAGED, "altered"),
]


@pytest.mark.parametrize(("build", "kind", "text"), REFUSED, ids=[case[0].__name__ for case in REFUSED])
def test_is_refused(make: Any, build: Callable[[Any], Any], kind: Kind, text: str, tmp_path: Path) -> None:
    assert_refused(make, build(make), kind, text, tmp_path / "stage")


def test_the_cycle_is_named(make: Any) -> None:
    with pytest.raises(EnginefarmError) as caught:
        load(make, cyclic)
    assert "'first'" in caught.value.what
    assert "'second'" in caught.value.what
    assert "'third'" not in caught.value.what


def test_all_problems_of_a_model_come_at_once(make: Any) -> None:
    model = make.neg(inputs=[make.value("x"), make.value("x")], outputs=[])
    model.ir_version = 99
    with pytest.raises(EnginefarmError) as caught:
        load_model(make.save(model))
    assert len(flatten(caught.value)) == 3
