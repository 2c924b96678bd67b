"""One run: prepare, build everything in parallel processes, commit per model, say how it ended."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import events
from orchestrator.errors import EnginefarmError, Exit
from orchestrator.pipeline.cached import Cached
from orchestrator.pipeline.commit import Committed, check_output, commit_model
from orchestrator.pipeline.decide import Decider, Decision
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.outcome import Outcome, settled
from orchestrator.pipeline.prepare import Prepared, PreparedBuild
from orchestrator.pipeline.runfolder import RunFolder, open_run
from orchestrator.pipeline.site import Site, docker_runners
from orchestrator.runners.base import Cancel

if TYPE_CHECKING:
    from orchestrator.pipeline.workers import Workers


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
        elif outcome.status == "skipped" and not options.available and not outcome.build.excluded:
            found.add(outcome.problem.exit if outcome.problem else Exit.NO_RUNNER)
        elif outcome.status in ("unvalidated", "self-consistent") and not options.unvalidated_is_fine:
            found.add(Exit.NO_RUNNER)
    return sorted(found)


class _Scheduler:
    """Carries out decisions; finished outcomes are handed on as they come."""

    def __init__(self, site: Site, run: RunFolder, bus: events.Bus, cancel: Cancel, cached: Cached, decider: Decider) -> None:
        self.site = site
        self.options = site.options
        self.run = run
        self.bus = bus
        self.cancel = cancel
        self.outcomes: dict[int, Outcome] = {}
        self.problems: list[EnginefarmError] = []
        self._parts = (cached, decider)

    @functools.cached_property
    def _workers(self) -> Workers:
        # what does the work takes a while to import, and most runs find nothing to do
        from orchestrator.pipeline.workers import Workers

        return Workers(self.site, self.run, self.bus, self.cancel, *self._parts)

    def work(self, decisions: Sequence[Decision], on_model: Callable[[str], None]) -> None:
        """Carry out all; ``on_model`` is called with a model's name when its last build has ended."""
        left = Counter(decision.build.model.name for decision in decisions)

        def ended(number: int, outcome: Outcome | None) -> None:
            if outcome is not None:
                self.outcomes[number] = outcome
                self.bus(finished_event(outcome))
            name = decisions[number].build.model.name
            left[name] -= 1
            if not left[name]:
                on_model(name)

        for number, decision in enumerate(decisions):
            outcome = settled(decision)
            if outcome is not None:
                ended(number, outcome)
        todo = [number for number in range(len(decisions)) if number not in self.outcomes]
        if todo and not self.cancel.is_set():
            self._workers.carry_out(decisions, todo, ended)

    def check(self, decisions: Sequence[Decision]) -> None:
        """Read the samples that models bring, before anything is built: a wrong one must not show after hours."""
        to_check = [decision.build for decision in decisions if decision.runs and decision.build.effective.target.samples]
        if to_check:
            self._workers.check(to_check)


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
    started, started_at = time.monotonic(), time.time()
    with Site(options, bus) as site, open_run(options.state) as run:
        for runner in docker_runners(site.farm.runners):
            runner.run_id = run.id
        bus.subscribe(run.record)
        bus.subscribe(site.history)
        prepared = site.prepare(run.work)
        cached = Cached(site.store, run.work, bus, cancel)
        decider = Decider(options, site.farm, cached)
        decisions = site.decide(prepared, decider)
        scheduler = _Scheduler(site, run, bus, cancel, cached, decider)
        scheduler.check(decisions)
        written = [decision.build.model for decision in decisions if decision.action not in ("reuse", "skip")]
        check_output(options.output, written)
        site.history.planned((build.model.name, build.model.version.version, build.effective.target.name) for build in prepared.builds)
        _announce(prepared, run, site, bus, started_at)
        committed = _work(scheduler, decisions, bus)
        # hashed as they were written: the next run need not read them again
        site.store.memo.know([(path, placed.digest, placed.status) for entry in committed for path, placed in entry.written])
        return _ended(scheduler, decisions, committed, time.monotonic() - started, bus)


def _work(scheduler: _Scheduler, decisions: Sequence[Decision], bus: events.Bus) -> list[Committed]:
    """Carry out what was decided, and write each model's results when its last build has ended."""
    committed: list[Committed] = []
    left: dict[str, list[int]] = {}
    for number, decision in enumerate(decisions):
        left.setdefault(decision.build.model.name, []).append(number)
    place = {name: position for position, name in enumerate(left)}

    def on_model(name: str) -> None:
        committed.extend(_commit(scheduler, left.pop(name), name, bus))

    scheduler.cancel.watched = True
    scheduler.work(decisions, on_model)
    if scheduler.cancel.is_set():
        for name in list(left):
            on_model(name)
    return sorted(committed, key=lambda entry: place[entry.model])


def _ended(
    scheduler: _Scheduler, decisions: Sequence[Decision], committed: Sequence[Committed], seconds: float, bus: events.Bus
) -> RunOutcome:
    run, options, cancel = scheduler.run, scheduler.options, scheduler.cancel
    outcomes = tuple(scheduler.outcomes[number] for number in sorted(scheduler.outcomes))
    codes = exit_codes(outcomes, options) + [problem.exit for problem in scheduler.problems]
    if cancel.stopped_by is not None:
        codes.append(Exit(128 + cancel.stopped_by))
    missing = tuple(decision.build for number, decision in enumerate(decisions) if number not in scheduler.outcomes)
    result = RunOutcome(run.id, run.folder, outcomes, tuple(committed), missing, tuple(codes), tuple(scheduler.problems), seconds)
    bus(
        events.RunFinished(
            run=run.id,
            exit_code=int(result.exit),
            counts=result.counts(),
            interrupted=tuple(f"{build.model.name} {build.effective.target.name}" for build in missing),
            manifests=tuple(str(entry.manifest) for entry in committed if entry.manifest),
            seconds=seconds,
        )
    )
    return result


def _announce(prepared: Prepared, run: RunFolder, site: Site, bus: events.Bus, started_at: float) -> None:
    bus(events.RunStarted(at=started_at, run=run.id, builds=len(prepared.builds), folder=str(run.folder)))
    for level, notes in (("info", prepared.notes), ("warning", prepared.warnings)):
        for model, text in notes:
            bus(events.Note(text=text, level=level, model=model))
    resumed = site.resumes(prepared)
    if resumed is not None:
        bus(events.Note(text=f"run {resumed} was cut short: what it finished is taken from the cache"))


def _commit(scheduler: _Scheduler, numbers: Sequence[int], name: str, bus: events.Bus) -> list[Committed]:
    options, run = scheduler.options, scheduler.run
    outcomes = [scheduler.outcomes[number] for number in numbers if number in scheduler.outcomes]
    if not outcomes:
        return []
    good = not any(code for code in exit_codes(outcomes, options)) and not scheduler.cancel.is_set()
    model = outcomes[0].build.model

    def say(text: str, level: str = "info") -> None:
        bus(events.Note(text=text, level=level, model=name))

    try:
        entry = commit_model(options, model, outcomes, run, good=good, on_wait=say)
    except EnginefarmError as error:
        # the other models go on, and what was built for this one is not lost
        kept = [run.keep(outcome.engine, name, outcome.record.tag) for outcome in outcomes if outcome.engine is not None]
        scheduler.problems.append(error)
        say(f"not written to {options.output}: {error.what}" + (f"; the engines are kept in {kept[0].parent}" if kept else ""), "warning")
        return []
    run.clear(name)
    return [entry]


def merge_problems(result: RunOutcome) -> list[EnginefarmError]:
    """Problems of failed builds and of writing the results, for the summary."""
    failed = [outcome.problem for outcome in result.outcomes if outcome.status == "failed" and outcome.problem is not None]
    return [*failed, *result.problems]
