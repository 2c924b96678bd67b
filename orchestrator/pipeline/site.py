"""What a run or a plan works with: matrix, farm, store, history; opened together, closed together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, cast

from orchestrator import events
from orchestrator.artifacts.manifest import EngineRecord
from orchestrator.errors import EMPTY_SELECTION, EnginefarmError, raise_all
from orchestrator.farm.local import Farm
from orchestrator.farm.order import Weight, weigh
from orchestrator.matrix.load import Matrix, load_matrix
from orchestrator.pipeline.commit import previous_engines
from orchestrator.pipeline.decide import Decider, Decision
from orchestrator.pipeline.history import FILE_NAME, History
from orchestrator.pipeline.known import KnownHosts
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.prepare import Prepared, PreparedBuild, prepare
from orchestrator.pipeline.runfolder import make_state
from orchestrator.resources import builtin_targets
from orchestrator.runners.base import Runner
from orchestrator.runners.load import load_runners
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.farm.images import ImageSource
    from orchestrator.runners.docker import DockerRunner


class Site:
    """Attributes: ``options``, ``matrix``, ``farm``, ``store``, ``history``. Raises EnginefarmError when made, for bad files and for what
    ``--locked`` forbids."""

    def __init__(self, options: BuildOptions, bus: events.Bus, *, plan: bool = False) -> None:
        self.matrix = load_matrix(options.project)
        self.matrix.select(options.targets)
        with contextlib.suppress(OSError):
            # a plan needs nothing written; a run says what is wrong when it makes its own folder
            make_state(options.state)
        # a plan only looks
        self.history = History(options.state / FILE_NAME, say=lambda text: bus(events.Note(text=text, level="warning")), repair=not plan)
        self.options = options = self._with_failed(options)
        self.farm = make_farm(options, self.matrix)
        self.store = Store(options.cache)
        self._last = next(iter(self.history.runs(1)), None)
        self._plan = plan
        self._hosts = KnownHosts(self.store.memo, self.farm.runners)
        self._previous: dict[str, dict[str, tuple[EngineRecord, Path]]] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Site:
        self._stack.callback(self.history.close)
        self._stack.callback(self.store.memo.close)
        self._stack.enter_context(self.store.session())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def prepare(self, stages: Path) -> Prepared:
        """What is asked for; with ``--lf`` only what failed last. Raises EnginefarmError for whatever is wrong with the request."""
        prepared = prepare(self.options, self.matrix, self.farm, stages, self.store.memo, plan=self._plan)
        self._hosts.keep()
        if not self.options.last_failed:
            return prepared
        failed = self.history.failed_last()
        left = tuple(build for build in prepared.builds if (build.model.name, build.effective.target.name) in failed)
        if not left:
            raise EnginefarmError(EMPTY_SELECTION, "nothing of this failed last time", fix="leave --lf out to build everything")
        return Prepared(left, prepared.notes, prepared.warnings)

    def _with_failed(self, options: BuildOptions) -> BuildOptions:
        """With ``--lf`` the targets that failed last, whatever enginefarm.yaml says: only the command line leaves some of them out."""
        if not options.last_failed or (options.targets and "targets" not in options.weak):
            return options
        failed = {target for _, target in self.history.failed_last()}
        targets = tuple(name for name in self.matrix.targets if name in failed)
        return replace(options, targets=targets, weak=options.weak - {"targets"}) if targets else options

    def decide(self, prepared: Prepared, decider: Decider) -> list[Decision]:
        """One decision per build, in the same order."""
        problems: dict[str, EnginefarmError] = {}
        decisions = []
        for build in prepared.builds:
            try:
                decisions.append(decider.decide(build, self._held))
            except EnginefarmError as error:  # noqa: PERF203  (all problems at once)
                problems.setdefault(error.what, error)
        raise_all(problems.values())
        return decisions

    def _held(self, build: PreparedBuild) -> tuple[EngineRecord, Path] | None:
        name = build.model.name
        if name not in self._previous:
            self._previous[name] = previous_engines(self.options.output, build.model, self.store.memo)
        return self._previous[name].get(build.effective.target.name)

    def expected(self, decision: Decision) -> float | None:
        """Seconds that a build will take, by what it took before; None when nobody knows."""
        if not decision.runs:
            return 0.0
        build = decision.build
        step: Literal["build", "validate"] = "build" if decision.action == "build" else "validate"
        return self.history.expected_seconds(build.model.name, build.effective.target.name, step)

    def weight(self, decision: Decision) -> Weight:
        return weigh(decision.build.effective.target, self.expected(decision))

    def resumes(self, prepared: Prepared) -> str | None:
        """The run before this one, when it was killed or interrupted and had some of the same to do."""
        last = self._last
        if last is None or last.state not in ("killed", "interrupted") or self.options.force:
            return None
        had = {*last.pending, *((row.model, row.target) for row in self.history.builds(last.id))}
        return last.id if any((build.model.name, build.effective.target.name) in had for build in prepared.builds) else None


def make_farm(options: BuildOptions, matrix: Matrix) -> Farm:
    """The runners of ``options`` and the images they may use. Raises EnginefarmError for bad files, and for what ``locked`` forbids."""
    runners = load_runners(options.runners, options.python)
    engines = docker_runners(runners)
    if not (engines or options.locked or options.allow or options.mirrors):
        return Farm(runners)
    images = _images(options, matrix)
    for runner in engines:
        runner.ensure_image = images.ensure
    return Farm(runners, images)


def _images(options: BuildOptions, matrix: Matrix) -> ImageSource:
    # nobody else needs an image
    from orchestrator.farm.images import ImageSource
    from orchestrator.images.lock import lock_file, read_lock
    from orchestrator.images.policy import DEFAULT_ALLOWED, policy, read_mirror

    lock = lock_file(options.project)
    held = read_lock(lock if lock.exists() else builtin_targets() / lock.name)
    rules = dict(read_mirror(text) for text in options.mirrors)
    images = ImageSource(held, policy(options.allow or DEFAULT_ALLOWED, rules), locked=options.locked, offline=options.offline)
    raise_all(images.check_locked(effective.target for effective in matrix.select(options.targets)))
    return images


def docker_runners(runners: Iterable[Runner]) -> list[DockerRunner]:
    """Those that start containers; their module is heavy and stays unimported where there are none."""
    return [cast("DockerRunner", runner) for runner in runners if runner.kind == "docker"]
