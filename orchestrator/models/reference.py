"""Expected outputs from ``onnx.reference``: slow, plain numpy, and independent of every runtime that is checked.

It runs in a child process with a time and memory limit; a model that it cannot do has no reference, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.models.child import CancelFlag, ChildFailed, run_child
from orchestrator.models.operators import RANDOM_OPS

KIND = "onnx.reference"


@dataclass(frozen=True)
class Reference:
    """``outputs`` holds, per sample in their order, the tensors (see samples.py); None with a ``reason``."""

    kind: str
    outputs: list[list[dict[str, Any]]] | None
    reason: str | None
    seconds: float = 0.0


def reference_outputs(
    staged_model: Path,
    samples: Sequence[Mapping[str, Any]],
    dest: Path,
    *,
    budget_seconds: float,
    memory_bytes: int | None,
    cancel: CancelFlag | None = None,
) -> Reference:
    """Outputs of ``staged_model`` (``.../model.onnx``) for all samples, as raw files in ``dest``.

    ``budget_seconds`` covers all samples together; ``memory_bytes`` limits the child's address space. Never raises
    for what a model or onnx.reference does: then ``outputs`` is None.
    """
    dest.mkdir(parents=True, exist_ok=True)
    inputs = [[{**tensor, "file": str(Path(tensor["file"]).resolve())} for tensor in sample["inputs"]] for sample in samples]
    request = {"model": str(staged_model.resolve()), "inputs": inputs, "dest": str(dest.resolve())}
    try:
        answer = run_child("reference.evaluate", request, timeout_seconds=budget_seconds, memory_bytes=memory_bytes, cancel=cancel)
    except ChildFailed as error:
        return Reference(KIND, None, _reason(error, budget_seconds))
    if answer["reason"]:
        return Reference(KIND, None, answer["reason"])
    outputs = [[{**tensor, "file": dest / tensor["file"]} for tensor in tensors] for tensors in answer["outputs"]]
    return Reference(KIND, outputs, None, answer["seconds"])


def _reason(error: ChildFailed, budget_seconds: float) -> str:
    reasons = {
        "timeout": f"onnx.reference took longer than {budget_seconds:g} s",
        "memory": "onnx.reference ran out of memory",
        "cancelled": "cancelled",
    }
    return reasons.get(error.reason, f"onnx.reference failed: {error.message}")


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """The child's part."""
    import time

    import onnx
    from onnx.reference import ReferenceEvaluator

    from orchestrator.models.arrays import read_raw, write_raw
    from orchestrator.models.half import sort_nodes
    from orchestrator.models.reference_ops import computed_otherwise, corrected_ops

    start = time.monotonic()
    model = onnx.load(request["model"])
    random = random_ops(model)
    if random:
        return {"outputs": None, "reason": f"{', '.join(random)} gives other values on every run: nothing to compare with"}
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)
    other = computed_otherwise(all_nodes(model), opset)
    if other:
        return {"outputs": None, "reason": f"onnx.reference computes {other} differently from the standard"}
    sort_nodes(model.graph)  # onnx.reference runs nodes in the order of the file
    try:
        evaluator = ReferenceEvaluator(model, new_ops=corrected_ops(opset))
    except NotImplementedError as error:
        return {"outputs": None, "reason": f"onnx.reference does not have an operator: {error}"[:500]}
    outputs = []
    for number, tensors in enumerate(request["inputs"]):
        results = evaluator.run(None, {tensor["name"]: read_raw(tensor) for tensor in tensors})
        described = []
        for index, (name, value) in enumerate(zip(evaluator.output_names, results, strict=True)):
            if not hasattr(value, "dtype"):
                return {"outputs": None, "reason": f"output {name!r} is no tensor"}
            file = f"{number}-{index}.bin"
            described.append(write_raw(value, name, value.dtype.name, Path(request["dest"]) / file) | {"file": file})
        outputs.append(described)
    return {"outputs": outputs, "reason": None, "seconds": time.monotonic() - start}


def random_ops(model: Any) -> list[str]:
    """Operators in the graph, its subgraphs and functions that draw random numbers."""
    found: set[str] = set()
    for node in all_nodes(model):
        if not node.domain and (node.op_type in RANDOM_OPS or (node.op_type == "Dropout" and len(node.input) > 2 and node.input[2])):
            found.add(node.op_type)
    return sorted(found)


def all_nodes(model: Any) -> Iterator[Any]:
    """Every node of the graph, its subgraphs and functions."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while nodes:
        node = nodes.pop()
        yield node
        for attribute in node.attribute:
            nodes += [inner for graph in (attribute.g, *attribute.graphs) for inner in graph.node]
