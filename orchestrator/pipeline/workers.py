"""Carries out what has to be done: builds in parallel, as many at a time as there is room for."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from orchestrator import events
from orchestrator.farm.local import Spot
from orchestrator.pipeline.beside import usable_cpus
from orchestrator.pipeline.build import BuildJob
from orchestrator.pipeline.cached import Cached
from orchestrator.pipeline.decide import Decider, Decision
from orchestrator.pipeline.outcome import Outcome
from orchestrator.pipeline.prepare import PreparedBuild
from orchestrator.pipeline.runfolder import RunFolder
from orchestrator.pipeline.shared import SharedWork, check_samples
from orchestrator.pipeline.site import Site
from orchestrator.pipeline.steps import Steps
from orchestrator.runners.base import Cancel, Cancelled, Runner

_WAITING_THREADS = 64
_POLL_SECONDS = 0.2  # how soon a cancel is seen


def _spots(decision: Decision) -> tuple[Spot, ...]:
    """Where the first step of a build can run; nowhere when no step has to."""
    placement = decision.build.placement
    return {"build": placement.build, "validate": placement.validate}.get(decision.action, ())


def default_jobs(runners: Iterable[Runner]) -> int:
    """Builds at a time unless told: one per core that this process may use, at most 4 (a build takes about 0.4 GB of memory); as many as
    the slots of engines and other machines, where those do the work."""
    elsewhere = {runner.name: runner.slots for runner in runners if runner.kind != "process"}
    return max(1, usable_cpus(), sum(elsewhere.values()))


class Workers:
    """Works off decisions with at most ``jobs`` at a time."""

    def __init__(self, site: Site, run: RunFolder, bus: events.Bus, cancel: Cancel, cached: Cached, decider: Decider) -> None:
        self.site = site
        self.options = site.options
        self.farm = site.farm
        self.run = run
        self.bus = bus
        self.cancel = cancel
        self.cached = cached
        self.decider = decider
        self.shared: dict[str, SharedWork] = {}
        self.failures = 0
        self._counting = threading.Lock()

    def _shared(self, build: PreparedBuild) -> SharedWork:
        name = build.model.name
        if name not in self.shared:
            folder = self.run.work / "shared" / str(len(self.shared))
            self.shared[name] = SharedWork(build.model, folder, self.options, self.farm, self.cancel, self.cached)
        return self.shared[name]

    def _job(self, decision: Decision) -> BuildJob:
        build = decision.build
        steps = Steps(build, self._shared(build), self.options, self.run, self.bus, self.cancel, self.farm)
        return BuildJob(decision, steps, self.cached, self.decider)

    def carry_out(self, decisions: Sequence[Decision], todo: Sequence[int], ended: Callable[[int, Outcome | None], None]) -> None:
        """Carry out the decisions of these numbers; ``ended`` is called with each number, and with None for one that was stopped."""
        weights = {number: self.site.weight(decisions[number]) for number in todo}
        todo = sorted(todo, key=weights.__getitem__, reverse=True)
        spots = {number: _spots(decisions[number]) for number in todo}
        jobs = self.options.jobs or default_jobs(spot.runner for group in spots.values() for spot in group)
        turns = self.farm.line_up([(spots[number], weights[number]) for number in todo], jobs)
        # a build that waits for a runner keeps a thread, and must not keep others from theirs
        threads = min(len(todo), jobs + _WAITING_THREADS)
        with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="build") as pool:
            waiting: dict[Future[Outcome], int] = {}
            done: queue.SimpleQueue[Future[Outcome]] = queue.SimpleQueue()
            for number, turn in zip(todo, turns, strict=True):
                future = pool.submit(turn.run, functools.partial(self._build, decisions[number]), self.cancel)
                waiting[future] = number
                future.add_done_callback(done.put)
            try:
                while waiting and not self.cancel.is_set():
                    try:
                        future = done.get(timeout=_POLL_SECONDS)
                    except queue.Empty:
                        continue
                    ended(waiting.pop(future), _result(future))
            finally:
                for future in waiting:
                    future.cancel()
                self.farm.wake()
        # what ended while the run was being stopped counts too
        for future, number in waiting.items():
            if not future.cancelled():
                ended(number, _result(future))

    def _build(self, decision: Decision) -> Outcome:
        """Carry out one decision, in its turn: after the last failure that is allowed nobody else's turn comes any more."""
        outcome = self._job(decision).run()
        if outcome.status == "failed":
            with self._counting:
                self.failures += 1
                if self.options.max_failures is not None and self.failures >= self.options.max_failures:
                    self.cancel.set()
        return outcome

    def check(self, builds: Iterable[PreparedBuild]) -> None:
        """Raises EnginefarmError for every sample that cannot be used."""
        check_samples((self._shared(build), build) for build in builds)


def _result(future: Future[Outcome]) -> Outcome | None:
    try:
        return future.result()
    except Cancelled:
        return None
