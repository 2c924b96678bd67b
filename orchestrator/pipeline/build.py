"""One build: build step, static check, verdict. Ends as a record for the manifest; nothing is written to artifacts here."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator import errors
from orchestrator.artifacts.manifest import EngineRecord, Verdict
from orchestrator.errors import EnginefarmError, flatten
from orchestrator.farm.local import Spot
from orchestrator.matrix.schema import Target
from orchestrator.pipeline import record
from orchestrator.pipeline.cached import Cached
from orchestrator.pipeline.check import Checker
from orchestrator.pipeline.decide import Decider, Decision
from orchestrator.pipeline.outcome import Outcome, model_inputs
from orchestrator.pipeline.prepare import strongly_typed
from orchestrator.pipeline.shared import staged_files
from orchestrator.pipeline.steps import Steps
from orchestrator.runners.base import Cancelled, StepResult
from orchestrator.verdict.static import check_plan

_LOOK = "the engine lies in quarantine/ with all figures; if they are good enough, allow them: tolerance: in the target or the model's YAML"


class BuildJob:
    """Carries out one decision that is not settled."""

    def __init__(self, decision: Decision, steps: Steps, cached: Cached, decider: Decider) -> None:
        self.decision = decision
        self.build = decision.build
        self.steps = steps
        self.cached = cached
        self.decider = decider
        self.target: Target = self.build.effective.target

    def run(self) -> Outcome:
        """Never raises for a failed build: that is an outcome. Raises runners.base.Cancelled when the run is stopped."""
        started = time.monotonic()
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
        log = self.steps.run_folder.logs / self.steps.model_name / f"{self.target.name}.traceback"
        with contextlib.suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        kind, fix = errors.BUILD_BUG, "the log holds the traceback: report it"
        if isinstance(error, OSError):
            kind, fix = errors.DISK, "check the free space and the rights of the project's folder"
        what = f"{type(error).__name__}: {error}"
        return EnginefarmError(kind, what, where=self.steps.where, log=str(log), fix=fix)

    def _build(self, started: float) -> Outcome:
        decision = self.decision
        checks = decision.checks
        if checks is None:
            raise AssertionError("a build that can run has its checks decided")
        built, engine, ran = self._engine()
        checker = Checker(self.build, checks, self.steps, self.cached, forced=decision.forced)
        verdict, validation = checker.verdict(built, engine)
        final = built.model_copy(update={"verdict": verdict, "validate_key": validation, "problem": None})
        problem = None
        if verdict.status == "failed":
            problem = EnginefarmError(errors.OUTPUT_MISMATCH, verdict.reason, where=self.steps.where, fix=_LOOK)
            final = final.model_copy(update={"problem": problem.as_dict()})
        same = decision.previous is not None and final == decision.previous[0]
        seconds = time.monotonic() - started
        return Outcome(self.build, final, None if same else engine, not (ran or checker.ran), seconds, problem)

    def _engine(self) -> tuple[EngineRecord, Path, bool]:
        """The engine with its record, and whether it was built now: from artifacts, from the cache, or by a build step."""
        decision = self.decision
        if decision.previous is not None and not decision.forced:
            return record.renamed(decision.previous[0], self.build), decision.previous[1], False
        key = decision.key or ""
        with self.cached.alone("build", key, self.steps.say):
            found = None if decision.forced else self._stored(key)
            if found is not None:
                return (*found, False)
            fresh, spot = self._build_step()
            if self._last_step:
                self.steps.farm.rest()
            engine = fresh.folder / fresh.result["engine"]["file"]
            errors.raise_all(check_plan(engine, self.target))
            # another runner than the first may have taken it, with another version of the backend
            key, inputs = self.decider.build_key(self.build, spot)
            built = self._record(fresh, spot, key, inputs)
            value = {"what": f"{self.steps.model_name} {self.target.name}", "record": record.portable(built), "suffix": engine.suffix}
            value["inputs"] = {**inputs, **model_inputs(self.build)}
            self.cached.keep("build", key, value, {str(built.digest): engine})
            return built, engine, True

    @property
    def _last_step(self) -> bool:
        """Whether nothing runs after the build step. Where a failure ends the run, the next build has to wait for this one's end."""
        checks = self.decision.checks
        return checks is not None and checks.blocked is not None and self.steps.options.max_failures is None

    def _stored(self, key: str) -> tuple[EngineRecord, Path] | None:
        """The engine of this key out of the cache, under the names that the target has now."""
        found = self.cached.build(key)
        if found is None:
            return None
        stored = EngineRecord.model_validate_json(json.dumps({**found["record"], "verdict": record.NOT_YET.model_dump(mode="json")}))
        engine = self.cached.fetch(str(stored.digest), f"engine{found['suffix']}")
        if engine is None:
            return None
        built = record.renamed(stored, self.build)
        return built.model_copy(update={"reproduce": record.reproduce(self.build, self.steps.options.output)}), engine

    def _record(self, fresh: StepResult, spot: Spot, key: str, inputs: Mapping[str, Any]) -> EngineRecord:
        return record.built(
            self.build,
            fresh,
            spot,
            output=self.steps.options.output,
            key=key,
            plugins=self.decider.plugins(self.target),
            converter=inputs["converter"],
        )

    def _build_step(self) -> tuple[StepResult, Spot]:
        folder, warnings = self.steps.shared.model_folder(self.target)
        for warning in warnings:
            self.steps.say(warning, "warning")
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
        timeout = self.steps.options.build_timeout or self.target.limits.build_timeout
        # the builder times kernels on the GPU, except RTX, which compiles ahead of time, and ONNX Runtime on a CPU
        gpu = self.target.backend == "tensorrt" or self.target.provider == "cuda"
        return self.steps.run("build", self.build.placement.build, request, inputs, timeout, gpu=gpu, exclusive=True)
