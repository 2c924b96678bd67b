"""One build: build step, static check, validate step, verdict. Ends as a record for the manifest; nothing is written to artifacts here."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import errors, events
from orchestrator.artifacts.manifest import EngineRecord, Verdict
from orchestrator.errors import EnginefarmError, Where, flatten
from orchestrator.farm.local import reason
from orchestrator.matrix.schema import Target
from orchestrator.pipeline import keys, record
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.prepare import PreparedBuild
from orchestrator.pipeline.runfolder import RunFolder
from orchestrator.pipeline.shared import Samples, SharedWork, staged_files, step_outputs, strongly_typed, validate_request
from orchestrator.runners.base import Cancel, Runner, Step, StepResult
from orchestrator.verdict.compare import compare, default_tolerance
from orchestrator.verdict.judge import JUDGE, judge
from orchestrator.verdict.static import check_plan

# what a worker's error means to a person; anything else is BUILD_FAILED or VALIDATION_FAILED
WORKER_KINDS = {
    "capability-refused": errors.BUILD_CAPABILITY,
    "unsupported-op": errors.BUILD_UNSUPPORTED_OP,
    "out-of-memory": errors.STEP_MEMORY,
    "disk-full": errors.DISK,
    "backend-missing": errors.RUNNER_BROKEN,
    "no-device": errors.RUNNER_BROKEN,
    "crashed": errors.STEP_CRASHED,
    "bad-request": errors.STEP_CRASHED,
}


@dataclass(frozen=True)
class Outcome:
    """How a build ended. ``engine`` is the file to put into artifacts; None when there is none, or when all is as it was (``cached``)."""

    build: PreparedBuild
    record: EngineRecord
    engine: Path | None
    cached: bool
    seconds: float
    problem: EnginefarmError | None = None

    @property
    def status(self) -> str:
        return self.record.verdict.status


class BuildJob:
    """Runs one build; ``previous`` is this target's record in the newest manifest of the same model version, with its engine file."""

    def __init__(
        self,
        build: PreparedBuild,
        shared: SharedWork,
        options: BuildOptions,
        run: RunFolder,
        bus: events.Bus,
        cancel: Cancel,
        previous: tuple[EngineRecord, Path] | None,
    ) -> None:
        self.build = build
        self.shared = shared
        self.options = options
        self.run_folder = run
        self.bus = bus
        self.cancel = cancel
        self.previous = previous
        self.target: Target = build.effective.target
        self.model_name = build.model.name

    def run(self) -> Outcome:
        """Never raises for a failed build: that is an outcome. Raises runners.base.Cancelled when the run is stopped."""
        started = time.monotonic()
        refusal = self.build.refusal or self._no_runner()
        if refusal is not None:
            skipped = Verdict(status="skipped", reason=refusal.what)
            return Outcome(self.build, record.unbuilt(self.build, skipped, refusal), None, False, 0.0, refusal)
        try:
            return self._build(started)
        except EnginefarmError as error:
            first = flatten(error)[0]
            failed = Verdict(status="failed", reason=first.what)
            seconds = time.monotonic() - started
            return Outcome(self.build, record.unbuilt(self.build, failed, first), None, False, seconds, first)

    def _no_runner(self) -> EnginefarmError | None:
        placement = self.build.placement
        if placement.build is not None:
            return None
        return EnginefarmError(
            errors.NO_RUNNER,
            reason(placement.build_refused),
            where=Where(target=self.target.name),
            fix="build it where such a runner is, or leave the target out with --target; --available skips what cannot run here",
        )

    def _build(self, started: float) -> Outcome:
        runner = self.build.placement.build
        assert runner is not None  # noqa: S101  (_no_runner answered before)
        version = runner.host()["backends"][self.target.backend].get("version")
        plugins = {name: keys.file_digest(Path(name)) for name in self.target.plugins}
        converter = record.converter_version() if self.target.precision != "fp32" and strongly_typed(self.target) else None
        key = keys.build_key(
            self.target,
            model_digest=self.build.model.model.digest,
            profiles=self.build.profiles,
            backend_version=version,
            converter=converter,
            plugins=plugins,
        )
        if self.previous and not self.options.force and self.previous[0].build_key == key:
            built, engine, fresh = self.previous[0], self.previous[1], None
        else:
            fresh = self._build_step(runner)
            engine = fresh.folder / fresh.result["engine"]["file"]
            problems = check_plan(engine, self.target)
            errors.raise_all(problems)
            built = record.built(self.build, fresh, runner.host(), key=key, plugins=plugins, converter=converter)
        verdict, validation = self._validate(built, engine, key)
        cached = fresh is None and verdict == built.verdict
        final = built.model_copy(update={"verdict": verdict, "validate_key": validation})
        problem = None
        if verdict.status == "failed":
            problem = EnginefarmError(errors.OUTPUT_MISMATCH, verdict.reason, where=Where(target=self.target.name))
            final = final.model_copy(update={"problem": problem.as_dict()})
        seconds = time.monotonic() - started
        return Outcome(self.build, final, None if cached else engine, cached, seconds, problem)

    def _build_step(self, runner: Runner) -> StepResult:
        folder, warnings = self.shared.model_folder(self.target)
        for warning in warnings:
            self.bus(events.Note(text=warning, level="warning", model=self.model_name, target=self.target.name))
        inputs = {f"model/{name}": path for name, path in staged_files(folder).items()}
        inputs |= {f"plugins/{number}.so": Path(name) for number, name in enumerate(self.target.plugins)}
        suffix = "onnx" if self.target.backend == "onnxruntime" else "plan"
        request = {
            "step": "build",
            "backend": self.target.backend,
            "model": "model/model.onnx",
            "engine": f"engine.{suffix}",
            "options": record.worker_options(self.target, self.build.profiles, strongly_typed(self.target)),
        }
        timeout = self.options.build_timeout or self.target.limits.build_timeout
        return self._step("build", runner, request, inputs, timeout)

    def _step(self, name: str, runner: Runner, request: Mapping[str, Any], inputs: Mapping[str, Path], timeout: float) -> StepResult:
        """Run one step; raises EnginefarmError when it did not succeed."""
        folder = self.run_folder.step_folder(self.model_name, self.target.name, name)
        memory = self.options.memory or self.target.limits.memory
        step = Step(request=request, inputs=inputs, timeout_seconds=timeout, memory_bytes=memory)
        self.bus(events.StepStarted(step=name, runner=runner.name, model=self.model_name, target=self.target.name))
        started = time.monotonic()
        ok = False
        try:
            answer = runner.run(step, folder, lambda event: self._forward(name, event), self.cancel)
            log = self._keep_log(name, answer.log)
            if not answer.result["ok"]:
                raise self._worker_error(name, answer.result["error"], log)
            ok = True
            return answer
        except EnginefarmError as error:
            error.log = error.log or str(self._keep_log(name, folder / "worker.log"))
            raise
        finally:
            self.bus(
                events.StepFinished(step=name, ok=ok, seconds=time.monotonic() - started, model=self.model_name, target=self.target.name)
            )

    def _forward(self, step: str, event: Mapping[str, Any]) -> None:
        if event.get("event") == "phase":
            self.bus(events.StepPhase(step=step, phase=str(event.get("phase", "")), model=self.model_name, target=self.target.name))
        elif event.get("event") == "log":
            level = str(event.get("level", "info"))
            self.bus(
                events.StepLog(step=step, level=level, text=str(event.get("text", "")), model=self.model_name, target=self.target.name)
            )

    def _keep_log(self, step: str, log: Path) -> Path:
        kept = self.run_folder.logs / self.model_name / f"{self.target.name}.{step}.log"
        if log.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(log, kept)
        return kept

    def _worker_error(self, step: str, error: Mapping[str, Any], log: Path) -> EnginefarmError:
        default = errors.BUILD_FAILED if step == "build" else errors.VALIDATION_FAILED
        details = error.get("details") or {}
        return EnginefarmError(
            WORKER_KINDS.get(error["kind"], default),
            error["message"],
            where=Where(target=self.target.name),
            why=details.get("reason"),
            fix=details.get("fix"),
            log=str(log),
        )

    def _validate(self, built: EngineRecord, engine: Path, build_key: str) -> tuple[Verdict, str | None]:
        """The verdict and the validate key; the previous verdict when nothing that it rests on changed."""
        if not self.options.validate:
            return Verdict(status="unvalidated", reason="validation was switched off with --no-validate"), None
        runner = self.build.placement.validate
        if runner is None:
            return Verdict(status="unvalidated", reason=reason(self.build.placement.validate_refused)), None
        samples = self.shared.samples(self.target, self.build.profiles)
        key = keys.validate_key(self.target, build=build_key, samples=samples.digest, judge=JUDGE)
        if built.validate_key == key and not self.options.force and built.verdict.status in ("passed", "self-consistent"):
            return built.verdict, key
        return self._validate_step(runner, engine, samples), key

    def _validate_step(self, runner: Runner, engine: Path, samples: Samples) -> Verdict:
        wanted = self.target.validation
        name = f"engine{engine.suffix}"
        plugins = [f"plugins/{number}.so" for number in range(len(self.target.plugins))]
        request, inputs = validate_request(
            self.target.backend,
            self.target.provider,
            name,
            samples,
            warmup=wanted.warmup,
            runs=wanted.runs,
            soak=wanted.soak,
            plugins=plugins,
            compute_capability=self.target.compute_capability,
        )
        inputs |= {name: engine, **{f"plugins/{number}.so": Path(path) for number, path in enumerate(self.target.plugins)}}
        timeout = self.options.validate_timeout or self.target.limits.validate_timeout
        answer = self._step("validate", runner, request, inputs, timeout)
        references = self.shared.references(samples, self.target)
        if references.outputs is None:
            return Verdict(status="unvalidated", reason=f"no reference: {references.reason}", device=answer.result.get("device"))
        tolerance = self.target.tolerance or default_tolerance(self.target.precision)
        figures = compare(_named(samples, references.outputs), _named(samples, step_outputs(answer.result, answer.folder)), tolerance)
        return judge(
            figures,
            reference=references.kind,
            reference_note=references.reason,
            samples=len(samples.items),
            tolerance=tolerance,
            device=answer.result.get("device"),
            hardware_named=_names_hardware(self.target, runner),
            timings=answer.result.get("timings") or {},
            soak=answer.result.get("soak"),
        )


def _names_hardware(target: Target, runner: Runner) -> bool:
    """Whether the validating runner has what the target is for: any CPU, or a GPU of one of its compute capabilities."""
    if target.backend == "onnxruntime" and target.provider != "cuda":
        return True
    return any(gpu.get("compute_capability") in target.compute_capability for gpu in runner.host().get("gpus") or ())


def _named(samples: Samples, outputs: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(item["name"], tensors) for item, tensors in zip(samples.items, outputs, strict=True)]
