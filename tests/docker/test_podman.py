"""Podman's Docker-compatible socket as a runner. Its API gives no GPU by CDI, device request or runtime: docs/runners.md."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.runners import lease
from orchestrator.runners.base import Cancel, Cancelled
from orchestrator.runners.clean import clean
from orchestrator.runners.docker import DEFAULT_UID, DockerRunner
from orchestrator.runners.docker_gpu import GpuAccess
from orchestrator.runners.docker_host import DeclaredGpu, Overrides

pytestmark = [pytest.mark.engine, pytest.mark.podman]
GPU = Overrides(gpus=(DeclaredGpu("NVIDIA L4", "8.9"),))
ORT, TRICK, EMPTY = (f"localhost/enginefarm-test/{name}:latest" for name in ("ort", "trick", "empty"))


@pytest.fixture(scope="module")
def podman(load_script: Callable[[str], Any], file_systems: Callable[[str], Path]) -> Iterator[Any]:
    if os.geteuid() != 0 or not all(map(shutil.which, ("podman", "catatonit"))):
        pytest.skip("needs root, podman and catatonit")
    engine = load_script("tests/docker/podman.py").LocalPodman("podman")
    try:
        client = engine.start().client()
        changes = load_script("tests/docker/images.py").CHANGES
        for name in (ORT, TRICK, EMPTY):
            source = file_systems(name.removeprefix("localhost/").replace(":latest", ":1"))
            client.api.import_image_from_file(str(source), repository=name.removesuffix(":latest"), changes=[*changes])
        client.close()
        yield engine
    finally:
        engine.stop()


@pytest.fixture
def runner(podman: Any, make_runner: Callable[..., DockerRunner]) -> Iterator[DockerRunner]:
    yield make_runner(podman)
    assert podman.containers() == []


def refused(runner: DockerRunner, step: Any, folder: Path) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        runner.run(step, folder, lambda _: None, Cancel())
    return caught.value


def test_an_engine_is_built_and_validated_through_podman(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    events: list[Any] = []
    built = runner.run(steps.build(image=ORT), tmp_path / "build", events.append, Cancel())
    assert built.result["ok"], built.result["error"]
    assert {"event": "phase", "phase": "optimising"} in events
    checked = runner.run(steps.validate(built.folder / built.result["engine"]["file"], ORT), tmp_path / "check", events.append, Cancel())
    assert checked.result["ok"], checked.result["error"]
    output = np.fromfile(checked.folder / checked.result["outputs"][0]["outputs"][0]["file"], np.float32).reshape(2, 8)
    np.testing.assert_allclose(output, np.ones((2, 8), np.float32) @ (np.arange(64, dtype=np.float32).reshape(8, 8) / 64), rtol=1e-5)
    sent = [event for event in events if "MB" in str(event)]
    assert len(sent) == 1
    assert runner.host()["engine"]["version"].startswith(("4.", "5."))


def test_a_container_of_podman_is_locked_down(runner: DockerRunner, steps: Any, tmp_path: Path, load_script: Callable[[str], Any]) -> None:
    answer = runner.run(
        steps.trick(load_script("tests/docker/test_docker_escape.py").LOOK, trick_image=TRICK), tmp_path / "look", lambda _: None, Cancel()
    )
    line = next(line for line in answer.log.read_text().splitlines() if line.startswith("FOUND "))
    found = json.loads(line.removeprefix("FOUND "))
    refusals = {"Read-only file system", "Permission denied", "Operation not permitted"}
    assert {*found["write"].values(), *found["delete"].values(), found["rename"]} <= refusals
    assert found["own file"] == found["scratch"] == "it worked"
    assert found["interfaces"] == ["lo"]
    assert found["connect"] == "Network is unreachable"
    assert found["uid"][:2] == [DEFAULT_UID, DEFAULT_UID]
    rights = dict(line.split(":\t") for line in found["capabilities"])
    assert {int(rights[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert rights["NoNewPrivs"] == "1"
    assert len(found["processes"]) == 2
    # podman itself sets `container`, and TERM
    known = {"PATH", "LD_LIBRARY_PATH", "HOSTNAME", "HOME", "TMPDIR", "CUDA_CACHE_PATH", "PYTHONDONTWRITEBYTECODE", "LANG"}
    assert set(found["environment"]) <= known | {"NVIDIA_VISIBLE_DEVICES", "container", "TERM"}


def test_limits_of_podman_are_told_apart(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    code = "import mmap\nfor _ in range(4):\n m = mmap.mmap(-1, 64 << 20)\n m.write(bytes(64 << 20))\n globals()['k%d' % _] = m"
    # its conmon sees no out-of-memory event of cgroup v1, so OOMKilled stays false there and the end is told by its signal alone
    memory = refused(runner, steps.trick(code, trick_image=TRICK, memory_bytes=128 << 20), tmp_path / "1")
    assert memory.kind is errors.STEP_MEMORY or (memory.kind is errors.STEP_CRASHED and "SIGKILL" in memory.what)
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    killed = refused(runner, steps.trick(code, trick_image=TRICK), tmp_path / "2")
    assert killed.kind is errors.STEP_CRASHED
    assert "SIGKILL" in killed.what
    late = refused(runner, steps.trick("import time; time.sleep(600)", trick_image=TRICK, timeout_seconds=2.0), tmp_path / "3")
    assert late.kind is errors.STEP_TIMEOUT


def test_a_step_on_podman_is_cancelled(
    podman: Any, runner: DockerRunner, steps: Any, tmp_path: Path, background: Callable[..., Any]
) -> None:
    job = background(runner, steps.endless(ORT), tmp_path / "step")
    job.wait_for("soak")
    assert len(podman.containers()) == 1
    job.cancel.set()
    assert isinstance(job.end(5).error, Cancelled)
    assert podman.containers() == []


def test_a_gpu_of_podman_has_one_user(podman: Any, make_runner: Callable[..., DockerRunner]) -> None:
    first, second = make_runner(podman), make_runner(podman)
    gpu = {"uuid": "GPU-1", "name": "NVIDIA L4"}
    # another process, by its label: this one would take it for its own leftover
    owner = {**json.loads(lease.marks.this_owner()), "boot": "another", "host": "far", "pid": 1}
    labels = lease.marks.labels("lease", project="p", run="r", ttl=60) | {lease.marks.OWNER: json.dumps(owner), lease.marks.GPU: "GPU-1"}
    theirs = first.engine().api.create_container(TRICK, ["x"], entrypoint=[], labels=labels, name=lease.lease_name("GPU-1"))["Id"]
    said: list[str] = []

    def release(text: str) -> None:
        said.append(text)
        first.engine().api.remove_container(theirs)

    with lease.acquire(second.engine(), [gpu], TRICK, second._marks, Cancel(), release):
        assert said == ["waiting for NVIDIA L4: held by process 1 on far"]
        assert lease.holders(first.engine()).keys() == {"GPU-1"}
        # two connections of one process: Podman tells each another ID
        cancel = Cancel()
        with pytest.raises(Cancelled):
            lease.acquire(first.engine(), [gpu], TRICK, first._marks, cancel, lambda text: (said.append(text), cancel.set())[0])
        assert said[1:] == ["waiting for NVIDIA L4: held by another step of this run"]
        assert len(podman.containers()) == 1
    assert podman.containers() == []


def test_clean_removes_ours_from_podman_and_nothing_else(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    runner.run(steps.build(image=ORT, shared_inputs={"model": "sha256:" + "7a" * 32}), tmp_path / "step", lambda _: None, Cancel())
    api = runner.engine().api
    foreign = api.create_container(TRICK, ["x"], entrypoint=[], labels={"com.example": "1"})["Id"]
    for name in ("somebody-elses", "enginefarm-inputs-of-somebody-else"):
        api.create_volume(name)
    try:
        assert clean(runner.engine()).volumes == []
        done = clean(runner.engine(), volumes=True, images=True)
        assert "enginefarm-inputs-" + "7a" * 32 in done.volumes
        assert done.images == []
        assert {volume["Name"] for volume in api.volumes()["Volumes"]} == {"somebody-elses", "enginefarm-inputs-of-somebody-else"}
        assert [container["Id"] for container in api.containers(all=True)] == [foreign]
    finally:
        api.remove_container(foreign)
        for name in ("somebody-elses", "enginefarm-inputs-of-somebody-else"):
            api.remove_volume(name)


def test_what_is_missing_on_podman_is_named(podman: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path) -> None:
    lab = make_runner(podman, gpu=GpuAccess("devices", ("/dev/nvidia-none",)), overrides=GPU)
    error = refused(lab, steps.build(image=ORT, compute_capability=("8.9",)), tmp_path / "step")
    assert error.kind is errors.GPU_DEVICE, error.why
    assert refused(make_runner(podman), steps.build(image=EMPTY), tmp_path / "empty").kind is errors.IMAGE_UNFIT
    assert podman.containers() == []


def test_explicit_devices_reach_a_container_of_podman(
    podman: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path
) -> None:
    look = "import os, sys; sys.stderr.write('FOUND %s' % os.path.exists('/dev/kmsg')); raise ImportError('looked')"
    for access, seen in ((GpuAccess("none"), "False"), (GpuAccess("devices", ("/dev/kmsg",)), "True")):
        lab = make_runner(podman, gpu=access, overrides=GPU)
        step = steps.trick(look, trick_image=TRICK, compute_capability=("8.9",))
        answer = lab.run(step, tmp_path / access.mode, lambda _: None, Cancel())
        assert f"FOUND {seen}" in answer.log.read_text()


def test_power_loss_of_podman_is_the_engines_fault(
    podman: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path, background: Callable[..., Any]
) -> None:
    lab = make_runner(podman)
    job = background(lab, steps.endless(ORT), tmp_path / "lost")
    job.wait_for("soak")
    podman.cut_power()
    error = job.end().error
    assert isinstance(error, EnginefarmError)
    assert error.kind is errors.ENGINE_LOST
    assert sorted(path.name for path in (tmp_path / "lost").iterdir()) == ["worker.log"]
    podman.start()
    assert lab.run(steps.build(image=ORT), tmp_path / "again", lambda _: None, Cancel()).result["ok"]
    until = time.monotonic() + 10
    while podman.containers():
        assert time.monotonic() < until
        time.sleep(0.1)
