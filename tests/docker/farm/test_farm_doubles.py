"""TensorRT targets their whole way in containers, with a named double of TensorRT on GPUs that are only declared (docs/status.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.engine
Engines = Callable[[str], Any]
TARGETS = ("ampere-cu122", "turing-cu118")


def test_ampere_and_turing_go_their_whole_way(lane: Any, farm_engines: Engines) -> None:
    engine = farm_engines("first")
    lane.runner("a100", engine, has="8.0").runner("t4", engine, has="7.5")
    locked = lane.run("targets", "lock", *TARGETS)
    assert locked.code == 0, locked.said
    done = lane.build("--locked", targets=TARGETS)
    assert done.code == 0, done.said
    assert {name: build["status"] for name, build in done.builds.items()} == dict.fromkeys(TARGETS, "passed")
    pinned = {entry["reference"]: entry for entry in yaml.safe_load((lane.folder / "targets/targets.lock").read_text())["images"]}
    for target, version, runner in (("ampere-cu122", "8.6.1.6", "a100"), ("turing-cu118", "8.5.1.7", "t4")):
        record = lane.record(target)
        assert record["image_digest"] == pinned[record["image"]]["digest"]
        assert record["backend_version"] == version == pinned[record["image"]]["tensorrt"]
        assert record["built_on"]["declared"] == ["gpus", "driver"]
        assert record["verdict"]["reference"] == "onnx.reference"
        assert done.runners(target) == done.runners(target, "validate") == [runner]
        plan = (lane.folder / "artifacts/net/v1" / record["file"]).read_bytes()
        assert plan[:4] == b"ftrt"
        assert b"no TensorRT made this" in plan[:80]
    # two targets, four steps, two images: each was pulled once
    phases = [event["phase"] for event in done.events if event["event"] == "step-phase" and event["phase"].startswith("pulling")]
    assert phases
    again = lane.build("--locked", "--force", targets=TARGETS)
    assert again.code == 0, again.said
    assert not [event for event in again.events if event["event"] == "step-phase" and event["phase"].startswith("pulling")]
    assert engine.containers() == []


def test_an_engine_goes_only_to_the_gpu_it_is_for(lane: Any, farm_engines: Engines) -> None:
    lane.runner("t4", farm_engines("first"), has="7.5")
    done = lane.build(targets=("ampere-cu122",))
    assert done.code == 3
    assert done.builds["ampere-cu122"]["status"] == "skipped"
    assert "the GPU here is Tesla T4 (7.5)" in done.out
    assert lane.files() <= {"net/v1/net_v1.json", "net/latest.json"}
