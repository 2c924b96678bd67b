"""Engines that go away, freeze, or run out of disk; clients that are killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Cancel
from orchestrator.runners.docker import DockerRunner

pytestmark = pytest.mark.engine
TRICK_IMAGE = "enginefarm-test/trick:1"
BIG_OUTPUT = """import json, os, hashlib
digest = hashlib.sha256()
with open('e.plan', 'wb') as file:
    for _ in range(700):
        piece = os.urandom(1 << 20)
        digest.update(piece)
        file.write(piece)
answer = {"schema": "enginefarm.result/1", "step": "build", "ok": True, "error": None, "worker": "w", "seconds": 1.0}
answer["engine"] = {"file": "e.plan", "size_bytes": 700 << 20, "sha256": digest.hexdigest()}
open('result.json', 'w').write(json.dumps(answer))
os._exit(0)"""


@pytest.fixture
def fragile(engines: Callable[..., Any], put_image: Callable[..., None]) -> Iterator[Any]:
    """An engine of the test's own."""
    own = engines("fragile")
    put_image(own, TRICK_IMAGE)
    yield own
    own.stop()


def failed(job: Any, seconds: float = 60) -> EnginefarmError:
    error = job.end(seconds).error
    assert isinstance(error, EnginefarmError), (error, job.events)
    return error


def test_power_loss_in_a_build_is_the_engines_fault_and_the_next_run_works(
    fragile: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path, background: Callable[..., Any]
) -> None:
    runner = make_runner(fragile)
    code = "import sys, time; sys.stderr.write('running'); sys.stderr.flush(); time.sleep(600)"
    job = background(runner, steps.trick(code, timeout_seconds=900.0), tmp_path / "lost")
    log = tmp_path / "lost" / "worker.log"
    wait_until(lambda: log.exists() and b"running" in log.read_bytes())
    fragile.cut_power()
    error = failed(job)
    assert (error.kind, error.exit) == (errors.ENGINE_LOST, errors.Exit.INFRASTRUCTURE)
    with pytest.raises(EnginefarmError) as caught:
        runner.run(steps.trick("pass"), tmp_path / "down", lambda _: None, Cancel())
    assert caught.value.kind is errors.ENGINE_UNREACHABLE
    fragile.start()
    again = runner.run(steps.trick("raise ImportError('again')"), tmp_path / "again", lambda _: None, Cancel())
    assert again.result["error"]["kind"] == "backend-missing"
    wait_until(lambda: fragile.containers() == [])  # the one that was lost is swept too: its owner, this process, is alive and forgot it


def test_power_loss_while_results_come_back_leaves_nothing_half_written(
    fragile: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path, background: Callable[..., Any]
) -> None:
    job = background(make_runner(fragile), steps.trick(BIG_OUTPUT, memory_bytes=None), tmp_path / "step")
    job.wait_for("bringing back", 120)
    wait_until(lambda: any((tmp_path / "step").rglob("e.plan")))
    fragile.cut_power()
    assert failed(job).kind is errors.ENGINE_LOST
    assert sorted(path.name for path in (tmp_path / "step").iterdir()) == ["worker.log"]


def test_power_loss_while_the_model_is_sent(
    fragile: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path, background: Callable[..., Any]
) -> None:
    big = tmp_path / "big.bin"
    with big.open("wb") as file:
        file.truncate(2 << 30)
    step = steps.trick("raise ImportError('whole')")
    step.inputs["model/big.bin"] = big
    runner = make_runner(fragile)
    job = background(runner, step, tmp_path / "cut")
    job.wait_for("sending 2147")
    fragile.cut_power()
    assert failed(job).kind is errors.ENGINE_LOST
    del step.inputs["model/big.bin"]
    fragile.start()
    events: list[Any] = []
    runner.run(step, tmp_path / "again", events.append, Cancel())
    assert any("MB" in str(event) for event in events)  # what arrived before the loss does not count


def test_a_frozen_engine_is_noticed(
    fragile: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path, background: Callable[..., Any]
) -> None:
    job = background(make_runner(fragile), steps.trick("import time; time.sleep(600)", timeout_seconds=900.0), tmp_path / "step")
    wait_until(lambda: any(c["State"] == "running" for c in fragile.containers()))
    fragile.freeze()
    try:
        error = failed(job, 90)
    finally:
        fragile.thaw()
    assert error.kind is errors.ENGINE_LOST


def test_an_engine_that_is_stopped_in_a_build_is_not_the_builds_fault(
    fragile: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path, background: Callable[..., Any]
) -> None:
    job = background(make_runner(fragile), steps.trick("import time; time.sleep(600)"), tmp_path / "step")
    wait_until(lambda: any(c["State"] == "running" for c in fragile.containers()))
    os.kill(fragile.daemon_pid(), signal.SIGTERM)
    assert failed(job).kind is errors.ENGINE_LOST


def test_a_full_disk_is_named(
    engines: Callable[..., Any],
    put_image: Callable[..., None],
    make_runner: Callable[..., DockerRunner],
    steps: Any,
    tmp_path: Path,
    small_disk: Path,
) -> None:
    small = engines("small", data=small_disk)
    try:
        put_image(small, TRICK_IMAGE)
        runner = make_runner(small)
        big = tmp_path / "big.bin"
        with big.open("wb") as file:
            file.truncate(1 << 30)
        step = steps.trick("pass")
        step.inputs["model/big.bin"] = big
        with pytest.raises(EnginefarmError) as caught:
            runner.run(step, tmp_path / "sending", lambda _: None, Cancel())
        assert caught.value.kind is errors.DISK
        assert "runners clean" in (caught.value.fix or "")
        runner.engine().api.remove_volume(next(v["Name"] for v in runner.engine().api.volumes()["Volumes"]))
        code = "import sys\nwith open('e.plan', 'wb') as file:\n  for _ in range(1 << 10): file.write(bytes(1 << 20))"
        told = None
        try:
            told = runner.run(steps.trick(code), tmp_path / "writing", lambda _: None, Cancel()).result["error"]["kind"]
        except EnginefarmError as error:  # no space was left for result.json either
            told = error.kind
        assert told in ("disk-full", errors.DISK)
        assert small.containers() == []
    finally:
        small.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


CLIENT = """
import sys
from pathlib import Path
from orchestrator.runners.base import Cancel, Step
from orchestrator.runners.docker import DockerRunner
from orchestrator.runners.docker_engine import Address
from orchestrator.runners.docker_host import DeclaredGpu, Overrides
url, folder, trick, image = sys.argv[1:5]
runner = DockerRunner("lab", Address(url), overrides=Overrides(gpus=(DeclaredGpu("NVIDIA L4", "8.9"),)))
request = {"step": "build", "backend": "onnxruntime", "model": "trick.py", "engine": "e.onnx", "options": {"provider": "cpu"}}
step = Step(request=request, inputs={"trick.py": Path(trick)}, image=image, timeout_seconds=120.0, compute_capability=("8.9",))
print("ready", flush=True)
for number in range(int(sys.argv[5])):
    runner.run(step, Path(folder) / str(number), lambda event: print(event, flush=True), Cancel())
"""


def client(engine: Any, folder: Path, code: str, times: int = 1) -> subprocess.Popen[str]:
    folder.mkdir()
    (folder / "trick.py").write_text(code)
    command = [sys.executable, "-c", CLIENT, engine.url, str(folder), str(folder / "trick.py"), TRICK_IMAGE, str(times)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_client_left_is_removed_by_the_next(
    engine: Any, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path
) -> None:
    killed = client(engine, tmp_path / "killed", "import time; time.sleep(600)")
    wait_until(lambda: any(c["State"] == "running" for c in engine.containers()))
    killed.kill()
    killed.wait()
    assert len(engine.containers()) == 2  # the step and the lease
    from orchestrator.runners.docker_host import DeclaredGpu, Overrides

    runner = make_runner(engine, overrides=Overrides(gpus=(DeclaredGpu("NVIDIA L4", "8.9"),)))
    answer = runner.run(steps.trick("raise ImportError('no')", compute_capability=("8.9",)), tmp_path / "next", lambda _: None, Cancel())
    assert answer.result["error"]["kind"] == "backend-missing"
    assert engine.containers() == []


def test_two_processes_do_not_share_a_gpu(engine: Any, tmp_path: Path) -> None:
    code = """import sys, time
sys.stderr.write('SPAN %f ' % time.time())
time.sleep(0.7)
sys.stderr.write('%f\\n' % time.time())
raise ImportError"""
    jobs = [client(engine, tmp_path / name, code, times=3) for name in ("a", "b")]
    told = [job.communicate(timeout=120)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0]
    lines = [line for path in tmp_path.glob("*/*/worker.log") for line in path.read_text().splitlines() if line.startswith("SPAN")]
    spans = sorted(tuple(map(float, line.split()[1:])) for line in lines)
    assert len(spans) == 6
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans)), spans
    assert any("waiting for NVIDIA L4: held by process" in text for text in told)
    assert engine.containers() == []


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        assert time.monotonic() < until
        time.sleep(0.05)
