"""What a build says, and which exit code it ends with, when a container cannot have what it needs, or is ended from outside."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine
Engines = Callable[[str], Any]
Save = Callable[..., Path]
TARGET = "ampere-cu122"


@pytest.fixture
def problem(lane: Any, farm_engines: Engines) -> Iterator[Callable[..., dict[str, Any]]]:
    """``problem(exit_code, *words, gpu=..., asks=...)`` builds on one engine and gives what was wrong; nothing may be left."""

    def build(code: int, *words: str, **options: Any) -> dict[str, Any]:
        lane.runner("rack", farm_engines("first"), has="8.0", **options)
        done = lane.build(*words, targets=(TARGET,))
        assert done.code == code, done.said
        assert done.builds[TARGET]["status"] == "failed"
        assert not [name for name in lane.files() if name.endswith(".engine")]
        found: dict[str, Any] = done.builds[TARGET]["problem"]
        assert found["code"] in done.said
        return found

    yield build
    assert farm_engines("first").containers() == []


@pytest.mark.parametrize(
    ("gpu", "code", "what", "fix"),
    [
        ({"mode": "request"}, "EF424", "no driver for GPU requests", "NVIDIA Container Toolkit"),
        ({"mode": "cdi"}, "EF424", "no CDI", "Docker 25"),
        ({"mode": "runtime"}, "EF424", "does not know the runtime nvidia", "nvidia-ctk runtime configure"),
        ({"mode": "devices", "devices": ["/dev/nvidia-none"]}, "EF425", "device node", "nvidia-modprobe"),
    ],
)
def test_gpu_access_that_the_engine_lacks_is_exit_4(problem: Any, gpu: dict[str, Any], code: str, what: str, fix: str) -> None:
    found = problem(4, gpu=gpu)
    assert (found["code"], what in found["what"], fix in found["fix"]) == (code, True, True), found


def test_memory_is_the_reason_only_when_the_engine_says_so(problem: Any, lane: Any, save_model: Save) -> None:
    save_model(lane.folder / "net.onnx", asks="fill 900;")
    found = problem(1, "--memory", "600 MiB")
    assert (found["code"], "600 MiB" in found["what"], "--memory" in found["fix"]) == ("EF304", True, True), found
    save_model(lane.folder / "net.onnx", asks="signal 9;")
    found = problem(1)
    assert (found["code"], "SIGKILL" in found["what"], "memory was not the reason" in found["why"]) == ("EF305", True, True), found


def test_a_build_past_its_time_is_ended(problem: Any, lane: Any, save_model: Save) -> None:
    save_model(lane.folder / "net.onnx", seconds=600)
    assert problem(1, "--build-timeout", "4")["code"] == "EF303"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_container_too(lane: Any, farm_engines: Engines, save_model: Save, number: signal.Signals, code: int) -> None:
    engine = farm_engines("first")
    save_model(lane.folder / "net.onnx", seconds=600)
    lane.runner("rack", engine, has="8.0")
    run = lane.start_build(targets=(TARGET,))
    run.building(TARGET)
    run.process.send_signal(number)
    assert run.end().code == code, run.said
    assert engine.containers() == []
    assert not [name for name in lane.files() if name.endswith(".engine")]


@pytest.fixture
def little(engines: Callable[..., Any], tmp_path: Path, load_script: Callable[[str], Any]) -> Iterator[Any]:
    """An engine with a disk of 150 MB, less than the image unpacks to; ``far``: an address whose disk cannot be looked at from here."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=150m", "tmpfs", str(disk)], check=True)
    try:
        far = f"tcp://127.0.0.1:{load_script('tests/docker/access.py').free_port()}"
        engine = engines("little", listen=(far,), data=disk)
        engine.far = far
        yield engine
        engine.stop()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_small_disk_is_seen_before_the_pull_or_in_it(lane: Any, little: Any) -> None:
    lane.runner("little", little, has="8.0")
    seen = lane.build(targets=(TARGET,))
    assert seen.code == 4, seen.said
    found = seen.builds[TARGET]["problem"]
    assert (found["code"], "are free" in found["why"]) == ("EF400", True), found
    assert not any(event.get("phase", "").startswith("pulling") for event in seen.events)
    lane.runner("little", little, has="8.0", engine=little.far)
    filled = lane.build(targets=(TARGET,))
    assert filled.code == 4, filled.said
    found = filled.builds[TARGET]["problem"]
    assert (found["code"], "no space left on device" in found["why"]) == ("EF400", True), found
    assert any(event.get("phase", "").startswith("pulling") for event in filled.events)
    assert "enginefarm runners clean --images" in found["fix"]
    assert little.containers() == []
    client = little.client()
    try:
        assert client.api.images(all=True) == []
    finally:
        client.close()
