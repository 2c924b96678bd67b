"""One build: build step, static check, validate step, verdict. Ends as a record for the manifest; nothing is written to artifacts here."""

from __future__ import annotations

import contextlib
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator import errors, events
from orchestrator.artifacts.manifest import EngineRecord, Verdict
from orchestrator.errors import EnginefarmError, Where, flatten
from orchestrator.farm.local import Farm, Spot, reason
from orchestrator.matrix.schema import Target, Tolerance
from orchestrator.pipeline import keys, record
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.prepare import PreparedBuild, strongly_typed
from orchestrator.pipeline.runfolder import RunFolder
from orchestrator.pipeline.shared import References, Samples, SharedWork, staged_files, step_outputs, validate_request
from orchestrator.portable.facts import capability
from orchestrator.runners.base import Cancel, Cancelled, Runner, Step, StepResult
from orchestrator.verdict.compare import compare, default_tolerance, effective_precision
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

# faults of a runner that may be gone a moment later
PASSING = (errors.ENGINE_LOST, errors.ENGINE_UNREACHABLE, errors.GPU_TAKEN)

# faults of a registry: another runner may have the image, but nothing is wrong with this one
OF_REGISTRY = (
    errors.REGISTRY_UNAUTHORIZED,
    errors.REGISTRY_DENIED,
    errors.REGISTRY_RATE_LIMIT,
    errors.REGISTRY_UNREACHABLE,
    errors.REGISTRY_NAME,
    errors.REGISTRY_CERTIFICATE,
    errors.REGISTRY_ANSWER,
    errors.IMAGE_OFFLINE,
)


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
        farm: Farm,
        previous: tuple[EngineRecord, Path] | None,
    ) -> None:
        self.build = build
        self.shared = shared
        self.options = options
        self.run_folder = run
        self.bus = bus
        self.cancel = cancel
        self.farm = farm
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
        except Cancelled:
            raise
        except Exception as error:  # noqa: BLE001  (one build's surprise must not cost the others their engines)
            first = flatten(error)[0] if isinstance(error, EnginefarmError) else self._surprise(error)
            failed = Verdict(status="failed", reason=first.what)
            seconds = time.monotonic() - started
            return Outcome(self.build, record.unbuilt(self.build, failed, first), None, False, seconds, first)

    def _surprise(self, error: Exception) -> EnginefarmError:
        """An exception that nobody foresaw, as a problem of this build; the traceback goes to its log."""
        log = self.run_folder.logs / self.model_name / f"{self.target.name}.traceback"
        with contextlib.suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        kind, fix = errors.BUILD_BUG, "the log holds the traceback: report it"
        if isinstance(error, OSError):
            kind, fix = errors.DISK, "check the free space and the rights of the project's folder"
        what = f"{type(error).__name__}: {error}"
        return EnginefarmError(kind, what, where=Where(target=self.target.name), log=str(log), fix=fix)

    def _no_runner(self) -> EnginefarmError | None:
        placement = self.build.placement
        if placement.build:
            return None
        return EnginefarmError(
            errors.NO_RUNNER,
            reason(placement.build_refused),
            where=Where(target=self.target.name),
            fix="build it where such a runner is, or leave the target out with --target; --available skips what cannot run here",
        )

    def _build(self, started: float) -> Outcome:
        spot = self.farm.usable(self.build.placement.build)[0]
        plugins = {name: keys.file_digest(Path(name)) for name in self.target.plugins}
        converter = self.shared.converter(self.target)
        key = keys.build_key(
            self.target,
            model_digest=self.build.model.model.digest,
            profiles=self.build.profiles,
            backend_version=spot.backend_version,
            converter=converter,
            plugins=plugins,
            image=spot.image,
        )
        if self.previous and not self.options.force and self.previous[0].build_key == key:
            built, engine, fresh = record.renamed(self.previous[0], self.build), self.previous[1], None
        else:
            fresh, spot = self._build_step()
            engine = fresh.folder / fresh.result["engine"]["file"]
            problems = check_plan(engine, self.target)
            errors.raise_all(problems)
            built = record.built(self.build, fresh, spot, output=self.options.output, key=key, plugins=plugins, converter=converter)
        verdict, validation = self._validate(built, engine, key)
        cached = fresh is None and self.previous is not None and verdict == built.verdict and built == self.previous[0]
        final = built.model_copy(update={"verdict": verdict, "validate_key": validation})
        problem = None
        if verdict.status == "failed":
            problem = EnginefarmError(errors.OUTPUT_MISMATCH, verdict.reason, where=Where(target=self.target.name))
            final = final.model_copy(update={"problem": problem.as_dict()})
        seconds = time.monotonic() - started
        return Outcome(self.build, final, None if cached else engine, cached, seconds, problem)

    def _build_step(self) -> tuple[StepResult, Spot]:
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
        # the builder times kernels on the GPU, except RTX, which compiles ahead of time, and ONNX Runtime on a CPU
        gpu = self.target.backend == "tensorrt" or self.target.provider == "cuda"
        return self._step("build", self.build.placement.build, request, inputs, timeout, gpu=gpu, exclusive=True)

    def _step(
        self,
        name: str,
        spots: Sequence[Spot],
        request: Mapping[str, Any],
        inputs: Mapping[str, Path],
        timeout: float,
        *,
        gpu: bool,
        exclusive: bool,
    ) -> tuple[StepResult, Spot]:
        """Run one step on the first runner that works; raises EnginefarmError when it did not succeed."""
        shared = any(path.startswith("model/") for path in inputs)
        step = Step(
            request=request,
            inputs=inputs,
            timeout_seconds=timeout,
            memory_bytes=self.options.memory or self.target.limits.memory,
            platform=self.target.platform,
            compute_capability=self.target.compute_capability if gpu else (),
            exclusive=exclusive,
            shared_inputs={"model": self.shared.model_identity(self.target)} if shared else {},
        )
        failed: list[Spot] = []
        while True:
            left = [spot for spot in spots if spot not in failed] or spots
            with self.farm.slot(left, self.cancel) as spot:
                try:
                    return self._attempt(name, f"{name}-{len(failed) + 1}", replace(step, image=spot.image), spot), spot
                except EnginefarmError as error:
                    if not self._worth_another_try(error, spot, len(failed) + 1, len(spots)):
                        raise
            failed.append(spot)

    def _worth_another_try(self, error: EnginefarmError, spot: Spot, tries: int, spots: int) -> bool:
        """Whether a failure is the runner's, so that another runner, or the same one connected anew, may do better."""
        if error.exit is not errors.Exit.INFRASTRUCTURE or error.kind is errors.DISK:
            return False
        aside = error.kind not in OF_REGISTRY and self.farm.failed(spot.runner)
        again = tries < spots or (tries == spots and error.kind in PASSING)
        who = f"runner {spot.runner.name}"
        text = (error.what if who in error.what else f"{who}: {error.what}") + ("; it is set aside for this run" if aside else "")
        if again or aside:
            self.bus(events.Note(text=text, level="warning", model=self.model_name, target=self.target.name))
        return again

    def _attempt(self, name: str, folder_name: str, step: Step, spot: Spot) -> StepResult:
        folder = self.run_folder.step_folder(self.model_name, self.target.name, folder_name)
        self.bus(events.StepStarted(step=name, runner=spot.runner.name, model=self.model_name, target=self.target.name))
        started = time.monotonic()
        ok = False
        try:
            answer = spot.runner.run(step, folder, lambda event: self._forward(name, event), self.cancel)
            log = self._keep_log(name, answer.log)
            if not answer.result["ok"]:
                raise self._worker_error(name, answer.result["error"], log)
            ok = True
            return answer
        except EnginefarmError as error:
            kept = self._keep_log(name, folder / "worker.log")
            error.log = str(kept) if kept.exists() else None
            error.where = error.where or Where(target=self.target.name)
            raise
        finally:
            seconds = time.monotonic() - started
            self.bus(events.StepFinished(step=name, ok=ok, seconds=seconds, model=self.model_name, target=self.target.name))

    def _default_tolerance(self) -> Tolerance:
        """By the precision that the engine really computes in: the target's, or a coarser one that the model brings."""
        model = self.build.model.model
        precision = effective_precision(self.target.precision, weight_dtypes=model.weight_dtypes, has_qdq=model.has_qdq)
        return default_tolerance(precision, tf32=_in_tf32(self.target))

    def _references(self, samples: Samples) -> References:
        """The expected outputs; computing them takes its time and is shown like a step."""
        started = time.monotonic()
        self.bus(events.StepStarted(step="reference", runner="this machine", model=self.model_name, target=self.target.name))
        ok = False
        try:
            references = self.shared.references(samples, self.target)
            ok = references.outputs is not None
            return references
        finally:
            seconds = time.monotonic() - started
            self.bus(events.StepFinished(step="reference", ok=ok, seconds=seconds, model=self.model_name, target=self.target.name))

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
        spots = self.build.placement.validate
        if not spots:
            return Verdict(status="unvalidated", reason=reason(self.build.placement.validate_refused)), None
        try:
            samples = self.shared.samples(self.target, self.build.profiles)
        except EnginefarmError as error:
            if self.target.samples:
                raise
            # no inputs can be made up for this model: that says nothing about the engine
            return Verdict(status="unvalidated", reason=f"{error.what}; give samples in the model's YAML"), None
        key = keys.validate_key(self.target, build=build_key, samples=samples.digest, judge=JUDGE)
        if built.validate_key == key and not self.options.force and built.verdict.status in ("passed", "self-consistent"):
            return built.verdict, key
        return self._validate_step(spots, engine, samples), key

    def _validate_step(self, spots: Sequence[Spot], engine: Path, samples: Samples) -> Verdict:
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
        gpu = not _on_cpu(self.target)
        try:
            answer, spot = self._step("validate", spots, request, inputs, timeout, gpu=gpu, exclusive=gpu)
        except EnginefarmError as error:
            if error.kind is not errors.VALIDATION_FAILED or not _guessed(samples):
                raise
            # made-up integers may be no indices, lengths or shapes that the model can take: that says nothing about the engine
            return Verdict(
                status="unvalidated", reason=f"made-up integer inputs do not run ({error.what}); give samples in the model's YAML"
            )
        references = self._references(samples)
        if references.outputs is None:
            return Verdict(status="unvalidated", reason=references.reason, device=answer.result.get("device"))
        tolerance = self.target.tolerance or self._default_tolerance()
        outputs = step_outputs(answer.result, answer.folder)
        compared = [number for number, expected in enumerate(references.outputs) if expected is not None]
        figures = compare(_named(samples, references.outputs, compared), _named(samples, outputs, compared), tolerance)
        return judge(
            figures,
            reference=references.kind,
            reference_note=references.reason,
            samples=len(compared),
            tolerance=tolerance,
            device=answer.result.get("device"),
            hardware_named=_names_hardware(self.target, spot.runner),
            timings=answer.result.get("timings") or {},
            soak=answer.result.get("soak"),
        )


def _in_tf32(target: Target) -> bool:
    """Whether fp32 products of the engine may run in TF32: on a GPU of compute capability 8.0 or newer, unless the target forbids it."""
    newest = max((capability.key(name) for name in target.compute_capability), default=(0, 0))
    return target.tf32 and not _on_cpu(target) and newest >= (8, 0)


def _on_cpu(target: Target) -> bool:
    return target.backend == "onnxruntime" and target.provider != "cuda"


def _names_hardware(target: Target, runner: Runner) -> bool:
    """Whether the validating runner has what the target is for: any CPU, or a GPU of one of its compute capabilities."""
    if _on_cpu(target):
        return True
    return any(gpu.get("compute_capability") in target.compute_capability for gpu in runner.host().get("gpus") or ())


def _guessed(samples: Samples) -> bool:
    """Whether integers were made up: what they mean is not known."""
    return any(item["made_up"] and any("int" in tensor["dtype"] for tensor in item["inputs"]) for item in samples.items)


def _named(samples: Samples, outputs: Sequence[Any], numbers: Sequence[int]) -> list[tuple[str, Any]]:
    """(sample name, tensors) of the samples with these numbers."""
    return [(samples.items[number]["name"], outputs[number]) for number in numbers]
