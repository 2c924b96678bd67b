"""Several engines in one run: spread by capability, and a power cut (the engine's processes are killed) in the middle of a build."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
Engines = Callable[[str], Any]
Save = Callable[..., Path]


def test_builds_go_to_the_engine_whose_gpu_fits(lane: Any, farm_engines: Engines) -> None:
    lane.runner("turing", farm_engines("second"), has="7.5").runner("ampere", farm_engines("first"), has="8.0")
    done = lane.build(targets=("ampere-cu122", "turing-cu118"))
    assert done.code == 0, done.said
    for step in ("build", "validate"):
        assert done.runners("ampere-cu122", step) == ["ampere"]
        assert done.runners("turing-cu118", step) == ["turing"]
    assert farm_engines("first").containers() == farm_engines("second").containers() == []


def test_a_power_cut_in_a_build_ends_on_another_engine(lane: Any, farm_engines: Engines, save_model: Save) -> None:
    first, second = farm_engines("first"), farm_engines("second")
    save_model(lane.folder / "net.onnx", seconds=3)
    lane.runner("one", first, has="8.0").runner("two", second, has="8.0")
    run = lane.start_build(targets=("ampere-cu122",))
    run.building("ampere-cu122")
    first.cut_power()
    assert run.end().code == 0, run.said
    assert run.runners("ampere-cu122") == ["one", "two"]
    assert run.builds["ampere-cu122"]["status"] == "passed"
    (told,) = [event["text"] for event in run.events if event["event"] == "note" and event["level"] == "warning"]
    assert "runner one" in told
    assert run.runners("ampere-cu122", "validate") == ["two"]
    lane.whole("ampere-cu122")
    # the engine comes back with the dead container, which whoever meets it next removes
    first = farm_engines("first")
    assert first.containers()
    assert lane.run("runners", "clean").code == 0
    assert first.containers() == second.containers() == []


def test_a_power_cut_in_a_pull_ends_on_another_engine(lane: Any, farm_engines: Engines, engines: Callable[..., Any]) -> None:
    fresh = engines("fresh")  # it has no image yet
    lane.runner("one", fresh, has="8.0").runner("two", farm_engines("second"), has="8.0")
    run = lane.start_build(targets=("ampere-cu122",))
    run.wait_for(lambda events: any(event.get("phase", "").startswith("pulling") for event in events))
    fresh.cut_power()
    assert run.end().code == 0, run.said
    assert run.runners("ampere-cu122") == ["one", "two"]
    lane.whole("ampere-cu122")
    fresh.stop()


def test_a_power_cut_of_the_only_engine_is_exit_4_and_leaves_what_was_there(lane: Any, farm_engines: Engines, save_model: Save) -> None:
    first = farm_engines("first")
    lane.runner("one", first, has="8.0")
    assert lane.build(targets=("ampere-cu122",)).code == 0
    before = lane.record("ampere-cu122")
    save_model(lane.folder / "net.onnx", seconds=30)
    run = lane.start_build("--model-version", "2", targets=("ampere-cu122",))
    run.building("ampere-cu122")
    first.cut_power()
    assert run.end().code == 4, run.said
    assert run.builds["ampere-cu122"]["status"] == "failed"
    assert run.builds["ampere-cu122"]["problem"]["code"] in ("EF420", "EF422")
    assert lane.record("ampere-cu122") == before
    assert not [name for name in lane.files() if name.startswith("net/v2/") and name.endswith(".engine")]
    assert json.loads((lane.folder / "artifacts/net/latest.json").read_bytes())["version"] == 1


def test_an_engine_that_fails_twice_is_set_aside(lane: Any, farm_engines: Engines, save_model: Save) -> None:
    first = farm_engines("first")
    save_model(lane.folder / "net.onnx", seconds=4)
    lane.runner("one", first, has="8.0", slots=4).runner("two", farm_engines("second"), has="8.0", slots=1)
    names = ("ampere-cu122", "b", "c")
    for level, name in enumerate(names[1:]):
        lane.target(name, extends="ampere-cu122", optimization_level=level)  # engines of their own: equal ones are built once
    run = lane.start_build("--jobs", "3", targets=names)
    run.wait_for(lambda events: sum(event["event"] == "step-started" for event in events) == len(names))
    on_one = [name for name in names if run.runners(name) == ["one"]]
    # whichever of the two has the GPU's lease first
    run.wait_for(lambda events: any(event.get("phase") == "building" and event["target"] in on_one for event in events))
    first.cut_power()
    assert run.end().code == 0, run.said
    assert {build["status"] for build in run.builds.values()} == {"passed"}
    assert "it is set aside for this run" in run.said
    assert len(on_one) >= 2, "it takes two to fail twice"
    assert [run.runners(name) for name in on_one] == [["one", "two"]] * len(on_one)
    assert all(run.runners(name, "validate") == ["two"] for name in names)


def test_a_power_cut_while_the_engine_comes_back_ends_on_another_engine(lane: Any, farm_engines: Engines, save_model: Save) -> None:
    first, second = farm_engines("first"), farm_engines("second")
    save_model(lane.folder / "net.onnx", asks="pad 300;")
    lane.runner("one", first, has="8.0").runner("two", second, has="8.0")
    run = lane.start_build(targets=("ampere-cu122",))
    run.wait_for(lambda events: any(event.get("phase") == "bringing back" for event in events))
    first.cut_power()
    assert run.end().code == 0, run.said
    assert run.runners("ampere-cu122") == ["one", "two"]
    assert lane.record("ampere-cu122")["size_bytes"] > 300 << 20
    lane.whole("ampere-cu122")
    assert farm_engines("first").containers()
    assert lane.run("runners", "clean").code == 0
    assert first.containers() == second.containers() == []


def test_a_power_cut_of_the_only_engine_while_the_engine_comes_back_leaves_nothing(
    lane: Any, farm_engines: Engines, save_model: Save
) -> None:
    first = farm_engines("first")
    save_model(lane.folder / "net.onnx", asks="pad 300;")
    lane.runner("one", first, has="8.0")
    run = lane.start_build(targets=("ampere-cu122",))
    run.wait_for(lambda events: any(event.get("phase") == "bringing back" for event in events))
    first.cut_power()
    assert run.end().code == 4, run.said
    assert run.builds["ampere-cu122"]["status"] == "failed"
    assert run.builds["ampere-cu122"]["problem"]["code"] in ("EF420", "EF422")
    assert not [path for path in lane.folder.rglob("*") if path.is_file() and path.stat().st_size > 100 << 20]


def test_a_frozen_engine_in_a_build_ends_on_another_engine(lane: Any, farm_engines: Engines, save_model: Save) -> None:
    first, second = farm_engines("first"), farm_engines("second")
    save_model(lane.folder / "net.onnx", seconds=3)
    lane.runner("one", first, has="8.0").runner("two", second, has="8.0")
    run = lane.start_build(targets=("ampere-cu122",))
    run.building("ampere-cu122")
    first.freeze()
    try:
        assert run.end().code == 0, run.said
    finally:
        first.thaw()
    assert run.runners("ampere-cu122") == ["one", "two"]
    lane.whole("ampere-cu122")
    assert lane.run("runners", "clean").code == 0
    assert first.containers() == second.containers() == []
