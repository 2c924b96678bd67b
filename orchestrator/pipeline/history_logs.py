"""The logs of past and running builds, as they lie in the run folders (pipeline/runfolder.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.pipeline.runfolder import STEP_FOLDERS, in_use

STEPS = ("build", "validate")
TRACEBACK = "traceback"
_ORDER = (*STEPS, TRACEBACK)


@dataclass(frozen=True)
class StepLog:
    """Log of one try of a step; ``attempt`` counts from 1, None for the log that a run keeps, which is that of the last try."""

    step: str
    attempt: int | None
    path: Path


@dataclass(frozen=True)
class RunLogs:
    """All logs of one run: build (``model/target``) -> logs in the order of the steps."""

    run: str
    folder: Path
    builds: dict[str, tuple[StepLog, ...]]

    @property
    def running(self) -> bool:
        return in_use(self.folder)


def run_folders(state: Path) -> list[Path]:
    """Folders of the runs that are still there, newest first."""
    runs = state / "runs"
    return sorted((entry for entry in runs.iterdir() if entry.is_dir()), reverse=True) if runs.is_dir() else []


def read_logs(folder: Path) -> RunLogs:
    """What ``folder`` holds; tries of a running run that are not kept yet, or that were followed by another, are in it."""
    found: dict[str, list[StepLog]] = {}
    for build, log in _live(folder / "work" / STEP_FOLDERS):
        found.setdefault(build, []).append(log)
    for build, log in _kept(folder / "logs"):
        known = found.setdefault(build, [])
        if all(other.step != log.step for other in known):
            known.append(log)
    order = {build: tuple(sorted(logs, key=lambda log: (_ORDER.index(log.step), log.attempt or 0))) for build, logs in found.items()}
    return RunLogs(folder.name, folder, order)


def _kept(logs: Path) -> Iterator[tuple[str, StepLog]]:
    for path in logs.glob("*/*"):
        for step, suffix in (*((step, f".{step}.log") for step in STEPS), (TRACEBACK, f".{TRACEBACK}")):
            if path.name.endswith(suffix):
                yield f"{path.parent.name}/{path.name.removesuffix(suffix)}", StepLog(step, None, path)


def _live(steps: Path) -> Iterator[tuple[str, StepLog]]:
    """``<model>/<target>/<step>-<attempt>/worker.log``"""
    for path in steps.glob("*/*/*/worker.log"):
        step, _, attempt = path.parent.name.rpartition("-")
        if step in STEPS and attempt.isdecimal():
            yield f"{path.parents[2].name}/{path.parents[1].name}", StepLog(step, int(attempt), path)


def matching(name: str, builds: list[str]) -> list[str]:
    """The builds that ``name`` means: the one with that name, else those of that target, else those that it is the beginning of."""
    target = [build for build in builds if build.rpartition("/")[2] == name]
    beginning = [build for build in builds if build.startswith(name) or build.rpartition("/")[2].startswith(name)]
    return [name] if name in builds else target or beginning
