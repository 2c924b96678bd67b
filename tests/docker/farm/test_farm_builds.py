"""Whole builds in containers through the command: images by digest from a mirror, fresh validation, reuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine
Engines = Callable[[str], Any]


@pytest.mark.rtx
def test_rtx_and_cpu_build_in_containers_of_images_locked_by_digest(lane: Any, farm_engines: Engines, pusher: Any) -> None:
    digest = pusher.push_rtx()
    image = "nvcr.io/lane/tensorrt-rtx:1"
    lane.runner("here", farm_engines("first"))
    lane.target("rtx", extends="rtx-ada", image=image).target("plain", extends="cpu", image=image, platform="linux/amd64")
    locked = lane.run("targets", "lock", "rtx", "plain")
    assert locked.code == 0, locked.said
    done = lane.build("--locked", "--allow-unvalidated", targets=("rtx", "plain"))
    assert done.code == 0, done.said
    assert {name: build["status"] for name, build in done.builds.items()} == {"rtx": "unvalidated", "plain": "passed"}
    for target in ("rtx", "plain"):
        record = lane.record(target)
        assert record["image"] == image
        assert record["image_digest"] == digest
        assert record["built_on"]["platform"] == "linux/amd64"
    assert lane.record("plain")["verdict"]["reference"] == "onnx.reference"
    again = lane.build("--locked", "--offline", "--allow-unvalidated", targets=("rtx", "plain"))
    assert all(build["cached"] for build in again.builds.values())
    assert farm_engines("first").containers() == []
