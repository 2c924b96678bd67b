"""Rows of a history, written by the events of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator import events
from orchestrator.pipeline.history import History

COMMAND = ("build", "lane.onnx", "-t", "cpu")


def start(history: History, run: str, *builds: tuple[str, int | None, str], folder: Path | None = None) -> Path:
    folder = folder or history.path.parent / "runs" / run
    history(events.RunStarted(run=run, builds=len(builds), folder=str(folder)))
    history.planned(builds)
    return folder


def step(history: History, model: str, target: str, seconds: float, *, name: str = "build", runner: str = "local", ok: bool = True) -> None:
    history(events.StepStarted(model=model, target=target, step=name, runner=runner))
    history(events.StepFinished(model=model, target=target, step=name, ok=ok, seconds=seconds))


def end(history: History, model: str, target: str, status: str = "passed", **fields: Any) -> None:
    history(events.BuildFinished(model=model, target=target, status=status, detail=f"{status}.", **fields))


def finish(history: History, run: str, code: int = 0, *, interrupted: tuple[str, ...] = (), counts: dict[str, int] | None = None) -> None:
    history(events.RunFinished(run=run, exit_code=code, counts=counts or {}, interrupted=interrupted, manifests=(), seconds=12.5))


def whole_run(history: History, run: str, builds: dict[tuple[str, str], tuple[str, float]]) -> None:
    """One run in which each (model, target) ended with (status, seconds of its build)."""
    start(history, run, *((model, 1, target) for model, target in builds))
    for (model, target), (status, seconds) in builds.items():
        if status not in ("reused", "skipped"):
            step(history, model, target, seconds)
        end(history, model, target, "passed" if status == "reused" else status, seconds=seconds, cached=status == "reused")
    finish(history, run)
