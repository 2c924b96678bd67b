"""Runs beside each other and after each other on one engine: leases, kill -9, what is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
Engines = Callable[[str], Any]
Save = Callable[..., Path]
TARGET = "ampere-cu122"


def span(run: Any, start: str, end: str) -> tuple[float, float]:
    """When the GPU was in use between two phases."""
    at = {event["phase"]: event["at"] for event in run.events if event["event"] == "step-phase"}
    return at[start], at[end]


def test_two_runs_take_turns_at_one_gpu(lane: Any, farm_engines: Engines, save_model: Save, tmp_path: Path) -> None:
    engine = farm_engines("first")
    lanes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_model(tmp_path / name / "net.onnx", seconds=2)
        lanes.append(replace(lane, folder=tmp_path / name, runners={}).runner("rack", engine, has="8.0"))
    runs = [one.start_build(targets=(TARGET,)) for one in lanes]
    assert [run.end().code for run in runs] == [0, 0], runs[0].said + runs[1].said
    spans = sorted(span(run, "building", "writing") for run in runs)
    assert spans[0][1] <= spans[1][0]
    assert any("held by process" in event.get("phase", "") for run in runs for event in run.events)
    assert [one.record(TARGET)["verdict"]["status"] for one in lanes] == ["passed", "passed"]
    assert engine.containers() == []


def test_a_killed_run_leaves_nothing_that_the_next_does_not_clear(lane: Any, farm_engines: Engines, save_model: Save) -> None:
    engine = farm_engines("first")
    save_model(lane.folder / "net.onnx", seconds=3)
    lane.runner("rack", engine, has="8.0")
    run = lane.start_build(targets=(TARGET,))
    run.building(TARGET)
    run.process.kill()
    run.process.wait()
    assert len(engine.containers()) == 2  # the step and its lease
    again = lane.build(targets=(TARGET,))
    assert again.code == 0, again.said
    assert not any("held by" in event.get("phase", "") for event in again.events)
    assert engine.containers() == []
    cleaned = lane.run("runners", "clean", "--images", "--volumes", "--json")
    assert cleaned.code == 0, cleaned.said
    (row,) = json.loads(cleaned.out)["runners"]
    assert row["removed"]["images"]
    assert row["removed"]["volumes"]
    client = engine.client()
    try:
        assert client.api.volumes()["Volumes"] in (None, [])
        assert client.api.images() == []
    finally:
        client.close()
