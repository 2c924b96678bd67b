"""What a build says when an image cannot be had, and which exit code it ends with."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
Engines = Callable[[str], Any]


@pytest.fixture
def rack(lane: Any, farm_engines: Engines) -> Any:
    return lane.runner("rack", farm_engines("first"), has="8.0")


def test_a_tag_that_is_not_there_is_exit_2(rack: Any) -> None:
    rack.target("typo", extends="ampere-cu122", image="nvcr.io/nvidia/tensorrt:23.9-py3")
    done = rack.build(targets=("typo",))
    assert done.code == 2, done.said
    assert "EF410" in done.said
    assert "23.09-py3" in done.said
    assert rack.files() == set()


def test_a_registry_that_is_not_allowed_is_exit_6(rack: Any) -> None:
    rack.target("elsewhere", extends="ampere-cu122", image="registry.example/nvidia/tensorrt:23.09-py3")
    done = rack.build(targets=("elsewhere",))
    assert done.code == 6, done.said
    assert "EF603" in done.said


def test_a_registry_that_wants_a_login_is_exit_4(rack: Any, start_registry: Any, tmp_path: Path) -> None:
    closed = start_registry(login=("lane", "hunter2-secret"))
    done = rack.build("--mirror", f"nvcr.io/={closed.host}/", targets=("ampere-cu122",), env={"DOCKER_CONFIG": str(tmp_path)})
    assert done.code == 4, done.said
    assert "EF412" in done.said
    assert "hunter2" not in done.said


def test_locked_wants_a_lock_before_anything_is_asked(rack: Any) -> None:
    done = rack.build("--locked", "--mirror", "nvcr.io/=127.0.0.1:9/", targets=("ampere-cu122",))
    assert done.code == 5, done.said
    assert "EF501" in done.said
    assert "enginefarm targets lock" in done.said


def test_offline_asks_no_registry(rack: Any, pusher: Any) -> None:
    unlocked = rack.build("--offline", "--mirror", "nvcr.io/=127.0.0.1:9/", targets=("ampere-cu122",))
    assert unlocked.code == 4, unlocked.said
    assert "EF419" in unlocked.said
    # locked, but no engine has it
    pusher.push("nvidia/tensorrt:late", [pusher.layers.double()], {"TRT_VERSION": "8.6.1.6", "CUDA_VERSION": "12.2.1"})
    rack.target("late", extends="ampere-cu122", image="nvcr.io/nvidia/tensorrt:late")
    assert rack.run("targets", "lock", "late").code == 0
    absent = rack.build("--offline", "--locked", "--mirror", "nvcr.io/=127.0.0.1:9/", targets=("late",))
    assert absent.code == 4, absent.said
    assert absent.builds["late"]["problem"]["code"] == "EF419"


def test_a_lost_registry_fails_the_build_and_no_other(rack: Any, pusher: Any) -> None:
    assert rack.build(targets=("ampere-cu122",)).code == 0  # the engine has this image now
    pusher.push("nvidia/tensorrt:gone", [pusher.layers.double()], {"TRT_VERSION": "8.6.1.6", "CUDA_VERSION": "12.2.1"})
    for name in ("gone", "lost"):
        rack.target(name, extends="ampere-cu122", image="nvcr.io/nvidia/tensorrt:gone")
    assert rack.run("targets", "lock", "gone", "lost", "ampere-cu122").code == 0
    done = rack.build("--force", "--locked", "--mirror", "nvcr.io/=127.0.0.1:9/", targets=("gone", "lost", "ampere-cu122"))
    assert done.code == 4, done.said
    assert done.builds["gone"]["problem"]["code"] == done.builds["lost"]["problem"]["code"] == "EF415"
    assert "set aside" not in done.said  # nothing is wrong with the runner
    assert done.builds["ampere-cu122"]["status"] == "passed"


def test_a_lab_without_a_network_builds_from_a_bundle(lane: Any, farm_engines: Engines, engines: Callable[..., Any]) -> None:
    office, lab = farm_engines("first"), engines("lab")
    lane.runner("lab", lab, has="8.0")
    assert lane.run("targets", "lock", "ampere-cu122").code == 0
    saved = lane.run("images", "save", "bundle", "ampere-cu122", "--host", office.url)
    assert saved.code == 0, saved.said
    nowhere = ("--offline", "--locked", "--mirror", "nvcr.io/=127.0.0.1:9/")
    before = lane.build(*nowhere, targets=("ampere-cu122",))
    assert (before.code, before.builds["ampere-cu122"]["problem"]["code"]) == (4, "EF419"), before.said
    loaded = lane.run("images", "load", "bundle", "--host", lab.url)
    assert loaded.code == 0, loaded.said
    done = lane.build(*nowhere, targets=("ampere-cu122",))
    assert done.code == 0, done.said
    assert done.builds["ampere-cu122"]["status"] == "passed"
    assert lane.record("ampere-cu122")["image_digest"] in (lane.folder / "targets/targets.lock").read_text()
    # a bundle that somebody changed is exit 6, and the engine does not see it
    (tar,) = (lane.folder / "bundle").glob("*.tar")
    with tar.open("r+b") as file:
        file.seek(tar.stat().st_size // 2)
        file.write(b"\xff\x00\xff")
    damaged = lane.run("images", "load", "bundle", "--host", lab.url)
    assert (damaged.code, "EF604" in damaged.said) == (6, True), damaged.said
    lab.stop()


def in_every_shape(user: str, secret: str) -> list[bytes]:
    """A secret as it is, and as HTTP and Docker's API write it."""
    plain = [secret.encode(), f"{user}:{secret}".encode()]
    engine = json.dumps({"username": user, "password": secret}).encode()
    coded = [encode(text) for text in (*plain, engine) for encode in (base64.b64encode, base64.urlsafe_b64encode)]
    return [*plain, *(text.rstrip(b"=") for text in coded)]


def test_secrets_are_in_no_file_and_no_word_of_a_run(
    lane: Any,
    farm_engines: Engines,
    engines: Callable[..., Any],
    start_registry: Any,
    pusher: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    user, secret, key, right = "lane-robot", "hunter2-very-secret", "nvapi-also-very-secret", "and-this-one-fits"
    closed = start_registry(login=(user, right))
    type(pusher)(closed, pusher.layers).push_double("nvidia/tensorrt:23.09-py3")
    home = tmp_path_factory.mktemp("home")
    fresh = engines("guarded")
    lane.runner("rack", fresh, has="8.0")

    def helper(password: str) -> dict[str, str]:
        program = home / "docker-credential-lab"
        program.write_text(f'#!/bin/sh\necho \'{{"Username": "{user}", "Secret": "{password}"}}\'\n')
        program.chmod(0o755)
        (home / "config.json").write_text(json.dumps({"credHelpers": {closed.host: "lab"}}))
        path = f"{home}:{os.environ['PATH']}"
        return {"DOCKER_CONFIG": str(home), "NGC_API_KEY": key, "PATH": path, "HOST_PASSWORD": secret, "ENGINEFARM_DEBUG": "1"}

    way = ("--mirror", f"nvcr.io/={closed.host}/")
    refused = lane.start_build(*way, targets=("ampere-cu122",), env=helper(secret))
    refused.process.wait()
    told = refused.process.communicate()[0] + refused.said
    assert (refused.code, "EF412" in told) == (4, True), told
    # looked up with the right password, pulled with the wrong one
    locked = lane.run("targets", "lock", "ampere-cu122", *way, env=helper(right))
    assert locked.code == 0, locked.said
    pull = lane.start_build("--locked", *way, targets=("ampere-cu122",), env=helper(secret))
    told += pull.process.communicate()[0] + pull.said
    assert (pull.code, "EF412" in pull.said) == (4, True), pull.said
    done = lane.build("--locked", *way, targets=("ampere-cu122",), env=helper(right))
    assert done.code == 0, done.said
    told += locked.out + locked.said + done.out + done.said
    patterns = [*in_every_shape(user, secret), *in_every_shape("$oauthtoken", key), *in_every_shape(user, right)]
    looked_at = [path for path in lane.folder.rglob("*") if path.is_file()]
    assert {"events.jsonl", "ampere-cu122.build.log", "net_v1.json", "targets.lock"} <= {path.name for path in looked_at}
    found = [(path, pattern) for path in looked_at for pattern in patterns if pattern in path.read_bytes()]
    assert found == []
    assert "Traceback" in told  # --debug had something to show
    assert any(pattern in (home / "docker-credential-lab").read_bytes() for pattern in patterns)
    assert [pattern for pattern in patterns if pattern in told.encode()] == []
    # the engine keeps no login, and its containers' environment had none (test_docker_escape.py)
    assert not [path for path in fresh.folder.glob("etc/**/*") if path.is_file() and any(p in path.read_bytes() for p in patterns)]
    fresh.stop()
