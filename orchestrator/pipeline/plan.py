"""``enginefarm plan``: what a build would do and why, without doing it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import events
from orchestrator.artifacts.manifest import EngineRecord, read_manifest
from orchestrator.artifacts.versions import versions
from orchestrator.errors import EnginefarmError
from orchestrator.pipeline.cached import Cached
from orchestrator.pipeline.changes import changes
from orchestrator.pipeline.decide import ACTIONS, Decider, Decision
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.outcome import model_inputs, skip_reason
from orchestrator.pipeline.prepare import PreparedModel
from orchestrator.pipeline.site import Site
from orchestrator.runners.base import Cancel

PLAN_SCHEMA = "enginefarm.plan/1"


@dataclass(frozen=True)
class PlannedBuild:
    """One line. ``runner`` and ``validated_on`` are those that would be tried first; ``seconds`` is None when no such build is known;
    ``pull_bytes`` is what the image still needs, None when no container runs or nobody knows."""

    model: str
    version: int
    target: str
    action: str
    why: str
    runner: str | None = None
    validated_on: str | None = None
    seconds: float | None = None
    pull_bytes: int | None = None
    key: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return vars(self).copy()


@dataclass(frozen=True)
class Plan:
    """``builds`` in the order of the run; totals are over those that run. ``unknown`` counts builds without an expected time."""

    builds: tuple[PlannedBuild, ...]
    seconds: float
    unknown: int
    pull_bytes: int

    @property
    def work(self) -> bool:
        """Whether a build would change anything."""
        return any(build.action not in ("reuse", "skip") for build in self.builds)

    def counts(self) -> dict[str, int]:
        counted = Counter(build.action for build in self.builds)
        return {action: counted[action] for action in ACTIONS if counted[action]}

    def as_dict(self) -> dict[str, Any]:
        totals = {"actions": self.counts(), "seconds": round(self.seconds, 3), "unknown": self.unknown, "pull_bytes": self.pull_bytes}
        return {"schema": PLAN_SCHEMA, "builds": [build.as_dict() for build in self.builds], "totals": totals}


def make_plan(options: BuildOptions, bus: events.Bus) -> Plan:
    """What a build with these options would do. Raises EnginefarmError as the build would."""
    with Site(options, bus, plan=True) as site, tempfile.TemporaryDirectory(prefix="enginefarm-plan-") as place:
        prepared = site.prepare(Path(place))
        for model, text in prepared.notes:
            bus(events.Note(text=text, model=model))
        cached = Cached(site.store, Path(place), bus, Cancel())
        decider = Decider(options, site.farm, cached)
        decisions = site.decide(prepared, decider)
        _check_samples(decisions, site, cached, Path(place))
        return _Lines(site, cached).plan(decisions)


def _check_samples(decisions: Sequence[Decision], site: Site, cached: Cached, place: Path) -> None:
    """What a build would refuse to begin with, a plan does not promise."""
    to_check = [decision.build for decision in decisions if decision.runs and decision.build.effective.target.samples]
    if not to_check:
        return
    from orchestrator.pipeline.shared import SharedWork, check_samples

    models = {build.model.name: build.model for build in to_check}
    work = {
        name: SharedWork(model, place / f"samples-{number}", site.options, site.farm, Cancel(), cached)
        for number, (name, model) in enumerate(models.items())
    }
    check_samples((work[build.model.name], build) for build in to_check)


class _Lines:
    def __init__(self, site: Site, cached: Cached) -> None:
        self._site = site
        self._cached = cached
        self._pulls: dict[tuple[str, str], int | None] = {}
        self._before: dict[str, dict[str, EngineRecord]] = {}

    def plan(self, decisions: list[Decision]) -> Plan:
        lines = tuple(self._line(decision) for decision in decisions)
        running = [line for line, decision in zip(lines, decisions, strict=True) if decision.runs]
        # an image that several builds on a runner need is pulled once
        pulled = {
            (line.runner, decision.build.placement.build[0].image): line.pull_bytes or 0
            for line, decision in zip(lines, decisions, strict=True)
            if decision.action == "build"
        }
        return Plan(
            lines,
            seconds=sum(line.seconds or 0.0 for line in running),
            unknown=sum(line.seconds is None for line in running),
            pull_bytes=sum(pulled.values()),
        )

    def _line(self, decision: Decision) -> PlannedBuild:
        build = decision.build
        name, version, target = build.model.name, build.model.version.version, build.effective.target.name
        if decision.action == "skip":
            return PlannedBuild(name, version, target, "skip", skip_reason(build))
        spots, checked = build.placement.build, build.placement.validate
        seconds = self._site.expected(decision)
        return PlannedBuild(
            name,
            version,
            target,
            decision.action,
            self._why(decision),
            runner=spots[0].runner.name if decision.action == "build" else None,
            validated_on=checked[0].runner.name if decision.runs and checked and self._site.options.validate else None,
            seconds=None if seconds is None else round(seconds, 3),
            pull_bytes=self._pull(decision) if decision.action == "build" else None,
            key=decision.key,
        )

    def _pull(self, decision: Decision) -> int | None:
        spot = decision.build.placement.build[0]
        if spot.image is None:
            return None
        name = (spot.runner.name, spot.image)
        if name not in self._pulls:
            self._pulls[name] = self._site.farm.pull_bytes(spot)
        return self._pulls[name]

    def _why(self, decision: Decision) -> str:
        if decision.forced:
            return "--force"
        asked = {"build": self._why_build, "validate": self._why_check, "judge": self._why_check}.get(decision.action)
        settled = "up to date" if decision.action == "reuse" else "in the cache"
        text = asked(decision) if asked is not None else settled
        blocked = decision.checks.blocked if decision.checks else None
        unproven = decision.action in ("build", "restore") or decision.previous is None or decision.previous[0].verdict.status != "passed"
        return f"{text}; stays unvalidated: {blocked}" if blocked and unproven else text

    def _why_build(self, decision: Decision) -> str:
        before = decision.held or self._engines_before(decision.build.model).get(decision.build.effective.target.name)
        if before is None or before.build_key is None:
            return "new"
        if before.build_key == decision.key:
            return "its engine is gone or was changed"
        stored = self._cached.build(before.build_key)
        inputs = {**(decision.inputs or {}), **model_inputs(decision.build)}
        found = changes(stored["inputs"], inputs) if stored else []
        return "; ".join(found) or "something it is built from changed (what it was is no longer in the cache)"

    def _why_check(self, decision: Decision) -> str:
        record = decision.previous[0] if decision.previous else None
        checks = decision.checks
        if record is None or checks is None:
            return "its engine is in the cache, its verdict is not"
        if record.validate_key is None:
            return f"not validated so far: {record.verdict.reason}"
        before = self._cached.check_inputs(record.validate_key)
        found = changes(before, checks.inputs) if before else []
        return "; ".join(found) or f"it was {record.verdict.status}: {record.verdict.reason}"

    def _engines_before(self, model: PreparedModel) -> Mapping[str, EngineRecord]:
        """The engines of the version before this one, by target."""
        if model.name not in self._before:
            found = versions(self._site.options.output, model.name)
            older = [path for number, path in found.items() if number <= model.version.version]
            records: dict[str, EngineRecord] = {}
            if older:
                try:
                    records = {record.target: record for record in read_manifest(older[-1]).engines}
                except EnginefarmError:
                    records = {}
            self._before[model.name] = records
        return self._before[model.name]
