"""Names for the shell to complete: names of files and what the history holds, no model is read. Silent when they cannot be had.

A shell waits for these while somebody types: nothing heavy may be imported, but where targets fork into cells.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def complete_targets(incomplete: str) -> list[str]:
    """Names of the built-in and the project's targets, and of their cells; after a comma the next one."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _quietly(_targets, last)]


def complete_precisions(incomplete: str) -> list[str]:
    """Precisions that a target can have."""
    return _quietly(_precisions, incomplete)


def complete_progress(incomplete: str) -> list[str]:
    """Ways to show progress."""
    return _quietly(_progress, incomplete)


def complete_hosts(incomplete: str) -> list[str]:
    """What ``compat --on`` takes, but for files: all targets, this machine, the targets."""
    return _quietly(lambda: ["all", "this", *_targets()], incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Ids of the runs whose folders are kept, newest first."""
    return _quietly(_runs, incomplete)


def complete_logs(incomplete: str) -> list[str]:
    """MODEL/TARGET of every build with a log, and targets."""
    return _quietly(_logs, incomplete)


def complete_history(incomplete: str) -> list[str]:
    """Targets and models that were ever built."""
    return _quietly(_built, incomplete)


def _quietly(names: Callable[[], list[str]], incomplete: str) -> list[str]:
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001  (a message in the middle of somebody's command line helps nobody)
        return []


def _targets() -> list[str]:
    from orchestrator.cli.runs import state_folder
    from orchestrator.resources import builtin_targets

    # a file is called as its target: matrix/load.py insists on it
    project = state_folder().parent
    folders = (builtin_targets(), project / "targets")
    files = [path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.suffix in (".yaml", ".yml")]
    names = {path.stem for path in files}
    if any(b"\naxes:" in path.read_bytes() for path in files):
        from orchestrator.errors import EnginefarmError
        from orchestrator.matrix.load import load_matrix

        # only then: which cells there are takes reading everything, and all of it being right
        with contextlib.suppress(EnginefarmError):
            names |= {*load_matrix(project).targets}
    return sorted(names)


def _precisions() -> list[str]:
    from orchestrator.matrix.schema import PRECISIONS

    return [*PRECISIONS]


def _progress() -> list[str]:
    from orchestrator.cli.values import PROGRESS

    return [*PROGRESS]


def _runs() -> list[str]:
    from orchestrator.cli.runs import state_folder
    from orchestrator.pipeline.history_logs import run_folders

    return [folder.name for folder in run_folders(state_folder())]


def _logs() -> list[str]:
    from orchestrator.cli.runs import state_folder
    from orchestrator.pipeline.history_logs import read_logs, run_folders

    builds = {name for folder in run_folders(state_folder()) for name in read_logs(folder).builds}
    return sorted(builds | {name.rpartition("/")[2] for name in builds})


def _built() -> list[str]:
    from orchestrator.cli.runs import open_history

    history = open_history()
    models, targets = history.names() if history else ([], [])
    return [*targets, *models]
