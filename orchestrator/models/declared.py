"""Whether a model's declared shapes are true: asked of onnx's strict shape inference, in a child process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from orchestrator.models.child import ChildFailed, run_child
from orchestrator.models.text import shown

_MAX_GRAPH_BYTES = 256 << 20
_SECONDS = 30.0
_MEMORY = 4 << 30


def declared_shape_warnings(graph: Path, size: int) -> tuple[str, ...]:
    """Contradictions between declared and inferred shapes; nothing when inference finds none or cannot tell.

    ``graph`` is a scanned file of ``size`` bytes. External data is not read. Files over 256 MiB are not looked at.
    """
    if size > _MAX_GRAPH_BYTES:
        return ()
    try:
        answer = run_child("declared.infer", {"path": str(graph.resolve())}, timeout_seconds=_SECONDS, memory_bytes=_MEMORY)
    except ChildFailed as error:
        if error.reason in ("timeout", "memory", "crashed"):
            return (f"onnx shape inference did not survive this model: {error.message}",)
        return ()
    return tuple(answer["warnings"])


def infer(request: dict[str, Any]) -> dict[str, Any]:
    """The child's part."""
    import onnx
    from onnx import shape_inference

    model = onnx.load(request["path"], load_external_data=False)
    try:
        shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except Exception as error:  # noqa: BLE001  (onnx raises several unrelated types, all with the story in the text)
        return {"warnings": _contradictions(str(error))}
    return {"warnings": []}


def _contradictions(text: str) -> list[str]:
    """Only what says that a declaration is wrong: inference also stumbles over operators that it does not know."""
    found = []
    for line in text.splitlines():
        if re.search(r"existing shape differ|Inferred shape and existing|differs? in (?:rank|dimension)|Inferred elem type differs", line):
            tail = re.sub(r"\[\w+Error\] ", "", line).strip()
            found.append(f"a declared shape is wrong: {shown(tail, 240)}")
    return found[:5]
