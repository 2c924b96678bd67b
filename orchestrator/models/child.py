"""One function of this package, run in a process of its own that can be killed and has limits.

Libraries that read a stranger's model may crash, hang or take all memory (SIGSEGV of a checker on recursive
functions, a Loop that never ends): they get a file to read and a time, and whatever they do ends with the process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from orchestrator.models.nursery import Child, Nursery

_POLL_SECONDS = 0.05
_LOG_BYTES = 4096
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_START = """
import sys
if sys.argv[1] not in sys.path:  # a checkout that is not installed
    sys.path.insert(0, sys.argv[1])
from orchestrator.models import child
child.main(sys.argv[2])
"""


_START_NURSERY = """
import socket, sys
if sys.argv[1] not in sys.path:
    sys.path.insert(0, sys.argv[1])
from orchestrator.models import nursery
nursery.serve(socket.socket(fileno=int(sys.argv[2])))
"""
_NURSERY = Nursery(_START_NURSERY, _PACKAGE_ROOT)


class CancelFlag(Protocol):
    """What a caller sets to end the child early."""

    def is_set(self) -> bool: ...


class ChildFailed(Exception):  # noqa: N818  (a result, not a bug)
    """``reason`` is ``timeout``, ``memory``, ``crashed``, ``cancelled`` or ``failed`` (an exception in the child)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def run_child(
    function: str,
    request: Mapping[str, Any],
    *,
    timeout_seconds: float,
    memory_bytes: int | None = None,
    cancel: CancelFlag | None = None,
) -> dict[str, Any]:
    """Answer of ``function`` (``module.function`` of this package, dict to dict, both JSON-ready).

    ``memory_bytes`` limits the child's address space where the system can; by default to what the machine has.
    Raises ChildFailed.
    """
    with tempfile.TemporaryDirectory(prefix="enginefarm-model-") as name:
        folder = Path(name)
        call = {"function": function, "request": dict(request), "memory_bytes": memory_bytes or _machine_memory()}
        (folder / "request.json").write_text(json.dumps(call), encoding="utf-8")
        process = _NURSERY.child(name, _environment()) or _Process(folder)
        try:
            _wait(process, timeout_seconds, cancel)
        finally:
            process.kill()
        return _answer(process.code or 0, folder)


class _Process:
    """A child that starts from nothing, where there is no nursery."""

    def __init__(self, folder: Path) -> None:
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, _PACKAGE_ROOT, str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                cwd=folder,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        if self._process.poll() is None:
            # the group: a library may have started helpers
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _machine_memory() -> int:
    # libraries reserve address space that they never touch: less than this would refuse them on small machines
    return max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 4 << 30)


def _environment() -> dict[str, str]:
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "TMPDIR", "LD_LIBRARY_PATH") if key in os.environ}
    # one thread: builds run beside each other, and every thread's stack and arena counts as address space
    return kept | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


def _wait(process: Child | _Process, timeout_seconds: float, cancel: CancelFlag | None) -> None:
    end = time.monotonic() + timeout_seconds
    while True:
        left = end - time.monotonic()
        if process.wait(max(0.0, min(_POLL_SECONDS, left))):
            return
        if cancel is not None and cancel.is_set():
            raise ChildFailed("cancelled", "cancelled")
        if left <= 0:
            raise ChildFailed("timeout", f"took longer than {timeout_seconds:g} s")


def _answer(code: int, folder: Path) -> dict[str, Any]:
    result = folder / "result.json"
    if code == 0 and result.is_file():
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        if "failed" in answer:
            raise ChildFailed(answer["failed"], answer["message"])
        return answer
    with (folder / "log").open("rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - _LOG_BYTES))
        tail = log.read().decode(errors="replace").strip()
    memory = code == -signal.SIGKILL or "bad_alloc" in tail or "MemoryError" in tail
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    last = f": {tail.splitlines()[-1][:300]}" if tail else ""
    raise ChildFailed("memory" if memory else "crashed", f"the process died ({how}){last}")


def main(folder: str) -> None:
    """The child's side of :func:`run_child`."""
    import importlib

    _die_with_parent()
    place = Path(folder)
    call = json.loads((place / "request.json").read_text(encoding="utf-8"))
    _limit_memory(call["memory_bytes"])
    module, _, function = call["function"].rpartition(".")
    try:
        answer = getattr(importlib.import_module(f"orchestrator.models.{module}"), function)(call["request"])
    except MemoryError:
        answer = {"failed": "memory", "message": "ran out of memory"}
    except Exception as error:  # noqa: BLE001  (the edge of the process: the parent decides what it means)
        answer = {"failed": "failed", "message": f"{type(error).__name__}: {error}"[:2000]}
    (place / "result.part").write_text(json.dumps(answer), encoding="utf-8")
    (place / "result.part").rename(place / "result.json")


def _limit_memory(memory_bytes: int) -> None:
    import resource

    most = min(memory_bytes, sys.maxsize)  # a C long; more than any machine has is no limit
    try:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ValueError, OSError):
        return  # macOS refuses this limit: the time limit remains


def _die_with_parent() -> None:
    """Linux: a killed parent takes the child along."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
