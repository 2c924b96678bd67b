"""What a manifest offers, best first."""

from typing import Any, Dict, List, NamedTuple, Optional

from .manifest import engines_with_file

TIERS = (
    "TensorRT",
    "TensorRT, hardware compatible",
    "TensorRT, version compatible",
    "TensorRT-RTX",
    "ONNX Runtime on CUDA",
    "ONNX Runtime on CPU",
    "TorchScript",
)
"""The order in which engines are tried: the exact one is the fastest, each later one runs in more places and slower."""

_CLASSES = (0, 0, 0, 0, 1, 2, 3)  # of TIERS: engine for a GPU, ONNX Runtime on a GPU, on a CPU, TorchScript
TORCHSCRIPT = "torchscript"

Candidate = NamedTuple(
    "Candidate", [("rank", int), ("record", Dict[str, Any]), ("provider", Optional[str]), ("status", str), ("checked", bool)]
)
"""``rank`` is an index of TIERS; ``checked``: its verdict was reached on this kind of device."""


def tier(candidate: Candidate) -> str:
    """The candidate's tier in words."""
    return TIERS[candidate.rank]


def speed_class(candidate: Candidate) -> int:
    """0 for an engine of the GPU's own; larger is slower."""
    return _CLASSES[candidate.rank]


def candidates(content: Dict[str, Any], has_gpu: bool) -> List[Candidate]:
    """Everything that could be loaded, best first; ``has_gpu`` adds CUDA runs of files that were made for the CPU."""
    found: List[Candidate] = []
    for record in engines_with_file(content):
        found += _of_record(record, has_gpu)
    fallback = _fallback(content)
    if fallback is not None:
        found.append(fallback)
    return sorted(found, key=_order)  # stable: the manifest's order decides what is left


def _of_record(record: Dict[str, Any], has_gpu: bool) -> List[Candidate]:
    status = record["verdict"]["status"]
    if record["backend"] == "tensorrt":
        rank = 2 if record.get("version_compatible") else int(record.get("hardware_compatibility", "none") != "none")
        return [Candidate(rank, record, None, status, status == "passed")]
    if record["backend"] == "tensorrt-rtx":
        return [Candidate(3, record, None, status, status == "passed")]
    if record.get("provider") == "cuda":
        return [Candidate(4, record, "cuda", status, status == "passed")]
    found = [Candidate(5, record, "cpu", status, status == "passed")]
    if has_gpu:  # the same file runs there, but nobody has compared what comes out
        found.append(Candidate(4, record, "cuda", status, False))
    return found


def _fallback(content: Dict[str, Any]) -> Optional[Candidate]:
    """The TorchScript file that the model's owner named; it is what the ONNX was exported from, so there is no verdict about it."""
    given = content.get("fallback")
    if given is None:
        return None
    model = content["model"]
    record = {
        "target": "fallback",
        "file": given["file"].replace("\\", "/").rsplit("/", 1)[-1],
        "digest": given["digest"],
        "size_bytes": None,
        "backend": TORCHSCRIPT,
        "platform": "any",
        "inputs": model.get("inputs", []),
        "outputs": model.get("outputs", []),
        "profiles": {},
    }
    return Candidate(6, record, None, "fallback", True)


def _order(candidate: Candidate) -> Any:
    median = candidate.record.get("verdict", {}).get("median_ms")
    return (candidate.rank, not candidate.checked, median if isinstance(median, (int, float)) else float("inf"))
