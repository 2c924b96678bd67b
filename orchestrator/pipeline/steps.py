"""Runs one step of a build on the first runner that works, and tells what happens."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import errors, events
from orchestrator.errors import EnginefarmError
from orchestrator.farm.local import Farm, Spot
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.prepare import PreparedBuild, where
from orchestrator.pipeline.runfolder import RunFolder
from orchestrator.pipeline.shared import SharedWork
from orchestrator.runners.base import Cancel, Step, StepResult

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
PASSING = (errors.ENGINE_LOST, errors.ENGINE_UNREACHABLE, errors.GPU_TAKEN, errors.SSH_LOST, errors.SSH_UNREACHABLE)

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


class Steps:
    """The steps of one build."""

    def __init__(
        self,
        build: PreparedBuild,
        shared: SharedWork,
        options: BuildOptions,
        run_folder: RunFolder,
        bus: events.Bus,
        cancel: Cancel,
        farm: Farm,
    ) -> None:
        self.shared = shared
        self.options = options
        self.run_folder = run_folder
        self.bus = bus
        self.cancel = cancel
        self.farm = farm
        self.target = build.effective.target
        self.model_name = build.model.name
        self.where = where(build.model, self.target.name)

    def say(self, text: str, level: str = "info") -> None:
        self.bus(events.Note(text=text, level=level, model=self.model_name, target=self.target.name))

    def run(
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
            self.say(text, "warning")
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
            error.where = error.where or self.where
            raise
        finally:
            seconds = time.monotonic() - started
            self.bus(events.StepFinished(step=name, ok=ok, seconds=seconds, model=self.model_name, target=self.target.name))

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
            where=self.where,
            why=details.get("reason"),
            fix=details.get("fix"),
            log=str(log),
        )
