"""How containers end: memory, time, crashes, signals, and what an engine refuses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError, Kind
from orchestrator.runners.base import Cancel, Step
from orchestrator.runners.docker import DockerRunner
from orchestrator.runners.docker_gpu import GpuAccess
from orchestrator.runners.docker_host import DeclaredGpu, Overrides

pytestmark = pytest.mark.engine
GPU = Overrides(gpus=(DeclaredGpu("NVIDIA L4", "8.9"),), driver="550.54.15")


def refused(runner: DockerRunner, step: Step, folder: Path) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        runner.run(step, folder, lambda _: None, Cancel())
    return caught.value


def test_memory_is_named_only_when_the_engine_says_so(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    # shared memory is in no process's own limit: only the container's limit ends it
    code = "import mmap\nfor _ in range(4):\n m = mmap.mmap(-1, 64 << 20)\n m.write(bytes(64 << 20))\n globals()['k%d' % _] = m"
    error = refused(runner, steps.trick(code, memory_bytes=128 << 20), tmp_path / "memory")
    assert error.kind is errors.STEP_MEMORY
    assert "128 MiB" in error.what
    error = refused(runner, steps.trick("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), tmp_path / "killed")
    assert error.kind is errors.STEP_CRASHED
    assert "SIGKILL" in error.what
    assert "memory was not the reason" in (error.why or "")


def test_the_workers_own_limit_gives_a_result(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    answer = runner.run(steps.trick("x = bytearray(1 << 30)", memory_bytes=256 << 20), tmp_path / "step", lambda _: None, Cancel())
    assert answer.result["error"]["kind"] == "out-of-memory"


def test_a_crash_is_named_with_its_signal_and_the_log(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    error = refused(runner, steps.trick("import os, sys; sys.stderr.write('last words\\n'); os.abort()"), tmp_path / "step")
    assert error.kind is errors.STEP_CRASHED
    assert "SIGABRT" in error.what
    assert "last words" in (error.why or "")


def test_too_many_processes_cannot_be_started(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    code = """import os, sys, time
try:
    for _ in range(3000):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
except OSError as error:
    sys.stderr.write('stopped: %s\\n' % error)
raise ImportError('done')"""
    answer = runner.run(steps.trick(code, memory_bytes=None, timeout_seconds=300), tmp_path / "step", lambda _: None, Cancel())
    assert "stopped: [Errno 11]" in answer.log.read_text()


def test_a_full_scratch_folder_does_not_touch_the_engine(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    code = """import sys
try:
    with open('/tmp/x', 'wb') as file:
        for _ in range(600): file.write(bytes(1 << 20))
except OSError as error: sys.stderr.write(str(error))
raise ImportError('done')"""
    error = None
    try:
        answer = runner.run(steps.trick(code, memory_bytes=256 << 20), tmp_path / "step", lambda _: None, Cancel())
        assert "No space left" in answer.log.read_text()
    except EnginefarmError as caught:  # the pages of /tmp count as the container's memory
        error = caught
        assert error.kind is errors.STEP_MEMORY


def test_an_image_without_python_is_named(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    error = refused(runner, steps.build(image="enginefarm-test/empty:1"), tmp_path / "step")
    assert error.kind is errors.IMAGE_UNFIT
    assert "python3" in error.what


@pytest.mark.parametrize(
    ("access", "kind", "what"),
    [
        (GpuAccess("request"), errors.GPU_ACCESS, "no driver for GPU requests"),
        (GpuAccess("cdi"), errors.GPU_ACCESS, "has no CDI"),
        (GpuAccess("runtime"), errors.GPU_ACCESS, "does not know the runtime nvidia"),
        (GpuAccess("devices", ("/dev/nvidia0", "/dev/nvidiactl")), errors.GPU_DEVICE, "device node"),
    ],
)
def test_gpu_access_that_the_host_lacks_is_named(
    engine: Any,
    make_runner: Callable[..., DockerRunner],
    steps: Any,
    tmp_path: Path,
    access: GpuAccess,
    kind: Kind,
    what: str,
) -> None:
    if os.path.exists("/dev/nvidiactl"):  # noqa: PTH110
        pytest.skip("this host has a GPU")
    runner = make_runner(engine, gpu=access, overrides=GPU)
    error = refused(runner, steps.build(compute_capability=("8.9",)), tmp_path / "step")
    assert (error.kind, what in error.what) == (kind, True), error.what
    assert error.fix
    assert engine.containers() == []


def test_a_declared_gpu_is_leased_and_marked(engine: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path) -> None:
    runner = make_runner(engine, overrides=GPU)
    host = runner.host()
    assert host["declared"] == ["gpus", "driver"]
    assert host["container"] is True
    assert host["gpus"][0]["compute_capability"] == "8.9"
    answer = runner.run(steps.build(compute_capability=("8.9",)), tmp_path / "step", lambda _: None, Cancel())
    assert answer.result["ok"]
    assert engine.containers() == []


def test_a_capability_that_the_host_lacks_is_refused(
    engine: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path
) -> None:
    error = refused(make_runner(engine, overrides=GPU), steps.build(compute_capability=("8.0",)), tmp_path / "step")
    assert error.kind is errors.GPU_ACCESS
    assert "8.0" in error.what


def test_a_probe_image_tells_backends_and_python(engine: Any, make_runner: Callable[..., DockerRunner]) -> None:
    host = make_runner(engine, probe_image="enginefarm-test/ort:1").host()
    assert "cpu" in host["backends"]["onnxruntime"]["providers"]
    assert host["engine"]["version"]
    assert host["gpus"] == []
    assert host["platform"].startswith("linux/")
