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


class Cancelled(Exception):  # noqa: N818  (not an error: the user asked for it)
    """The step was ended because ``Cancel`` was set; nothing of it is left running."""


class Cancel:
    """Set once by Ctrl-C or SIGTERM; a runner ends the step's processes as soon as it sees it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.stopped_by: int | None = None  # the signal, when one stopped the run
        self.watched = False  # somebody looks at this flag; before and after, a signal ends the process by itself

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
    image: str | None = None
    """Image pinned by digest (``repository@sha256:...``) that a container runner starts; a process runner ignores it."""
    platform: str = "any"
    compute_capability: tuple[str, ...] = ()
    """The step needs a GPU with one of these; empty: it needs none."""
    exclusive: bool = False
    """Nothing else may run on that GPU meanwhile (timing)."""
    shared_inputs: Mapping[str, str] = field(default_factory=dict)
    """Top folder of some ``inputs`` -> digest over all of it: a remote runner sends such a folder once and keeps it under its digest."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """``result`` is the worker's ``result.json``; the files it names lie under ``folder``; ``log`` is all free text."""

    result: Mapping[str, Any]
    folder: Path
    log: Path
    seconds: float


class Runner(Protocol):
    """Runs steps. Raises EnginefarmError (STEP_TIMEOUT, STEP_MEMORY, STEP_CRASHED, RUNNER_BROKEN, DISK) when the worker gave no result;
    a worker that answers ``ok: false`` is a result, not an exception. Raises Cancelled when ``cancel`` was set."""

    name: str
    kind: str  # "process"
    slots: int
    labels: tuple[str, ...]

    def host(self) -> Host:
        """The host description; probed once, then remembered."""
        ...

    def run(self, step: Step, folder: Path, on_event: Callable[[WorkerEvent], None], cancel: Cancel) -> StepResult:
        """Run ``step`` in the new, empty ``folder`` (owned by the caller; kept until the caller removes it)."""
        ...
