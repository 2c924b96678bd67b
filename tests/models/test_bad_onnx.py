"""Hostile and awkward models: refused, warned about or accepted, one small file for each kind."""

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
    MODEL_EXTERNAL_MISSING,
    MODEL_EXTERNAL_UNSAFE,
    MODEL_HOSTILE,
    MODEL_INVALID,
    MODEL_NOT_ONNX,
    EnginefarmError,
    Kind,
    flatten,
)
from orchestrator.models.load import load_model
from orchestrator.models.model import Model

F = TensorProto.FLOAT


def _node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=attributes.pop("name", op.lower()), **attributes)


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _wrap(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _deep_if(levels: int) -> bytes:
    """Graph in attribute in node in graph ..., written from the inside out."""
    graph = b""
    for _ in range(levels):
        graph = _wrap(1, _wrap(4, b"If") + _wrap(5, _wrap(1, b"then_branch") + _wrap(6, graph)))
    return b"\x08\x0a" + _wrap(7, graph) + _wrap(8, b"\x10\x11")


def _doubling_functions(count: int) -> list[onnx.FunctionProto]:
    """f0 calls f1 twice, f1 calls f2 twice, ...: 2^count nodes out of a few bytes."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)]
    functions = []
    for index in range(count):
        op, domain = (f"f{index + 1}", "loc") if index + 1 < count else ("Neg", "")
        nodes = [helper.make_node(op, ["a"], ["b"], domain=domain), helper.make_node(op, ["b"], ["c"], domain=domain)]
        functions.append(helper.make_function("loc", f"f{index}", ["a"], ["c"], nodes, opsets))
    return functions


def _chained_functions(count: int) -> list[onnx.FunctionProto]:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)]
    calls = [(f"f{i + 1}", "loc") for i in range(count - 1)] + [("Neg", "")]
    return [
        helper.make_function("loc", f"f{index}", ["a"], ["c"], [helper.make_node(op, ["a"], ["c"], domain=domain)], opsets)
        for index, (op, domain) in enumerate(calls)
    ]


def bomb_constantofshape(make: Any) -> Any:
    shape = numpy_helper.from_array(np.array([2**20, 2**20]), "s")
    return make.model([_node("ConstantOfShape", ["s"], ["y"])], [], [make.value("y", ["a", "b"])], [shape])


def bomb_expand_constant_node(make: Any) -> Any:
    nodes = [_node("Constant", [], ["s"], value_ints=[2**20, 2**20, 64]), _node("Expand", ["x", "s"], ["y"])]
    return make.model(nodes, None, [make.value("y", None)])


def bomb_tile(make: Any) -> Any:
    return make.model([_node("Tile", ["x", "n"], ["y"])], None, [make.value("y", None)], [numpy_helper.from_array(np.array([2**40]), "n")])


def bomb_random(make: Any) -> Any:
    return make.model([_node("RandomNormal", [], ["y"], shape=[2**30, 4])], [], [make.value("y", None)])


def bomb_range(make: Any) -> Any:
    ends = [numpy_helper.from_array(np.array(value), name) for name, value in (("a", 0), ("b", 2**50), ("c", 1))]
    return make.model([_node("Range", ["a", "b", "c"], ["y"])], [], [make.value("y", None, TensorProto.INT64)], ends)


def bomb_input_dims(make: Any) -> Any:
    return make.neg(inputs=[make.value("x", [2**31, 2**31])], outputs=[make.value("y", None)])


def cyclic(make: Any) -> Any:
    nodes = [
        _node("Add", ["x", "b"], ["a"], name="first"),
        _node("Neg", ["a"], ["b"], name="second"),
        _node("Neg", ["b"], ["y"], name="third"),
    ]
    return make.model(nodes)


def cyclic_in_subgraph(make: Any) -> Any:
    nodes = [_node("Neg", ["q"], ["p"], name="one"), _node("Neg", ["p"], ["q"], name="two")]
    branch = helper.make_graph(nodes, "b", [], [make.value("q")])
    condition = numpy_helper.from_array(np.array(True), "c")
    return make.model([_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], initializers=[condition])


def dup_input_name(make: Any) -> Any:
    return make.neg(inputs=[make.value("x"), make.value("x")])


def dup_output_name(make: Any) -> Any:
    return make.neg(outputs=[make.value("y"), make.value("y")])


def dup_definition(make: Any) -> Any:
    return make.model([_node("Neg", ["x"], ["y"], name="one"), _node("Abs", ["x"], ["y"], name="two")])


def undefined_value(make: Any) -> Any:
    return make.model([_node("Add", ["x", "nowhere"], ["y"])])


def undefined_output(make: Any) -> Any:
    return make.neg(outputs=[make.value("y"), make.value("z")])


def ext_absolute(make: Any) -> Any:
    return make.add(make.external("/etc/hostname"))


def ext_dotdot(make: Any) -> Any:
    (make.folder.parent / "outside.bin").write_bytes(bytes(256))
    return make.add(make.external("../outside.bin"))


def ext_dotdot_inside(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("sub/../w.bin"))


def ext_backslash(make: Any) -> Any:
    return make.add(make.external("..\\w.bin"))


def ext_drive(make: Any) -> Any:
    return make.add(make.external("C:w.bin"))


def ext_sibling_prefix(make: Any) -> Any:
    evil = make.folder.with_name("models-evil")
    evil.mkdir()
    (evil / "w.bin").write_bytes(bytes(256))
    (make.folder / "w.bin").symlink_to(evil / "w.bin")
    return make.add(make.external("w.bin"))


def ext_symlink(make: Any) -> Any:
    (make.folder.parent / "outside.bin").write_bytes(bytes(256))
    (make.folder / "w.bin").symlink_to("../outside.bin")
    return make.add(make.external("w.bin"))


def ext_symlink_dir(make: Any) -> Any:
    outside = make.folder.parent / "outside"
    outside.mkdir()
    (outside / "w.bin").write_bytes(bytes(256))
    (make.folder / "sub").symlink_to(outside)
    return make.add(make.external("sub/w.bin"))


def ext_symlink_loop(make: Any) -> Any:
    (make.folder / "w.bin").symlink_to("w.bin")
    return make.add(make.external("w.bin"))


def ext_fifo(make: Any) -> Any:
    import os

    os.mkfifo(make.folder / "w.bin")
    return make.add(make.external("w.bin"))


def ext_folder(make: Any) -> Any:
    (make.folder / "w.bin").mkdir()
    return make.add(make.external("w.bin"))


def ext_itself(make: Any) -> Any:
    return make.add(make.external("bad.onnx"))


def ext_in_constant(make: Any) -> Any:
    """External data is also taken from the attribute of a node inside a branch."""
    constant = _node("Constant", [], ["k"])
    constant.attribute.append(helper.make_attribute("value", make.external("../../secret.bin")))
    branch = helper.make_graph([constant], "b", [], [make.value("k")])
    condition = numpy_helper.from_array(np.array(True), "c")
    return make.model([_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], initializers=[condition])


def ext_no_location(make: Any) -> Any:
    tensor = make.external("w.bin")
    del tensor.external_data[:]
    return make.add(tensor)


def ext_location_twice(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    tensor = make.external("w.bin")
    tensor.external_data.add(key="location", value="/etc/passwd")
    return make.add(tensor)


def ext_negative_offset(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", offset=-256))


def ext_offset_past_end(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", offset=128, length=256))


def ext_offset_overflow(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", offset=2**63 - 1, length=2**63 - 1))


def ext_offset_not_a_number(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", offset="0x10"))


def ext_length_too_small(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", length=4))


def ext_short(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(40))
    return make.add(make.external("w.bin"))


def ext_missing(make: Any) -> Any:
    return make.add(make.external("w.bin"))


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
    return make.model([helper.make_node("f0", ["x"], ["y"], domain="loc")], functions=_doubling_functions(60), domains=["loc"])


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
    return make.model([_node("Add", ["x", "w"], ["y"])], initializers=[make.weight(), make.weight()])


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
    return make.model([_node("Neg", ["x"], ["y"], name="a\x00b")])


def no_outputs(make: Any) -> Any:
    return make.neg(outputs=[])


def no_graph(make: Any) -> Any:
    model = make.neg()
    model.ClearField("graph")
    return model


def nodes_300k(make: Any) -> Any:
    node = helper.make_node("Neg", ["x"], ["x1"]).SerializeToString()
    graph = _wrap(1, node) * 300_000
    return b"\x08\x0a" + _wrap(7, graph) + _wrap(8, b"\x10\x11")


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
    return b"\x08\x0a" + _wrap(7, graph.SerializeToString() + _wrap(5, tensor)) + _wrap(8, b"\x10\x11")


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
    (ext_absolute, MODEL_EXTERNAL_UNSAFE, "/etc/hostname"),
    (ext_dotdot, MODEL_EXTERNAL_UNSAFE, "../outside.bin"),
    (ext_dotdot_inside, MODEL_EXTERNAL_UNSAFE, "sub/../w.bin"),
    (ext_backslash, MODEL_EXTERNAL_UNSAFE, "w.bin"),
    (ext_drive, MODEL_EXTERNAL_UNSAFE, "C:w.bin"),
    (ext_sibling_prefix, MODEL_EXTERNAL_UNSAFE, "link"),
    (ext_symlink, MODEL_EXTERNAL_UNSAFE, "link"),
    (ext_symlink_dir, MODEL_EXTERNAL_UNSAFE, "link"),
    (ext_symlink_loop, MODEL_EXTERNAL_UNSAFE, "link"),
    (ext_fifo, MODEL_EXTERNAL_UNSAFE, "FIFO"),
    (ext_folder, MODEL_EXTERNAL_UNSAFE, "folder"),
    (ext_itself, MODEL_EXTERNAL_UNSAFE, "itself"),
    (ext_in_constant, MODEL_EXTERNAL_UNSAFE, "../../secret.bin"),
    (ext_no_location, MODEL_INVALID, "location"),
    (ext_location_twice, MODEL_INVALID, "'location'"),
    (ext_negative_offset, MODEL_INVALID, "offset"),
    (ext_offset_past_end, MODEL_EXTERNAL_MISSING, "too short"),
    (ext_offset_overflow, MODEL_EXTERNAL_MISSING, "too short"),
    (ext_offset_not_a_number, MODEL_INVALID, "'0x10'"),
    (ext_length_too_small, MODEL_INVALID, "4 of 256 bytes"),
    (ext_short, MODEL_EXTERNAL_MISSING, "too short"),
    (ext_missing, MODEL_EXTERNAL_MISSING, "'w.bin' (tensors 'w')"),
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
    path = make.save(build(make), "bad.onnx")
    stage = tmp_path / "stage"
    with pytest.raises(EnginefarmError) as caught:
        load_model(path, stage=stage)
    problems = flatten(caught.value)
    assert any(problem.kind == kind and text in problem.what for problem in problems), [(p.kind.code, p.what, p.why) for p in problems]
    assert all(problem.where is not None and problem.where.file == str(path) for problem in problems)
    everything = "".join(f"{p.what}{p.why}{p.fix}" for p in problems)
    assert everything.isprintable(), everything
    assert sorted(p.name for p in stage.rglob("*")) in ([], ["model.onnx"])  # nothing of the side files was copied


def declared_shape_wrong(make: Any) -> Any:
    return make.neg(outputs=[make.value("y", [63])])


def custom_domain(make: Any) -> Any:
    nodes = [helper.make_node("DCNv2", ["x"], ["y"], name="deform", domain="mmdeploy")]
    return make.model(nodes, domains=["mmdeploy"])


def custom_default_domain(make: Any) -> Any:
    return make.model([_node("DCNv2", ["x"], ["y"], name="deform")])


def mish_too_early(make: Any) -> Any:
    return make.model([_node("Mish", ["x"], ["y"], name="act")], opset=12)


def ml_domain(make: Any) -> Any:
    return make.model([helper.make_node("Scaler", ["x"], ["y"], name="scale", domain="ai.onnx.ml")], domains=["ai.onnx.ml"])


def opset_99(make: Any) -> Any:
    return make.neg(opset=99)


def io_double(make: Any) -> Any:
    return make.neg(inputs=[make.value("x", dtype=TensorProto.DOUBLE)], outputs=[make.value("y", dtype=TensorProto.DOUBLE)])


def _identity(make: Any, dtype: int) -> Any:
    return make.model([_node("Identity", ["x"], ["y"])], [make.value("x", dtype=dtype)], [make.value("y", dtype=dtype)])


def io_uint64(make: Any) -> Any:
    return _identity(make, TensorProto.UINT64)


def io_int4(make: Any) -> Any:
    return _identity(make, TensorProto.INT4)


def io_float4e2m1(make: Any) -> Any:
    return _identity(make, TensorProto.FLOAT4E2M1)


def optional_input(make: Any) -> Any:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(F, [64]))
    return make.model([_node("OptionalGetElement", ["x"], ["y"])], [helper.make_value_info("x", kind)])


def sequence_output(make: Any) -> Any:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F, [64]))
    return make.model([_node("SequenceConstruct", ["x"], ["y"])], None, [helper.make_value_info("y", kind)])


def nan_weight(make: Any) -> Any:
    return make.add(make.weight(np.full(64, np.nan, np.float32)))


def nan_float_data(make: Any) -> Any:
    return make.add(helper.make_tensor("w", F, [64], [1.0] * 63 + [float("nan")]))


def no_inputs(make: Any) -> Any:
    return make.model([_node("Neg", ["w"], ["y"])], [], None, [make.weight()])


def output_is_input(make: Any) -> Any:
    return make.neg(outputs=[make.value("y"), make.value("x")])


def random_op(make: Any) -> Any:
    return make.model([_node("RandomNormalLike", ["x"], ["y"])])


def dropout_training(make: Any) -> Any:
    extra = [numpy_helper.from_array(np.float32(0.5), "r"), numpy_helper.from_array(np.array(True), "t")]
    return make.model([_node("Dropout", ["x", "r", "t"], ["y"])], initializers=extra)


def unsorted_but_acyclic(make: Any) -> Any:
    return make.model([_node("Neg", ["a"], ["y"], name="last"), _node("Neg", ["x"], ["a"], name="first")])


def unknown_field(make: Any) -> Any:
    return make.neg().SerializeToString() + _wrap(999, b"appended by someone")


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
    nodes = [_node("Identity", ["c"], ["c2"], name="n1"), _node("Neg", ["a"], ["a2"], name="n2")]
    body = helper.make_graph(nodes, "body", body_in, body_out)
    condition = numpy_helper.from_array(np.array(True), "go")
    return make.model([_node("Loop", ["", "go", "x"], ["y"], body=body)], initializers=[condition])


def input_shadowed_right(make: Any) -> Any:
    return make.add(make.weight(), inputs=[make.value("x"), make.value("w")])


def empty_tensor(make: Any) -> Any:
    return make.model(
        [_node("Concat", ["x", "w"], ["y"], axis=0)], initializers=[onnx.TensorProto(name="w", data_type=F, dims=[0], raw_data=b"")]
    )


def two_outputs_same_shape(make: Any) -> Any:
    return make.model([_node("Neg", ["x"], ["y"]), _node("Abs", ["x"], ["z"])], None, [make.value("y"), make.value("z")])


def plain(make: Any) -> Any:
    return make.add(make.weight())


def function_used_twice(make: Any) -> Any:
    nodes = [helper.make_node("f0", ["x"], ["m"], domain="loc"), helper.make_node("f0", ["m"], ["y"], domain="loc")]
    return make.model(nodes, functions=_doubling_functions(5), domains=["loc"])


ACCEPTED = [io_bool, loop_forever, input_shadowed_right, empty_tensor, two_outputs_same_shape, plain, function_used_twice]


@pytest.mark.parametrize("build", ACCEPTED, ids=[case.__name__ for case in ACCEPTED])
def test_is_accepted_without_a_word(make: Any, build: Callable[[Any], Any]) -> None:
    model = load_model(make.save(build(make)), deep=build in (plain, loop_forever))
    assert model.warnings == ()
    assert model.gpu_blockers == ()


def _load(make: Any, build: Callable[[Any], Any]) -> Model:
    return load_model(make.save(build(make)), deep=False)


def test_the_cycle_is_named(make: Any) -> None:
    with pytest.raises(EnginefarmError) as caught:
        _load(make, cyclic)
    assert "'first'" in caught.value.what
    assert "'second'" in caught.value.what
    assert "'third'" not in caught.value.what


@pytest.mark.parametrize("build", [io_uint64, io_int4, optional_input, sequence_output, ml_domain])
def test_no_gpu_engine_can_exist_and_the_model_says_why(make: Any, build: Callable[[Any], Any]) -> None:
    assert len(_load(make, build).gpu_blockers) >= 1


def test_custom_and_random_operators_are_facts_of_the_model(make: Any) -> None:
    assert _load(make, custom_domain).custom_ops == ("mmdeploy::DCNv2",)
    assert _load(make, random_op).random_ops == ("RandomNormalLike",)
    nonzero = make.model([_node("NonZero", ["x"], ["y"])], None, [make.value("y", None, TensorProto.INT64)])
    assert load_model(make.save(nonzero), deep=False).data_dependent_ops == ("NonZero",)


def test_a_function_of_the_model_is_no_custom_operator(make: Any) -> None:
    model = _load(make, function_used_twice)
    assert model.custom_ops == ()
    assert model.op_types["Neg"] == 2


def test_all_problems_of_a_model_come_at_once(make: Any) -> None:
    model = make.neg(inputs=[make.value("x"), make.value("x")], outputs=[])
    model.ir_version = 99
    with pytest.raises(EnginefarmError) as caught:
        load_model(make.save(model))
    assert len(flatten(caught.value)) == 3


def test_hard_linked_external_data_is_copied_and_hashed(make: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.bin"
    elsewhere.write_bytes(bytes(256))
    (make.folder / "w.bin").hardlink_to(elsewhere)
    stage = tmp_path / "stage"
    model = load_model(make.save(make.add(make.external("w.bin"))), stage=stage)
    elsewhere.write_bytes(b"x" * 256)
    assert (stage / "w.bin").read_bytes() == bytes(256)
    assert model.external[0].digest.startswith("sha256:")
