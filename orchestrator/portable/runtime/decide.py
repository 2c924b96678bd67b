"""Which engine of a manifest to take. ``select`` and ``load`` decide by the same code; only ``load`` opens."""

import os
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional

from ..worker.errors import printable
from . import metrics
from .candidates import TORCHSCRIPT, Candidate, candidates, speed_class, tier
from .choice import FAILURES, Choice, Chosen, Refused
from .errors import Refusal
from .files import Expected, check, diagnose, inside
from .host import NAMES, Host
from .logs import ERROR, INFO, log
from .manifest import Opened, engines_with_file
from .selection import check_backend, check_machine, is_for

BACKENDS = ("tensorrt", "tensorrt-rtx", "onnxruntime", TORCHSCRIPT)

Policy = NamedTuple("Policy", [("allow_unvalidated", bool), ("require", FrozenSet[str])])
"""``require``: the only backends that may be taken; empty for any."""

Opener = Callable[[Candidate, Expected, List[Expected]], Any]
Listener = Callable[[Dict[str, Any]], None]


class Decision:
    """Walks through the candidates; ``session`` is what ``opener`` gave for the chosen one."""

    def __init__(self, opened: Opened, policy: Policy, host: Host, opener: Optional[Opener], listener: Optional[Listener]) -> None:
        model = opened.content["model"]
        self.choice = Choice(model["name"], model["version"], opened.content["revision"], opened.path)
        self.session: Any = None
        self.candidate: Optional[Candidate] = None
        self._opened = opened
        self._policy = policy
        self._host = host
        self._opener = opener
        self._listener = listener

    def run(self) -> None:
        """Take the first candidate that nothing speaks against."""
        needs_gpu = any(record["backend"] != "onnxruntime" or record.get("provider") == "cuda" for record in self._records())
        wants_gpu = needs_gpu or self._policy.allow_unvalidated
        offered = candidates(self._opened.content, bool(wants_gpu and self._host.facts().get("gpus")))
        for candidate in offered:
            try:
                self._take(candidate)
                break
            except Refusal as refusal:
                self._refuse(candidate, refusal)
        if needs_gpu:
            self._note_absent()
        self._judge(offered)

    def _records(self) -> List[Dict[str, Any]]:
        return engines_with_file(self._opened.content)

    def _take(self, candidate: Candidate) -> None:
        record = candidate.record
        self._check_require(candidate)
        check_machine(candidate, self._host)
        self._check_policy(candidate)
        expected = Expected(inside(self._opened.folder, record["file"]), record["digest"], record["size_bytes"])
        plugins = [self._plugin(name, digest) for name, digest in sorted(record.get("plugins", {}).items())]
        device: Optional[str] = None
        version: Optional[str] = None
        try:
            if self._opener is None:
                backend = self._host.backend(record["backend"])
                check_backend(candidate, self._host, backend)
                check(expected)
                version = backend.get("version")
            else:
                self.session = self._opener(candidate, expected, plugins)
                device, version = self.session.device, self.session.version
        except Refusal as refusal:
            raise self._with_diagnosis(refusal, expected) from refusal
        self.candidate = candidate
        self.choice.chosen = Chosen(
            record["target"], expected.path, record["backend"], candidate.provider, tier(candidate), candidate.status,
            candidate.checked, record["digest"], version, device,
        )  # fmt: skip
        self._count(candidate, "loaded")

    def _check_require(self, candidate: Candidate) -> None:
        required = self._policy.require
        if required and candidate.record["backend"] not in required:
            raise Refusal("policy", "require={} forbids it".format(" or ".join(sorted(required))))

    def _check_policy(self, candidate: Candidate) -> None:
        record = candidate.record
        if candidate.status in ("failed", "skipped"):
            raise Refusal("policy", "its status is {}".format(candidate.status))
        if self._policy.allow_unvalidated:
            return
        allow = "validate it, or load with allow_unvalidated=True"
        if candidate.status == "passed" and not candidate.checked:
            raise Refusal("policy", "it was checked on the CPU only, not on CUDA", allow)
        if not candidate.checked:
            raise Refusal("policy", "it is {}: nobody has checked it on such a GPU".format(candidate.status), allow)
        if ".unvalidated." in record["file"]:
            raise Refusal("policy", "its name says unvalidated and its record says {}".format(candidate.status), allow)

    def _plugin(self, name: str, digest: Any) -> Expected:
        """A plugin library lies beside the manifest, under its own name."""
        path = inside(self._opened.folder, name.replace("\\", "/").rsplit("/", 1)[-1])
        if not os.path.isfile(path):
            raise Refusal(
                "file", "its plugin {} is not beside the manifest".format(os.path.basename(path)), "copy it there", "missing-plugin-library"
            )
        expected = Expected(path, str(digest), None)
        check(expected)
        return expected

    def _with_diagnosis(self, refusal: Refusal, expected: Expected) -> Refusal:
        if refusal.stage != "file" or not refusal.kind:
            return refusal
        others = [
            Expected(os.path.join(self._opened.folder, record["file"]), record["digest"], record["size_bytes"])
            for record in self._records()
            if record["digest"] != expected.digest
        ]
        found = diagnose(expected, others)
        newer = "" if found else self._newer(expected.path)
        text = "; ".join(part for part in (refusal.why, found or newer) if part)
        return Refusal(refusal.stage, text, refusal.fix, refusal.kind, refusal.code)

    def _newer(self, path: str) -> str:
        try:
            later = os.path.getmtime(path) > os.path.getmtime(self._opened.path)
        except OSError:
            return ""
        return "it was written after the manifest" if later else ""

    def _refuse(self, candidate: Candidate, refusal: Refusal) -> None:
        record = candidate.record
        why = printable(refusal.why, 2000)
        self.choice.refused.append(
            Refused(
                record["target"],
                record["file"],
                record["backend"],
                candidate.provider,
                tier(candidate),
                refusal.stage,
                refusal.kind,
                why,
                refusal.fix,
                refusal.code,
            )
        )
        broken = refusal.stage in FAILURES
        self._count(candidate, "failed" if broken else "refused", why)
        if self._opener is not None:
            fix = " Fix: {}".format(refusal.fix) if refusal.fix else ""
            level = ERROR if broken else INFO
            log(level, "%s v%s: engine %s (%s) is not used: %s.%s", *self._named(), record["target"], record["file"], why, fix)

    def _named(self) -> List[Any]:
        return [self.choice.model, self.choice.version]

    def _count(self, candidate: Candidate, outcome: str, why: str = "") -> None:
        if self._opener is None:
            return
        record = candidate.record
        labels = {"model": self.choice.model, "version": self.choice.version, "target": record["target"], "backend": record["backend"]}
        metrics.add("enginefarm_load_attempts_total", 1, outcome=outcome, provider=candidate.provider or "", **labels)
        self.tell(dict(labels, event=outcome, file=record["file"], provider=candidate.provider, why=why))

    def tell(self, event: Dict[str, Any]) -> None:
        """Hand an event to the caller's listener, whose failures are its own."""
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:  # noqa: BLE001
            log(ERROR, "the on_event function failed", exc_info=True)

    def _note_absent(self) -> None:
        """Targets that were made for this GPU and have no file."""
        facts = self._host.facts()
        for record in self._opened.content["engines"]:
            if record.get("file") is None and is_for(record, facts):
                why = "it has no file: its build was {}".format(record["verdict"]["status"])
                name = NAMES[record["backend"]]
                self.choice.refused.append(Refused(record["target"], None, record["backend"], None, name, "absent", "", why, "", ""))

    def _judge(self, offered: List[Candidate]) -> None:
        """Why a service should worry: something better is broken, or was made for this machine, or is what the model is for."""
        chosen = self.candidate
        if chosen is None:
            return
        refused = self.choice.refused
        reasons = ["{} did not load: {}".format(item.target, item.why) for item in refused if item.stage in FAILURES]
        here = [item for item in refused if item.stage == "backend" and self._made_for_here(item.target)]
        reasons += ["{} is for this GPU: {}".format(item.target, item.why) for item in here]
        best = min(offered, key=speed_class)
        if not reasons and speed_class(chosen) > speed_class(best):
            reasons.append("{} in place of {} ({})".format(tier(chosen), tier(best), self._main_reason(tier(best))))
        absent = [item.target for item in refused if item.stage == "absent" and item.backend != chosen.record["backend"]]
        if absent and speed_class(chosen) > 0:
            reasons.append("no engine was built of {}, which is for this GPU".format(" and ".join(absent)))
        if chosen.record["backend"] == TORCHSCRIPT and not reasons:
            reasons.append("TorchScript is the last resort")
        self.choice.reasons = reasons

    def _main_reason(self, best: str) -> str:
        """Why none of the best tier is taken: what was made for this GPU says most."""
        refused = [item for item in self.choice.refused if item.tier == best]
        telling = [item for item in refused if self._made_for_here(item.target)] or refused
        return "{}: {}".format(telling[0].target, telling[0].why)

    def _made_for_here(self, target: str) -> bool:
        facts = self._host.facts()
        return any(record["target"] == target and record.get("compute_capability") and is_for(record, facts) for record in self._records())
