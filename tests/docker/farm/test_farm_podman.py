"""Podman's compatible socket as a runner of whole builds: images by digest from a mirror, a lease, fresh validation."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.podman]
TARGET = "ampere-cu122"


@pytest.fixture
def podman(load_script: Callable[[str], Any], pusher: Any) -> Iterator[Any]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("podman", "catatonit"))):
        pytest.skip("needs root, podman and catatonit")
    engine = load_script("tests/docker/podman.py").LocalPodman("podman", insecure=(pusher.server.host,))
    try:
        yield engine.start()
    finally:
        engine.stop()


def test_a_build_goes_its_whole_way_on_podman(lane: Any, podman: Any) -> None:
    lane.runner("podman", podman, has="8.0")
    locked = lane.run("targets", "lock", TARGET)
    assert locked.code == 0, locked.said
    done = lane.build("--locked", targets=(TARGET,))
    assert done.code == 0, done.said
    assert done.builds[TARGET]["status"] == "passed"
    assert lane.record(TARGET)["image_digest"] in (lane.folder / "targets/targets.lock").read_text()
    lane.whole(TARGET)
    again = lane.build("--locked", "--offline", "--force", targets=(TARGET,))
    assert again.code == 0, again.said
    assert not any(event.get("phase", "").startswith("pulling") for event in again.events)
    assert podman.containers() == []
    cleaned = lane.run("runners", "clean", "--images", "--volumes", "--json")
    assert cleaned.code == 0, cleaned.said
    client = podman.client()
    try:
        assert client.api.images() == []
        assert client.api.volumes()["Volumes"] == []
    finally:
        client.close()
    assert json.loads(cleaned.out)["runners"][0]["removed"]["images"]


def test_a_tag_or_digest_that_is_not_there_is_told_by_podman(lane: Any, podman: Any, pusher: Any) -> None:
    lane.runner("podman", podman, has="8.0")
    pusher.push("nvidia/tensorrt:gone", [pusher.layers.double()], {"TRT_VERSION": "8.6.1.6", "CUDA_VERSION": "12.2.1"})
    lane.target("gone", extends=TARGET, image="nvcr.io/nvidia/tensorrt:gone")
    assert lane.run("targets", "lock", "gone").code == 0
    lock = lane.folder / "targets/targets.lock"
    (digest,) = {line.split()[-1] for line in lock.read_text().splitlines() if line.strip().startswith("digest:")}
    lock.write_text(lock.read_text().replace(digest, "sha256:" + "ab" * 32))
    absent = lane.build("--locked", targets=("gone",))
    assert (absent.code, absent.builds["gone"]["problem"]["code"]) == (2, "EF410"), absent.said
    lock.write_text(lock.read_text().replace("sha256:" + "ab" * 32, digest))
    down = lane.build("--locked", "--mirror", "nvcr.io/=127.0.0.1:9/", targets=("gone",))
    assert (down.code, down.builds["gone"]["problem"]["code"]) == (4, "EF415"), down.said
