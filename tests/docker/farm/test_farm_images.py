"""What a build says when an image cannot be had, and which exit code it ends with."""

from __future__ import annotations

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
