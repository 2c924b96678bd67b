"""Plain lines for CI logs and files: one line when something begins, changes or ends; no spinner, no cursor movement."""

from __future__ import annotations

from typing import TextIO

from orchestrator import events
from orchestrator.report.text import duration, safe, size

# a build that says nothing for long looks dead in a CI log
MARKS = {"passed": "+", "self-consistent": "~", "unvalidated": "~", "failed": "x", "skipped": "-"}


class Lines:
    """Subscriber; ``verbosity`` -1 only failures, 0 normal, 1 phases and warnings of the backend, 2 every log line."""

    def __init__(self, stream: TextIO, verbosity: int = 0) -> None:
        self._stream = stream
        self._verbosity = verbosity
        self._phases: dict[tuple[str, str], str] = {}

    def __call__(self, event: events.Event) -> None:
        text = self.line(event)
        if text is not None:
            self._stream.write(safe(text) + "\n")
            self._stream.flush()

    def line(self, event: events.Event) -> str | None:
        if isinstance(event, events.BuildFinished):
            return finished_line(event) if told(event, self._verbosity) else None
        if isinstance(event, events.Note):
            return note_line(event) if self._verbosity >= 0 else None
        if self._verbosity < 0:
            return None
        if isinstance(event, events.StepStarted):
            return f"  {event.model} {event.target}: {event.step} on {event.runner}"
        if isinstance(event, events.StepPhase) and self._verbosity >= 1:
            return f"  {event.model} {event.target}: {event.phase}"
        if isinstance(event, events.StepLog) and _wanted(event, self._verbosity):
            return f"  {event.model} {event.target}: [{event.level}] {event.text}"
        return None


def _wanted(event: events.StepLog, verbosity: int) -> bool:
    return verbosity >= 2 or (verbosity >= 1 and event.level in ("warning", "error"))


def told(event: events.BuildFinished, verbosity: int) -> bool:
    """Whether an ended build gets a line of its own; skipped ones are listed, with the reason, in the result."""
    return event.status == "failed" or verbosity >= (1 if event.status == "skipped" else 0)


def note_line(event: events.Note) -> str:
    place = " ".join(word for word in (event.model, event.target) if word)
    prefix = "warning: " if event.level == "warning" else "note: "
    return prefix + (f"{place}: " if place else "") + event.text


def finished_line(event: events.BuildFinished) -> str:
    """One past-tense line: how the build ended and why."""
    mark = MARKS.get(event.status, "?")
    if event.status == "skipped":
        return f"{mark} {event.model} {event.target} skipped: {event.detail}"
    if event.status == "failed":
        return f"{mark} {event.model} {event.target} failed after {duration(event.seconds)}: {event.detail}"
    made = "reused" if event.cached else f"built in {duration(event.seconds)}"
    return f"{mark} {event.model} {event.target} {made}, {size(event.size_bytes)}, {event.status}: {event.detail}"
