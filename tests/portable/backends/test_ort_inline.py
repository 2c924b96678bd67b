"""Weights beside the model end up inside the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from orchestrator.portable.backends.ort_inline import pieces_of, self_contained
from orchestrator.portable.worker.errors import StepError

Run = Callable[..., dict[str, Any]]
BUILD = {"step": "build", "backend": "onnxruntime", "engine": "engine.onnx", "options": {"provider": "cpu", "precision": "fp32"}}


def inside(name: str, *shape: int, dtype: str = "float32") -> onnx.TensorProto:
    """The same numbers for the same name."""
    random = np.random.default_rng(list(name.encode()))
    return numpy_helper.from_array((random.standard_normal(shape) * 4).astype(dtype), name)


def outside(tensor: onnx.TensorProto, folder: Path, location: str, *, length: bool = True) -> onnx.TensorProto:
    """The tensor with its bytes appended to a side file."""
    path = folder / location
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        offset = file.seek(0, 2)
        file.write(tensor.raw_data)
    size = len(tensor.raw_data) if length else None
    moved = onnx.TensorProto()
    moved.CopyFrom(tensor)
    set_external_data(moved, location, offset=offset, length=size)
    moved.ClearField("raw_data")
    return moved


def convolutions(weights: list[onnx.TensorProto]) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Conv", ["x", "k0"], ["c"], pads=[1] * 4), helper.make_node("Conv", ["c", "k1"], ["y"], pads=[1] * 4)]
    shapes = [value("x", TensorProto.FLOAT, ["N", 3, 8, 8])], [value("y", TensorProto.FLOAT, ["N", 4, 8, 8])]
    model = helper.make_model(helper.make_graph(nodes, "g", *shapes, weights), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def everywhere(place: Callable[[onnx.TensorProto], onnx.TensorProto]) -> onnx.ModelProto:
    """A model with a tensor in every place where onnx.proto has room for one; ``place`` says where its bytes go."""
    value = helper.make_tensor_value_info
    tensors = [place(inside(f"t{number}", 5, 3)) for number in range(4)]
    small = place(inside("i4", 3, dtype="int64"))
    branch = helper.make_graph([], "then", [], [value("t0", TensorProto.FLOAT, [5, 3])], [tensors[0]])
    constant = helper.make_node("Constant", [], ["other"], value=tensors[1])
    other = helper.make_graph([constant], "else", [], [value("other", TensorProto.FLOAT, [5, 3])])
    sparse = onnx.SparseTensorProto(values=place(inside("sparse", 2)), indices=place(inside("where", 2, dtype="int64")), dims=[9])
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other),
        helper.make_node("Constant", [], ["s"], sparse_value=sparse),
        helper.make_node("Own", ["y"], ["z"], domain="acme", many=[tensors[2], small]),
    ]
    graph = helper.make_graph(nodes, "g", [value("c", TensorProto.BOOL, [])], [value("z", TensorProto.FLOAT, None)], [tensors[3]])
    graph.sparse_initializer.append(sparse)
    body = [helper.make_node("Constant", [], ["k"], value=place(inside("f", 7))), helper.make_node("Identity", ["k"], ["z"])]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    function = helper.make_function("acme", "Own", ["y"], ["z"], body, opsets[:1])
    return helper.make_model(graph, opset_imports=opsets, functions=[function], doc_string="kept as it is")


def test_tensors_in_every_place_come_back_byte_for_byte(tmp_path: Path) -> None:
    whole = everywhere(lambda tensor: tensor)
    split = everywhere(lambda tensor: outside(tensor, tmp_path, "weights/w.bin"))
    (tmp_path / "model.onnx").write_bytes(split.SerializeToString())

    written = self_contained(str(tmp_path / "model.onnx"), str(tmp_path / "one.onnx"))

    assert written == str(tmp_path / "one.onnx")
    assert onnx.load(written, load_external_data=False).SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)
    assert pieces_of(written) == []


@pytest.mark.parametrize("content", [b"", b"\x08\x07garbage!!!!", b"<html>", b"\x3a\xff\xff\xff\xff\x0f", b"\x0a" * 400])
def test_what_is_no_model_is_left_for_the_runtime_to_refuse(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)

    assert self_contained(str(tmp_path / "model.onnx"), str(tmp_path / "one.onnx")) == str(tmp_path / "model.onnx")
    assert not (tmp_path / "one.onnx").exists()


@pytest.mark.parametrize(
    ("location", "kind", "text"),
    [
        ("../secret.bin", "bad-request", "does not stay in the model's folder"),
        ("/etc/hostname", "bad-request", "does not stay in the model's folder"),
        ("", "bad-request", "does not stay in the model's folder"),
        ("missing.bin", "parse-failed", "is not there"),
        ("link.bin", "parse-failed", "is not a regular file"),
        ("short.bin", "parse-failed", "is too short"),
    ],
)
def test_side_files_are_taken_from_the_models_folder_only(tmp_path: Path, location: str, kind: str, text: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"s" * 4096)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "short.bin").write_bytes(b"s" * 7)
    kernels = [inside("k0", 4, 3, 3, 3), inside("k1", 4, 4, 3, 3)]
    set_external_data(kernels[0], location or "x", offset=0)
    kernels[0].external_data[0].value = location
    kernels[0].ClearField("raw_data")
    (folder / "model.onnx").write_bytes(convolutions(kernels).SerializeToString())

    with pytest.raises(StepError) as caught:
        self_contained(str(folder / "model.onnx"), str(tmp_path / "one.onnx"))

    assert caught.value.kind == kind
    assert text in caught.value.message


def test_an_engine_of_a_model_with_side_files_needs_none_of_them(run_step: Run, tmp_path: Path) -> None:
    kernels = [inside("k0", 4, 3, 3, 3), inside("k1", 4, 4, 3, 3)]
    folder = tmp_path / "model"
    split = convolutions([outside(kernels[0], folder, "a.bin"), outside(kernels[1], folder, "deep/b.bin", length=False)])

    result = run_step(BUILD, split.SerializeToString())

    assert result["ok"], result["error"]
    engine = (tmp_path / "engine.onnx").read_bytes()
    assert pieces_of(str(tmp_path / "engine.onnx")) == []
    assert not list(tmp_path.glob("*.tmp"))
    whole = run_step(BUILD, convolutions(kernels).SerializeToString())
    assert whole["ok"]
    assert (tmp_path / "engine.onnx").read_bytes() == engine
