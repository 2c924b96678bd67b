"""A run that is stopped: nothing left running, finished builds kept, the exit code says how it ended; and runs beside each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Project

Net = Callable[..., Path]

# a model whose reference run takes long: the loop gives time to stop it in the middle
SLOW = ("build", "net.onnx", "--target", "cpu", "--shape", "x:8x3x512x512")


def _heed_signals() -> None:
    # whoever runs the tests under nohup, or in the background of a shell, made them deaf to some
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _start(project: Project, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *words],
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_signals,
    )


def _ours(project: Project) -> list[str]:
    """Command lines of processes that run for this project's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            folder = os.readlink(entry / "cwd")  # noqa: PTH115
        except OSError:
            continue
        if str(project.folder) in line or folder.startswith(str(project.folder)):
            found.append(line)
    return found


def _until_step(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if "validate on" in line:
            return
    raise AssertionError("the run ended before its validate step")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see what is left running")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_every_process_and_gives_its_exit_code(project: Project, net: Net, number: signal.Signals, code: int) -> None:
    net(dims=("batch", 3, "h", "w"))
    process = _start(project, *SLOW)
    _until_step(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, (out, err)
    assert "Traceback" not in err
    deadline = time.monotonic() + 5
    while _ours(project) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _ours(project) == []
    assert not list(project.folder.glob("artifacts/net/v*/*.onnx"))
    assert not list(project.folder.glob(".enginefarm/runs/*/work"))


def test_a_killed_run_leaves_nothing_half_written_and_the_next_one_tidies_up(project: Project, net: Net) -> None:
    net(dims=("batch", 3, "h", "w"))
    process = _start(project, *SLOW)
    _until_step(process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not list(project.folder.glob("artifacts/net/v*/*.json"))
    answer = project.build("net.onnx", "--target", "cpu", "--shape", "x:1x3x8x8")
    assert answer.code == 0, answer.err
    assert not list(project.folder.glob(".enginefarm/runs/*/work"))


def test_two_runs_at_once_keep_both_results(project: Project, net: Net) -> None:
    net()
    first = _start(project, "build", "net.onnx", "--target", "cpu")
    second = _start(project, "build", "net.onnx", "--target", "cpu", "--target", "volta-cu118", "--available", "--force")
    for process in (first, second):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
    record = project.record("cpu")
    assert record["verdict"]["status"] == "passed"
    assert project.engines() == ["net_v1_cpu.onnx"]
    again = project.build("net.onnx", "--target", "cpu")
    assert again.builds["cpu"]["cached"] is True


def test_exitfirst_stops_after_the_first_failure(project: Project, net: Net) -> None:
    net(product=True)
    net("other.onnx", seed=2)
    words = ("net.onnx", "other.onnx", "-t", "cpu", "-x", "-j", "1", "--build-timeout", "0.1")
    answer = project.build(*words)
    assert answer.code == 1
    assert len([build for model in answer.json["models"] for build in model["builds"]]) == 1
