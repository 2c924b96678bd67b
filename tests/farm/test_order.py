"""Which build goes next: pure rules, and what holds for every schedule that they make."""

from __future__ import annotations

import heapq
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.farm.order import NO_WEIGHT, Ask, Slots, Weight, pick, weigh
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.schema import Target

NAMES = ("a", "b", "c")


def target(name: str, **changes: Any) -> Target:
    (found,) = load_matrix(None).select((name,))
    return found.target.model_copy(update=changes)


def ask(seconds: float, *runners: str, begun: bool = False) -> Ask:
    return Ask(Weight(False, seconds), runners or NAMES, begun)


def slots(running: dict[str, int] | None = None, failures: dict[str, int] | None = None, left: dict[str, float] | None = None) -> Slots:
    return Slots({"a": 1, "b": 1, "c": 2}, running or {}, left or {}, failures or {})


def test_known_seconds_are_the_weight_and_unknown_ones_go_first() -> None:
    known = weigh(target("rtx-ada"), 4000.0)
    assert known == Weight(False, 4000.0)
    assert weigh(target("cpu"), None) > known


def test_unknown_builds_compare_by_backend_and_optimization_level() -> None:
    guesses = [weigh(target(name), None) for name in ("cpu", "rtx-ada", "ampere-cu122")]
    assert guesses == sorted(guesses)
    assert len(set(guesses)) == 3
    levels = [weigh(target("ampere-cu122", optimization_level=level), None) for level in (0, 2, None, 5)]
    assert levels == sorted(levels)
    assert weigh(target("ampere-cu122", optimization_level=3), None) == levels[2]


def test_the_longest_goes_first_and_equal_ones_in_their_order() -> None:
    asks = [ask(5), ask(9), ask(9), ask(1)]
    assert pick(asks, slots()) is not None
    assert [number for number, _ in taken(asks)] == [1, 2, 0, 3]


def taken(asks: list[Ask]) -> list[tuple[int, str]]:
    """All asks on one runner after another, by pick alone."""
    left, found = dict(enumerate(asks)), []
    while left:
        picked = pick(list(left.values()), slots())
        assert picked is not None
        number = list(left)[picked[0]]
        del left[number]
        found.append((number, picked[1]))
    return found


def test_a_build_that_has_begun_goes_before_longer_ones() -> None:
    assert pick([ask(100), ask(0, begun=True)], slots({"a": 1, "b": 1, "c": 1})) == (1, "c")


def test_unknown_builds_go_before_known_ones() -> None:
    picked = pick([ask(100), Ask(Weight(True, 1.0), NAMES)], slots())
    assert picked is not None
    assert picked[0] == 1


def test_a_runner_that_others_need_is_left_to_them() -> None:
    asks = [ask(10, "a", "b"), ask(9, "a"), ask(8, "a")]
    assert pick(asks, slots()) == (0, "b")
    # the longest could go to a, but would keep it from those that have nothing else
    assert pick(asks, slots({"b": 1}, left={"b": 2.0})) == (1, "a")
    assert pick([ask(10, "a", "b")], slots(), later=[ask(9, "a")]) == (0, "b")


def test_work_that_is_under_way_counts() -> None:
    assert pick([ask(1, "a", "c")], slots({"c": 1}, left={"c": 50.0})) == (0, "a")
    assert pick([ask(1, "a", "c")], slots({"c": 1})) == (0, "c")  # it has two slots


def test_a_runner_that_failed_comes_last_but_is_not_idle() -> None:
    assert pick([ask(5, "a", "b")], slots(failures={"a": 1})) == (0, "b")
    assert pick([ask(5, "a", "b"), ask(9, "a")], slots({"b": 1}, failures={"a": 1})) == (1, "a")


@pytest.mark.parametrize("asks", [[], [ask(1, "a")], [Ask(NO_WEIGHT, ())]])
def test_nothing_is_picked_where_nothing_is_free(asks: list[Ask]) -> None:
    assert pick(asks, slots({"a": 1})) is None


jobs_of = st.lists(
    st.tuples(st.floats(0.1, 100), st.sets(st.sampled_from(NAMES), min_size=1).map(lambda names: tuple(sorted(names)))),
    min_size=1,
    max_size=30,
)
totals = st.fixed_dictionaries({name: st.integers(1, 4) for name in NAMES})


@given(jobs_of, totals)
def test_every_schedule_is_work_conserving_and_within_the_slots(jobs: list[tuple[float, tuple[str, ...]]], total: dict[str, int]) -> None:
    waiting, running, now = list(range(len(jobs))), [], 0.0
    numbers = itertools.count()
    while waiting or running:
        used = {name: sum(where == name for _, _, where in running) for name in NAMES}
        assert all(used[name] <= total[name] for name in NAMES)
        picked = pick([Ask(Weight(False, jobs[number][0]), jobs[number][1]) for number in waiting], Slots(total, used, {}, {}))
        if picked is None:
            # nothing that waits could use what is free
            idle = {name for name in NAMES if used[name] < total[name]}
            assert not any(idle & set(jobs[number][1]) for number in waiting)
            now = heapq.heappop(running)[0]
            continue
        number = waiting.pop(picked[0])
        assert picked[1] in jobs[number][1]
        heapq.heappush(running, (now + jobs[number][0], next(numbers), picked[1]))
    assert now >= max(seconds for seconds, _ in jobs)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=30), totals)
def test_where_all_runners_take_all_builds_grahams_bound_holds(seconds: list[float], total: dict[str, int]) -> None:
    waiting, running, now = list(seconds), [], 0.0
    while waiting or running:
        used = {name: sum(where == name for _, where in running) for name in NAMES}
        picked = pick([ask(value) for value in waiting], Slots(total, used, {}, {}))
        if picked is None:
            now = heapq.heappop(running)[0]
        else:
            heapq.heappush(running, (now + waiting.pop(picked[0]), picked[1]))
    count = sum(total.values())
    assert now <= sum(seconds) / count + (1 - 1 / count) * max(seconds) + 1e-6
