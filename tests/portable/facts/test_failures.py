"""The catalogue of failures is sound: every entry can be found, read, and refers to what exists."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.portable.facts.explain_match import Index, matches, words_of
from orchestrator.portable.facts.explain_sieve import Sieve
from orchestrator.portable.facts.failures import ROLES, SURE, Pattern, catalogue, kind_of, required_texts, telling_word

ROOT = Path(__file__).resolve().parents[3]
TABLE: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "facts" / "failures.yaml").read_text(encoding="utf-8"))
ENTRIES: dict[str, dict[str, Any]] = TABLE["entries"]
PATTERNS = [(code, text) for code, row in ENTRIES.items() for text in row.get("patterns", ())]


def test_codes_are_stable_looking_and_apart_from_the_errors_of_the_farm() -> None:
    from orchestrator import errors

    own = {kind.code for kind in vars(errors).values() if isinstance(kind, errors.Kind)}
    assert all(re.fullmatch(r"EF[89]\d\d", code) for code in ENTRIES)
    assert own.isdisjoint(ENTRIES)


@pytest.mark.parametrize("code", sorted(ENTRIES))
def test_entry_is_complete_and_refers_to_what_exists(code: str) -> None:
    row = ENTRIES[code]
    known = ENTRIES.keys() | TABLE["kinds"].keys()
    role = row.get("role", "cause")
    assert role in ROLES
    assert row.get("sure", "likely") in SURE
    assert row["patterns"]
    assert {*row.get("causes", ()), *row.get("absorbs", ()), *row.get("or", ()), *row.get("instead", {}).values()} <= known
    assert row.get("instead", {}).keys() <= ENTRIES.keys()
    assert row.get("kind") is None or row["kind"] in TABLE["kinds"]
    if role in ("cause", "warning", "guess"):
        assert row["kind"]
    if role != "context" and role != "success":
        assert row.get("says") or row.get("then"), "nothing to say"


@pytest.mark.parametrize("code", [code for code, row in ENTRIES.items() if row.get("says")])
def test_last_sentence_needs_no_figure_and_others_only_figures_that_patterns_give(code: str) -> None:
    row = ENTRIES[code]
    given_by_patterns = set(re.findall(r"\(\?P<(\w+)>", " ".join(row["patterns"])))
    made = {"device_cc", "cuda_error_name", "first_bytes", "file_kind", "file_is"}
    for sentence in row["says"]:
        assert set(re.findall(r"\{(\w+)\}", sentence)) <= given_by_patterns | made, sentence
    if not all(f"(?P<{name}>" in text for name in re.findall(r"\{(\w+)\}", row["says"][-1]) for text in row["patterns"]):
        pytest.fail(f"the last sentence of {code} needs a figure that a pattern does not give")


def test_every_kind_has_an_entry_that_is_a_cause_or_a_known_warning() -> None:
    found = {row.get("kind") for row in ENTRIES.values() if row.get("role", "cause") in ("cause", "warning", "harmless")}
    assert found - {None} == TABLE["kinds"].keys()


def offending(wrong: str) -> list[tuple[str, str]]:
    return [(code, text) for code, text in PATTERNS if re.search(wrong, text.replace("(?:", "(").replace(r"0\.0\.0", ""))]


def test_patterns_hold_no_version_path_or_line_of_a_case() -> None:
    assert offending(r"\.(?:cpp|cc|go|py)(?::|\\?\(|::)\d") == []
    assert offending(r"(?<![\[{,\dx-])\b\d+\\?\.\d+\\?\.\d+") == []
    assert offending(r"/home/|/tmp/|/Users/") == []


def test_patterns_have_no_nested_repetition() -> None:
    # (a+)+ and the like search for longer than anyone waits; a group that begins with a delimiter is no such thing
    assert offending(r"\((?!\\\.|, )[^()]*[+*]\)[+*{]") == []


def test_required_texts_of_a_pattern() -> None:
    assert required_texts(r"Version tag (?:does|did) not match") == ("version tag ",)
    assert required_texts(r"(?:lost card|dead card)s? here") == ("dead card", "lost card")
    assert required_texts(r"colou?r here") == ("r here",)
    assert required_texts(r"(?!never)abcd\d+def+") == ("abcd",)
    with pytest.raises(ValueError, match="no text with a word"):
        required_texts(r"\d+ (?:\w+)?")


def test_telling_word_is_one_that_logs_of_good_builds_seldom_hold() -> None:
    assert telling_word("engine was built by another tensorrt") == " another "
    assert telling_word("libcudart.so.12") == "libcudart "
    assert telling_word(": not found") == " found"
    assert telling_word("137") == ""


@pytest.mark.parametrize(("code", "text"), PATTERNS)
def test_every_pattern_is_found_by_words(code: str, text: str) -> None:
    assert all(telling_word(anchor) for anchor in Pattern(text).anchors), code


@given(st.text(alphabet="TensorRT expcigvo0.58gBlyCUDA(:)", max_size=200), st.sampled_from(PATTERNS))
def test_no_match_is_lost_by_looking_for_required_texts_first(noise: str, chosen: tuple[str, str]) -> None:
    pattern = Pattern(chosen[1])
    for match in pattern.compiled.finditer(noise):
        assert any(text in match.group().lower() for text in pattern.anchors)


def texts_of_cases() -> list[str]:
    cases = (
        json.loads(line) for path in (ROOT / "tests" / "cases").glob("*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()
    )
    return [" ".join(line.split()) for case in cases for line in case["log"]]


def test_index_finds_what_a_search_for_every_pattern_finds() -> None:
    index = Index(catalogue().entries.values())
    for text in texts_of_cases():
        quick = {entry.code for entry, _ in matches(text, index.candidates(text.lower(), index.hits(words_of(text))))}
        slow = {entry.code for entry in catalogue().entries.values() for pattern in entry.patterns if pattern.compiled.search(text)}
        assert quick == slow, text


def test_sieve_lets_every_line_through_in_which_a_pattern_matches() -> None:
    index = Index(catalogue().entries.values())
    patterns = [pattern.compiled for entry in catalogue().entries.values() for pattern in entry.patterns]
    for text in texts_of_cases():
        if any(pattern.search(text) for pattern in patterns):
            assert not Sieve(index).quiet(text), text
    assert Sieve(index).quiet("[09/26/2026-10:21:07] [I] [TRT] Total Weights Memory: 4431360 bytes")


def test_kind_and_fix_of_a_code() -> None:
    kind, fix = kind_of("EF953")
    assert kind == "disk-full"
    assert "docker system df" in fix
    with pytest.raises(KeyError):
        kind_of("EF000")


def test_troubleshooting_page_is_what_the_catalogue_says() -> None:
    tool = [sys.executable, str(ROOT / "tools" / "generate_troubleshooting.py"), "--check"]
    answer = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert all(f"\n## {kind}\n" in page for kind in TABLE["kinds"])
