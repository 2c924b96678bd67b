"""Runs beside each other and after each other on one engine: leases, kill -9, what is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runners import lease

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


def test_a_killed_run_resumes_with_what_was_not_finished(lane: Any, farm_engines: Engines, save_model: Save) -> None:
    engine = farm_engines("first")
    save_model(lane.folder / "done.onnx")
    save_model(lane.folder / "open.onnx", seconds=4)
    lane.runner("rack", engine, has="8.0")
    words = ("build", "done.onnx", "open.onnx", "--target", TARGET, "--jobs", "1", "--json", "--progress", "json")
    run = lane.start(*words)
    run.wait_for(lambda events: any(event.get("phase") == "building" and event["model"] == "open" for event in events))
    run.process.kill()
    run.process.wait()
    kept = lane.record(TARGET, "done")
    assert not [name for name in lane.files() if name.startswith("open/")]
    again = lane.run(*words)
    assert again.code == 0, again.said
    builds = {model["name"]: model["builds"][0] for model in json.loads(again.out)["models"]}
    assert (builds["done"]["cached"], builds["open"]["cached"]) == (True, False)
    assert lane.record(TARGET, "done") == kept
    assert lane.record(TARGET, "open")["verdict"]["status"] == "passed"
    assert {event["model"] for event in again.events if event["event"] == "step-started"} == {"open"}
    # of the killed run its log stays, its working files do not
    assert not list(lane.folder.glob(".enginefarm/runs/*/work"))
    assert engine.containers() == []


def test_a_lease_of_a_dead_run_elsewhere_is_waited_for_and_then_taken(lane: Any, farm_engines: Engines) -> None:
    """Whether a process of another machine lives nobody here knows: its lease counts until it runs out."""
    engine = farm_engines("first")
    lane.runner("rack", engine, has="8.0")
    assert lane.build(targets=(TARGET,)).code == 0  # the engine has the image now
    client = engine.client()
    try:
        gpu = "declared-rack-0"
        owner = json.dumps({"boot": "another", "host": "far", "ns": "n", "pid": 1, "start": "1"})
        labels = {"enginefarm.kind": "lease", "enginefarm.owner": owner, "enginefarm.gpu": gpu, "enginefarm.ttl": "60"}
        image = client.api.images()[0]["Id"]
        far = client.api.create_container(image, ["x"], entrypoint=[], labels=labels, name=lease.lease_name(gpu))["Id"]
        run = lane.start_build("--force", targets=(TARGET,))
        run.wait_for(lambda events: any("held by process 1 on far" in event.get("phase", "") for event in events))
        shown = lane.run("runners")
        assert "held by process 1 on far" in shown.out
        client.api.put_archive(far, "/", lease._note(0.0))  # its time is up: nobody renewed it
        assert run.end().code == 0, run.said
        assert run.builds[TARGET]["status"] == "passed"
        assert engine.containers() == []
    finally:
        client.close()
