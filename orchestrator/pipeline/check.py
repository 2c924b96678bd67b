"""Checks one engine: validate step, reference, verdict. What ran before on the same engine and inputs is judged again, not run again."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator import errors, events
from orchestrator.artifacts.manifest import EngineRecord, Verdict
from orchestrator.errors import EnginefarmError
from orchestrator.matrix.schema import Target
from orchestrator.pipeline.cached import Cached
from orchestrator.pipeline.decide import Checks, holds, on_cpu, sample_problem
from orchestrator.pipeline.prepare import PreparedBuild
from orchestrator.pipeline.shared import References, Samples, step_outputs, validate_request
from orchestrator.pipeline.steps import Steps
from orchestrator.runners.base import Runner
from orchestrator.verdict.judge import judge


class Checker:
    """The check of one build's engine."""

    def __init__(self, build: PreparedBuild, checks: Checks, steps: Steps, cached: Cached, *, forced: bool) -> None:
        self._build = build
        self._checks = checks
        self._steps = steps
        self._cached = cached
        self._forced = forced
        self._target: Target = build.effective.target
        self.ran = False  # a validate step had to run

    def verdict(self, built: EngineRecord, engine: Path) -> tuple[Verdict, str | None]:
        """The verdict and its key: the engine's own when nothing that it rests on changed."""
        checks = self._checks
        if not self._forced and holds(built, checks):
            return built.verdict, checks.verdict_key
        known = self._known(built)
        if known is not None:
            return known, checks.verdict_key
        if checks.blocked is not None and not self._has_outputs(built):
            return Verdict(status="unvalidated", reason=checks.blocked), None
        try:
            samples = self._steps.shared.samples(self._target, self._build.profiles)
        except EnginefarmError as error:
            # no inputs can be made up for this model: that says nothing about the engine
            reason = sample_problem(self._build, error)
            if reason is None:
                raise
            return Verdict(status="unvalidated", reason=reason), None
        found: Verdict | tuple[Mapping[str, Any], Sequence[Any]] | None = self._stored(built)
        if found is None and checks.blocked is not None:
            return Verdict(status="unvalidated", reason=checks.blocked), None
        if found is None:
            with self._cached.alone("validate", checks.run_key, self._steps.say):
                found = self._stored(built) or self._run(built, engine, samples)
        if isinstance(found, Verdict):
            return found, checks.verdict_key
        value, outputs = found
        verdict = self._judge(value, outputs, samples)
        if verdict.reference is not None:
            now = verdict.model_dump(mode="json")
            self._cached.keep_check_inputs(checks.verdict_key, f"{self._build.model.name} {self._target.name}: checks", checks.inputs)
            self._cached.judged(checks.run_key, value, checks.verdict_key, now, failed=verdict.status == "failed")
        return verdict, checks.verdict_key

    def _result(self, built: EngineRecord) -> dict[str, Any] | None:
        """What a validate step gave on this very engine, unless it was judged wrong: that is tried again."""
        if self._forced or built.digest is None:
            return None
        found = self._cached.outputs(self._checks.run_key, built.digest)
        return None if found is None or found["failed"] == self._checks.verdict_key else found

    def _has_outputs(self, built: EngineRecord) -> bool:
        return self._result(built) is not None

    def _known(self, built: EngineRecord) -> Verdict | None:
        """The verdict itself, when this engine got it before."""
        found = self._result(built)
        if found is None or found["verdict_key"] != self._checks.verdict_key:
            return None
        return Verdict.model_validate_json(json.dumps(found["verdict"]))

    def _stored(self, built: EngineRecord) -> tuple[Mapping[str, Any], Sequence[Any]] | None:
        """Outputs of this engine to judge."""
        found = self._result(built)
        outputs = None if found is None else self._cached.fetch_outputs(found["outputs"])
        return None if found is None or outputs is None else (found, outputs)

    def _run(self, built: EngineRecord, engine: Path, samples: Samples) -> Verdict | tuple[Mapping[str, Any], Sequence[Any]]:
        """Run the validate step and keep its outputs."""
        wanted = self._target.validation
        name = f"engine{engine.suffix}"
        plugins = [f"plugins/{number}.so" for number in range(len(self._target.plugins))]
        request, inputs = validate_request(
            self._target.backend,
            self._target.provider,
            name,
            samples,
            warmup=wanted.warmup,
            runs=wanted.runs,
            soak=wanted.soak,
            plugins=plugins,
            compute_capability=self._target.compute_capability,
        )
        inputs |= {name: engine, **{f"plugins/{number}.so": Path(path) for number, path in enumerate(self._target.plugins)}}
        timeout = self._steps.options.validate_timeout or self._target.limits.validate_timeout
        gpu = not on_cpu(self._target)
        try:
            answer, spot = self._steps.run("validate", self._build.placement.validate, request, inputs, timeout, gpu=gpu, exclusive=gpu)
        except EnginefarmError as error:
            if error.kind is not errors.VALIDATION_FAILED or not _guessed(samples):
                raise
            # made-up integers may be no indices, lengths or shapes that the model can take: that says nothing about the engine
            return Verdict(
                status="unvalidated", reason=f"made-up integer inputs do not run ({error.what}); give samples in the model's YAML"
            )
        self.ran = True
        outputs = step_outputs(answer.result, answer.folder)
        value = {
            "what": f"{self._build.model.name} {self._target.name}: outputs",
            "engine": built.digest,
            "device": answer.result.get("device"),
            "timings": answer.result.get("timings") or {},
            "soak": answer.result.get("soak"),
            "hardware_named": _names_hardware(self._target, spot.runner),
            "failed": None,
            "verdict_key": None,
            "verdict": None,
        }
        self._cached.keep_outputs("validate", self._checks.run_key, value, outputs)
        return value, outputs

    def _judge(self, value: Mapping[str, Any], outputs: Sequence[Any], samples: Samples) -> Verdict:
        from orchestrator.verdict.compare import compare

        references = self._references(samples)
        if references.outputs is None:
            return Verdict(status="unvalidated", reason=references.reason, device=value["device"])
        tolerance = self._checks.tolerance
        compared = [number for number, expected in enumerate(references.outputs) if expected is not None]
        figures = compare(_named(samples, references.outputs, compared), _named(samples, outputs, compared), tolerance)
        return judge(
            figures,
            reference=references.kind,
            reference_note=references.reason,
            samples=len(compared),
            tolerance=tolerance,
            device=value["device"],
            hardware_named=value["hardware_named"],
            timings=value["timings"],
            soak=value["soak"],
        )

    def _references(self, samples: Samples) -> References:
        """The expected outputs; computing them takes its time and is shown like a step."""
        started = time.monotonic()
        self._steps.bus(events.StepStarted(step="reference", runner="this machine", model=self._steps.model_name, target=self._target.name))
        ok = False
        try:
            references = self._steps.shared.references(samples, self._target)
            ok = references.outputs is not None
            return references
        finally:
            seconds = time.monotonic() - started
            name, target = self._steps.model_name, self._target.name
            self._steps.bus(events.StepFinished(step="reference", ok=ok, seconds=seconds, model=name, target=target))


def _names_hardware(target: Target, runner: Runner) -> bool:
    """Whether the validating runner has what the target is for: any CPU, or a GPU of one of its compute capabilities."""
    if on_cpu(target):
        return True
    return any(gpu.get("compute_capability") in target.compute_capability for gpu in runner.host().get("gpus") or ())


def _guessed(samples: Samples) -> bool:
    """Whether integers were made up: what they mean is not known."""
    return any(item["made_up"] and any("int" in tensor["dtype"] for tensor in item["inputs"]) for item in samples.items)


def _named(samples: Samples, outputs: Sequence[Any], numbers: Sequence[int]) -> list[tuple[str, Any]]:
    """(sample name, tensors) of the samples with these numbers."""
    return [(samples.items[number]["name"], outputs[number]) for number in numbers]
