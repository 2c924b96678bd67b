"""The live table on a terminal: what runs now, in which phase, for how long; ended builds scroll by as permanent lines.

A backend's own step counts are not proportional to time, so there is no percentage: phase and elapsed time only.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator import events
from orchestrator.report.lines import finished_line, note_line, told
from orchestrator.report.text import duration, safe

STYLES = {"passed": "green", "self-consistent": "yellow", "unvalidated": "yellow", "failed": "bold red", "skipped": "dim"}


class _Running:
    def __init__(self, step: str) -> None:
        self.step = step
        self.phase = ""
        self.since = time.monotonic()


class LiveTable:
    """Subscriber and context manager; writes to ``console`` (standard error)."""

    def __init__(self, console: Console, verbosity: int = 0) -> None:
        self._console = console
        self._verbosity = verbosity
        self._running: dict[tuple[str, str], _Running] = {}
        self._total = 0
        self._ended = 0
        self._started = time.monotonic()
        self.stopping = ""  # what is said below the table once the run is being stopped
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=8, transient=True)

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            self._total = event.builds
        elif isinstance(event, events.StepStarted):
            self._running[event.model, event.target] = _Running(event.step)
        elif isinstance(event, events.StepPhase):
            if running := self._running.get((event.model, event.target)):
                running.phase = event.phase
        elif isinstance(event, events.StepFinished):
            self._running.pop((event.model, event.target), None)
        elif isinstance(event, events.BuildFinished):
            self._ended += 1
            if told(event, self._verbosity):
                self._permanent(finished_line(event), STYLES.get(event.status, ""))
        elif isinstance(event, events.Note):
            self._permanent(note_line(event), "yellow" if event.level == "warning" else "dim")
        elif isinstance(event, events.StepLog) and self._verbosity >= 1 and event.level in ("warning", "error"):
            self._permanent(f"  {event.model} {event.target}: [{event.level}] {event.text}", "dim")

    def _permanent(self, line: str, style: str) -> None:
        if self._verbosity >= 0 or style == STYLES["failed"]:
            self._console.print(Text(safe(line), style="" if self._console.no_color else style))

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for _ in range(4):
            table.add_column(no_wrap=True)
        now = time.monotonic()
        for (model, target), running in list(self._running.items()):
            table.add_row(f"  {safe(model)} {safe(target)}", running.step, safe(running.phase), duration(now - running.since))
        if self._total:
            table.add_row(f"{self._ended} of {self._total} done", "", "", duration(now - self._started))
        return Group(table, Text(self.stopping)) if self.stopping else table
