from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from orchestrator.models import child
from orchestrator.models.child import ChildFailed, run_child

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


def test_a_crash_is_told_with_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_START", "import ctypes; ctypes.string_at(0)")
    error = failed("declared.infer", {})
    assert error.reason == "crashed"
    assert "SIGSEGV" in error.message


def test_a_kill_from_outside_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_START", "import os; os.kill(os.getpid(), 9)")
    assert failed("declared.infer", {}).reason == "memory"


@linux
def test_the_child_and_its_children_end_with_the_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    start = f"""
        import os, subprocess, time
        helper = subprocess.Popen(["sleep", "600"])
        part = {str(pids)!r} + ".part"
        open(part, "w").write(f"{{os.getpid()}} {{helper.pid}}")
        os.rename(part, {str(pids)!r})
        time.sleep(600)
    """
    monkeypatch.setattr(child, "_START", textwrap.dedent(start))
    assert failed("declared.infer", {}, timeout=1.5).reason == "timeout"
    for pid in map(int, pids.read_text().split()):
        assert not _alive(pid)


@linux
def test_a_killed_parent_takes_the_child_along(tmp_path: Path) -> None:
    program = """
        from orchestrator.models import child
        child._START = "import sys; sys.path.insert(0, sys.argv[1]); "
        child._START += "from orchestrator.models import child; child._die_with_parent(); print(flush=True); import time; time.sleep(600)"
        child.run_child("declared.infer", {}, timeout_seconds=600)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)})
    pid = _wait_for_child(parent.pid, tmp_path)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(100):
        if not _alive(pid):
            break
        time.sleep(0.05)
    assert not _alive(pid)


def _wait_for_child(parent: int, folder: Path) -> int:
    """The child's process id, once it has said (in its log) that it is set up."""
    for _ in range(200):
        if any(log.stat().st_size for log in folder.glob("*/log")):
            return int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
        time.sleep(0.05)
    raise AssertionError("the child did not start")


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
