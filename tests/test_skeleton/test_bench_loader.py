"""The committed figures of what the loader costs: they follow from the raw values, and they keep the limits that docs/loader.md names."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "bench/results/loader").glob("*.json"))


def sides(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every set of raw values."""
    both = [case[side] for case in result["cases"] for side in ("bare", "loader")]
    return [found[clock] for found in (*result["import"], *both) for clock in ("wall", "cpu")]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_figures_follow_from_their_raw_values(path: Path) -> None:
    result = json.loads(path.read_text())

    assert result["schema"] == "enginefarm.bench-loader/1"
    for found in sides(result):
        assert len(found["raw_ms"]) >= 20
        assert found["least_ms"] == min(found["raw_ms"])
        assert found["median_ms"] == pytest.approx(statistics.median(found["raw_ms"]), abs=0.002)
    for case in result["cases"]:
        for clock in ("wall", "cpu"):
            for figure in ("least_ms", "median_ms"):
                added = case["added"][f"{clock}_{figure}"]["added_ms"]
                assert added == pytest.approx(case["loader"][clock][figure] - case["bare"][clock][figure], abs=0.002)
    assert set(result["load_average"]) == {"before", "after"}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_the_limits_of_the_documentation_are_kept(path: Path) -> None:
    result = json.loads(path.read_text())
    text = (ROOT / "docs" / "loader.md").read_text()

    assert f"{result['limits']['import_ms']} ms for the import and {result['limits']['added_ms']} ms" in " ".join(text.split())
    assert result["within"] == {"import_ms": True, "added_ms": True}
    assert {found["python"].rsplit(".", 1)[0] for found in result["import"]} >= {"3.6", "3.8", "3.10", "3.13"}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_name_no_place_of_the_machine(path: Path) -> None:
    assert re.findall(r'"/[^"]*"|/home/|/root/|/tmp/', path.read_text()) == []


def test_there_is_a_result() -> None:
    assert RESULTS
