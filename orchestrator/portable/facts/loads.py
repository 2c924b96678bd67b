"""Does an engine load on a host? Every rule that can speak says so, with what it rests on; the verdict is the worst of them.

"unknown" is an answer: a rule that lacks a fact says which one. Rules and sources: docs/facts/engine_rules.yaml, drivers.yaml, rtx.yaml,
trt_sm_support.yaml, plan_header.yaml.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

from . import loads_host, loads_tensorrt
from .answer import UNKNOWN
from .loads_view import DOES_NOT, LOADS, SEVERITY, WARNING, Case, Engine, Gpu, Host, Rule, said

__all__ = ["DOES_NOT", "LOADS", "SEVERITY", "UNKNOWN", "WARNING", "engine_of", "verdict"]

_Function = Callable[[Case], Optional[Rule]]

_FIRST: Tuple[_Function, ...] = (loads_host.file, loads_host.platform)
_LAST: Tuple[_Function, ...] = (loads_host.plugins, loads_host.memory, loads_host.validation)
_BY_BACKEND: Dict[str, Tuple[_Function, ...]] = {
    "tensorrt": (
        loads_host.has_gpu,
        loads_host.backend,
        loads_tensorrt.version,
        loads_tensorrt.serialization,
        loads_tensorrt.version_compatible,
        loads_tensorrt.capability,
        loads_tensorrt.supported,
        loads_tensorrt.cuda_build,
        loads_host.driver,
    ),
    "tensorrt-rtx": (
        loads_host.has_gpu,
        loads_host.backend,
        loads_host.rtx_release,
        loads_host.rtx_capability,
        loads_host.driver,
    ),
    "onnxruntime": (loads_host.backend, loads_host.ort_version, loads_host.ort_provider),
    "onnxruntime on cuda": (
        loads_host.has_gpu,
        loads_host.backend,
        loads_host.ort_version,
        loads_host.ort_provider,
        loads_host.ort_capability,
        loads_host.driver,
    ),
}


def verdict(engine: Dict[str, Any], host: Dict[str, Any]) -> Dict[str, Any]:
    """Whether ``engine`` (a manifest's record as a dict, or what :func:`engine_of` gives) loads on ``host`` ("enginefarm.host/1").

    Gives "verdict" ("loads", "loads-with-warning", "unknown" or "does-not-load"), "rules" (each with "rule", "verdict", "text",
    "evidence", "confidence", "source", "fix"), "reason" (the sentence that decided) and "gpu" (name of the host's GPU that was judged,
    None without one). On a host with several GPUs the one that suits best is judged. What a dict lacks is "not known", never an error.
    """
    seen, where = Engine(engine), Host(host)
    gpus: List[Any] = list(where.gpus or ()) if seen.needs_gpu else []
    answers = [(_rules(seen, where, gpu), gpu) for gpu in gpus or [None]]
    rules, gpu = min(answers, key=lambda answer: SEVERITY[_worst(answer[0])["verdict"]])  # the first of the best
    decided = _worst(rules)
    return {"verdict": decided["verdict"], "rules": rules, "reason": decided["text"], "gpu": str(gpu) if gpu is not None else None}


def _rules(engine: Engine, host: Host, gpu: Optional[Gpu]) -> List[Rule]:
    kind = "onnxruntime on cuda" if engine.backend == "onnxruntime" and engine.needs_gpu else engine.backend or ""
    case = Case(engine, host, gpu, host.runtime(engine))
    answers = [function(case) for function in _FIRST + _BY_BACKEND.get(kind, ()) + _LAST]
    return [answer for answer in answers if answer is not None]


def _worst(rules: List[Rule]) -> Rule:
    """The rule that decides: of the worst the first, of an all-clear the one about the version (it says the most)."""
    worst = max((SEVERITY[rule["verdict"]] for rule in rules), default=SEVERITY[UNKNOWN])
    deciding = [rule for rule in rules if SEVERITY[rule["verdict"]] == worst]
    telling = [rule for rule in deciding if rule["rule"] == "version"] if worst == SEVERITY[LOADS] else []
    return (telling or deciding or [said("file", UNKNOWN, "nothing is known of this engine", "", "unsourced")])[0]


def engine_of(record: Optional[Dict[str, Any]] = None, header: Optional[Dict[str, Any]] = None) -> Dict[str, Any]:
    """What is known of an engine, from its manifest record (as a dict), from its plan header (plan_header.read), or from both.

    What the header proves goes before what the record says: the file itself is what gets loaded.
    """
    engine = dict(record or {})
    if header is None:
        return engine
    kind = header["kind"]
    is_onnx = kind == "not-a-plan" and (header["file_kind"] or {}).get("kind") == "onnx-like"
    if is_onnx and engine.get("backend", "onnxruntime") == "onnxruntime":
        engine.setdefault("backend", "onnxruntime")
        engine.setdefault("platform", "any")
        return dict(engine, size_bytes=header["size"])
    engine["problems"] = list(header["problems"])
    engine["size_bytes"] = header["size"]
    if kind == "not-a-plan":
        return engine
    engine["backend"] = "tensorrt" if kind == "tensorrt-7" else kind
    if header["version"] is not None:
        engine["backend_version"] = header["version"]
    for name in ("serialization", "platform_tag"):
        engine[name] = header[name]
    if header["capabilities"] is not None:
        engine["compute_capability"] = header["capabilities"]
    if kind == "tensorrt-7" and not str(engine.get("backend_version")).startswith(("5", "6", "7")):
        engine.pop("backend_version", None)  # the record is of another file
    if kind == "tensorrt-rtx" and record is None:
        engine["platform"] = None
    return engine
