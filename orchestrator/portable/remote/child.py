"""The worker's process on the remote machine: its environment, what it prints, its end. Nothing of it survives."""

import os
import select
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional

from .wire import CHUNK_BYTES, LOG, OUT, Wire

GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
_DRAIN_SECONDS = 1.0  # a grandchild may hold the pipes open after the worker ended
_MARK = "ENGINEFARM_STEP"
_PARENT = "ENGINEFARM_PARENT"  # worker/main.py: the kernel kills the worker when this process dies
# What a step may see of the login's environment, as with a local interpreter (runners/process.py).
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


def environment(folder: str, nonce: str, more: Dict[str, str]) -> Dict[str, str]:
    """A scrubbed environment: an allow-list, home and temporary files inside the step's folder, and ``more``."""
    found = {"LANG": "C.UTF-8"}
    found.update({name: os.environ[name] for name in _PASSED if name in os.environ})
    for variable, name in (("HOME", "home"), ("TMPDIR", "tmp")):
        found[variable] = os.path.join(folder, name)
        os.mkdir(found[variable], 0o700)
    found.update(more)
    found.update({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", _PARENT: str(os.getpid()), _MARK: nonce})
    return found


def start(command: List[str], folder: str, variables: Dict[str, str]) -> Any:
    """Start the worker in a session of its own. Called by the main thread: the worker dies with the thread that started it."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def follow(process: Any, wire: Wire, deadline: float) -> Optional[str]:
    """Send on what the worker prints; "timeout" when it has to be stopped, None when it ended by itself."""
    pipes = {process.stdout.fileno(): OUT, process.stderr.fileno(): LOG}
    drained: Optional[float] = None
    while True:
        for handle in select.select(list(pipes), [], [], 0.1 if pipes else 0.02)[0]:
            data = os.read(handle, CHUNK_BYTES)
            if data:
                wire.send(pipes[handle], data)
            else:
                del pipes[handle]
        now = time.monotonic()
        if process.poll() is not None:
            drained = drained or now + _DRAIN_SECONDS
            if not pipes or now > drained:
                return None
        elif now > deadline:
            return "timeout"


def end(process: Any, nonce: str) -> None:
    """End the worker and everything it started: its process group, then whatever left the group (Linux)."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        until = time.monotonic() + GRACE_SECONDS
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
    _signal(process.pid, signal.SIGKILL)
    process.wait()
    _kill_all("{}={}".format(_MARK, nonce))


def end_orphans(folder: str) -> None:
    """End what still runs of a step whose process here was killed; ``folder`` is the step's."""
    _kill_all("HOME={}".format(os.path.join(folder, "home")))


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except OSError:
        pass


def _kill_all(variable: str) -> None:
    """Kill the processes that carry this variable in their environment: a daemon leaves its group, but not its environment (Linux)."""
    mark = variable.encode("utf-8", "surrogateescape")
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open("/proc/{}/environ".format(name), "rb") as file:
                    found = mark in file.read().split(b"\0")
                if found:
                    os.kill(int(name), signal.SIGKILL)
            except OSError:
                continue
