"""Everything that happens in a run is an event: typed, JSON-serialisable, timestamped.

Views (terminal, CI lines, JSON lines, run folder) subscribe; nothing else prints.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Event:
    """``at`` is seconds since the epoch (UTC)."""

    event: ClassVar[str] = "event"
    at: float = field(default_factory=time.time)

    def as_dict(self) -> dict[str, Any]:
        return {"event": self.event, **vars(self)}


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    event: ClassVar[str] = "run-started"
    run: str
    builds: int
    folder: str


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """Something the user should know; ``level`` is ``info`` or ``warning``."""

    event: ClassVar[str] = "note"
    text: str
    level: str = "info"
    model: str | None = None
    target: str | None = None


@dataclass(frozen=True, kw_only=True)
class BuildEvent(Event):
    """Common to all events of one (model, target) build."""

    model: str
    target: str


@dataclass(frozen=True, kw_only=True)
class StepStarted(BuildEvent):
    event: ClassVar[str] = "step-started"
    step: str
    runner: str


@dataclass(frozen=True, kw_only=True)
class StepPhase(BuildEvent):
    """The backend entered a phase. Phases are not proportional to time: never turned into a percentage."""

    event: ClassVar[str] = "step-phase"
    step: str
    phase: str


@dataclass(frozen=True, kw_only=True)
class StepLog(BuildEvent):
    """One line that the backend logged; ``level`` is verbose, info, warning or error."""

    event: ClassVar[str] = "step-log"
    step: str
    level: str
    text: str


@dataclass(frozen=True, kw_only=True)
class StepFinished(BuildEvent):
    event: ClassVar[str] = "step-finished"
    step: str
    ok: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BuildFinished(BuildEvent):
    """``status`` is passed, self-consistent, unvalidated, failed or skipped."""

    event: ClassVar[str] = "build-finished"
    status: str
    detail: str
    cached: bool = False
    size_bytes: int | None = None
    precision: str | None = None
    seconds: float = 0.0
    problem: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    event: ClassVar[str] = "run-finished"
    run: str
    exit_code: int
    counts: dict[str, int]
    interrupted: tuple[str, ...] = ()
    manifests: tuple[str, ...]
    seconds: float


Subscriber = Callable[[Event], None]


class Bus:
    """Hands each event to every subscriber, one event at a time, in the order of emission."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)
        self._lock = threading.RLock()

    def subscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.append(subscriber)

    def __call__(self, event: Event) -> None:
        with self._lock:
            for subscriber in self._subscribers:
                subscriber(event)
