from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.models import child, nursery
from orchestrator.models.child import ChildFailed, run_child
from orchestrator.models.nursery import Nursery

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
ROOT = Path(__file__).resolve().parents[2]


def failed(function: str, request: dict[str, object], **options: float) -> ChildFailed:
    with pytest.raises(ChildFailed) as caught:
        run_child(function, request, timeout_seconds=options.get("timeout", 30.0))
    return caught.value


def test_an_exception_in_the_child_is_told() -> None:
    error = failed("declared.infer", {"path": "/nowhere.onnx"})
    assert error.reason == "failed"
    assert "FileNotFoundError" in error.message


SERVE = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from orchestrator.models import child, nursery
child.main = lambda folder: exec({code!r}, {{}})
nursery.serve(socket.socket(fileno=int(sys.argv[2])))
"""
Misbehave = Callable[[str], None]


@pytest.fixture(params=[pytest.param("nursery", marks=linux), "process"])
def misbehave(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Misbehave:
    """Children that run some code instead of what they are asked for: forked by a nursery, and started by themselves."""

    def instead(code: str) -> None:
        monkeypatch.setattr(nursery, "AVAILABLE", request.param == "nursery")
        monkeypatch.setattr(child, "_NURSERY", Nursery(SERVE.format(code=textwrap.dedent(code)), str(ROOT)))
        monkeypatch.setattr(child, "_START", textwrap.dedent(code))

    return instead


def test_a_crash_is_told_with_its_signal(misbehave: Misbehave) -> None:
    misbehave("import ctypes; ctypes.string_at(0)")
    error = failed("declared.infer", {})
    assert error.reason == "crashed"
    assert "SIGSEGV" in error.message


def test_a_kill_from_outside_counts_as_memory(misbehave: Misbehave) -> None:
    misbehave("import os; os.kill(os.getpid(), 9)")
    assert failed("declared.infer", {}).reason == "memory"


def test_an_end_without_an_answer_is_a_crash(misbehave: Misbehave) -> None:
    misbehave("import os; os.write(2, b'it was here'); os._exit(3)")
    error = failed("declared.infer", {})
    assert (error.reason, error.message) == ("crashed", "the process died (exit code 3): it was here")


@linux
def test_the_child_and_its_children_end_with_the_time(misbehave: Misbehave, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    misbehave(f"""
        import os, subprocess, time
        helper = subprocess.Popen(["sleep", "600"])
        part = {str(pids)!r} + ".part"
        open(part, "w").write(f"{{os.getpid()}} {{helper.pid}}")
        os.rename(part, {str(pids)!r})
        time.sleep(600)
    """)
    assert failed("declared.infer", {}, timeout=3.0).reason == "timeout"
    for pid in map(int, pids.read_text().split()):
        _dies(pid)


@linux
def test_a_nursery_that_was_killed_is_replaced_and_its_children_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_NURSERY", Nursery(child._START_NURSERY, str(ROOT)))
    before = _below(os.getpid())
    failed("declared.infer", {"path": "/nowhere.onnx"})
    (pid,) = _below(os.getpid()) - before
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert failed("declared.infer", {"path": "/nowhere.onnx"}).reason == "failed"
    assert len(_below(os.getpid()) - before) == 1


@linux
def test_calls_from_several_threads_get_their_own_answers(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        names = [f"/nowhere-{number}.onnx" for number in range(8)]
        errors = list(pool.map(lambda name: failed("declared.infer", {"path": name}), names))
    assert [name in error.message for name, error in zip(names, errors, strict=True)] == [True] * 8


@linux
@pytest.mark.parametrize("available", [True, False])
def test_a_killed_parent_takes_all_along(tmp_path: Path, available: bool) -> None:
    code = "from orchestrator.models import child; child._die_with_parent(); print(flush=True); import time; time.sleep(600)"
    program = f"""
        from orchestrator.models import child, nursery
        nursery.AVAILABLE = {available}
        child._NURSERY = nursery.Nursery({SERVE.format(code=code)!r}, {str(ROOT)!r})
        child._START = "import sys; sys.path.insert(0, sys.argv[1]); " + {code!r}
        child.run_child("declared.infer", {{}}, timeout_seconds=600)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)})
    for _ in range(400):
        if any(log.stat().st_size for log in tmp_path.glob("*/log")):
            break
        time.sleep(0.05)
    below = _below(parent.pid)
    assert len(below) == 1 + available
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for pid in below:
        _dies(pid)


def _below(pid: int) -> set[int]:
    """All processes that descend from one."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for below in map(int, task.read_text().split()):
            found |= {below, *_below(below)}
    return found


def _dies(pid: int) -> None:
    for _ in range(100):
        if not _alive(pid):
            return
        time.sleep(0.05)
    raise AssertionError(f"{pid} lives")


def _alive(pid: int) -> bool:
    try:
        # a zombie that nobody waits for is dead too
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def test_nothing_is_left_in_the_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failed("declared.infer", {"path": "/nowhere.onnx"})
    assert list(tmp_path.iterdir()) == []


def test_a_memory_limit_beyond_a_c_long_limits_nothing() -> None:
    code = "from orchestrator.models.child import _limit_memory; _limit_memory(99999999 << 40)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
