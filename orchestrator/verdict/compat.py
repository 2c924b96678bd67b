"""Which engine loads on which host: pairs judged by portable/facts/loads.py, beside what a trial found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.artifacts.manifest import EngineRecord
from orchestrator.errors import Exit
from orchestrator.portable.facts import loads
from orchestrator.runners.base import Host, Runner

COMPAT_SCHEMA = "enginefarm.compat/1"
VERDICTS = (loads.LOADS, loads.WARNING, loads.UNKNOWN, loads.DOES_NOT)
RUNS = ("loads", "loads slower")


@dataclass(frozen=True)
class EngineSubject:
    """An engine, or a row of the matrix that would make one. ``facts`` as portable/facts/loads.py reads them; ``notes`` are rules about
    the file that hold on every host."""

    name: str
    facts: Mapping[str, Any]
    file: Path | None = None
    record: EngineRecord | None = None
    plugins: Mapping[str, Path] = field(default_factory=dict)
    notes: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class HostSubject:
    """A host. ``kind`` is "target", "runner" or "file"; several ``descriptions`` when a target leaves open which of several GPUs it has."""

    name: str
    kind: str
    descriptions: tuple[Host, ...]
    runner: Runner | None = None


@dataclass(frozen=True)
class Trial:
    """What happened when the engine was really loaded. ``outcome`` is "loads", "loads slower", "refused", "crashes at load",
    "crashes under load" or "not tried"; ``agrees`` is None where the prediction was unknown or nothing was tried. ``cause`` is the best
    that ``enginefarm explain`` finds in the child's log (code, kind, figures, sentence, fix); ``log`` is the file that it is kept in."""

    outcome: str
    text: str
    agrees: bool | None = None
    median_ms: float | None = None
    seconds: float | None = None
    cause: Mapping[str, Any] | None = None
    log: str | None = None


@dataclass(frozen=True)
class Pair:
    """``found`` is what :func:`loads.verdict` gives."""

    engine: str
    host: str
    found: Mapping[str, Any]
    trial: Trial | None = None

    @property
    def verdict(self) -> str:
        return str(self.found["verdict"])

    @property
    def disagrees(self) -> bool:
        return self.trial is not None and self.trial.agrees is False


@dataclass(frozen=True)
class Grid:
    """All pairs, by engine and then by host."""

    engines: tuple[EngineSubject, ...]
    hosts: tuple[HostSubject, ...]
    pairs: tuple[Pair, ...]

    def row(self, engine: str) -> list[Pair]:
        return [pair for pair in self.pairs if pair.engine == engine]


def judge_pair(engine: EngineSubject, host: HostSubject) -> dict[str, Any]:
    """The verdict; where a host may have one of several GPUs and they differ, it is unknown and says so."""
    answers = [_noted(loads.verdict(dict(engine.facts), dict(description)), engine.notes) for description in host.descriptions]
    said = {answer["verdict"] for answer in answers}
    if len(said) == 1:
        return answers[0]
    by_gpu = [f"{answer['gpu'] or 'no GPU'}: {answer['verdict']}" for answer in answers]
    worst = max(answers, key=lambda answer: loads.SEVERITY[answer["verdict"]])
    text = f"it depends on the GPU: {', '.join(by_gpu)}"
    rule = {"rule": "gpu", "verdict": loads.UNKNOWN, "text": text, "evidence": "", "confidence": "measured"}
    rule |= {"source": f"the {host.kind} {host.name}", "fix": "name the host that it is for: --on RUNNER or --on host.json"}
    return {"verdict": loads.UNKNOWN, "reason": text, "rules": [rule, *worst["rules"]], "gpu": None}


def _noted(answer: dict[str, Any], notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer with the rules of ``notes``; one of them decides when it is worse than all others."""
    for note in notes:
        answer = answer | {"rules": [*answer["rules"], note]}
        if loads.SEVERITY[note["verdict"]] > loads.SEVERITY[answer["verdict"]]:
            answer |= {"verdict": note["verdict"], "reason": note["text"]}
    return answer


def grid(engines: Sequence[EngineSubject], hosts: Sequence[HostSubject], trials: Mapping[tuple[str, str], Trial] | None = None) -> Grid:
    """Every engine on every host; ``trials`` by engine and host."""
    known = trials or {}
    pairs = [
        Pair(engine.name, host.name, judge_pair(engine, host), known.get((engine.name, host.name))) for engine in engines for host in hosts
    ]
    return Grid(tuple(engines), tuple(hosts), tuple(pairs))


def agreement(verdict: str, outcome: str) -> bool | None:
    """Whether a trial's outcome is what was predicted."""
    if verdict == loads.UNKNOWN or outcome == "not tried":
        return None
    return (verdict in (loads.LOADS, loads.WARNING)) == (outcome in RUNS)


def exit_code(pairs: Iterable[Pair]) -> Exit:
    """OK when everything loads (a warning is a yes), FAILED when something does not or a trial contradicts the rules, NO_RUNNER when
    nothing is refused and something is unknown: unknown is not green."""
    said = list(pairs)
    tried = [pair.trial.outcome for pair in said if pair.trial is not None and pair.trial.outcome != "not tried"]
    if any(pair.disagrees for pair in said) or any(outcome not in RUNS for outcome in tried):
        return Exit.FAILED
    if any(pair.verdict == loads.DOES_NOT for pair in said):
        return Exit.FAILED
    unknown = [pair for pair in said if pair.verdict == loads.UNKNOWN and (pair.trial is None or pair.trial.outcome == "not tried")]
    return Exit.NO_RUNNER if unknown else Exit.OK


def as_json(found: Grid) -> dict[str, Any]:
    """JSON-ready (``enginefarm.compat/1``)."""
    counts = Counter(pair.verdict for pair in found.pairs)
    return {
        "schema": COMPAT_SCHEMA,
        "engines": [
            {"name": engine.name, "file": str(engine.file) if engine.file else None, **_known(engine.facts)} for engine in found.engines
        ],
        "hosts": [{"name": host.name, "kind": host.kind} for host in found.hosts],
        "pairs": [_pair_json(pair) for pair in sorted(found.pairs, key=lambda pair: not pair.disagrees)],
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "disagreements": sum(pair.disagrees for pair in found.pairs),
    }


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    names = ("target", "backend", "backend_version", "compute_capability", "platform", "cuda")
    return {name: facts.get(name) for name in names}


def _pair_json(pair: Pair) -> dict[str, Any]:
    trial = asdict(pair.trial) if pair.trial else None
    return {"engine": pair.engine, "host": pair.host, **pair.found, "trial": trial}
