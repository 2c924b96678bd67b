"""The public face: ``load`` gives a model, ``select`` says what ``load`` would do."""

import time
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Union

from . import metrics
from .attempt import open_within
from .candidates import Candidate
from .choice import Choice, Chosen, Refused, status_of
from .decide import BACKENDS, Decision, Listener, Policy
from .errors import InputError, LoadError, RunError
from .files import Expected, read_checked
from .host import Described, Host, ThisProcess
from .inputs import DeviceArray, specs
from .logs import INFO, WARNING, log
from .manifest import Opened, Verifier, open_manifest
from .model import Model
from .selection import check_backend, fitting_gpus
from .sessions import Job, Session

__all__ = ["Choice", "Chosen", "DeviceArray", "InputError", "LoadError", "Model", "Refused", "RunError", "load", "metrics_text", "select"]

metrics_text = metrics.text


def load(
    manifest: str,
    *,
    allow_unvalidated: bool = False,
    require: Union[str, Iterable[str], None] = None,
    require_signature: Union[bool, Verifier] = False,
    trusted: Optional[Sequence[str]] = None,
    timeout: Optional[float] = 60.0,
    isolate: bool = False,
    contexts: int = 1,
    threads: Optional[int] = None,
    on_event: Optional[Listener] = None,
) -> Model:
    """Load the best engine that runs here; LoadError, with every engine and its reason, when there is none.

    ``manifest``: ``<model>_v<N>.json``, ``latest.json`` or the model's folder. Order: TensorRT exact, hardware compatible, version
    compatible, TensorRT-RTX, ONNX Runtime on CUDA, on CPU, the TorchScript file that the model's owner named.

    ``allow_unvalidated``: also take engines that did not pass. ``require``: the only backend(s) to take, so that nothing else is fallen
    back to. ``trusted``: public key files, one of which has to have signed the manifest. ``require_signature``: True, or a function of
    (path, manifest bytes) that returns the signer; both fail closed. ``timeout``: seconds for each attempt, None for no limit. ``isolate``:
    load in a child process first, which a bad plan may kill. ``contexts``: TensorRT calls that may run at once. ``threads``: of ONNX
    Runtime's CPU provider. ``on_event``: called with a dict (``event``: loaded, refused, failed, degraded) as it happens.
    """
    if timeout is not None and not timeout > 0:
        raise ValueError("timeout is {!r}: give seconds, or None for no limit".format(timeout))
    started = time.perf_counter()
    policy = Policy(allow_unvalidated, _backends(require))
    opened = open_manifest(manifest)
    signer = _signer(opened, require_signature, trusted)
    opener = _Opener(ThisProcess(), timeout, isolate, max(int(contexts), 1), threads)
    decision = Decision(opened, policy, opener.host, opener, on_event)
    decision.run()
    choice = decision.choice
    labels: Dict[str, Any] = {"model": choice.model, "version": choice.version}
    if decision.candidate is None:
        metrics.add("enginefarm_load_errors_total", 1, **labels)
        raise _nothing(choice, policy)
    record = decision.candidate.record
    _report(decision, labels, time.perf_counter() - started)
    outputs = specs(record.get("outputs", []), {})
    return Model(decision.session, choice, specs(record.get("inputs", []), record.get("profiles", {})), outputs, signer)


def select(
    manifest: str,
    host: Optional[Dict[str, Any]] = None,
    *,
    allow_unvalidated: bool = False,
    require: Union[str, Iterable[str], None] = None,
    require_signature: Union[bool, Verifier] = False,
    trusted: Optional[Sequence[str]] = None,
) -> Choice:
    """What :func:`load` would take, without loading: files are checked, nothing is deserialised.

    ``host``: a host description ("enginefarm.host/1") of another machine; this process's own machine without it. Raises LoadError for a
    manifest that cannot be used; that nothing fits is an answer (``chosen`` is None).
    """
    policy = Policy(allow_unvalidated, _backends(require))
    opened = open_manifest(manifest)
    _signer(opened, require_signature, trusted)
    described: Host = ThisProcess() if host is None else Described(host)
    decision = Decision(opened, policy, described, None, None)
    decision.run()
    return decision.choice


def _signer(opened: Opened, required: Union[bool, Verifier], trusted: Optional[Sequence[str]]) -> Optional[str]:
    """Who signed; None when nobody asked. An empty list of trusted keys asks: it trusts nobody."""
    if required is False and trusted is None:
        return None
    from .signature import check_signature

    return check_signature(opened, required, () if trusted is None else trusted)


class _Opener:
    """Opens a candidate within the caller's limits."""

    def __init__(self, host: Host, timeout: Optional[float], isolate: bool, contexts: int, threads: Optional[int]) -> None:
        self.host = host
        self._timeout = timeout
        self._isolate = isolate
        self._contexts = contexts
        self._threads = threads

    def __call__(self, candidate: Candidate, expected: Expected, plugins: List[Expected]) -> Session:
        job = self._job(candidate, plugins)
        if self._isolate:  # before this process imports the backend: that can crash too
            from .isolate import try_in_child

            facts = self.host.facts() if job.capabilities else {}
            try_in_child(candidate, facts, job, expected, plugins, self._timeout)
        check_backend(candidate, self.host, self.host.backend(candidate.record["backend"]))
        return open_within(job, read_checked(expected), self._timeout)

    def _job(self, candidate: Candidate, plugins: List[Expected]) -> Job:
        record = candidate.record
        capabilities: List[str] = []
        if record["backend"].startswith("tensorrt") or candidate.provider == "cuda":
            fitting = fitting_gpus(candidate, self.host.facts())
            capabilities = sorted({gpu["compute_capability"] for gpu in fitting if gpu.get("compute_capability")})
        return Job(
            record["backend"],
            candidate.provider,
            capabilities,
            bool(record.get("version_compatible")),
            [plugin.path for plugin in plugins],
            specs(record.get("inputs", []), record.get("profiles", {})),
            specs(record.get("outputs", []), {}),
            self._contexts,
            self._threads,
        )


def _backends(require: Union[str, Iterable[str], None]) -> FrozenSet[str]:
    names = [require] if isinstance(require, str) else list(require or [])
    for name in names:
        if name not in BACKENDS:
            import difflib

            close = difflib.get_close_matches(name, BACKENDS, n=1)
            hint = "did you mean {}?".format(close[0]) if close else "it is one of {}".format(", ".join(BACKENDS))
            raise LoadError('require="{}" names no backend; {}'.format(name, hint), kind="usage")
    return frozenset(names)


def _report(decision: Decision, labels: Dict[str, Any], seconds: float) -> None:
    """Say and count what was loaded; degraded is said loudly."""
    choice = decision.choice
    chosen = choice.chosen
    if chosen is None:
        return
    metrics.drop("enginefarm_model_info", **labels)
    info = {"revision": choice.revision, "target": chosen.target, "backend": chosen.backend, "provider": chosen.provider or ""}
    metrics.put("enginefarm_model_info", 1, **dict(labels, **info))
    metrics.put("enginefarm_model_degraded", int(choice.degraded), **labels)
    metrics.put("enginefarm_load_seconds", seconds, **labels)
    text = "%s v%s: loaded %s (%s, %s) on %s"
    log(INFO, text, choice.model, choice.version, chosen.target, chosen.tier, status_of(chosen), chosen.device)
    if choice.degraded:
        reasons = "; ".join(choice.reasons)
        log(WARNING, "%s v%s is DEGRADED, it runs %s (%s): %s", choice.model, choice.version, chosen.target, chosen.tier, reasons)
        decision.tell(dict(labels, event="degraded", target=chosen.target, backend=chosen.backend, reasons=list(choice.reasons)))


def _nothing(choice: Choice, policy: Policy) -> LoadError:
    unvalidated = [refused for refused in choice.refused if refused.stage == "policy" and "allow_unvalidated" in refused.fix]
    fix = "enginefarm build for this machine, or copy the engines here again"
    if not choice.refused:
        return LoadError(
            "no engine to load", "the manifest of {} v{} holds none".format(choice.model, choice.version), fix, choice, "engine"
        )
    if unvalidated and not policy.allow_unvalidated:
        fix = "validate {} where it can run, or load with allow_unvalidated=True".format(unvalidated[0].target)
    return LoadError("no engine of {} v{} runs here".format(choice.model, choice.version), None, fix, choice, "engine")
