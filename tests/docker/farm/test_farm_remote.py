"""One build command over three engines: one by its socket, one over ssh, one over TLS."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
Save = Callable[..., Path]
ADA = {"TRT_VERSION": "8.6.1.6", "CUDA_VERSION": "12.2.1.008", "DOUBLE_VERSION": "8.6.1.6", "DOUBLE_INVENTORY": "8.6.1"}


@dataclass
class Rack:
    """The engines, the ways to the two that are elsewhere, and the environment that the ways need."""

    near: Any
    ssh: Any
    tls: Any
    ways: dict[str, dict[str, Any]]
    env: dict[str, str]


@pytest.fixture(scope="module")
def rack(engines: Callable[..., Any], certificates: Path, ssh: tuple[int, Path], load_script: Callable[[str], Any]) -> Iterator[Rack]:
    access = load_script("tests/docker/access.py")
    address = f"tcp://127.0.0.1:{access.free_port()}"
    near, far = engines("near"), engines("far")
    safe = engines("safe", listen=(address,), flags=access.tls_flags(certificates))
    port, folder = ssh
    files = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
    ways = {
        "ssh": {"engine": f"ssh://{getpass.getuser()}@127.0.0.1:{port}{far.folder}/sock"},
        "tls": {"engine": address, "tls": {name: str(certificates / file) for name, file in files.items()}},
    }
    yield Rack(near, far, safe, ways, {"PATH": f"{folder}/bin:{os.environ['PATH']}"})
    for engine in (near, far, safe):
        engine.stop()


@pytest.fixture
def third(lane: Any, pusher: Any) -> Any:
    """A target for a third capability, with an image of its own."""
    layers = pusher.layers
    pusher.push("nvidia/tensorrt:ada", [layers.ort(), layers.double()], {**ADA, "DOUBLE_CAPABILITY": "8.9"})
    return lane.target("third", extends="ampere-cu122", image="nvcr.io/nvidia/tensorrt:ada", compute_capability="8.9")


def repositories(engine: Any) -> set[str]:
    """What an engine pulled, without the registry's address."""
    client = engine.client()
    try:
        found = {digest for image in client.api.images() for digest in image["RepoDigests"] or ()}
    finally:
        client.close()
    return {name.partition("/")[2] for name in found}


def test_builds_spread_by_capability_over_a_socket_ssh_and_tls(third: Any, rack: Rack) -> None:
    third.runner("near", rack.near, has="8.0")
    third.runner("ssh", rack.ssh, has="7.5", **rack.ways["ssh"])
    third.runner("tls", rack.tls, has="8.9", **rack.ways["tls"])
    targets = {"ampere-cu122": "near", "turing-cu118": "ssh", "third": "tls"}
    locked = third.run("targets", "lock", *targets)
    assert locked.code == 0, locked.said
    done = third.build("--locked", "--jobs", "3", targets=tuple(targets), env=rack.env)
    assert done.code == 0, done.said
    assert {name: build["status"] for name, build in done.builds.items()} == dict.fromkeys(targets, "passed")
    for target, runner in targets.items():
        assert done.runners(target) == done.runners(target, "validate") == [runner]
    listed = third.run("runners", "list", "--json", env=rack.env)
    assert listed.code == 0, listed.said
    about = {row["name"]: row["host"]["engine"] for row in json.loads(listed.out)["runners"]}
    assert len({engine["id"] for engine in about.values()}) == len(targets)
    assert about["ssh"]["address"].startswith("ssh://")
    assert about["tls"]["address"].startswith("tcp://")
    # an engine has the image of its own target and no other
    for target, engine in (("ampere-cu122", rack.near), ("turing-cu118", rack.ssh), ("third", rack.tls)):
        record = third.record(target)
        repository = record["image"].removeprefix("nvcr.io/").partition(":")[0]
        assert repositories(engine) == {f"{repository}@{record['image_digest']}"}
        assert engine.containers() == []


def test_a_power_cut_behind_ssh_ends_on_the_engine_behind_tls(lane: Any, rack: Rack, save_model: Save) -> None:
    save_model(lane.folder / "net.onnx", seconds=4)
    lane.runner("ssh", rack.ssh, has="8.0", **rack.ways["ssh"]).runner("tls", rack.tls, has="8.0", **rack.ways["tls"])
    run = lane.start_build(targets=("ampere-cu122",), env=rack.env)
    run.building("ampere-cu122")
    rack.ssh.cut_power()
    assert run.end().code == 0, run.said
    assert run.runners("ampere-cu122") == ["ssh", "tls"]
    assert run.runners("ampere-cu122", "validate") == ["tls"]
    assert run.builds["ampere-cu122"]["status"] == "passed"
    lane.whole("ampere-cu122")
    rack.ssh.start()
    assert lane.run("runners", "clean", env=rack.env).code == 0
    assert rack.ssh.containers() == rack.tls.containers() == []
