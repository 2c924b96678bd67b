"""A model whose weights lie in several files beside it goes the whole way: conversion, build, validation, reference."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data

from orchestrator.portable.backends.ort_inline import pieces_of

from .conftest import Project


def save_split(folder: Path) -> Path:
    """Three convolutions; their weights in two files, one of them in a folder and used twice."""
    random = np.random.default_rng(2)
    weights = []
    for name, shape, location in (("k0", (8, 3), "a.bin"), ("k1", (8, 8), "deep/b.bin"), ("k2", (4, 8), "deep/b.bin")):
        tensor = numpy_helper.from_array((random.standard_normal((*shape, 3, 3)) * 0.1).astype(np.float32), name)
        path = folder / location
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            set_external_data(tensor, location, offset=file.seek(0, 2), length=len(tensor.raw_data))
            file.write(tensor.raw_data)
        tensor.ClearField("raw_data")
        weights.append(tensor)
    names = ["x", "a", "b", "y"]
    nodes = [helper.make_node("Conv", [names[n], f"k{n}"], [names[n + 1]], pads=[1] * 4) for n in range(3)]
    value = helper.make_tensor_value_info
    inputs, outputs = [value("x", TensorProto.FLOAT, [1, 3, 8, 8])], [value("y", TensorProto.FLOAT, [1, 4, 8, 8])]
    graph = helper.make_graph(nodes, "split", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    return folder / "net.onnx"


def test_the_cpu_engine_passes_and_stands_alone(project: Project, tmp_path: Path) -> None:
    save_split(project.folder)

    answer = project.build("net.onnx", "--target", "cpu")

    assert answer.code == 0, answer.err
    assert answer.builds["cpu"]["status"] == "passed"
    engine = project.folder / "artifacts/net/v1/net_v1_cpu.onnx"
    assert pieces_of(str(engine)) == []
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    shutil.copyfile(engine, alone / "net.onnx")
    import onnxruntime

    session = onnxruntime.InferenceSession(alone / "net.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((1, 3, 8, 8), np.float32)})[0].shape == (1, 4, 8, 8)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.rtx
def test_every_rtx_target_takes_it_beside_the_others(project: Project, precision: str) -> None:
    save_split(project.folder)

    answer = project.build(
        "net.onnx", "--target", "cpu", "--target", "rtx-*", "--precision", precision, "--allow-unvalidated", "--jobs", "3"
    )

    assert answer.code == 0, answer.err
    assert {name: build["status"] for name, build in answer.builds.items()} == {
        "cpu": "passed",
        "rtx-turing": "unvalidated",
        "rtx-ampere": "unvalidated",
        "rtx-ada": "unvalidated",
        "rtx-blackwell": "unvalidated",
    }
