"""Which host can build a target and which can validate it, and why not: one line per refusal that reads well in a table.

A target is the dict of a matrix row, a host the description that ``portable/worker/probe.py`` gives ("enginefarm.host/1").
Rules: docs/facts/jetson.yaml, drivers.yaml, rtx.yaml, trt_sm_support.yaml.
"""

import shlex
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from .answer import NO, UNKNOWN, YES, Answer
from .capability import is_jetson, one_of
from .drivers import driver_check, is_data_center
from .images import image_facts, jetpack_of_l4t
from .version import matches, satisfies

__all__ = ["Decision", "can_build", "can_validate", "driver_check"]

Target = Dict[str, Any]
Host = Dict[str, Any]

Decision = NamedTuple("Decision", [("verdict", str), ("reasons", List[str])])
"""``verdict`` is "yes", "no" or "unknown"; the first of ``reasons`` says it in one line, the others are notes."""

_PACKAGES = {"tensorrt-rtx": "'enginefarm[rtx]'", "onnxruntime": "onnxruntime"}  # what pip installs, in the words of a shell
_NOT_INSTALLED = "not installed"  # the probe's answer for a module that is not there
_NAMES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX", "onnxruntime": "ONNX Runtime"}


def can_build(target: Target, host: Host) -> Decision:
    """Whether ``host`` can compile the engine of ``target`` with its own backends."""
    backend = target["backend"]
    if backend == "tensorrt-rtx":
        return _first_problem([_rtx_platform(host), _backend(target, host)]) or _yes("TensorRT-RTX builds here without a GPU")
    if backend == "onnxruntime":
        return _onnxruntime(target, host)
    return _tensorrt(target, host)


def can_validate(target: Target, host: Host) -> Decision:
    """Whether ``host`` can load and run the engine of ``target``: its GPU must be one that the target names."""
    backend = target["backend"]
    if backend == "tensorrt-rtx":
        problems = [_rtx_gpu(target, host), _rtx_platform(host), _backend(target, host), _gpu_model(target, host)]
        return _first_problem(problems) or _yes("runs on {}".format(_gpu_name(target, host)))
    if backend == "onnxruntime":
        return _onnxruntime(target, host)
    return _tensorrt(target, host)


def _yes(reason: str, notes: Sequence[str] = ()) -> Decision:
    return Decision(YES, [reason, *notes])


def _no(reason: str) -> Decision:
    return Decision(NO, [reason])


def _first_problem(decisions: Sequence[Optional[Decision]]) -> Optional[Decision]:
    """The first refusal, else the first unknown, with the other reasons as notes."""
    found = [decision for decision in decisions if decision is not None]
    found.sort(key=lambda decision: decision.verdict != NO)  # stable: refusals first
    if not found:
        return None
    return Decision(found[0].verdict, [reason for decision in found for reason in decision.reasons])


# --- one condition each: None when it holds ---


def _rtx_platform(host: Host) -> Optional[Decision]:
    if host["platform"] == "linux/amd64":
        return None
    return _no("this host is {}; TensorRT-RTX builds on linux/amd64".format(host["platform"]))


def _rtx_gpu(target: Target, host: Host) -> Optional[Decision]:
    if _matching_gpus(target, host):
        return None
    if any(gpu.get("compute_capability") is None for gpu in host.get("gpus", ())):
        return Decision(UNKNOWN, ["the compute capability of this GPU is not known"])
    return _no("no runner with compute capability {}".format(one_of(target["compute_capability"])))


def _backend(target: Target, host: Host) -> Optional[Decision]:
    """The backend must import on the host, in the version that the target asks for."""
    backend = target["backend"]
    probed = host.get("backends", {}).get(backend) or {"error": _NOT_INSTALLED}
    wanted = _wanted_version(target)
    named = _NAMES[backend] + (" " + wanted if wanted else "")
    if "version" not in probed:
        error = (str(probed.get("error") or "").strip().splitlines() or [_NOT_INSTALLED])[-1]
        state = "is not installed {}".format(_for_python(host))
        if error != _NOT_INSTALLED:
            state = "does not import {} ({})".format(_for_python(host), error)
        return _no("{} {}; {}".format(named, state, _install(_PACKAGES.get(backend), host)))
    if wanted and not matches(probed["version"], wanted):
        where = " (image {})".format(target["image"]) if target.get("image") and target.get("tensorrt_from") != "host" else ""
        return _no("this host has {} {}; needs {}{}".format(_NAMES[backend], probed["version"], wanted, where))
    return None


def _for_python(host: Host) -> str:
    python = host.get("python_executable")
    return "for {}".format(python) if python else "here"


def _install(package: Optional[str], host: Host) -> str:
    """What to do about a package that the runner's interpreter lacks; it need not be the one that reads this."""
    python = host.get("python_executable")
    if package is None:
        return "install it for {}".format(python or "the runner's Python")
    return "{} install {}".format("{} -m pip".format(shlex.quote(python)) if python else "pip", package)


def _wanted_version(target: Target) -> Optional[str]:
    field = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}.get(target["backend"])
    version: Optional[str] = target.get(field) if field else None
    return version


def _gpu_model(target: Target, host: Host) -> Optional[Decision]:
    wanted = target.get("gpu")
    if not wanted or any(_model(gpu["name"]) == _model(wanted) for gpu in _matching_gpus(target, host)):
        return None
    return _no("no {} here; the target is bound to that GPU model".format(wanted))


def _model(name: str) -> str:
    words = name.lower().split()
    return " ".join(word for word in words if word not in ("nvidia", "tesla"))


def _matching_gpus(target: Target, host: Host) -> List[Dict[str, Any]]:
    """GPUs of the host whose capability the target names; all of them when it names none."""
    wanted = target.get("compute_capability") or ()
    gpus = list(host.get("gpus") or ())
    return [gpu for gpu in gpus if gpu.get("compute_capability") in wanted] if wanted else gpus


def _gpu_name(target: Target, host: Host) -> str:
    gpu = _matching_gpus(target, host)[0]
    return "{} (compute capability {})".format(gpu["name"], gpu.get("compute_capability"))


# --- onnxruntime ---


def _onnxruntime(target: Target, host: Host) -> Decision:
    missing = _platform(target, host) or _backend(target, host)
    if missing:
        return missing
    if target.get("provider") != "cuda":
        return _yes("runs on this CPU")
    if not host.get("gpus"):
        return _no("no NVIDIA GPU here; ONNX Runtime's CUDA provider needs one")
    gpu = _gpu(target, host)
    if gpu:
        return gpu
    providers = host["backends"]["onnxruntime"].get("providers") or ()
    if not {"cuda", "CUDAExecutionProvider"}.intersection(providers):
        return _no("this ONNX Runtime has no CUDAExecutionProvider; {}".format(_install("onnxruntime-gpu", host)))
    return _first_problem([_driver(target, host), _gpu_model(target, host)]) or _yes("runs on {}".format(_gpu_name(target, host)))


# --- tensorrt ---


def _tensorrt(target: Target, host: Host) -> Decision:
    first = _platform(target, host) or _gpu(target, host)
    if first and first.verdict == NO:
        return first
    later = _first_problem([first, _jetpack(target, host), _backend(target, host), _gpu_model(target, host), _driver(target, host)])
    return later or _yes("TensorRT {} on {}".format(host["backends"]["tensorrt"]["version"], _gpu_name(target, host)), _notes(target, host))


def _needs(target: Target) -> str:
    """What a TensorRT target needs, for the end of a sentence."""
    parts = ["compute capability {}".format(one_of(target["compute_capability"]))] if target.get("compute_capability") else []
    if target.get("backend") == "tensorrt" and target.get("tensorrt"):
        parts.append("TensorRT {}".format(target["tensorrt"]))
    text = "needs " + (" and ".join(parts) or "an NVIDIA GPU")
    return text + (" (image {})".format(target["image"]) if target.get("image") else "")


def _for_jetson(target: Target) -> bool:
    capabilities = target.get("compute_capability") or ()
    return bool(target.get("jetpack")) or (bool(capabilities) and all(is_jetson(name) for name in capabilities))


def _platform(target: Target, host: Host) -> Optional[Decision]:
    wanted = target.get("platform") or "any"
    if wanted in ("any", host["platform"]):
        return None
    if _for_jetson(target):
        return _no("this host is {}; an engine for a Jetson builds on the Jetson ({})".format(host["platform"], wanted))
    if host.get("gpus") or target["backend"] != "tensorrt":
        return _no("this host is {}; needs {}".format(host["platform"], wanted))
    return _no("this host is {} without an NVIDIA GPU; {} on {}".format(host["platform"], _needs(target), wanted))


def _gpu(target: Target, host: Host) -> Optional[Decision]:
    gpus = list(host.get("gpus") or ())
    if _for_jetson(target) and not host.get("jetson") and not _matching_gpus(target, host):
        return _no("this host is not a Jetson; {}".format(_needs(target)))
    if not gpus:
        return _no("no NVIDIA GPU here" + ("; " + _needs(target) if target.get("compute_capability") else ""))
    if _matching_gpus(target, host):
        return None
    if any(gpu.get("compute_capability") is None for gpu in gpus):
        return Decision(UNKNOWN, ["the compute capability of this GPU is not known; {}".format(_needs(target))])
    have = one_of(["{} ({})".format(gpu["name"], gpu["compute_capability"]) for gpu in gpus[:2]])
    return _no("the GPU here is {}; {}".format(have, _needs(target)))


def _jetpack(target: Target, host: Host) -> Optional[Decision]:
    wanted = target.get("jetpack")
    if not wanted:
        return None
    jetson = host.get("jetson")
    if not jetson:
        return _no("this host is not a Jetson; needs JetPack {}".format(wanted))
    version = jetson.get("jetpack") or jetpack_of_l4t(jetson.get("l4t") or "0")
    if not version:
        return Decision(UNKNOWN, ["the JetPack of L4T {} is not in the facts; needs JetPack {}".format(jetson.get("l4t"), wanted)])
    if satisfies(version, wanted):
        return None
    return _no("this device has JetPack {}; needs JetPack {}".format(version, wanted))


def _driver_answer(target: Target, host: Host) -> Optional[Answer]:
    """The driver's answer, or None where it does not apply: CUDA or driver not known, or a Jetson."""
    driver = (host.get("driver") or {}).get("version")
    if not driver or not target.get("cuda") or host.get("jetson"):
        return None
    # the compat package is inside the image: it helps only a step that runs in a container
    image = image_facts(target["image"]) if target.get("image") and host.get("container") else None
    gpus = _matching_gpus(target, host)
    brand = is_data_center(gpus[0]["name"]) if gpus else None
    return driver_check(driver, target["cuda"], brand, image["driver_datacenter"] if image else None)


def _driver(target: Target, host: Host) -> Optional[Decision]:
    answer = _driver_answer(target, host)
    if answer is None or answer.verdict == YES:
        return None
    return Decision(answer.verdict, [answer.reason])


def _notes(target: Target, host: Host) -> List[str]:
    """What is worth knowing about a placement that is fine."""
    notes = []
    answer = _driver_answer(target, host)
    if answer is not None and answer.verdict == YES and "in full" not in answer.reason:
        notes.append(answer.reason)
    image = image_facts(target["image"]) if target.get("image") else None
    version = host["backends"]["tensorrt"]["version"]
    if image and image["tensorrt"] and not matches(version, image["tensorrt"]):
        text = "this host has TensorRT {}, the image {} is said to hold {}: their engines differ"
        notes.append(text.format(version, target["image"], image["tensorrt"]))
    return notes
