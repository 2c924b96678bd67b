"""Turns in real threads: who works, who waits, who has which slot."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from orchestrator.farm.local import FAILURES_ALLOWED, Farm, Spot
from orchestrator.farm.order import NO_WEIGHT, Weight
from orchestrator.farm.turns import Turn
from orchestrator.runners.base import Cancel, Cancelled

Make = Callable[..., Any]
LONG = 20.0


class Lab:
    """Builds that hold their slot until they are let go, and what was seen of them."""

    def __init__(self, runners: Sequence[Any]) -> None:
        self.farm = Farm(runners)
        self.cancel = Cancel()
        self.started: list[tuple[str, str]] = []  # (build, runner)
        self.over = False
        self._ends: dict[str, threading.Event] = {}
        self._changed = threading.Condition()
        self._running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.pool = ThreadPoolExecutor(64)

    def spots(self, *names: str) -> tuple[Spot, ...]:
        return tuple(Spot(runner) for runner in self.farm.runners if not names or runner.name in names)

    def submit(self, turns: Sequence[Turn], builds: Sequence[tuple[str, tuple[Spot, ...]]], steps: int = 1) -> list[Future[None]]:
        return [
            self.pool.submit(turn.run, lambda name=name, spots=spots: self.build(name, spots, steps), self.cancel)
            for turn, (name, spots) in zip(turns, builds, strict=True)
        ]

    def build(self, name: str, spots: tuple[Spot, ...], steps: int = 1) -> None:
        for step in range(steps if spots else 0):
            self.step(name if step == 0 else f"{name}/{step}", spots)

    def step(self, name: str, spots: tuple[Spot, ...]) -> None:
        with self.farm.slot(spots, self.cancel) as spot:
            with self._changed:
                runner = spot.runner.name
                self._running[runner] += 1
                self.most[runner] = max(self.most[runner], self._running[runner])
                self.started.append((name, runner))
                self._changed.notify_all()
            self.end(name).wait(LONG)
            with self._changed:
                self._running[runner] -= 1

    def end(self, name: str) -> threading.Event:
        event = self._ends.setdefault(name, threading.Event())
        if self.over:
            event.set()
        return event

    def finish(self, *names: str) -> None:
        for name in names:
            self.end(name).set()

    def wait_for(self, count: int) -> list[tuple[str, str]]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.started) >= count, LONG), self.started
            return list(self.started)

    def all_wait(self, count: int) -> None:
        """Until ``count`` builds wait for a slot."""
        queue = self.farm._queue
        with queue.changed:
            assert queue.changed.wait_for(lambda: len(queue._waiting) == count, LONG)

    def stays(self, count: int) -> bool:
        """Nothing more starts in a while."""
        with self._changed:
            return not self._changed.wait_for(lambda: len(self.started) > count, 0.3)


@contextmanager
def lab(*runners: Any) -> Iterator[Lab]:
    made = Lab(runners)
    try:
        yield made
    finally:
        made.cancel.set()
        made.over = True
        for event in list(made._ends.values()):
            event.set()
        made.pool.shutdown(wait=True)


def known(seconds: float) -> Weight:
    return Weight(False, seconds)


def test_the_longest_build_starts_first_whatever_the_plan_says(described: Make) -> None:
    with lab(described("one")) as room:
        builds = [(name, room.spots()) for name in ("short", "long", "middle")]
        turns = room.farm.line_up([(room.spots(), known(seconds)) for seconds in (1, 9, 5)], 1)
        with room.farm.slot(room.spots(), room.cancel):
            futures = room.submit(turns, builds)
            room.all_wait(3)
        for count, name in enumerate(("long", "middle", "short")):
            assert room.wait_for(count + 1)[count][0] == name
            room.finish(name)
        assert [future.result(LONG) for future in futures] == [None] * 3
        assert room.most == {"one": 1}


def test_builds_that_wait_for_a_full_runner_keep_no_other_one_idle(described: Make) -> None:
    with lab(described("a"), described("b")) as room:
        only_a = room.spots("a")
        builds = [(f"a{number}", only_a) for number in range(4)] + [("b", room.spots("b"))]
        turns = room.farm.line_up([(spots, known(9 if name != "b" else 1)) for name, spots in builds], 2)
        room.submit(turns, builds)
        assert {runner for _, runner in room.wait_for(2)} == {"a", "b"}


def test_no_more_builds_work_than_were_asked_for(described: Make) -> None:
    with lab(described("one", slots=8)) as room:
        builds = [(str(number), room.spots()) for number in range(6)]
        room.submit(room.farm.line_up([(spots, known(1)) for _, spots in builds], 2), builds)
        room.wait_for(2)
        assert room.stays(2)
        assert room.most == {"one": 2}


def test_a_begun_build_is_finished_before_another_one_starts(described: Make) -> None:
    with lab(described("one")) as room:
        builds = [("short", room.spots()), ("long", room.spots())]
        turns = room.farm.line_up([(room.spots(), known(seconds)) for seconds in (1, 9)], 1)
        room.submit(turns[:1], builds[:1], 2)
        room.wait_for(1)
        room.submit(turns[1:], builds[1:], 2)
        room.finish("short")
        assert [name for name, _ in room.wait_for(2)] == ["short", "short/1"]


def test_a_runner_that_some_builds_need_is_left_to_them(described: Make) -> None:
    with lab(described("a"), described("b")) as room:
        builds = [("any", room.spots()), ("only", room.spots("a"))]
        turns = room.farm.line_up([(spots, known(5)) for _, spots in builds], 8)
        room.submit(turns[:1], builds[:1])
        assert room.wait_for(1) == [("any", "b")]
        room.submit(turns[1:], builds[1:])
        assert room.wait_for(2)[1] == ("only", "a")


def test_what_no_runner_takes_waits_for_none(described: Make) -> None:
    with lab(described("one")) as room:
        builds = [("refused", ()), ("build", room.spots())]
        futures = room.submit(room.farm.line_up([(spots, known(1)) for _, spots in builds], 1), builds)
        assert futures[0].result(LONG) is None


def test_a_stopped_run_ends_those_that_wait_for_their_turn_and_for_a_slot(described: Make) -> None:
    with lab(described("one")) as room:
        builds = [(str(number), room.spots()) for number in range(4)]
        futures = room.submit(room.farm.line_up([(spots, known(1)) for _, spots in builds], 2), builds)
        ((name, _),) = room.wait_for(1)
        room.cancel.set()
        works = futures.pop(int(name))
        assert [type(future.exception(LONG)) for future in futures] == [Cancelled] * 3
        room.finish(name)
        assert works.result(LONG) is None


def test_a_stopped_run_gets_no_turn_and_no_slot_though_both_are_free(described: Make) -> None:
    with lab(described("one")) as room:
        room.cancel.set()
        (turn,) = room.farm.line_up([(room.spots(), known(1))], 1)
        with pytest.raises(Cancelled):
            turn.run(lambda: pytest.fail("it was given a turn"), room.cancel)
        with pytest.raises(Cancelled), room.farm.slot(room.spots(), room.cancel):
            pytest.fail("it was given a slot")
        with room.farm.slot(room.spots(), Cancel()) as spot:  # and keeps none
            assert spot.runner.name == "one"


def test_slots_are_given_back_when_a_build_raises(described: Make) -> None:
    with lab(described("one")) as room:

        def fails() -> None:
            with room.farm.slot(room.spots(), room.cancel):
                raise ValueError("broken")

        turns = room.farm.line_up([(room.spots(), known(1))] * 2, 1)
        with pytest.raises(ValueError, match="broken"):
            room.pool.submit(turns[0].run, fails, room.cancel).result(LONG)
        room.submit(turns[1:], [("next", room.spots())])
        assert room.wait_for(1) == [("next", "one")]


def test_a_runner_that_is_set_aside_gets_nothing_more(described: Make) -> None:
    a, b = described("a"), described("b")
    with lab(a, b) as room:
        for _ in range(FAILURES_ALLOWED):
            room.farm.failed(a)
        builds = [(str(number), room.spots()) for number in range(2)]
        room.submit(room.farm.line_up([(spots, known(1)) for _, spots in builds], 2), builds)
        first = room.wait_for(1)[0]
        room.finish(first[0])
        assert {runner for _, runner in room.wait_for(2)} == {"b"}


def test_many_builds_all_end_and_never_exceed_the_slots(described: Make) -> None:
    with lab(described("a", slots=2), described("b", slots=1), described("c", slots=3)) as room:
        choices = [room.spots(), room.spots("a"), room.spots("a", "b"), room.spots("b", "c")]
        builds = [(str(number), choices[number % 4]) for number in range(40)]
        room.finish(*[f"{number}{step}" for number in range(40) for step in ("", "/1")])
        futures = room.submit(room.farm.line_up([(spots, known(number % 7)) for number, (_, spots) in enumerate(builds)], 5), builds, 2)
        assert [future.result(LONG) for future in futures] == [None] * 40
        assert len(room.started) == 80
        assert all(room.most[name] <= count for name, count in (("a", 2), ("b", 1), ("c", 3)))


def test_a_build_that_rests_lets_the_next_one_begin_before_it_ends() -> None:
    farm, cancel, began = Farm(()), Cancel(), threading.Event()
    first, second = farm.line_up([((), NO_WEIGHT), ((), NO_WEIGHT)], 1)

    def rest() -> bool:
        pool.submit(second.run, began.set, cancel)
        assert not began.wait(0.2)
        farm.rest()
        return began.wait(LONG)

    with ThreadPoolExecutor(2) as pool:
        assert pool.submit(first.run, rest, cancel).result(2 * LONG)
