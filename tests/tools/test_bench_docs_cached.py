from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "bench/results").glob("cached_*.json"))
ROW = {"cpu_s": 1.25, "least_cpu_s": 1.0, "wall_s": 1.5, "rss_mb": 45.2, "every": []}


@pytest.fixture
def part(load_script: Callable[[str], ModuleType]) -> Callable[[list[dict[str, Any]]], str]:
    found: Callable[[list[dict[str, Any]]], str] = load_script("tools/bench_docs_cached.py").cached_part
    return found


def result(what: str, **more: Any) -> dict[str, Any]:
    claims = [
        {"claim": "at most", "value": 3.21, "most": 3.5, "least": None, "met": True},
        {"claim": "at least", "value": 0.5, "most": None, "least": 0.85, "met": False},
        {"claim": "none", "value": 0.0, "most": 0, "least": None, "met": True},
    ]
    machine = {"cpu": "some CPU", "cores": 2, "memory_gib": 24, "python": "3.11.7", "versions": {"typer": "0.1"}}
    return {
        "schema": "enginefarm.bench.cached/1",
        "what": what,
        "rounds": 3,
        "machine": machine,
        "load_before": [1.0, 1.0, 1.0],
        "load_after": [2.0, 1.0, 1.0],
        "claims": claims,
        "rows": {"enginefarm build": ROW},
        **more,
    }


def test_without_results_there_is_no_part(part: Callable[[list[dict[str, Any]]], str]) -> None:
    assert part([{"schema": "enginefarm.bench/1"}]) == ""


def test_a_limit_that_was_missed_is_said(part: Callable[[list[dict[str, Any]]], str]) -> None:
    text = part([result("scale")])
    assert "| at most | 3.21 | at most 3.5 | yes |" in text
    assert "| at least | 0.50 | at least 0.85 | **no** |" in text
    assert "| none | 0 | at most 0 | yes |" in text
    assert "| `enginefarm build` | 1.250 | 1.000 | 1.500 | 45 |" in text
    assert "- scale: 3 rounds; some CPU, 2 cores, 24 GiB, Python 3.11.7; typer 0.1; load average 1.0 to 2.0" in text


def test_the_parts_come_in_one_order_and_say_what_was_done(part: Callable[[list[dict[str, Any]]], str]) -> None:
    read = {
        "by": "strace",
        "nothing changed": {},
        "all touched": {"models": 988, "engines": 1659},
        "sizes": {"models": 366, "engines": 1659},
    }
    every = [result("scale"), result("digest", bytes=4_026_533_455), result("run", read=read)]
    every.append(result("builds", models=["a", "b"], builds=8))
    text = part(every)
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [heading.split(",")[0] for heading in headings[:4]] == [
        "A run in which nothing changed",
        "Hashing and planning a large model",
        "Real models",
        "Many models",
    ]
    assert "a model of 4.03 GB" in text
    assert "2 models of `bench/models.yaml` for 4 TensorRT-RTX targets: 8 engines" in text
    assert "read 988 bytes of models (366 in all), 1,659 bytes of engines (1,659 in all)" in text


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_name_no_place_of_the_machine(path: Path) -> None:
    assert re.findall(r'"/[^"]*"|/home/|/root/|/tmp/', path.read_text()) == []


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_figures_follow_from_the_single_runs(path: Path) -> None:
    found = json.loads(path.read_text())
    for row in found["rows"].values():
        assert len(row["every"]) == found["rounds"]
        assert min(run["cpu_s"] for run in row["every"]) == row["least_cpu_s"] <= row["cpu_s"]
    for claim in found["claims"]:
        within = (claim["most"] is None or claim["value"] <= claim["most"]) and (claim["least"] is None or claim["value"] >= claim["least"])
        assert claim["met"] == within
