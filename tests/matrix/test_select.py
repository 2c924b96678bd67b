from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import EMPTY_SELECTION, TARGET_UNKNOWN, EnginefarmError, Kind
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.select import Matrix, expand_braces, natural, split_commas


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return load_matrix()


def names(matrix: Matrix, *selectors: str) -> list[str]:
    return [effective.target.name for effective in matrix.select(selectors)]


def test_no_selector_means_all(matrix: Matrix) -> None:
    assert names(matrix) == list(matrix.targets)


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        (["cpu"], ["cpu"]),
        (["cpu", "ada-cu12", "cpu"], ["ada-cu12", "cpu"]),  # order of the matrix, each once
        (["rtx-*"], ["rtx-ada", "rtx-ampere", "rtx-blackwell", "rtx-turing"]),
        (["rtx-a??"], ["rtx-ada"]),
        (["[av]*-cu1[12]?"], ["ampere-cu122", "volta-cu118"]),
        (["[!a-w]*"], ["xavier-jp44"]),
        (["{rtx-ada,cpu}"], ["cpu", "rtx-ada"]),
        (["rtx-{a{da,mpere},turing}"], ["rtx-ada", "rtx-ampere", "rtx-turing"]),
        (["cpu,rtx-ada"], ["cpu", "rtx-ada"]),
        (["cpu, {rtx-ada,rtx-turing}"], ["cpu", "rtx-ada", "rtx-turing"]),
        (["label:jetson"], ["jetson-cu102", "orin-jp6", "xavier-jp44"]),
        (["label:cpu", "label:edge"], ["cpu", "jetson-cu102", "orin-jp6", "xavier-jp44"]),
    ],
)
def test_selectors(matrix: Matrix, selectors: list[str], expected: list[str]) -> None:
    assert names(matrix, *selectors) == expected


@pytest.mark.parametrize(
    ("selector", "kind", "fix"),
    [
        ("amper-cu122", TARGET_UNKNOWN, "ampere-cu122"),
        ("jetson", TARGET_UNKNOWN, "did you mean jetson-cu102 or label:jetson?"),
        ("ampere86", TARGET_UNKNOWN, "ampere86-cu12"),
        ("CPU", TARGET_UNKNOWN, "did you mean cpu or label:cpu?"),
        ("qqqq", TARGET_UNKNOWN, "enginefarm targets list"),
        ("q*", EMPTY_SELECTION, "enginefarm targets list"),
        ("label:jetsn", EMPTY_SELECTION, "did you mean label:jetson?"),
        ("label:", EMPTY_SELECTION, "labels: ada, ampere,"),
        ("label:nope", EMPTY_SELECTION, "labels: ada, ampere,"),
        ("qqq-77", TARGET_UNKNOWN, "see them with: enginefarm targets list"),
        ("hoper-cu122", TARGET_UNKNOWN, "did you mean hopper-cu122 or"),
        (",", EMPTY_SELECTION, "leave it out"),
        ("{a,b", EMPTY_SELECTION, "enginefarm targets list"),
    ],
)
def test_what_selects_nothing_is_an_error_with_suggestions(matrix: Matrix, selector: str, kind: object, fix: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        matrix.select([selector])
    assert caught.value.kind is kind
    assert fix in (caught.value.fix or "")


def test_all_bad_selectors_come_at_once(matrix: Matrix, problems_of: Callable[[Callable[[], object]], list[EnginefarmError]]) -> None:
    problems = problems_of(lambda: matrix.select(["cpu", "nope", "q*", "label:zzz"]))
    assert [problem.kind for problem in problems] == [TARGET_UNKNOWN, EMPTY_SELECTION, EMPTY_SELECTION]


def test_at_most_five_suggestions(project: Any) -> None:
    for number in range(9):
        project.write(f"name: node-{number}\ntag: node-{number}\nextends: ada-cu12\n", f"node-{number}.yaml")
    with pytest.raises(EnginefarmError) as caught:
        project.load().select(["node"])
    assert (caught.value.fix or "").count(" or ") == 4


def count_or_kind(call: Callable[[], list[Any]]) -> int | Kind:
    """How many were found, or the kind of the error."""
    try:
        return len(call())
    except EnginefarmError as error:
        return error.kind


@pytest.mark.parametrize("glob", ["{a,b}" * 12, "{" * 50 + "a,b" + "}" * 50, "{,,,}" * 40])
def test_brace_bombs_are_refused_or_small(glob: str) -> None:
    assert count_or_kind(lambda: expand_braces(glob)) in (*range(1, 1001), EMPTY_SELECTION)


def test_commas_in_brackets_and_braces_do_not_split() -> None:
    assert split_commas(" a,{b,c}d ,[,x],") == ["a", "{b,c}d", "[,x]"]


@given(st.text(max_size=30))
def test_any_selector_selects_or_is_refused(matrix: Matrix, text: str) -> None:
    assert count_or_kind(lambda: matrix.select([text])) in (*range(1, len(matrix.targets) + 1), TARGET_UNKNOWN, EMPTY_SELECTION)


def test_numbers_in_names_compare_as_numbers() -> None:
    assert sorted(["cu12", "cu9", "cu102", "a10", "a2"], key=natural) == ["a2", "a10", "cu9", "cu12", "cu102"]


def test_names_that_differ_in_more_than_numbers_are_in_the_order_of_plain_text() -> None:
    names = ["ada", "ampere", "ampere-cu12", "ampere-cu122", "ampere86-cu9", "ampere86-cu12", "ampere_x", "amperex", "x-1", "x.1", "x1"]
    assert sorted(set(names), key=natural) == names


@given(st.lists(st.from_regex(r"[a-z0-9]{1,4}([._-][a-z]{1,3})?", fullmatch=True)))
def test_without_numbers_of_several_digits_the_order_is_that_of_plain_text(names: list[str]) -> None:
    plain = [re.sub("[0-9]+", lambda match: match.group()[0], name) for name in names]
    assert sorted(plain, key=natural) == sorted(plain)
