from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.portable.facts import version

VERSIONS = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("8.5.3.1+cuda11.8", (8, 5, 3, 1)),
        ("8.5.3.1+cuda11.8.0.065", (8, 5, 3, 1)),
        ("8.4.0 EA", (8, 4, 0)),
        ("535.104.05", (535, 104, 5)),
        ("8.10", (8, 10)),
        ("r32.7.1", (32, 7, 1)),
        ("v7.1.3", (7, 1, 3)),
        ("6.1 rev.1", (6, 1)),
        ("38.2.x", (38, 2)),
        ("11.7.1-preview", (11, 7, 1)),
        ("10", (10,)),
    ],
)
def test_the_leading_number_is_read(text: str, parts: tuple[int, ...]) -> None:
    assert version.parse(text) == parts


@pytest.mark.parametrize("text", ["", "latest", "x8.6", "+8"])
def test_a_text_without_a_leading_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a version number"):
        version.parse(text)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("10.11.0.33", "10.11.0", True),
        ("8.6.1", "8.6.1.6", True),
        ("8.6.1.6", "8.6.1.2", False),
        ("8.10", "8.1", False),
        ("1.7", "1.7.1.116", True),
        ("10.3.0.26+cuda12", "10.3", True),
    ],
)
def test_versions_match_to_the_precision_both_give(a: str, b: str, same: bool) -> None:
    assert version.matches(a, b) is same
    assert version.matches(b, a) is same


def test_compare_is_numeric() -> None:
    assert [version.compare(a, b) for a, b in (("535.86.10", "535.104.05"), ("450.80.02", "450"), ("10.2", "9.9"))] == [-1, 0, 1]


@pytest.mark.parametrize(
    ("given", "spec", "fulfilled"),
    [
        ("4.6.1", ">=4.6.1", True),
        ("4.6.6", ">=4.6.1", True),
        ("4.6", ">=4.6.1", False),
        ("5.1.2", ">=4.6.1,<5", False),
        ("6.1 rev.1", "==6.1", True),
        ("6.2", "==6.1", False),
        ("4.6.1", "4.6.1", True),
        ("4.6.2", "4.6.1", False),
        ("6.2.1", ">=6.1,<7", True),
        ("7.0", ">=6.1, <7", False),
        ("6.2.1", "<=6.2", True),
        ("6.2.1", ">6.2", False),
        ("6.3", ">6.2", True),
        ("6.1", "!=6.1", False),
        ("5.0 DP", ">=5.0", True),
    ],
)
def test_conditions(given: str, spec: str, fulfilled: bool) -> None:
    assert version.satisfies(given, spec) is fulfilled


@pytest.mark.parametrize("spec", ["", ">=", "~=4.6", "newest", ">=4.6.1,", "=>4.6"])
def test_a_condition_that_cannot_be_read_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="not a version condition"):
        version.satisfies("4.6.1", spec)


@given(VERSIONS, VERSIONS)
def test_exactly_one_of_less_equal_greater_holds(a: str, b: str) -> None:
    assert version.compare(a, b) == -version.compare(b, a)
    assert version.matches(a, b) is (version.compare(a, b) == 0)
    assert version.satisfies(a, f">={b}") is not version.satisfies(a, f"<{b}")
    assert version.satisfies(a, f"<={b}") is not version.satisfies(a, f">{b}")
