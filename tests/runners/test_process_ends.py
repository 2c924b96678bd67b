"""How steps of the process runner end: in time or not, crashed, cancelled, killed; and nothing that they started outlives them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.portable.worker.main import EXIT_WRITTEN
from orchestrator.runners import process
from orchestrator.runners.base import Cancel, Cancelled, Step

from .local_step import PROBE, fail, run


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)


def test_a_step_past_its_time_is_ended_with_everything_it_started(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
""")
    error = fail(Step(request=PROBE, timeout_seconds=1.0), tmp_path / "step")

    assert error.kind is errors.STEP_TIMEOUT
    assert "after 1 s" in error.what
    for pid in (tmp_path / "step" / "pids").read_text().split():
        assert gone_soon(int(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="daemons are found through /proc")
def test_a_daemon_that_left_the_process_group_does_not_survive_either(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, stdout=subprocess.DEVNULL)
open("pids", "w").write(str(child.pid))
answer()
""")
    assert run(Step(request=PROBE), tmp_path / "step").result["ok"]

    assert gone_soon(int((tmp_path / "step" / "pids").read_text()))


def test_a_grandchild_that_holds_the_pipes_open_does_not_hold_the_step(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids", "w").write(str(child.pid))
answer()
""")
    done = run(Step(request=PROBE, timeout_seconds=60), tmp_path / "step")

    assert done.result["ok"]
    assert done.seconds < 30
    assert gone_soon(int((tmp_path / "step" / "pids").read_text()))


def test_cancel_ends_the_step_and_is_told_apart_from_errors(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
open("pids", "w").write(str(os.getpid()))
print(BEGIN); print('{"event": "phase", "phase": "started"}', flush=True)
time.sleep(600)
""")
    cancel = Cancel()

    with pytest.raises(Cancelled):
        run(Step(request=PROBE), tmp_path / "step", lambda _: cancel.set(), cancel)

    assert gone_soon(int((tmp_path / "step" / "pids").read_text()))


def test_cancel_from_another_thread_is_seen_while_the_worker_is_silent(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("os.close(1); time.sleep(600)")
    cancel = Cancel()
    timer = threading.Timer(0.3, cancel.set)
    timer.start()

    with pytest.raises(Cancelled):
        run(Step(request=PROBE), tmp_path / "step", cancel=cancel)

    timer.join()


def test_a_subscriber_that_fails_leaves_no_process_behind(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
open("pids", "w").write(str(os.getpid()))
print(BEGIN); print('{"event": "phase", "phase": "started"}', flush=True)
time.sleep(600)
""")

    def broken(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Step(request=PROBE), tmp_path / "step", broken)

    assert gone_soon(int((tmp_path / "step" / "pids").read_text()))


@pytest.mark.parametrize(
    ("code", "kind", "what", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", errors.STEP_CRASHED, "was killed by SIGSEGV", None),
        ("os.kill(os.getpid(), signal.SIGKILL)", errors.STEP_CRASHED, "was killed by SIGKILL", "the kernel does that when memory is short"),
        ("sys.stderr.write('last words\\n'); os._exit(7)", errors.STEP_CRASHED, "ended with exit code 7", "last words"),
        ("pass", errors.STEP_CRASHED, "left no usable result", None),
        (
            "sys.stderr.write('terminate called: std::bad_alloc\\n'); sys.stderr.flush(); os.abort()",
            errors.STEP_MEMORY,
            "ran out of memory",
            "std::bad_alloc",
        ),
        (
            "sys.stderr.write('result.json could not be written: [Errno 28] No space left on device\\n'); os._exit(3)",
            errors.DISK,
            "ran out of disk space",
            "No space left",
        ),
        ("open('result.json', 'w').write('{')", errors.STEP_CRASHED, "left no usable result", None),
        ("open('result.json', 'w').write('[' * 100000)", errors.STEP_CRASHED, "left no usable result", None),
        ("answer(step='build')", errors.STEP_CRASHED, "not a result of this step", None),
        ("answer(ok='yes')", errors.STEP_CRASHED, "does not say how the step ended", None),
        ("answer(engine={'file': '../request.json'})", errors.STEP_CRASHED, "no file of the step", None),
        ("os.symlink('/etc/hostname', 'e'); answer(engine={'file': 'e'})", errors.STEP_CRASHED, "no file of the step", None),
        ("answer(engine={'file': 'missing'})", errors.STEP_CRASHED, "left no usable result", None),
        ("answer(outputs=[{'outputs': [{'file': '/etc/hostname'}]}])", errors.STEP_CRASHED, "no file of the step", None),
    ],
)
def test_every_bad_end_has_its_error(
    misbehave: Callable[[str], None], tmp_path: Path, code: str, kind: errors.Kind, what: str, why: str | None
) -> None:
    misbehave(code)
    error = fail(Step(request=PROBE), tmp_path / "step")

    assert error.kind is kind
    assert what in error.what
    assert why is None or why in (error.why or "")
    assert error.log == str(tmp_path / "step" / "worker.log")


@pytest.mark.parametrize(("limit", "said", "fix"), [(50 << 20, "its limit was 50 MiB", "--memory"), (None, "no limit was set", "--jobs 1")])
def test_a_step_that_died_for_lack_of_memory_says_how_much_it_had_and_what_to_do(
    misbehave: Callable[[str], None], tmp_path: Path, limit: int | None, said: str, fix: str
) -> None:
    misbehave("sys.stderr.write('std::bad_alloc\\n'); sys.stderr.flush(); os.abort()")
    error = fail(Step(request=PROBE, memory_bytes=limit), tmp_path / "step")

    assert error.kind is errors.STEP_MEMORY
    assert f"({said})" in error.what
    assert fix in (error.fix or "")


@pytest.mark.skipif(sys.platform != "linux", reason="parent death signals are Linux's")
def test_a_killed_orchestrator_takes_its_worker_with_it(tmp_path: Path) -> None:
    reads_a_pipe = tmp_path / "pipe"
    os.mkfifo(reads_a_pipe)  # a request that is never written: the worker waits in open()
    code = (
        "import os, subprocess, sys, time\n"
        "from orchestrator.runners.bundle import worker_pyz\n"
        "env = {**os.environ, 'ENGINEFARM_PARENT': str(os.getpid())}\n"
        f"child = subprocess.Popen([sys.executable, '-I', str(worker_pyz()), {str(reads_a_pipe)!r}], env=env, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    import subprocess

    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[2])},
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        time.sleep(0.3)  # until it asked the kernel; even without, it compares its parent when it does
        parent.send_signal(signal.SIGKILL)
        parent.wait()

    assert gone_soon(worker)


@pytest.mark.parametrize("end", ["os._exit(120)", f"os._exit({EXIT_WRITTEN})", "answer(ok=False, error={})"])
def test_no_result_on_a_full_disk_is_told_as_that(
    end: str, misbehave: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    misbehave(f"{end}\n")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(process.shutil, "disk_usage", lambda _: usage._replace(free=4096))
    error = fail(Step(request=PROBE), tmp_path / "step")
    assert error.kind is errors.DISK
    assert str(tmp_path) in str(error.fix)
