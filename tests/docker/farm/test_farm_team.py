"""A team's own image, from the command to a build: derived, pushed to the team's registry, locked there, pulled by another engine.

The registry is a service in a container (docker-compose through pytest-docker), as a team would have it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
Engines = Callable[[str], Any]


@pytest.fixture
def pushed(lane: Any, farm_engines: Engines, team_registry: str) -> tuple[str, str]:
    """Name and digest of an image with a plugin, built by the command on the first engine and pushed from there."""
    engine = farm_engines("first")
    (lane.folder / "libmine.so").write_bytes(b"\x7fELF")
    lane.runner("first", engine)
    lane.target("plain", extends="cpu", image="nvcr.io/lane/onnxruntime:1", platform="linux/amd64")
    locked = lane.run("targets", "lock", "plain")
    assert locked.code == 0, locked.said
    name = f"{team_registry}/lane/onnxruntime:plugins"
    words = ("--base", "nvcr.io/lane/onnxruntime:1", "--plugin", "libmine.so", "--tag", name, "--host", engine.url, "--label", "team=lane")
    made = lane.run("images", "build", "plugins", *words)
    assert made.code == 0, made.said
    client = engine.client()
    try:
        lines = [json.loads(line) for line in client.api.push(*name.rsplit(":", 1)).splitlines()]
        config = client.api.inspect_image(name)["Config"]
    finally:
        client.close()
    assert not [line for line in lines if "error" in line]
    assert (config["User"], config["Labels"]["team"]) == ("1000:1000", "lane")
    (digest,) = [line["aux"]["Digest"] for line in lines if "aux" in line]
    return name, digest


def test_a_derived_image_is_pushed_locked_and_built_with(lane: Any, farm_engines: Engines, pushed: tuple[str, str]) -> None:
    name, digest = pushed
    second = farm_engines("second")
    lane.runners.clear()
    lane.runner("second", second)
    lane.target("ours", extends="cpu", image=name, platform="linux/amd64")
    refused = lane.run("targets", "lock", "ours")
    assert (refused.code, "EF603" in refused.said) == (6, True), refused.said
    env = {"ENGINEFARM_ALLOW": f"nvcr.io {name.partition('/')[0]}"}
    assert lane.run("targets", "lock", "ours", env=env).code == 0
    done = lane.build("--locked", targets=("ours",), env=env)
    assert done.code == 0, done.said
    assert done.builds["ours"]["status"] == "passed"
    record = lane.record("ours")
    assert (record["image"], record["image_digest"]) == (name, digest)
    lane.whole("ours")
    client = second.client()
    try:
        (image,) = [image for image in client.api.images() if any(name.rpartition(":")[0] in own for own in image["RepoDigests"] or ())]
        assert image["Labels"]["org.opencontainers.image.base.name"] == "nvcr.io/lane/onnxruntime:1"
    finally:
        client.close()


def test_the_team_s_registry_is_in_a_container(farm_engines: Engines, docker_services: Any, team_registry: str, tmp_path: Path) -> None:
    (container,) = farm_engines("service").containers()
    assert container["Labels"]["com.docker.compose.service"] == "registry"
    assert container["State"] == "running"
