"""What NVIDIA's releases support: TensorRT and TensorRT-RTX versions, compute capabilities, precisions.

Everything is answered from docs/facts; what they do not hold is "unknown", never refused.
"""

from typing import Any, Dict, List, Optional, Tuple

from .answer import NO, UNKNOWN, YES, Answer
from .capability import family, is_jetson, key
from .data import load
from .drivers import minimum_driver
from .images import image_facts, image_problem, image_supports, jetpack_facts, jetpack_of_l4t, jetpacks_with
from .version import compare, matches, parse

__all__ = [
    "Answer",
    "image_facts",
    "image_problem",
    "image_supports",
    "jetpack_facts",
    "jetpack_of_l4t",
    "minimum_driver",
    "precision_supported",
    "rtx_capabilities",
    "tensorrt_range",
    "tensorrt_supports",
]

_TENSORRT = "docs/facts/trt_sm_support.yaml"
_RTX = "docs/facts/rtx.yaml"
_PRECISIONS = "docs/facts/precisions.yaml"


def _in_releases(version: str, row: Dict[str, Any]) -> bool:
    """Whether ``version`` lies in ``first``..``last`` of a row, which are major.minor and both included."""
    if len(parse(version)) < 2:
        version += ".0"
    return compare(version, row["first"]) >= 0 and compare(version, row["last"]) <= 0


def _release(version: str, rows: List[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    for row in rows:
        if _in_releases(version, row):
            return row
    return None


def tensorrt_range(version: str) -> Optional[Dict[str, Any]]:
    """Lowest and highest compute capability that a TensorRT release builds for on discrete GPUs.

    Gives "min", "max", "confidence" and "note" ("" when there is none), or None for a release that the facts do not hold.
    """
    row = _release(version, load("trt_sm_support")["releases"])
    if row is None:
        return None
    return {"min": row["min"], "max": row["max"], "confidence": row["confidence"], "note": row.get("note", "")}


def tensorrt_supports(version: str, capability: str) -> Answer:
    """Whether a TensorRT release builds engines for a compute capability."""
    rows = load("trt_sm_support")["releases"]
    row = _release(version, rows)
    if is_jetson(capability):
        answer = _jetson_supports(version, capability)
        if answer is not None:
            return answer
    if row is None:
        return Answer(UNKNOWN, "TensorRT {} is not in the facts".format(version), "unsourced", _TENSORRT)
    confidence = row["confidence"]
    if capability in row.get("unsure", ()):
        return Answer(UNKNOWN, "no source says whether TensorRT {} supports {}".format(version, _named(capability)), confidence, _TENSORRT)
    if key(capability) < key(row["min"]):
        text = "TensorRT {} dropped {}: it supports {} and newer".format(version, _named(capability), row["min"])
        last = [row["last"] for row in rows if key(row["min"]) <= key(capability)]
        text += ", TensorRT {} is the last that takes {}".format(last[-1], capability) if last else ""
        return Answer(NO, text, confidence, _TENSORRT)
    if key(capability) > key(row["max"]):
        text = "TensorRT {} does not know {} yet: it supports up to {}".format(version, _named(capability), row["max"])
        first = [row["first"] for row in rows if key(row["max"]) >= key(capability)]
        text += ", {} came with TensorRT {}".format(capability, first[0]) if first else ""
        return Answer(NO, text, confidence, _TENSORRT)
    return Answer(YES, "TensorRT {} supports {}".format(version, _named(capability)), confidence, _TENSORRT)


def _named(capability: str) -> str:
    name = family(capability)
    return "compute capability " + capability + ("" if name == "unknown" else " ({})".format(name))


def _jetson_supports(version: str, capability: str) -> Optional[Answer]:
    """The answer for a Jetson's own GPU, whose TensorRT comes with JetPack; None when the general table decides."""
    table = load("trt_sm_support")["jetson"]
    carrying = jetpacks_with(version, capability)
    if carrying:
        text = "TensorRT {} for {} comes with JetPack {}".format(version, _named(capability), carrying[0]["jetpack"])
        return Answer(YES, text, carrying[0]["confidence"]["components"], "docs/facts/jetson.yaml")
    for row in table["upgrades"]:
        if matches(version, row["tensorrt"]) and capability in row["capabilities"]:
            return Answer(YES, "TensorRT {} for {}: {}".format(version, _named(capability), row["note"]), row["confidence"], _TENSORRT)
    for row in table["without_jetpack"]:
        if _in_releases(version, row) and capability in row["capabilities"]:
            text = "TensorRT {} has no build for {}: {}".format(version, _named(capability), row["note"])
            return Answer(NO, text, row["confidence"], _TENSORRT)
    general = tensorrt_range(version)
    if general is None or key(capability) < key(general["min"]) or key(capability) > key(general["max"]):
        return None
    text = "no JetPack with TensorRT {} for {} is in the facts".format(version, _named(capability))
    return Answer(UNKNOWN, text, "secondary", "docs/facts/jetson.yaml")


def rtx_capabilities(version: str) -> Tuple[str, ...]:
    """Compute capabilities that a TensorRT-RTX release can target; a release newer than the facts gets the newest known list.

    Gives an empty tuple for a release older than all known ones.
    """
    rows = load("rtx")["releases"]
    row = _release(version, rows)
    if row is None:
        if compare(version, rows[-1]["last"]) <= 0:
            return ()
        row = rows[-1]
    return tuple(row["capabilities"])


def precision_supported(precision: str, capability: str, backend: str, backend_version: Optional[str] = None) -> Answer:
    """Whether an engine of this precision can exist on this capability with this backend.

    ``backend`` is "tensorrt", "tensorrt-rtx", "onnxruntime" (its CPU provider when ``capability`` is "") . A "yes" may carry a note in
    its reason (slow, or depends on the model). ``backend_version`` None = not settled.
    """
    if backend == "tensorrt-rtx":
        return _by_capability(precision, capability, load("rtx")["precisions"], "TensorRT-RTX", _RTX)
    tables = load("precisions")
    if backend == "onnxruntime":
        if not capability:
            return _on_cpu(precision, tables["onnxruntime_cpu"])
        return _by_capability(precision, capability, tables["onnxruntime_cuda"], "ONNX Runtime's CUDA provider", _PRECISIONS)
    if backend != "tensorrt":
        raise ValueError('"{}" is not a backend'.format(backend))
    answer = _by_capability(precision, capability, tables["tensorrt"], "TensorRT", _PRECISIONS)
    if answer.verdict != YES or backend_version is None:
        return answer
    row = next(row for row in tables["tensorrt"] if row["precision"] == precision)
    if compare(backend_version, row["first"]) < 0:
        text = "TensorRT {} has no {}; it came with TensorRT {}".format(backend_version, precision, row["first"])
        return Answer(NO, text, row["confidence"], _PRECISIONS)
    typed = tables["tensorrt_strongly_typed"]
    if precision != "fp32" and compare(backend_version, typed["first"]) >= 0:
        return answer._replace(reason="{}; {}".format(answer.reason, typed["note"]))
    return answer


def _on_cpu(precision: str, rows: List[Dict[str, Any]]) -> Answer:
    for row in rows:
        if row["precision"] == precision:
            note = "; " + row["note"] if row.get("note") else ""
            text = "ONNX Runtime's CPU provider with {}{}".format(precision, note)
            return Answer(row["verdict"], text, row["confidence"], _PRECISIONS)
    return Answer(UNKNOWN, "{} is not in the facts".format(precision), "unsourced", _PRECISIONS)


def _by_capability(precision: str, capability: str, rows: List[Dict[str, Any]], backend: str, source: str) -> Answer:
    for row in rows:
        if row["precision"] != precision:
            continue
        if key(capability) < key(row["min"]) or capability in row.get("except", ()):
            text = "{} lacks {}".format(_named(capability), precision)
            text += ": it needs {} or newer".format(row["min"]) if key(capability) < key(row["min"]) else ""
            return Answer(NO, text, row["confidence"], source)
        notes = [row["note"]] if "note" in row else []
        if capability in row.get("slow", ()):
            notes.append(row["note_slow"])
        if capability == "7.5" and "note_7_5" in row:
            notes.append(row["note_7_5"])
        text = "; ".join(["{} has {} on {}".format(backend, precision, _named(capability)), *notes])
        return Answer(YES, text, row["confidence"], source)
    return Answer(UNKNOWN, "{} is not in the facts".format(precision), "unsourced", source)
