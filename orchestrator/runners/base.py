"""What every runner is to the rest: a place with a host description that runs one step at a time per slot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Host = Mapping[str, Any]
"""A host description as ``portable/worker/probe.py`` documents it (``enginefarm.host/1``)."""

WorkerEvent = Mapping[str, Any]


class Cancel:
    """Set once by Ctrl-C or SIGTERM; a runner ends the step's processes as soon as it sees it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        return self._event.wait(seconds)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step to run.

    ``request`` follows portable/worker/protocol.py without ``schema``, ``nonce`` and ``limits`` (the runner adds them).
    ``inputs`` maps a path inside the step's folder to the file on this machine that must be there, read-only.
    """

    request: Mapping[str, Any]
    inputs: Mapping[str, Path] = field(default_factory=dict)
    timeout_seconds: float = 3600.0
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """``result`` is the worker's ``result.json``; the files it names lie under ``folder``; ``log`` is all free text."""

    result: Mapping[str, Any]
    folder: Path
    log: Path
    seconds: float


class Runner(Protocol):
    """Runs steps. Raises EnginefarmError (STEP_TIMEOUT, STEP_MEMORY, STEP_CRASHED, RUNNER_BROKEN, DISK) when the worker gave no result;
    a worker that answers ``ok: false`` is a result, not an exception."""

    name: str
    slots: int

    def host(self) -> Host:
        """The host description; probed once, then remembered."""
        ...

    def run(self, step: Step, folder: Path, on_event: Callable[[WorkerEvent], None], cancel: Cancel) -> StepResult:
        """Run ``step`` in the new, empty ``folder`` (owned by the caller; kept until the caller removes it)."""
        ...
