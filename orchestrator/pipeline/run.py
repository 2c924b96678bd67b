"""One run: prepare, build everything in parallel processes, commit per model, say how it ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orchestrator import events
from orchestrator.artifacts.manifest import EngineRecord
from orchestrator.errors import EnginefarmError, Exit, flatten, raise_all
from orchestrator.farm.images import ImageSource
from orchestrator.farm.local import Farm, reason
from orchestrator.images.lock import lock_file, read_lock
from orchestrator.images.policy import DEFAULT_ALLOWED, policy, read_mirror
from orchestrator.matrix.load import Matrix, load_matrix
from orchestrator.pipeline.build import BuildJob, Outcome
from orchestrator.pipeline.commit import Committed, check_output, commit_model, previous_engines
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.prepare import Prepared, PreparedBuild, prepare
from orchestrator.pipeline.runfolder import RunFolder, open_run
from orchestrator.pipeline.shared import SharedWork
from orchestrator.resources import builtin_targets
from orchestrator.runners.base import Cancel, Cancelled, Runner
from orchestrator.runners.load import load_runners

if TYPE_CHECKING:
    from orchestrator.runners.docker import DockerRunner


@dataclass(frozen=True)
class RunOutcome:
    """What a run ended with; ``outcomes`` in the order of the plan; ``interrupted`` did not end because the run was stopped."""

    run: str
    folder: Path
    outcomes: tuple[Outcome, ...]
    committed: tuple[Committed, ...]
    interrupted: tuple[PreparedBuild, ...]
    exit_codes: tuple[Exit, ...]
    problems: tuple[EnginefarmError, ...]
    seconds: float

    @property
    def exit(self) -> Exit:
        return min((code for code in self.exit_codes if code), default=Exit.OK)

    def counts(self) -> dict[str, int]:
        counted = Counter(outcome.status for outcome in self.outcomes)
        if self.interrupted:
            counted["interrupted"] = len(self.interrupted)
        return dict(counted)


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

    def __init__(self, options: BuildOptions, run: RunFolder, bus: events.Bus, cancel: Cancel, farm: Farm) -> None:
        self.options = options
        self.run = run
        self.bus = bus
        self.cancel = cancel
        self.farm = farm
        self.shared: dict[str, SharedWork] = {}
        self.previous: dict[str, dict[str, tuple[EngineRecord, Path]]] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.problems: list[EnginefarmError] = []

    def _shared(self, build: PreparedBuild) -> SharedWork:
        name = build.model.name
        if name not in self.shared:
            folder = self.run.work / "shared" / str(len(self.shared))
            self.shared[name] = SharedWork(build.model, folder, self.options, self.farm, self.cancel)
        return self.shared[name]

    def _job(self, build: PreparedBuild) -> BuildJob:
        name = build.model.name
        if name not in self.previous:
            self.previous[name] = previous_engines(self.options.output, build.model)
        previous = self.previous[name].get(build.effective.target.name)
        return BuildJob(build, self._shared(build), self.options, self.run, self.bus, self.cancel, self.farm, previous)

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
        # what ended while the run was being stopped counts too
        for future, number in waiting.items():
            if not future.cancelled():
                self._finished(number, future)

    def check(self, builds: Sequence[PreparedBuild]) -> None:
        """Read the samples that models bring, before anything is built: a wrong one must not show after hours."""
        problems: dict[str, EnginefarmError] = {}
        for build in builds:
            if build.refusal is None and build.placement.build and build.effective.target.samples:
                try:
                    self._shared(build).samples(build.effective.target, build.profiles)
                except EnginefarmError as error:
                    problems |= {problem.what: problem for problem in flatten(error)}
        raise_all(problems.values())

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


def make_farm(options: BuildOptions, matrix: Matrix) -> Farm:
    """The runners of ``options`` and the images they may use. Raises EnginefarmError for bad files, and for what ``locked`` forbids."""
    lock = lock_file(options.project)
    held = read_lock(lock if lock.exists() else builtin_targets() / lock.name)
    rules = dict(read_mirror(text) for text in options.mirrors)
    images = ImageSource(held, policy(options.allow or DEFAULT_ALLOWED, rules), locked=options.locked, offline=options.offline)
    raise_all(images.check_locked(effective.target for effective in matrix.select(options.targets)))
    runners = load_runners(options.runners, options.python)
    for runner in _docker(runners):
        runner.ensure_image = images.ensure
    return Farm(runners, images)


def _docker(runners: Iterable[Runner]) -> list[DockerRunner]:
    """Those that start containers; their module is heavy and stays unimported where there are none."""
    return [cast("DockerRunner", runner) for runner in runners if runner.kind == "docker"]


def run_build(options: BuildOptions, bus: events.Bus, cancel: Cancel) -> RunOutcome:
    """Build what ``options`` ask for. Raises EnginefarmError for a request that cannot be started."""
    started = time.monotonic()
    matrix = load_matrix(options.project)
    matrix.select(options.targets)
    farm = make_farm(options, matrix)
    with open_run(options.state) as run:
        for runner in _docker(farm.runners):
            runner.run_id = run.id
        bus.subscribe(run.record)
        prepared = prepare(options, matrix, farm, run)
        scheduler = _Scheduler(options, run, bus, cancel, farm)
        scheduler.check(prepared.builds)
        check_output(options.output, [build.model for build in prepared.builds])
        _announce(prepared, run, bus)
        committed: list[Committed] = []

        def on_model(name: str) -> None:
            committed.extend(_commit(scheduler, prepared, name, run, options, bus))

        cancel.watched = True
        scheduler.work(prepared.builds, on_model)
        if cancel.is_set():
            done = {entry.model for entry in committed}
            for name in dict.fromkeys(build.model.name for build in prepared.builds):
                if name not in done:
                    on_model(name)
        order = {name: position for position, name in enumerate(dict.fromkeys(build.model.name for build in prepared.builds))}
        committed.sort(key=lambda entry: order[entry.model])
        outcomes = tuple(scheduler.outcomes[number] for number in sorted(scheduler.outcomes))
        codes = exit_codes(outcomes, options) + [problem.exit for problem in scheduler.problems]
        if cancel.stopped_by is not None:
            codes.append(Exit(128 + cancel.stopped_by))
        problems = tuple(scheduler.problems)
        missing = tuple(build for number, build in enumerate(prepared.builds) if number not in scheduler.outcomes)
        result = RunOutcome(run.id, run.folder, outcomes, tuple(committed), missing, tuple(codes), problems, time.monotonic() - started)
        bus(
            events.RunFinished(
                run=run.id,
                exit_code=int(result.exit),
                counts=result.counts(),
                interrupted=tuple(f"{build.model.name} {build.effective.target.name}" for build in missing),
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

    def say(text: str, level: str = "info") -> None:
        bus(events.Note(text=text, level=level, model=name))

    try:
        return [commit_model(options, model, outcomes, run, good=good, on_wait=say)]
    except EnginefarmError as error:
        # the other models go on, and what was built for this one is not lost
        kept = [run.keep(outcome.engine, name, outcome.record.tag) for outcome in outcomes if outcome.engine is not None]
        scheduler.problems.append(error)
        say(f"not written to {options.output}: {error.what}" + (f"; the engines are kept in {kept[0].parent}" if kept else ""), "warning")
        return []


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
    farm = make_farm(options, matrix)
    with open_run(options.state) as run:
        prepared = prepare(options, matrix, farm, run)
        for model, text in prepared.notes:
            bus(events.Note(text=text, model=model))
        return [_planned(build) for build in prepared.builds]


def _planned(build: PreparedBuild) -> PlannedLine:
    placement = build.placement
    if build.refusal is not None or not placement.build:
        action, why = "skip", build.refusal.what if build.refusal else reason(placement.build_refused)
    elif not placement.validate:
        action, why = "build", f"on {placement.build[0].runner.name}; stays unvalidated: {reason(placement.validate_refused)}"
    else:
        action, why = "build", f"on {placement.build[0].runner.name}, validated on {placement.validate[0].runner.name}"
    return PlannedLine(build.model.name, build.model.version.version, build.effective.target.name, action, why)


def merge_problems(result: RunOutcome) -> list[EnginefarmError]:
    """Problems of failed builds and of writing the results, for the summary."""
    failed = [outcome.problem for outcome in result.outcomes if outcome.status == "failed" and outcome.problem is not None]
    return [*failed, *result.problems]
