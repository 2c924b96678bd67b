"""One run: prepare, build everything in parallel processes, commit per model, say how it ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import events
from orchestrator.artifacts.manifest import EngineRecord
from orchestrator.errors import EnginefarmError, Exit
from orchestrator.farm.local import reason
from orchestrator.matrix.load import load_matrix
from orchestrator.pipeline.build import BuildJob, Outcome
from orchestrator.pipeline.commit import Committed, commit_model, previous_engines
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.prepare import Prepared, PreparedBuild, prepare
from orchestrator.pipeline.runfolder import RunFolder, open_run
from orchestrator.pipeline.shared import SharedWork
from orchestrator.runners.base import Cancel, Cancelled, Runner
from orchestrator.runners.load import load_runners


@dataclass(frozen=True)
class RunOutcome:
    """What a run ended with; ``outcomes`` in the order of the plan, ``interrupted`` when it was stopped."""

    run: str
    folder: Path
    outcomes: tuple[Outcome, ...]
    committed: tuple[Committed, ...]
    exit_codes: tuple[Exit, ...]
    seconds: float

    @property
    def exit(self) -> Exit:
        return min((code for code in self.exit_codes if code), default=Exit.OK)

    def counts(self) -> dict[str, int]:
        return dict(Counter(outcome.status for outcome in self.outcomes))


def exit_codes(outcomes: Iterable[Outcome], options: BuildOptions) -> list[Exit]:
    """Every exit code that applies; the process returns the lowest."""
    found: set[Exit] = set()
    for outcome in outcomes:
        if outcome.status == "failed":
            found.add(outcome.problem.exit if outcome.problem else Exit.FAILED)
        elif outcome.status == "skipped" and not options.available:
            found.add(outcome.problem.exit if outcome.problem else Exit.NO_RUNNER)
        elif outcome.status in ("unvalidated", "self-consistent") and not options.unvalidated_is_fine:
            found.add(Exit.NO_RUNNER)
    return sorted(found)


class _Scheduler:
    """Runs the builds with at most ``jobs`` at a time; finished outcomes are handed on as they come."""

    def __init__(self, options: BuildOptions, run: RunFolder, bus: events.Bus, cancel: Cancel, runners: Sequence[Runner]) -> None:
        self.options = options
        self.run = run
        self.bus = bus
        self.cancel = cancel
        self.runners = runners
        self.shared: dict[str, SharedWork] = {}
        self.previous: dict[str, dict[str, tuple[EngineRecord, Path]]] = {}
        self.outcomes: dict[int, Outcome] = {}

    def _job(self, build: PreparedBuild) -> BuildJob:
        name = build.model.name
        if name not in self.shared:
            folder = self.run.work / "shared" / str(len(self.shared))
            self.shared[name] = SharedWork(build.model, folder, self.options, self.runners, self.cancel)
            self.previous[name] = previous_engines(self.options.output, build.model)
        previous = self.previous[name].get(build.effective.target.name)
        return BuildJob(build, self.shared[name], self.options, self.run, self.bus, self.cancel, previous)

    def work(self, builds: Sequence[PreparedBuild], on_model: Callable[[str], None]) -> None:
        """Run all builds; ``on_model`` is called with a model's name when its last build has ended."""
        open_builds = Counter(build.model.name for build in builds)
        with ThreadPoolExecutor(max_workers=self.options.jobs, thread_name_prefix="build") as pool:
            waiting: dict[Future[Outcome], int] = {}
            for number, build in enumerate(builds):
                waiting[pool.submit(self._job(build).run)] = number
            try:
                while waiting:
                    done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                    for future in done:
                        number = waiting.pop(future)
                        self._finished(number, future)
                        name = builds[number].model.name
                        open_builds[name] -= 1
                        if not open_builds[name]:
                            on_model(name)
                    if self.cancel.is_set():
                        break
            finally:
                for future in waiting:
                    future.cancel()

    def _finished(self, number: int, future: Future[Outcome]) -> None:
        try:
            outcome = future.result()
        except Cancelled:
            return
        self.outcomes[number] = outcome
        self.bus(finished_event(outcome))
        if outcome.status == "failed" and self.options.exit_first:
            self.cancel.set()


def finished_event(outcome: Outcome) -> events.BuildFinished:
    """The event that tells how a build ended."""
    record = outcome.record
    return events.BuildFinished(
        model=outcome.build.model.name,
        target=record.target,
        status=outcome.status,
        detail=record.verdict.reason,
        cached=outcome.cached,
        size_bytes=record.size_bytes,
        precision=record.precision,
        seconds=outcome.seconds,
        problem=outcome.problem.as_dict() if outcome.problem else None,
    )


def run_build(options: BuildOptions, bus: events.Bus, cancel: Cancel) -> RunOutcome:
    """Build what ``options`` ask for. Raises EnginefarmError for a request that cannot be started."""
    started = time.monotonic()
    matrix = load_matrix(options.project)
    matrix.select(options.targets)
    runners = load_runners(options.runners, options.python)
    with open_run(options.state) as run:
        bus.subscribe(run.record)
        prepared = prepare(options, matrix, runners, run)
        _announce(prepared, run, bus)
        scheduler = _Scheduler(options, run, bus, cancel, runners)
        committed: list[Committed] = []

        def on_model(name: str) -> None:
            committed.extend(_commit(scheduler, prepared, name, run, options, bus))

        scheduler.work(prepared.builds, on_model)
        if cancel.is_set():
            done = {entry.model for entry in committed}
            for name in dict.fromkeys(build.model.name for build in prepared.builds):
                if name not in done:
                    on_model(name)
        order = {name: position for position, name in enumerate(dict.fromkeys(build.model.name for build in prepared.builds))}
        committed.sort(key=lambda entry: order[entry.model])
        outcomes = tuple(scheduler.outcomes[number] for number in sorted(scheduler.outcomes))
        codes = exit_codes(outcomes, options)
        if cancel.stopped_by is not None:
            codes.append(Exit(128 + cancel.stopped_by))
        result = RunOutcome(run.id, run.folder, outcomes, tuple(committed), tuple(codes), time.monotonic() - started)
        bus(
            events.RunFinished(
                run=run.id,
                exit_code=int(result.exit),
                counts=result.counts(),
                manifests=tuple(str(entry.manifest) for entry in committed if entry.manifest),
                seconds=result.seconds,
            )
        )
        return result


def _announce(prepared: Prepared, run: RunFolder, bus: events.Bus) -> None:
    bus(events.RunStarted(run=run.id, builds=len(prepared.builds), folder=str(run.folder)))
    for level, notes in (("info", prepared.notes), ("warning", prepared.warnings)):
        for model, text in notes:
            bus(events.Note(text=text, level=level, model=model))


def _commit(
    scheduler: _Scheduler, prepared: Prepared, name: str, run: RunFolder, options: BuildOptions, bus: events.Bus
) -> list[Committed]:
    outcomes = [
        scheduler.outcomes[number]
        for number, build in enumerate(prepared.builds)
        if build.model.name == name and number in scheduler.outcomes
    ]
    if not outcomes:
        return []
    good = not any(code for code in exit_codes(outcomes, options)) and not scheduler.cancel.is_set()
    model = outcomes[0].build.model
    committed = commit_model(options, model, outcomes, run, good=good, on_wait=lambda text: bus(events.Note(text=text, model=name)))
    return [committed]


@dataclass(frozen=True)
class PlannedLine:
    """One line of ``build --dry-run``."""

    model: str
    version: int
    target: str
    action: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        return vars(self).copy()


def plan_build(options: BuildOptions, bus: events.Bus) -> list[PlannedLine]:
    """What a build would do, without building anything."""
    matrix = load_matrix(options.project)
    matrix.select(options.targets)
    runners = load_runners(options.runners, options.python)
    with open_run(options.state) as run:
        prepared = prepare(options, matrix, runners, run)
        for model, text in prepared.notes:
            bus(events.Note(text=text, model=model))
        return [_planned(build) for build in prepared.builds]


def _planned(build: PreparedBuild) -> PlannedLine:
    placement = build.placement
    if build.refusal is not None or placement.build is None:
        action, why = "skip", build.refusal.what if build.refusal else reason(placement.build_refused)
    elif placement.validate is None:
        action, why = "build", f"on {placement.build.name}; stays unvalidated: {reason(placement.validate_refused)}"
    else:
        action, why = "build", f"on {placement.build.name}, validated on {placement.validate.name}"
    return PlannedLine(build.model.name, build.model.version.version, build.effective.target.name, action, why)


def merge_problems(outcomes: Sequence[Outcome]) -> list[EnginefarmError]:
    """Problems of failed builds, for the summary."""
    return [outcome.problem for outcome in outcomes if outcome.status == "failed" and outcome.problem is not None]
