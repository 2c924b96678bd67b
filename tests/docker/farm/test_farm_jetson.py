"""The Jetson target. No arm64 engine is here: a front before a real engine says that it is one, and its images say so too.

What runs in them is this machine's own code with the double of TensorRT 8.2 (by binding numbers), under a runtime that is called nvidia.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.engine
TARGET = "jetson-cu102"
DEVICE = {"gpu": {"mode": "runtime"}, "overrides": {"jetson": {"l4t": "32.7.1", "jetpack": "4.6.1"}}}


@pytest.fixture
def jetson(engines: Callable[..., Any], load_script: Callable[[str], Any]) -> Iterator[Any]:
    engine = engines("jetson", flags=("--add-runtime", "nvidia=runc"))
    front = load_script("tests/docker/farm/front.py").ArmFront(engine.url, engine.folder)
    yield front
    front.close()
    engine.stop()


def test_a_jetson_goes_its_whole_way(lane: Any, jetson: Any) -> None:
    lane.runner("xavier", jetson, has="7.2", **DEVICE)
    locked = lane.run("targets", "lock", TARGET)
    assert locked.code == 0, locked.said
    done = lane.build("--locked", targets=(TARGET,))
    assert done.code == 0, done.said
    record = lane.record(TARGET)
    assert record["verdict"]["status"] == "passed"
    assert record["built_on"]["platform"] == "linux/arm64"
    assert record["built_on"]["jetson"]["jetpack"] == "4.6.1"
    assert record["built_on"]["declared"] == ["gpus", "jetson"]
    assert record["backend_version"] == "8.2.1.8"


def test_an_amd64_engine_never_builds_for_a_jetson(lane: Any, farm_engines: Callable[[str], Any]) -> None:
    lane.runner("rack", farm_engines("first"), has="7.2", overrides=DEVICE["overrides"])
    done = lane.build(targets=(TARGET,))
    assert done.code == 3, done.said
    assert "an engine for a Jetson builds on the Jetson" in done.out
