"""Exit codes of a grid of engines and hosts, and its views."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Exit
from orchestrator.report.compat import compat_html, compat_lines
from orchestrator.verdict.compat import (
    COMPAT_SCHEMA,
    HostSubject,
    Pair,
    Trial,
    agreement,
    as_json,
    exit_code,
    grid,
)
from orchestrator.verdict.compat_subjects import engines_from, host_of_target

from .compat_release import AMPERE, HOST, TARGETS, record, write_release

# --- exit codes ---


def pair(verdict: str, outcome: str | None = None) -> Pair:
    trial = Trial(outcome, "", agreement(verdict, outcome)) if outcome else None
    return Pair("e", "h", {"verdict": verdict, "reason": "", "rules": [], "gpu": None}, trial)


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([pair("loads"), pair("loads-with-warning")], Exit.OK),
        ([pair("loads"), pair("unknown")], Exit.NO_RUNNER),
        ([pair("unknown"), pair("does-not-load")], Exit.FAILED),
        ([pair("unknown", "loads")], Exit.OK),
        ([pair("unknown", "refused")], Exit.FAILED),
        ([pair("unknown", "not tried")], Exit.NO_RUNNER),
        ([pair("loads", "loads slower")], Exit.OK),
        ([pair("loads", "crashes under load")], Exit.FAILED),
        ([pair("does-not-load", "loads")], Exit.FAILED),
        ([pair("does-not-load", "refused")], Exit.FAILED),
    ],
)
def test_unknown_is_not_green_and_a_wrong_prediction_fails(pairs: list[Pair], code: Exit) -> None:
    assert exit_code(pairs) == code


@pytest.mark.parametrize(
    ("verdict", "outcome", "agrees"),
    [
        ("loads", "loads", True),
        ("loads-with-warning", "loads slower", True),
        ("loads", "refused", False),
        ("does-not-load", "crashes at load", True),
        ("does-not-load", "loads", False),
        ("unknown", "loads", None),
        ("loads", "not tried", None),
    ],
)
def test_a_trial_agrees_with_the_prediction_or_not(verdict: str, outcome: str, agrees: bool | None) -> None:
    assert agreement(verdict, outcome) is agrees


def lines(found: Any, width: int | None = 140) -> str:
    return "\n".join(line for line, _ in compat_lines(found, width))


# --- views ---


def small_grid(tmp_path: Path, trials: dict[tuple[str, str], Trial] | None = None, host: str = "a100") -> Any:
    engines = engines_from([write_release(tmp_path, (record("ampere", "lane_v3_ampere.engine", b"ftrt", **AMPERE), b"ftrt"))], ())
    (tmp_path / "lane_v3_ampere.engine").unlink()
    engines = engines_from([tmp_path / "lane_v3.json"], ())
    return grid(engines, [HostSubject(host, "file", (HOST,)), host_of_target(TARGETS["cpu"])], trials)


def test_the_table_has_a_row_per_engine_and_the_reasons_below(tmp_path: Path) -> None:
    text = lines(small_grid(tmp_path))

    assert re.search(r"^ENGINE +a100 +cpu$", text, re.MULTILINE)
    assert re.search(r"^lane_v3_ampere.engine +loads +no$", text, re.MULTILINE)
    assert "lane_v3_ampere.engine on cpu: no, no NVIDIA GPU here" in text
    assert text.endswith("6 pairs: 2 load, 0 with a warning, 0 unknown, 4 do not load")


def test_a_grid_that_is_too_wide_becomes_lists(tmp_path: Path) -> None:
    found = small_grid(tmp_path)

    text = lines(found, 40)
    assert "ENGINE" not in text
    assert re.search(r"^lane_v3_ampere.engine\n  loads +a100\n  no +cpu$", text, re.MULTILINE)


def test_one_pair_is_shown_in_full(tmp_path: Path) -> None:
    found = small_grid(tmp_path)
    one = grid(found.engines[2:], found.hosts[1:])

    text = lines(one)
    assert text.startswith("lane_v3_ampere.engine on cpu: does-not-load\n  no NVIDIA GPU here")
    assert "fix: run it where such a GPU is" in text
    assert "docs/facts/engine_rules.yaml" in text


def test_disagreements_come_first_everywhere(tmp_path: Path) -> None:
    wrong = Trial("refused", "Version tag does not match", False)
    found = small_grid(tmp_path, {("lane_v3_ampere.engine", "a100"): wrong})

    assert lines(found).splitlines()[1].startswith("WRONG  lane_v3_ampere.engine on a100: predicted loads")
    answer = as_json(found)
    assert answer["pairs"][0]["trial"]["outcome"] == "refused"
    assert answer["disagreements"] == 1
    assert compat_html(found).index("The rules were wrong") < compat_html(found).index("<table>")


def test_the_json_holds_every_pair_with_its_rules(tmp_path: Path) -> None:
    answer = as_json(small_grid(tmp_path))

    assert answer["schema"] == COMPAT_SCHEMA
    assert answer["counts"] == {"loads": 2, "loads-with-warning": 0, "unknown": 0, "does-not-load": 4}
    assert len(answer["pairs"]) == 6
    assert all(pair["rules"] for pair in answer["pairs"])
    assert json.loads(json.dumps(answer)) == answer


class Links(HTMLParser):
    """Collects tags, and every attribute that would fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href") and not str(value).startswith("#")]


def test_the_html_is_one_file_that_fetches_and_runs_nothing(tmp_path: Path) -> None:
    hostile = '<script>alert(1)</script>"\x1b'
    text = compat_html(small_grid(tmp_path, host=hostile))

    page = Links()
    page.feed(text)
    assert page.fetched == []
    assert not {"script", "link", "img", "iframe"} & page.tags
    assert "<script>" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    assert text.count("<details") == 6
