"""Rows of the history as the commands read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.pipeline.runfolder import in_use

State = Literal["running", "done", "failed", "interrupted", "killed"]

WORKED = ("passed", "self-consistent", "unvalidated")
"""Statuses of builds that gave an engine."""


@dataclass(frozen=True)
class RunRow:
    """One run; times in seconds since the epoch (UTC), ``seconds`` its length. ``folder`` may be gone: only the newest are kept.

    ``pending``: (model, target) of builds that had not ended when the run was stopped, or that it still has to do.
    """

    id: str
    folder: Path
    command: tuple[str, ...]
    started_at: float
    finished_at: float | None
    seconds: float | None
    exit_code: int | None
    counts: dict[str, int]
    pid: int | None
    host: str | None
    pending: tuple[tuple[str, str], ...]

    @property
    def state(self) -> State:
        """``killed``: it never said how it ended, and nobody holds the lock of its folder any more."""
        if self.finished_at is None:
            return "running" if self.folder.is_dir() and in_use(self.folder) else "killed"
        if self.exit_code in (130, 143) or self.counts.get("interrupted"):
            return "interrupted"
        return "failed" if self.exit_code else "done"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form; pid and host only while the run is alive."""
        state = self.state
        fields: dict[str, Any] = {"run": self.id, "state": state, "command": list(self.command), "folder": str(self.folder)}
        fields |= {"started_at": self.started_at, "finished_at": self.finished_at, "seconds": self.seconds}
        fields |= {"exit_code": self.exit_code, "counts": self.counts}
        fields["pending"] = [{"model": model, "target": target} for model, target in self.pending] if state != "running" else []
        return fields | ({"pid": self.pid, "host": self.host} if state == "running" else {})


def run_row(columns: Sequence[Any], state: Path) -> RunRow:
    """From RUN_COLUMNS of history_db.py; run folders lie under ``state``."""
    run, folder, command, started, finished, seconds, code, counts, pid, host, pending = columns
    grouped: dict[str, list[str]] = json.loads(pending) if pending else {}
    return RunRow(
        id=run,
        folder=state / folder,
        command=tuple(json.loads(command)),
        started_at=started,
        finished_at=finished,
        seconds=seconds,
        exit_code=code,
        counts=json.loads(counts) if counts else {},
        pid=pid,
        host=host,
        pending=tuple((model, target) for model, targets in grouped.items() for target in targets),
    )


@dataclass(frozen=True)
class BuildRow:
    """One ended build; ``build_seconds`` and ``validate_seconds`` are those of the steps, None for a step that did not run."""

    run: str
    model: str
    model_version: int | None
    target: str
    status: str
    detail: str
    cached: bool
    seconds: float
    build_seconds: float | None
    validate_seconds: float | None
    runner: str | None
    size_bytes: int | None
    problem: str | None
    """Code of the problem (``EF302``), for a build that failed or was skipped."""
    ended_at: float

    @property
    def idle(self) -> bool:
        """Nothing was done: what was there held, or nothing could be done."""
        return self.cached or self.status == "skipped"

    def as_dict(self) -> dict[str, Any]:
        return vars(self).copy()


def build_row(columns: Sequence[Any]) -> BuildRow:
    """From the run's id and BUILD_COLUMNS of history_db.py."""
    run, model, version, target, status, detail, cached, *rest = columns
    return BuildRow(run, model, version, target, status, detail, bool(cached), *rest)
