"""What the loading rules see: an engine and a host, read from the dicts that people, manifests and probes write.

A value that is missing or cannot be read is None, which means "not known"; nothing here raises for what is in a dict.
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional

from .answer import NO, UNKNOWN, YES
from .capability import key
from .data import load
from .images import jetpack_facts, jetpack_of_l4t
from .version import compare, parse

LOADS, WARNING, DOES_NOT = "loads", "loads-with-warning", "does-not-load"
SEVERITY = {LOADS: 0, WARNING: 1, UNKNOWN: 2, DOES_NOT: 3}

NAMES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX", "onnxruntime": "ONNX Runtime"}
RULES = "docs/facts/engine_rules.yaml"
NOT_INSTALLED = "not installed"  # the probe's answer for a module that is not there
IN_IMAGE = "comes with the image"  # a container runner's answer: the backend is that of the image a step runs in

_NUMBERS = re.compile(r"\s*[vV]?(\d{1,9}(?:\.\d{1,9}){0,7})")  # "8.5.3.1+cuda11.8" -> 8.5.3.1; longer ones are no versions

Rule = Dict[str, Any]


def said(
    rule: str, verdict: str, text: str, evidence: str = "", confidence: str = "nvidia_document", source: str = RULES, fix: str = ""
) -> Rule:
    """One rule's answer, JSON-ready."""
    return {
        "rule": rule,
        "verdict": verdict,
        "text": text,
        "evidence": evidence,
        "confidence": confidence,
        "source": source,
        "fix": fix,
    }


def fact(name: str) -> Any:
    """An entry of ``loads:`` in docs/facts/engine_rules.yaml."""
    return load("engine_rules")["loads"][name]


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) and value else None


def _version(value: Any) -> Optional[str]:
    found = _NUMBERS.match(str(value)) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else None
    return found.group(1) if found else None


def _capability(value: Any) -> Optional[str]:
    try:
        return "{}.{}".format(*key(str(value)))
    except ValueError:
        return None


def _count(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _mapping(value: Any) -> Dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def model_name(name: str) -> str:
    """A GPU's name without the words that drivers add or drop: ``Tesla T4`` and ``NVIDIA T4`` are one."""
    return " ".join(word for word in name.lower().split() if word not in ("nvidia", "tesla"))


class Engine:
    """An engine as the rules see it; the keys are those of a manifest's record and of :func:`loads.engine_of`."""

    def __init__(self, facts: Dict[str, Any]) -> None:
        get = facts.get
        checked = _mapping(get("verdict"))
        self.backend = _text(get("backend"))
        self.version = _version(get("backend_version") or get("version"))
        self.serialization = _count(get("serialization"))
        found = [_capability(item) for item in _listed(get("compute_capability"))]
        self.capabilities = [item for item in found if item]
        self.level = _text(get("hardware_compatibility"))
        self.version_compatible = get("version_compatible") if isinstance(get("version_compatible"), bool) else None
        self.lean_excluded = bool(get("exclude_lean_runtime"))
        self.platform = _text(get("platform"))
        self.platform_tag = _count(get("platform_tag"))
        self.cuda = _version(get("cuda"))
        plugins = get("plugins")
        self.plugins = [str(item) for item in plugins] if isinstance(plugins, (dict, list, tuple)) else None
        self.digests = dict(plugins) if isinstance(plugins, dict) else {}
        self.size = _count(get("size_bytes"))
        self.device_memory = _count(get("device_memory_bytes"))
        self.provider = _text(get("provider"))
        self.status = _text(checked.get("status") or get("status"))
        self.device = _text(checked.get("device") or get("device"))
        self.image = _text(get("image"))
        self.problems = [item for item in _listed(get("problems")) if isinstance(item, dict)]
        self.stripped = bool(get("stripped"))
        self.safety = bool(get("safety"))
        self.dla = bool(get("dla"))
        self.model = self._built_on(_mapping(get("built_on")))

    def _built_on(self, host: Dict[str, Any]) -> Optional[str]:
        """The GPU model that the engine was built on, where the record leaves one."""
        gpus = [gpu for gpu in _listed(host.get("gpus")) if isinstance(gpu, dict) and _text(gpu.get("name"))]
        names = {model_name(gpu["name"]) for gpu in gpus if gpu.get("compute_capability") in self.capabilities}
        return names.pop() if len(names) == 1 else None

    @property
    def exists(self) -> bool:
        """Whether this is a file, and not a row of a matrix that nobody built yet."""
        return self.size is not None

    @property
    def needs_gpu(self) -> bool:
        return self.backend in ("tensorrt", "tensorrt-rtx") or (self.backend == "onnxruntime" and self.provider == "cuda")


class Gpu:
    """One GPU of a host."""

    def __init__(self, facts: Dict[str, Any]) -> None:
        self.name = _text(facts.get("name"))
        self.capability = _capability(facts.get("compute_capability"))
        self.memory = _count(facts.get("memory_bytes"))

    def __str__(self) -> str:
        if self.name and self.capability:
            return "{} (compute capability {})".format(self.name, self.capability)
        return self.name or "a GPU of compute capability {}".format(self.capability or "that is not known")


class Runtime:
    """What a host says of one backend: ``error`` when it is not there, None everywhere when nothing is said."""

    def __init__(self, version: Optional[str] = None, cuda: Optional[str] = None, error: Optional[str] = None) -> None:
        self.version = version
        self.cuda = cuda
        self.error = error
        self.providers = []  # type: List[str]
        self.note = ""


class Host:
    """A host description ("enginefarm.host/1", worker/probe.py) as the rules see it.

    Beyond the probe's keys these are read where they are given: ``image`` (what the service runs in), ``cuda`` of a backend (that it
    was built with), ``driver.minimum`` (the driver is this or newer), ``plugins`` (names or digests at hand) and
    ``engine_host_code_allowed``.
    """

    def __init__(self, facts: Dict[str, Any]) -> None:
        get = facts.get
        self.platform = _text(get("platform"))
        gpus = get("gpus")
        self.gpus = [Gpu(gpu) for gpu in _listed(gpus) if isinstance(gpu, dict)] if isinstance(gpus, (list, tuple)) else None
        problem = _mapping(get("gpu_problem"))
        self.gpu_problem = _text(problem.get("what"))
        driver = _mapping(get("driver"))
        self.driver = _version(driver.get("version"))
        self.driver_minimum = _version(driver.get("minimum"))
        self.jetson = _mapping(get("jetson")) or None
        self.container = bool(get("container"))
        self.image = _text(get("image"))
        self.backends = _mapping(get("backends"))
        self.host_code = get("engine_host_code_allowed") if isinstance(get("engine_host_code_allowed"), bool) else None
        plugins = get("plugins")
        self.plugins = [str(item) for item in plugins] if isinstance(plugins, (dict, list, tuple)) else None

    def jetpack(self) -> Optional[Dict[str, Any]]:
        """The facts of the JetPack on a Jetson; None elsewhere, and when it is not in the facts."""
        if self.jetson is None:
            return None
        name = _text(self.jetson.get("jetpack"))
        l4t = _version(self.jetson.get("l4t"))
        try:
            name = name or (jetpack_of_l4t(l4t) if l4t else None)
        except ValueError:
            return None
        return jetpack_facts(name) if name else None

    def runtime(self, engine: Engine) -> Runtime:
        """What runs the engine here."""
        backend = engine.backend or ""
        found = self.backends.get(backend)
        on_board = self.jetpack() if backend == "tensorrt" else None
        if not isinstance(found, dict):
            if on_board and on_board["tensorrt"]:
                answer = Runtime(_version(on_board["tensorrt"]), _version(on_board["cuda"]))
                answer.note = "as JetPack {} brings it".format(on_board["jetpack"])
                return answer
            return Runtime()
        error = _text(found.get("error"))
        if error == IN_IMAGE and engine.image:
            answer = Runtime(engine.version, engine.cuda)
            answer.providers = [engine.provider or "cpu"]
            answer.note = "as the image {} brings it".format(engine.image)
            return answer
        if error is not None:
            return Runtime(error=error)
        answer = Runtime(_version(found.get("version")), _version(found.get("cuda")))
        if answer.cuda is None and on_board:
            answer.cuda = _version(on_board["cuda"])
        answer.providers = [str(item).replace("ExecutionProvider", "").lower() for item in _listed(found.get("providers"))]
        return answer


Case = NamedTuple("Case", [("engine", Engine), ("host", Host), ("gpu", Optional[Gpu]), ("runtime", Runtime)])
"""What a rule looks at: ``gpu`` is the one that is judged, None when there is none or none is needed."""


def same_release(a: str, b: str, parts: int = 0) -> str:
    """ "yes", "no" or "unknown": whether two versions are the same release, to ``parts`` numbers (0: TensorRT's own rule).

    From 8.6 on TensorRT compares four numbers, before that its messages compare three.
    """
    need = parts or (3 if compare(a, fact("four_parts")["first"]) < 0 and compare(b, fact("four_parts")["first"]) < 0 else 4)
    left, right = parse(a), parse(b)
    shared = min(len(left), len(right))
    if left[: min(shared, need)] != right[: min(shared, need)]:
        return NO
    if shared < need or left[:shared] != right[:shared]:
        return UNKNOWN
    return YES
