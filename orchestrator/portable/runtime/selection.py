"""Whether an engine can run on a machine, before it is read: the rules of facts/loads.py, first without and then with its backend.

Unknown never refuses.
"""

from typing import Any, Dict, List, Optional

from ..facts.loads import DOES_NOT, verdict
from .candidates import TORCHSCRIPT, Candidate
from .errors import Refusal
from .host import INSTALL, NAMES, Host

_OF_THE_MACHINE = ("file", "platform", "gpu", "capability", "driver", "memory")
"""Rules that hold whatever is installed; the others are asked once the backend is known."""

_NOT_OURS = ("validation",)  # a policy, not a rule: decide.py


def check_machine(candidate: Candidate, host: Host) -> None:
    """Refusal (stage rules) when the machine cannot run the engine whatever is installed on it."""
    if candidate.record["backend"] == TORCHSCRIPT or (_on_cpu(candidate) and candidate.record.get("platform", "any") == "any"):
        return
    facts = host.facts()
    needs_gpu = not _on_cpu(candidate) and candidate.record.get("platform") in ("any", facts.get("platform"))
    if needs_gpu and facts.get("gpus") == []:  # the commonest fallback, said without loading the rules
        named = candidate.record.get("compute_capability")
        wanted = "; it needs compute capability {}".format(" or ".join(named)) if named else ""
        raise Refusal("rules", "no NVIDIA GPU here" + wanted, "run it where such a GPU is")
    found = _refusing(candidate, dict(facts, backends={}), _OF_THE_MACHINE)
    if found is not None:
        raise Refusal("rules", found["text"], found["fix"])


def check_backend(candidate: Candidate, host: Host, backend: Dict[str, Any]) -> None:
    """Refusal (stage backend) when what runs the engine is missing or in a version that cannot load it."""
    name = candidate.record["backend"]
    if "error" in backend:
        state = "is not installed" if backend["error"] == "not installed" else "does not import ({})".format(backend["error"])
        raise Refusal("backend", "{} {}".format(NAMES[name], state), INSTALL[name])
    if name == TORCHSCRIPT or _on_cpu(candidate):
        return
    # this loader allows the host code of an engine whose digest it has checked, and loads its plugins itself
    here = dict(host.facts(), backends={name: backend}, engine_host_code_allowed=True, plugins=list(candidate.record.get("plugins", {})))
    found = _refusing(candidate, here, None)
    if found is not None:
        kind = "plan-version-mismatch" if found["rule"] in ("version", "version-compatible", "cuda-build") else ""
        raise Refusal("backend", found["text"], found["fix"], kind)


def fitting_gpus(candidate: Candidate, host: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The GPUs that the engine runs on; one of which nothing is known counts."""
    gpus = host.get("gpus") or ()
    return [gpu for gpu in gpus if _refusing(candidate, dict(host, gpus=[gpu], backends={}), _OF_THE_MACHINE) is None]


def is_for(record: Dict[str, Any], host: Dict[str, Any]) -> bool:
    """Whether the engine was made for a GPU of this machine, on its platform."""
    named = record.get("compute_capability") or ()
    here = [gpu.get("compute_capability") for gpu in host.get("gpus") or ()]
    return record.get("platform") in ("any", host.get("platform")) and any(capability in named for capability in here)


def _on_cpu(candidate: Candidate) -> bool:
    return candidate.provider == "cpu"


def _refusing(candidate: Candidate, host: Dict[str, Any], names: Any) -> Optional[Dict[str, Any]]:
    """The first rule (of those named) that says that the engine does not load."""
    rules: List[Dict[str, Any]] = verdict(dict(candidate.record, provider=candidate.provider), host)["rules"]
    for rule in rules:
        if rule["verdict"] == DOES_NOT and rule["rule"] not in _NOT_OURS and (names is None or rule["rule"] in names):
            return rule
    return None
