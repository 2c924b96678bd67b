"""One worker process under supervision: its events, its log, its end. Nothing of it survives, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from orchestrator.portable.worker.protocol import BEGIN_MARKER, END_MARKER
from orchestrator.runners.base import Cancel

LINE_LIMIT = 64 * 1024  # bytes of one line of standard output; the rest of a longer line is dropped
GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
_POLL_SECONDS = 0.1  # how soon a cancel is seen
_DRAIN_SECONDS = 1.0  # a grandchild may hold the pipes open after the worker ended
_STEP_VARIABLE = "ENGINEFARM_STEP"


@dataclass(frozen=True)
class Ended:
    """How the worker ended; ``code`` is negative for a signal, ``stopped`` says that we ended it and why."""

    code: int
    stopped: str | None  # "cancelled", "timeout" or None
    seconds: float


def supervise(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    nonce: str,
    log: Path,
    timeout_seconds: float,
    on_event: Callable[[Mapping[str, Any]], None],
    cancel: Cancel,
) -> Ended:
    """Run ``command`` in ``folder`` until it ends, time is up or ``cancel`` is set. Raises OSError when it cannot start.

    Event lines between the nonce's markers go to ``on_event``; everything else that it prints goes to ``log``.
    """
    started = time.monotonic()
    with log.open("ab") as log_file:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env={**environment, _STEP_VARIABLE: nonce},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_file,
            start_new_session=True,
        )
        stopped: str | None = None
        try:
            assert process.stdout is not None  # noqa: S101  (PIPE above)
            with process.stdout as stdout:
                stopped = _watch(process, stdout, EventLines(nonce, log_file, on_event), started + timeout_seconds, cancel)
        finally:
            _end(process, nonce)
    return Ended(process.returncode, stopped, time.monotonic() - started)


def _watch(process: subprocess.Popen[bytes], stdout: IO[bytes], lines: EventLines, deadline: float, cancel: Cancel) -> str | None:
    """Read until the end of the process; gives why it has to be stopped, or None when it ended by itself."""
    handle = stdout.fileno()
    os.set_blocking(handle, False)
    drain_until: float | None = None
    with selectors.DefaultSelector() as selector, _end_handle(process) as end:
        selector.register(handle, selectors.EVENT_READ)
        if end is not None:
            selector.register(end, selectors.EVENT_READ)
        while True:
            _take(selector, handle, lines)
            open_pipe = handle in selector.get_map()
            if cancel.is_set():
                return "cancelled"
            now = time.monotonic()
            if process.poll() is not None:
                drain_until = drain_until or now + _DRAIN_SECONDS
                if not open_pipe or now > drain_until:
                    lines.finish()
                    return None
            elif now > deadline:
                return "timeout"
            elif not selector.get_map():
                cancel.wait(_POLL_SECONDS / 2)


def _take(selector: selectors.BaseSelector, handle: int, lines: EventLines) -> None:
    """Wait a moment for output or the end; what has nothing more to say is no longer waited for."""
    for key, _ in selector.select(_POLL_SECONDS) if selector.get_map() else ():
        data = _read(handle) if key.fd == handle else b""
        if data == b"":
            selector.unregister(key.fd)
        elif data is not None:
            lines.feed(data)


@contextlib.contextmanager
def _end_handle(process: subprocess.Popen[bytes]) -> Iterator[int | None]:
    """What becomes readable when the process ends; None where the system has no such thing (it needs Linux 5.3)."""
    handle: int | None = None
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(process.pid)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def _read(handle: int) -> bytes | None:
    try:
        return os.read(handle, LINE_LIMIT)
    except BlockingIOError:
        return None


class EventLines:
    """Splits standard output into lines of bounded length and tells events from the rest."""

    def __init__(self, nonce: str, log: IO[bytes], on_event: Callable[[Mapping[str, Any]], None]) -> None:
        self._begin = BEGIN_MARKER.format(nonce=nonce).encode()
        self._end = END_MARKER.format(nonce=nonce).encode()
        self._log = log
        self._on_event = on_event
        self._rest = b""
        self._inside = False

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_LIMIT]
        for line in lines:
            self._line(line[:LINE_LIMIT])

    def finish(self) -> None:
        if self._rest:
            self._line(self._rest)
        self._rest = b""

    def _line(self, line: bytes) -> None:
        if line in (self._begin, self._end):
            self._inside = line == self._begin
            return
        event = _parse(line) if self._inside else None
        if event is not None:
            self._on_event(event)
        elif line:
            self._log.write(line + b"\n")
            self._log.flush()


def _parse(line: bytes) -> Mapping[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _end(process: subprocess.Popen[bytes], nonce: str) -> None:
    """End the worker and everything it started: its process group, then whatever left the group."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()
    for pid in _strays(nonce):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _signal_group(group: int, number: signal.Signals) -> None:
    # PermissionError: macOS says so for a group of zombies only
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _strays(nonce: str) -> list[int]:
    """Processes that still carry the step's mark in their environment (a daemon left the group); Linux only."""
    mark = f"{_STEP_VARIABLE}={nonce}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found
