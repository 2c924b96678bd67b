"""What each build needs: nothing, a verdict, a validate step, a build step. ``plan`` shows it, ``build`` does it.

A decision rests on keys alone; nothing is read of an engine but its file's status, and nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.artifacts.manifest import EngineRecord
from orchestrator.errors import EnginefarmError
from orchestrator.farm.local import Farm, Spot, reason
from orchestrator.matrix.schema import Target, Tolerance
from orchestrator.pipeline import identity, keys
from orchestrator.pipeline.cached import Cached
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.prepare import PreparedBuild, rewritten_to
from orchestrator.portable.facts import capability
from orchestrator.runners import bundle
from orchestrator.verdict.judge import JUDGE
from orchestrator.verdict.tolerance import default_tolerance, effective_precision

Action = Literal["build", "validate", "judge", "restore", "reuse", "skip"]
ACTIONS: tuple[Action, ...] = ("build", "validate", "judge", "restore", "reuse", "skip")
GOOD = ("passed", "self-consistent")


@dataclass(frozen=True)
class Checks:
    """How an engine is to be checked. ``blocked`` says why no validate step can run, when none can: what was checked before still holds."""

    run_key: str
    verdict_key: str
    tolerance: Tolerance
    inputs: Mapping[str, Any]
    blocked: str | None = None


@dataclass(frozen=True)
class Decision:
    """``action``: ``build`` runs everything, ``validate`` and ``judge`` check an engine that is there, ``restore`` takes engine and verdict
    from the cache, ``reuse`` changes nothing, ``skip`` can do nothing. ``inputs`` is what the build key is over, ``previous`` the engine of
    that key in artifacts, ``held`` whatever engine the newest manifest of this version has."""

    build: PreparedBuild
    action: Action
    key: str | None = None
    inputs: Mapping[str, Any] | None = None
    checks: Checks | None = None
    previous: tuple[EngineRecord, Path] | None = None
    held: EngineRecord | None = None
    forced: bool = False

    @property
    def runs(self) -> bool:
        """Whether a step has to run on a runner."""
        return self.action in ("build", "validate")


class Decider:
    """Decides for all builds of a run; what several models or targets share is computed once."""

    def __init__(self, options: BuildOptions, farm: Farm, cached: Cached) -> None:
        self._options = options
        self._farm = farm
        self._cached = cached
        self._inputs: dict[Any, tuple[Mapping[str, Any], str]] = {}
        self._checks: dict[Any, tuple[Tolerance, str, str, Mapping[str, Any]]] = {}
        self._samples: dict[Any, str] = {}

    def decide(self, build: PreparedBuild, previous: Callable[[PreparedBuild], tuple[EngineRecord, Path] | None]) -> Decision:
        """``previous`` gives the engine that the newest manifest of the version has for the target, when its file is whole.

        Raises EnginefarmError for samples that are not there.
        """
        if build.refusal is not None or not build.placement.build:
            return Decision(build, "skip")
        key, inputs = self.build_key(build, self._farm.usable(build.placement.build)[0])
        checks = self._how(build, key)
        held = previous(build)
        mine = held if held is not None and held[0].build_key == key else None
        forced = self._options.force
        action: Action = "build"
        if not forced and mine is not None:
            action = self._checked(mine[0], checks)
        elif not forced and self._cached.has_engine(key):
            action = self._checked(None, checks)
        return Decision(build, action, key, inputs, checks, mine, held[0] if held else None, forced)

    def build_key(self, build: PreparedBuild, spot: Spot) -> tuple[str, Mapping[str, Any]]:
        """Key of the build step on ``spot``, and what it is over."""
        target, model = build.effective.target, build.model.model
        converter = keys.converter_version() if rewritten_to(model, target) else None
        name = (id(build.effective), id(build.profiles), spot.backend_version, spot.image, converter)
        found = self._inputs.get(name)
        if found is None:
            inputs = keys.build_inputs(
                target,
                profiles=build.profiles,
                backend_version=spot.backend_version,
                converter=converter,
                plugins=self.plugins(target),
                image=spot.image,
                worker=self._worker("build", target),
            )
            found = self._inputs[name] = (inputs, keys.digest_of(inputs))
        return keys.build_key(model.digest, found[1]), found[0]

    def _worker(self, step: str, target: Target) -> str:
        """Digest of the worker modules of a step; found by reading them all, so it is remembered for this release's sources."""
        memo, subject = self._cached.store.memo, f"{step} {target.backend}"
        known = memo.get("worker modules", subject, bundle.worker_version())
        if known is None:
            known = bundle.step_modules_digest(step, target.backend)
            memo.put("worker modules", subject, bundle.worker_version(), [], known)
        return str(known)

    def plugins(self, target: Target) -> dict[str, str]:
        """Plugin file -> digest."""
        return {name: self._cached.store.memo.digest(Path(name)) for name in target.plugins}

    def _how(self, build: PreparedBuild, key: str) -> Checks:
        target = build.effective.target
        samples = self._sample_identity(build)
        tolerance, exercise, judging, inputs = self._judging(build, target)
        run = keys.run_key(key, samples, exercise)
        blocked = None
        if not self._options.validate:
            blocked = "validation was switched off with --no-validate"
        elif not build.placement.validate:
            blocked = reason(build.placement.validate_refused)
        return Checks(run, keys.verdict_key(run, judging), tolerance, {"samples": samples, **inputs}, blocked)

    def _sample_identity(self, build: PreparedBuild) -> str:
        target, model = build.effective.target, build.model.model
        name = (id(build.effective), id(build.profiles), model.inputs)
        if name not in self._samples:
            try:
                self._samples[name] = identity.samples(self._cached.store.memo, model, target.samples, build.profiles)
            except EnginefarmError as error:
                error.where = error.where or build.effective.sources["samples"].where
                raise
        return self._samples[name]

    def _judging(self, build: PreparedBuild, target: Target) -> tuple[Tolerance, str, str, Mapping[str, Any]]:
        model = build.model.model
        precision = effective_precision(target.precision, weight_dtypes=model.weight_dtypes, has_qdq=model.has_qdq)
        name = (id(build.effective), precision)
        if name not in self._checks:
            # by the precision that the engine really computes in: the target's, or a coarser one that the model brings
            tolerance = target.tolerance or default_tolerance(precision, tf32=in_tf32(target))
            inputs: dict[str, Any] = {
                "validation": target.validation.model_dump(mode="json"),
                "tolerance": tolerance.model_dump(mode="json"),
                "expected by": identity.expected(JUDGE),
            }
            judging = keys.judging_digest(inputs["tolerance"], target.validation, identity.expected(JUDGE), JUDGE)
            self._checks[name] = (tolerance, keys.exercise_digest(target, self._worker("validate", target)), judging, inputs)
        return self._checks[name]

    def _checked(self, record: EngineRecord | None, checks: Checks) -> Action:
        """What is left to do for an engine that need not be built; ``record`` is None for one in the cache."""
        if record is not None and holds(record, checks):
            return "reuse"
        digest = record.digest if record is not None else None
        found = self._cached.validated(checks.run_key)
        if found is None or found["failed"] == checks.verdict_key or (digest is not None and found["engine"] != digest):
            if checks.blocked is None:
                return "validate"
            return "restore" if record is None else "reuse"
        if record is None and found["verdict_key"] == checks.verdict_key:
            return "restore"
        return "judge"


def holds(record: EngineRecord, checks: Checks) -> bool:
    """Whether the record's verdict is the one that these checks would give."""
    return record.validate_key == checks.verdict_key and record.verdict.status in GOOD


def in_tf32(target: Target) -> bool:
    """Whether fp32 products of the engine may run in TF32: on a GPU of compute capability 8.0 or newer, unless the target forbids it."""
    newest = max((capability.key(name) for name in target.compute_capability), default=(0, 0))
    return target.tf32 and not on_cpu(target) and newest >= (8, 0)


def on_cpu(target: Target) -> bool:
    return target.backend == "onnxruntime" and target.provider != "cuda"


def sample_problem(build: PreparedBuild, error: EnginefarmError) -> str | None:
    """Why an engine stays unchecked when no inputs can be made up for the model; None when the user's own samples are at fault."""
    return None if build.effective.target.samples else f"{error.what}; give samples in the model's YAML"
