"""A run that is killed with SIGKILL, twice, anywhere: the next one goes on, repeats only what was running, and nothing is half there."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial

import pytest

from .chain import Chain, Engines, engines, side_by_side
from .conftest import save_net
from .crash import Crashed, Started
from .forked import Fate, Point, points_in

MOMENTS = int(os.environ.get("ENGINEFARM_TEST_MOMENTS", "40"))
IN_A_ROW = 10
NUMBERS = itertools.count()
FIRST = ("-t", "first")
THIRD = (*FIRST, "-t", "third")
ALL = (*THIRD, "-t", "second")
UNCHECKED = ("--no-validate", "--allow-unvalidated")
WRONG = "tolerance: {rtol: 0, atol: 0}\n"


class Leg:
    """A run of the command that all went well in, from a project that was copied before it."""

    def __init__(self, start: Crashed, words: Sequence[str], *, code: int = 0) -> None:
        self.start = start
        self.words = words
        self.code = code
        self.end = start.copy(f"{start.folder.name}+")
        record = self.end.folder / "points"
        assert self.end.do(*words, "-j", "1", fate=Fate(record=str(record))) == code, self.end.said()
        self.points = points_in(record)
        self.goal: Engines = engines(self.end)

    @property
    def names(self) -> set[str]:
        return {point for point, _ in self.points}

    def chain(self, name: str, *, jobs: int = 1) -> Chain:
        project = self.start.copy(f"{self.start.folder.name}-{next(NUMBERS)}")
        return Chain(project, name, self.goal, self.words, jobs=jobs, code=self.code)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    """A project in which nothing was ever built."""
    project = Crashed(tmp_path_factory.mktemp("crash") / "fresh")
    project.make("first", "second", "third")
    save_net(project.folder.parent / "net.onnx")
    return project


@pytest.fixture(scope="module")
def known(fresh: Crashed) -> Crashed:
    """One in which nothing was built either, but the model and the runner are known from before."""
    project = fresh.copy("known")
    assert project.do(*FIRST) == 0, project.said()
    project.forget()
    return project


@pytest.fixture(scope="module")
def build(known: Crashed) -> Leg:
    """The first build in a folder, which is not checked."""
    return Leg(known, (*FIRST, *UNCHECKED))


@pytest.fixture(scope="module")
def check(build: Leg) -> Leg:
    """The engine is checked, and gets another name."""
    leg = Leg(build.end, FIRST)
    assert leg.end.steps() == [Started("validate", "net", "first")]
    return leg


@pytest.fixture(scope="module")
def second_build(check: Leg) -> Leg:
    """One more target is built and checked, beside the first one; the store has its outputs and the reference."""
    leg = Leg(check.end, THIRD)
    assert leg.end.steps() == [Started("build", "net", "third"), Started("validate", "net", "third")]
    return leg


@pytest.fixture(scope="module")
def wrong(check: Leg) -> Leg:
    """Stored outputs are judged again, and wrong."""
    project = check.end.copy("strict")
    target = project.folder / "targets/first.yaml"
    target.write_text(target.read_text(encoding="utf-8") + WRONG, encoding="utf-8")
    leg = Leg(project, FIRST, code=1)
    assert leg.end.steps() == []
    return leg


def killed_in_a_row(leg: Leg, points: Sequence[Point]) -> list[Chain]:
    """For each point two runs that are killed there. The runs of a project follow each other, as the points do; when one does not come to a
    point any more it was the run that goes on, and the next project is a fresh one, as it is after the last point."""
    chains: list[Chain] = []
    chain: Chain | None = None
    for point in points:
        if chain is None or not chain.killed_at(point):
            chain = leg.chain(f"{point[0]} ({point[1]})")
            chains.append(chain)
            if not chain.killed_at(point):
                chain.say([f"it never comes to {point}"])
                chain = None
                continue
        if not chain.killed_at(point):
            chain = None
    if chain is not None:
        chain.end()
    return chains


def kill_at_each(leg: Leg, points: Sequence[Point]) -> list[Chain]:
    groups = [points[at : at + IN_A_ROW] for at in range(0, len(points), IN_A_ROW)]
    return side_by_side([partial(killed_in_a_row, leg, group) for group in groups])


def named(points: Sequence[Point], but: Collection[str]) -> list[Point]:
    return [point for point in points if point[0] not in but]


def test_killed_at_each_point_of_a_first_build_the_next_run_goes_on(build: Leg) -> None:
    parts = ("history.db", "runs/RUN/events.jsonl", "memo.db", "blobs/KEY", "results/build/KEY", ".commit", "latest.json", "start ")
    assert [part for part in parts if not any(part in name for name in build.names)] == []
    chains = kill_at_each(build, build.points)
    assert sum(chain.resumed for chain in chains) > len(chains) // 2


def test_killed_at_each_point_of_a_start_in_an_empty_folder_the_next_run_starts(fresh: Crashed, build: Leg) -> None:
    leg = Leg(fresh, build.words)
    points = named(leg.points, build.names)
    names = {point for point, _ in points}
    assert {"make .enginefarm", "start a process", "start tmp/enginefarm-probe-NAME"} <= names
    kill_at_each(leg, points)


def test_killed_at_each_point_of_a_check_the_next_run_goes_on(build: Leg, check: Leg) -> None:
    points = named(check.points, build.names)
    names = {point for point, _ in points}
    assert {f"rename to .enginefarm/cache/results/{kind}/KEY" for kind in ("validate", "reference", "checks")} <= names
    assert "remove artifacts/net/v1/net_v1_first.unvalidated.onnx" in names
    kill_at_each(check, points)


def test_killed_at_each_point_that_only_a_second_target_has_the_next_run_goes_on(build: Leg, check: Leg, second_build: Leg) -> None:
    seen = build.names | check.names
    points = [point for point in second_build.points if point[0].replace("third", "first") not in seen]
    assert "rename to artifacts/net/v1/net_v1_third.onnx" in second_build.names
    kill_at_each(second_build, points)


def test_killed_at_each_point_of_a_failure_the_next_run_finds_the_same(build: Leg, check: Leg, wrong: Leg) -> None:
    points = named(wrong.points, build.names | check.names)
    assert [point for point, _ in points if "quarantine" in point]
    kill_at_each(wrong, points)


def test_killed_once_a_commit_is_decided_whoever_comes_next_finishes_it(second_build: Leg) -> None:
    points = second_build.points
    decided = points.index(("rename to artifacts/net/v1/.commit", 0)) + 1
    points = points[decided : points.index(("empty artifacts/net/v1/.commit", 0)) + 1]
    assert len(points) >= 5

    def work(point: Point) -> list[Chain]:
        chain = second_build.chain(f"{point}")
        chain.say([] if chain.killed_at(point) else ["it does not come there"])
        # it is not asked for the target whose engine was being written
        chain.words = FIRST
        chain.end()
        return [chain]

    side_by_side([partial(work, point) for point in points])


def test_killed_at_random_moments_the_next_run_goes_on(known: Crashed, build: Leg, check: Leg, second_build: Leg) -> None:
    everything = Leg(known.copy("everything"), ALL)
    chance = random.Random(20)
    works: list[Callable[[], list[Chain]]] = []

    def moment(leg: Leg) -> tuple[Point, float]:
        # in time with what a run does, so that it hits as well on a machine that is busy; most of a run's time goes by in its steps
        point = chance.choice(leg.points)
        return point, chance.uniform(0, 0.5 if point[0].startswith("start") else 0.05)

    def work(leg: Leg, jobs: int, moments: Sequence[tuple[Point, float]]) -> list[Chain]:
        chain = leg.chain(f"after {moments}", jobs=jobs)
        for point, later in moments:
            chain.killed_at(point, later)
        chain.end()
        return [chain]

    for number in range(MOMENTS):
        leg, jobs = (everything, 2) if number % 40 == 39 else ((build, check, second_build)[number % 3], 1)
        works.append(partial(work, leg, jobs, [moment(leg), moment(leg)]))
    chains = side_by_side(works)
    assert len(chains) == MOMENTS
    assert sum(chain.killed for chain in chains) > MOMENTS
    assert sum(chain.resumed for chain in chains) > MOMENTS // 4
