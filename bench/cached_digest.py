"""Hashing and planning a large model, against hashing the same bytes and nothing else.

The model is a chain of products whose weights lie in one side file: random blocks, repeated, no holes. Its digest is not known when it is
planned (what was known is put back before every round); the page cache has all of it, for both sides.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import cached_lab as lab

MOST_RATIO, MOST_MB = 1.15, 150.0
HASH = """
import hashlib, sys
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        print(hashlib.file_digest(file, "sha256").hexdigest())
"""
_BLOCK = 1 << 20
_KNOWN = ".enginefarm"


def write_large(folder: Path, side: int, layers: int) -> list[Path]:
    """x[1,side] @ w0 @ w1 ... with ``layers`` float32 weights of ``side`` squared; returns the graph and its side file."""
    import onnx
    from onnx import TensorProto, helper

    folder.mkdir()
    size = side * side * 4
    weights, nodes = [], []
    for number in range(layers):
        weight = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[side, side], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "big.data"), ("offset", str(number * size)), ("length", str(size))):
            weight.external_data.add(key=key, value=value)
        weights.append(weight)
        nodes.append(helper.make_node("MatMul", [f"y{number}" if number else "x", weight.name], [f"y{number + 1}"]))
    shape = [1, side]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", f"y{layers}")]
    graph = helper.make_graph(nodes, "big", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "big.onnx")
    block = os.urandom(_BLOCK)
    with (folder / "big.data").open("wb") as file:
        for start in range(0, size * layers, _BLOCK):
            file.write(block[: min(_BLOCK, size * layers - start)])
    return [folder / "big.onnx", folder / "big.data"]


def measure(rounds: int, *, small: bool) -> dict[str, Any]:
    """``small``: 64 MB, to try this out."""
    side, layers = (2048, 4) if small else (8192, 15)
    with lab.work_folder(side * side * 4 * layers + (1 << 30)) as folder:
        project = lab.make_project(folder / "project", 1, 0)
        files = write_large(project / "big", side, layers)
        total = sum(path.stat().st_size for path in files)
        plan = [lab.ENGINEFARM, "plan", "big", "--target", "cpu", *lab.HERE]
        # plans another model, so that the runner is known, and what is known without the large model is kept aside
        lab.output_of([lab.ENGINEFARM, "plan", "models", "--target", "cpu", *lab.HERE], project)
        shutil.copytree(project / _KNOWN, folder / "known")

        def first(known: Path | None) -> lab.Figures:
            shutil.rmtree(project / _KNOWN)
            if known is not None:
                shutil.copytree(known, project / _KNOWN)
            return lab.measured(plan, project)

        names = [str(path) for path in files]
        runs: dict[str, lab.Run] = {
            "hashlib.file_digest": lambda: lab.measured([sys.executable, "-c", HASH, *names], folder),
            "enginefarm plan, digest not known": lambda: first(folder / "known"),
            "enginefarm plan, digest known": lambda: lab.measured(plan, project),
            "enginefarm plan, nothing known (the runner is probed too)": lambda: first(None),
        }
        before = lab.load()
        found = lab.rows(lab.in_turns(runs, rounds))
        after = lab.load()
    ours, plain = "enginefarm plan, digest not known", "hashlib.file_digest"
    claims = [
        lab.claim("hash and plan / hashlib.file_digest, CPU time", lab.ratio(found, ours, plain), most=MOST_RATIO),
        lab.claim("hash and plan / hashlib.file_digest, elapsed", lab.ratio(found, ours, plain, "wall_s"), most=MOST_RATIO),
        lab.claim("peak memory of hash and plan, MB", found[ours]["rss_mb"], most=MOST_MB),
    ]
    return {"load_before": before, "load_after": after, "bytes": total, "claims": claims, "rows": found}
