"""The first reading of a stranger's model: bounded, before any library sees the file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from orchestrator.errors import MODEL_DAMAGED, MODEL_HOSTILE, MODEL_NOT_ONNX, EnginefarmError, Where, raise_all
from orchestrator.models.checks import Findings, check
from orchestrator.models.decode import Decoder
from orchestrator.models.dtypes import dtype_name
from orchestrator.models.proto import Graph, ModelProto, Tensor
from orchestrator.models.wire import Damaged, TooMuch, Wire

_SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class Scan:
    """What the graph file says. ``external`` are the tensors whose data is in other files."""

    proto: ModelProto
    graph: Graph
    findings: Findings
    external: tuple[Tensor, ...]
    weight_dtypes: dict[str, int]


def scan(fd: int, size: int, where: Where) -> Scan:
    """Reads the model behind the open file ``fd`` of ``size`` bytes.

    Raises EnginefarmError: MODEL_DAMAGED (cut or altered), MODEL_HOSTILE (beyond a limit), MODEL_NOT_ONNX (no
    graph), MODEL_INVALID (contradicts itself); all problems that do not hide each other at once.
    """
    wire = Wire(fd, size)
    try:
        proto = Decoder(wire).decode()
        if proto.graph is None:
            raise EnginefarmError(MODEL_NOT_ONNX, "the file holds no ONNX graph", where=where, fix="give the .onnx file itself")
        findings = check(proto, proto.graph, wire)
    except Damaged as error:
        fix = "copy or download it again and compare its size with the original"
        raise EnginefarmError(MODEL_DAMAGED, "the ONNX file is cut off or altered", where=where, why=str(error), fix=fix) from None
    except TooMuch as error:
        raise EnginefarmError(MODEL_HOSTILE, f"the model has {error}", where=where, fix="export a smaller or cleaner model") from None
    problems = findings.problems[:_SHOWN_PROBLEMS]
    raise_all(EnginefarmError(kind, what, where=where, fix=fix) for kind, what, fix in problems)
    weights = Counter(dtype_name(tensor.code) or "undefined" for tensor in proto.tensors if tensor != Tensor())
    external = tuple(tensor for tensor in proto.tensors if tensor.external is not None)
    return Scan(proto, proto.graph, findings, external, dict(sorted(weights.items())))
