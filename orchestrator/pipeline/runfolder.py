"""The folder of one run: ``<state>/runs/<id>`` with its events, the workers' logs and the staged inputs.

What is only needed while the run lives (staged models, samples, engines on their way) lies in ``work`` and goes when the run ends; logs and
events stay.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.errors import DISK, EnginefarmError
from orchestrator.events import Event

KEPT_RUNS = 20
EVENTS = "events.jsonl"
STEP_FOLDERS = "steps"


class RunFolder:
    """Made by :func:`open_run`. ``id`` sorts by time."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self.folder = folder
        self.id = run_id
        self.work = folder / "work"
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        self._events = (folder / EVENTS).open("a", encoding="utf-8")
        # held while the run lives: tells the next run that this folder is in use
        fcntl.flock(self._events, fcntl.LOCK_SH)
        self.work.mkdir()
        self.begun = False

    def record(self, event: Event) -> None:
        """Subscriber that appends every event to ``events.jsonl``."""
        self.begun = True
        self._events.write(json.dumps(event.as_dict(), ensure_ascii=False) + "\n")
        self._events.flush()

    def step_folder(self, *parts: str) -> Path:
        """A new, empty folder for a step of a model, the first part; all are names that the matrix or names.py has checked."""
        folder = self.work.joinpath(STEP_FOLDERS, *parts)
        folder.mkdir(parents=True)
        return folder

    def clear(self, model: str) -> None:
        """Remove the step folders of a model whose builds have all ended: a run over many models needs the space."""
        folder = self.work / STEP_FOLDERS / model
        if folder.is_dir():
            _remove(folder)

    def keep(self, engine: Path, *parts: str) -> Path:
        """Move an engine that could not be committed out of ``work``; returns where it is now."""
        folder = self.folder.joinpath("kept", *parts)
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(engine, folder / engine.name))

    def close(self) -> None:
        self._events.close()
        _remove(self.work)


def _remove(folder: Path) -> None:
    def unlock(_function: object, path: str, _error: object) -> None:
        # staged inputs are read-only, and a folder may be too
        with suppress(OSError):
            Path(path).parent.chmod(0o700)
            Path(path).unlink()

    shutil.rmtree(folder, onerror=unlock)


def in_use(folder: Path) -> bool:
    try:
        with (folder / EVENTS).open("rb") as events:
            fcntl.flock(events, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):
        # without an event file the folder is just being made
        return True
    return False


def _tidy(runs: Path) -> None:
    """Remove all but the newest runs, and the working files of runs that were killed."""
    finished = [folder for folder in sorted(runs.iterdir()) if folder.is_dir() and not in_use(folder)]
    for folder in finished[:-KEPT_RUNS]:
        _remove(folder)
    for folder in finished[-KEPT_RUNS:]:
        if (folder / "work").exists():
            _remove(folder / "work")


def make_state(state: Path) -> None:
    """Make the folder of history, cache and runs, unseen by git. Raises OSError."""
    state.mkdir(parents=True, exist_ok=True)
    ignore = state / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", encoding="ascii")


@contextmanager
def open_run(state: Path) -> Iterator[RunFolder]:
    """Make the folder of a new run; raises EnginefarmError(DISK) when the state folder cannot be written."""
    runs = state / "runs"
    run_id = time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)
    try:
        make_state(state)
        runs.mkdir(exist_ok=True)
        _tidy(runs)
        run = RunFolder(runs / run_id, run_id)
    except OSError as error:
        raise EnginefarmError(
            DISK,
            f"cannot write the run folder under {state}",
            why=os.strerror(error.errno or 0),
            fix="free some space or run in a folder you may write to",
        ) from error
    try:
        yield run
    finally:
        run.close()
        if not run.begun:
            # refused before anything happened: no run to tell of
            _remove(run.folder)
