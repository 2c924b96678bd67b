"""One process that has imported what children need, and forks them: most of a short child's time is the start of Python and of onnx.

Linux only (it waits by pidfd). The caller and the nursery talk over one socket; when that closes, because the caller ended however it did,
the nursery ends its children and itself. Every call brings a socket of its own, on which it is told the child's pid and its status.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

AVAILABLE = sys.platform == "linux" and hasattr(os, "pidfd_open")
_START_SECONDS = 60.0
_LONGEST = 4096
"""Bytes of a folder's name; more than any path can have."""


class Nursery:
    """Started with the first child. Safe to use from several threads."""

    def __init__(self, start: str, root: str) -> None:
        """``start``: a script that calls :func:`serve` with a file descriptor, its second argument; ``root`` is its first."""
        self._start = start
        self._root = root
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._environment: Mapping[str, str] = {}

    def child(self, folder: str, environment: Mapping[str, str]) -> Child | None:
        """Fork a child for ``folder`` (child.py); None when there is no nursery, for whatever reason."""
        if not AVAILABLE:
            return None
        mine, theirs = socket.socketpair()
        with self._lock, theirs:
            for _ in range(2):  # a nursery that was killed is replaced once
                try:
                    if self._control is None or environment != self._environment:
                        self._open(environment)
                    if self._control is not None:
                        socket.send_fds(self._control, [folder.encode()], [theirs.fileno()])
                        break
                except OSError:
                    self._close()
        try:
            return Child(mine)
        except OSError:
            mine.close()
            return None

    def _open(self, environment: Mapping[str, str]) -> None:
        self._close()
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-I", "-c", self._start, self._root, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._control, self._environment = mine, dict(environment)

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None


class Child:
    """A forked child, seen from the caller. Raises OSError when made, where the nursery is gone."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self._said = b""
        self.code: int | None = None
        self.pid = self._number(_START_SECONDS) or 0
        if not self.pid:
            raise ConnectionResetError

    def wait(self, seconds: float) -> bool:
        """Whether it ended within ``seconds``; ``code`` is then as subprocess has it."""
        if self.code is None:
            self.code = self._number(seconds)
        return self.code is not None

    def kill(self) -> None:
        """End it and whatever it has started."""
        with contextlib.suppress(OSError):
            if self.code is None:
                os.killpg(self.pid, signal.SIGKILL)
        self._answers.close()

    def _number(self, seconds: float | None) -> int | None:
        """The next number that the nursery says; None when it says none in time. A nursery that was killed took the child along (-9)."""
        while b"\n" not in self._said:
            self._answers.settimeout(seconds)
            try:
                part = self._answers.recv(64)
            except (TimeoutError, BlockingIOError):
                return None
            if not part:
                return -9 if hasattr(self, "pid") else 0
            self._said += part
        line, _, self._said = self._said.partition(b"\n")
        return int(line)


def serve(control: socket.socket) -> None:
    """The nursery's side: fork a child for each folder that comes, tell how each ended, end with the caller."""
    import gc

    import numpy as np  # noqa: F401  (for the children)
    import onnx.shape_inference  # noqa: F401

    gc.freeze()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the caller decides what they mean
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        children: dict[int, tuple[int, socket.socket]] = {}
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    _ended(selector, children, key.fd)
                    continue
                folder, descriptors, _, _ = socket.recv_fds(control, _LONGEST, 1)
                if not folder:
                    for pid, _ in children.values():
                        with contextlib.suppress(OSError):
                            os.killpg(pid, signal.SIGKILL)
                    return
                answers = socket.socket(fileno=descriptors[0])
                pid = os.fork()
                if not pid:
                    _be_a_child(folder.decode(), control)
                with contextlib.suppress(OSError):
                    os.setpgid(pid, pid)  # whoever comes first: the caller may kill the group at once
                handle = os.pidfd_open(pid)
                children[handle] = (pid, answers)
                selector.register(handle, selectors.EVENT_READ)
                _tell(answers, pid)


def _ended(selector: selectors.BaseSelector, children: dict[int, tuple[int, socket.socket]], handle: int) -> None:
    selector.unregister(handle)
    os.close(handle)
    pid, answers = children.pop(handle)
    _, status = os.waitpid(pid, 0)
    _tell(answers, os.waitstatus_to_exitcode(status))
    answers.close()


def _tell(answers: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        answers.sendall(b"%d\n" % number)


def _be_a_child(folder: str, control: socket.socket) -> None:
    """In the fork; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        control.close()
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_DFL)
        log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)  # noqa: PTH118
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        from orchestrator.models.child import main

        main(folder)
        code = 0
    except BaseException:  # noqa: BLE001  (nothing of a child may come back into the nursery's loop)
        import traceback

        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
