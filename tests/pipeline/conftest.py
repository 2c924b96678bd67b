from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from orchestrator.pipeline.history import History

from .rows import COMMAND

Net = Callable[..., Path]


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def builds(self) -> dict[str, dict[str, Any]]:
        return {build["target"]: build for model in self.json["models"] for build in model["builds"]}


class Project:
    """A folder in which the command runs as a user would run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *words: str, env: dict[str, str] | None = None) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *words],
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    def build(self, *words: str, env: dict[str, str] | None = None) -> Answer:
        return self.run("build", *words, "--json", "--progress", "plain", env=env)

    def manifest(self, name: str = "net", version: int = 1) -> dict[str, Any]:
        path = self.folder / "artifacts" / name / f"v{version}" / f"{name}_v{version}.json"
        content: dict[str, Any] = json.loads(path.read_bytes())
        return content

    def record(self, target: str, name: str = "net", version: int = 1) -> dict[str, Any]:
        found = [record for record in self.manifest(name, version)["engines"] if record["target"] == target]
        assert len(found) == 1
        record: dict[str, Any] = found[0]
        return record

    def engines(self, name: str = "net", version: int = 1) -> list[str]:
        folder = self.folder / "artifacts" / name / f"v{version}"
        return sorted(path.name for path in folder.iterdir() if path.suffix in (".engine", ".onnx"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def save_net(path: Path, *, seed: int = 0, product: bool = False, dims: tuple[Any, ...] = ("batch", 3, 8, 8), output: str = "y") -> Path:
    """A small network: one convolution and, with ``product``, a matrix product after it."""
    random = np.random.default_rng(seed)
    weight = numpy_helper.from_array(random.standard_normal((4, 3, 3, 3)).astype(np.float32) * 0.1, "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], [output if not product else "r"]),
    ]
    initializers = [weight]
    if product:
        initializers.append(numpy_helper.from_array(random.standard_normal((8, 8)).astype(np.float32) * 0.1, "m"))
        nodes.append(helper.make_node("MatMul", ["r", "m"], [output]))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(dims))],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [dims[0], 4, *dims[2:]])],
        initializers,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path)
    return path


@pytest.fixture
def net(project: Project) -> Net:
    def make(name: str = "net.onnx", **options: Any) -> Path:
        return save_net(project.folder / name, **options)

    return make


@pytest.fixture
def history_path(tmp_path: Path) -> Path:
    return tmp_path / ".enginefarm" / "history.db"


@pytest.fixture
def opened(history_path: Path) -> Iterator[Callable[..., History]]:
    """Histories of this test's file; their notes go to ``history.notes``."""
    histories: list[History] = []

    def make(**options: Any) -> History:
        notes: list[str] = []
        history = History(history_path, say=notes.append, command=COMMAND, **options)
        history.notes = notes  # type: ignore[attr-defined]
        histories.append(history)
        return history

    yield make
    for history in histories:
        history.close()
