"""How a build ended, and those builds that have ended before anything ran."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import errors
from orchestrator.artifacts.manifest import EngineRecord, Verdict
from orchestrator.errors import EnginefarmError
from orchestrator.farm.local import reason
from orchestrator.pipeline import record
from orchestrator.pipeline.decide import Decision, holds
from orchestrator.pipeline.prepare import PreparedBuild, where


@dataclass(frozen=True)
class Outcome:
    """How a build ended. ``engine`` is the file to put into artifacts; None when there is none, or when all is as it was.

    ``cached``: no build step ran and no validate step.
    """

    build: PreparedBuild
    record: EngineRecord
    engine: Path | None
    cached: bool
    seconds: float
    problem: EnginefarmError | None = None

    @property
    def status(self) -> str:
        return self.record.verdict.status

    @property
    def unchanged(self) -> bool:
        """Nothing of it has to be written."""
        return self.cached and self.engine is None


def settled(decision: Decision) -> Outcome | None:
    """The outcome of a build for which there is nothing to do; None when there is."""
    build = decision.build
    if decision.action == "skip":
        refusal = build.refusal or no_runner(build)
        skipped = Verdict(status="skipped", reason=skip_reason(build))
        return Outcome(build, record.unbuilt(build, skipped, refusal), None, False, 0.0, refusal)
    checks, previous = decision.checks, decision.previous
    if decision.action != "reuse" or previous is None or checks is None:
        return None
    built = record.renamed(previous[0], build)
    if not holds(built, checks):
        verdict = Verdict(status="unvalidated", reason=checks.blocked or "not validated yet")
        built = built.model_copy(update={"verdict": verdict, "validate_key": None})
    same = built == previous[0]
    return Outcome(build, built, None if same else previous[1], True, 0.0)


def skip_reason(build: PreparedBuild) -> str:
    """One line: why nothing is built."""
    refusal = build.refusal
    if refusal is None:
        return reason(build.placement.build_refused)
    return f"{refusal.what}: {refusal.why}" if build.excluded and refusal.why else refusal.what


def no_runner(build: PreparedBuild) -> EnginefarmError:
    """Why nothing can build it."""
    return EnginefarmError(
        errors.NO_RUNNER,
        reason(build.placement.build_refused),
        where=where(build.model, build.effective.target.name),
        fix="build it where such a runner is, or leave the target out with --target; --available skips what cannot run here",
    )


def model_inputs(build: PreparedBuild) -> dict[str, Any]:
    """The model among the inputs of a build, part by part, as ``plan`` names what changed."""
    model = build.model.model
    files = {file.path: file.digest for file in model.external}
    return {"model": model.digest, "model graph": model.graph_digest, "external data": files}
