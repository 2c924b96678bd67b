"""Small ONNX files, made for each test, and what has to hold when one is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from orchestrator.errors import EnginefarmError, Kind, flatten
from orchestrator.models.load import load_model


class Make:
    """Builds models in one folder. ``save`` keeps ``ir_version`` 10 and opset 17 unless told otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def value(self, name: str, shape: Sequence[Any] | None = (64,), dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, shape)

    def model(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Sequence[onnx.ValueInfoProto] | None = None,
        outputs: Sequence[onnx.ValueInfoProto] | None = None,
        initializers: Sequence[onnx.TensorProto] = (),
        functions: Sequence[onnx.FunctionProto] = (),
        opset: int = 17,
        domains: Sequence[str] = (),
    ) -> onnx.ModelProto:
        inputs = [self.value("x")] if inputs is None else inputs
        outputs = [self.value("y")] if outputs is None else outputs
        graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))

    def neg(self, **options: Any) -> onnx.ModelProto:
        """x -> Neg -> y, 64 floats."""
        return self.model([helper.make_node("Neg", ["x"], ["y"], name="neg")], **options)

    def add(self, tensor: onnx.TensorProto, **options: Any) -> onnx.ModelProto:
        """x + w -> y, where w is ``tensor``."""
        return self.model([helper.make_node("Add", ["x", "w"], ["y"], name="add")], initializers=[tensor], **options)

    def weight(self, values: Any = None, name: str = "w") -> onnx.TensorProto:
        values = np.arange(64, dtype=np.float32) if values is None else values
        return numpy_helper.from_array(np.asarray(values), name)

    def external(self, location: str, elements: int = 64, **entries: Any) -> onnx.TensorProto:
        """A float32 tensor ``w`` whose data is at ``location``."""
        tensor = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[elements], data_location=TensorProto.EXTERNAL)
        for key, value in {"location": location, **entries}.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def save(self, model: onnx.ModelProto | bytes, name: str = "model.onnx") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        return path


def assert_refused(make: Make, model: onnx.ModelProto | bytes, kind: Kind, text: str, stage: Path) -> None:
    """Loading the model is a problem of that kind that says ``text``, and nothing of its side files gets to ``stage``."""
    path = make.save(model, "bad.onnx")
    with pytest.raises(EnginefarmError) as caught:
        load_model(path, stage=stage)
    problems = flatten(caught.value)
    assert any(problem.kind == kind and text in problem.what for problem in problems), [(p.kind.code, p.what, p.why) for p in problems]
    assert all(problem.where is not None and problem.where.file == str(path) for problem in problems)
    everything = "".join(f"{p.what}{p.why}{p.fix}" for p in problems)
    assert everything.isprintable(), everything
    assert sorted(p.name for p in stage.rglob("*")) in ([], ["model.onnx"])  # nothing of the side files was copied


@pytest.fixture
def make(tmp_path: Path) -> Make:
    folder = tmp_path / "models"
    folder.mkdir()
    return Make(folder)
