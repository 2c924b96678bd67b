from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.portable.facts import capability


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("8.6", "8.6"),
        (" 8.6 ", "8.6"),
        ("86", "8.6"),
        (86, "8.6"),
        (8.6, "8.6"),
        ("sm_86", "8.6"),
        ("SM86", "8.6"),
        ("sm-86", "8.6"),
        ("compute_86", "8.6"),
        ("sm_90a", "9.0"),
        ("sm_100f", "10.0"),
        ("120", "12.0"),
        ("121", "12.1"),
        (120, "12.0"),
        (12.0, "12.0"),
        ("Turing", "7.5"),
        ("hopper", "9.0"),
        ("Ada", "8.9"),
        ("Ada Lovelace", "8.9"),
        ("ada_lovelace", "8.9"),
        ("NVIDIA Turing", "7.5"),
        ("Orin", "8.7"),
        ("Xavier", "7.2"),
        ("Jetson Nano", "5.3"),
        ("13.0", "13.0"),  # newer than the facts: taken as it is
    ],
)
def test_unambiguous_spellings_are_normalised(written: str | int | float, meant: str) -> None:
    assert capability.parse(written) == meant


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("Ampere", ["8.0", "8.6", "8.7"]),
        ("Volta", ["7.0", "7.2"]),
        ("Pascal", ["6.0", "6.1", "6.2"]),
        ("Blackwell", ["10.0", "10.3", "11.0", "12.0", "12.1"]),
        ("8", ["8.0", "8.6", "8.7", "8.9"]),
        (8, ["8.0", "8.6", "8.7", "8.9"]),
        ("12", ["12.0", "12.1"]),
        ("8.4", ["8.0", "8.6", "8.7", "8.9"]),
        ("8.10", ["8.0", "8.6", "8.7", "8.9"]),
        ("sm_84", ["8.0", "8.6", "8.7", "8.9"]),
        ("7.50", ["7.5"]),
    ],
)
def test_ambiguous_spellings_name_every_candidate(written: str | int, named: list[str]) -> None:
    with pytest.raises(ValueError) as refused:
        capability.parse(written)
    assert all(name in str(refused.value) for name in named)


def test_renamed_capability_is_no_candidate_of_its_family_but_can_be_written() -> None:
    with pytest.raises(ValueError) as refused:
        capability.parse("blackwell")
    assert "10.1" not in str(refused.value)
    assert capability.parse("10.1") == "10.1"


@pytest.mark.parametrize(
    ("written", "candidates"),
    [
        ("8.60", ("8.6",)),
        ("8_6", ("8.6",)),
        ("086", ("8.6",)),
        ("12:0", ("12.0",)),
        ("12.10", ("12.1",)),
        ("8.10", ("8.0", "8.6", "8.7", "8.9")),
        ("3.10", ("3.5", "3.7")),
        ("4.10", ()),
        ("99.10", ()),
        ("0x86", ()),
        ("8", ()),
        ("fast", ()),
    ],
)
def test_a_misspelt_number_has_its_candidates(written: str, candidates: tuple[str, ...]) -> None:
    assert capability.candidates(written) == candidates


def test_underscore_is_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match=r'YAML reads it as 86\); write "8\.6"'):
        capability.parse("8_6")


@pytest.mark.parametrize(("written", "hint"), [("turin", '"Turing"'), ("amper", '"Ampere"'), ("hoper", '"Hopper"'), ("xaver", '"Xavier"')])
def test_a_near_miss_gets_a_suggestion(written: str, hint: str) -> None:
    with pytest.raises(ValueError, match="did you mean") as refused:
        capability.parse(written)
    assert hint in str(refused.value)


@pytest.mark.parametrize("written", ["", "fast", "-8.6", True, None, "8.6.1", "8,6"])
def test_nonsense_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match=r"8\.6"):
        capability.parse(written)  # type: ignore[arg-type]


@given(st.one_of(st.text(max_size=20), st.integers(), st.floats()))
def test_any_input_is_a_capability_or_a_value_error(written: str | int | float) -> None:
    try:
        found = capability.parse(written)
    except ValueError:
        return
    assert capability.parse(found) == found
    assert capability.key(found) >= (3, 5)


@given(st.sampled_from(capability.known()))
def test_every_known_capability_survives_its_common_spellings(name: str) -> None:
    compact = name.replace(".", "")
    assert {capability.parse(written) for written in (name, compact, int(compact), float(name), f"sm_{compact}", f"SM{compact}")} == {name}


def test_capabilities_are_ordered_by_number_not_by_text() -> None:
    assert sorted(["12.0", "8.6", "10.0", "9.0"], key=capability.key) == ["8.6", "9.0", "10.0", "12.0"]
    with pytest.raises(ValueError, match="not a compute capability"):
        capability.key("sm_86")


def test_families_and_jetsons() -> None:
    assert [capability.family(name) for name in ("7.0", "7.5", "8.7", "8.9", "9.0", "12.1", "99.0")] == [
        "Volta",
        "Turing",
        "Ampere",
        "Ada Lovelace",
        "Hopper",
        "Blackwell",
        "unknown",
    ]
    jetsons = [name for name in capability.known() if capability.is_jetson(name) and name != "10.1"]
    assert jetsons == ["5.3", "6.2", "7.2", "8.7", "11.0"]
