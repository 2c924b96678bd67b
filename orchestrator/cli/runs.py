"""``enginefarm runs``: what ran here and how it ended; and where the commands about the past find it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from orchestrator.pipeline.history import History

RUNS_SCHEMA = "enginefarm.runs/1"
Newest = Annotated[int, typer.Option("--number", "-n", min=1, metavar="N", help="How many, newest first.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; times in seconds since 1970 (UTC).")]


def runs_command(number: Newest = 20, as_json: Json = False) -> None:
    """List past and running runs, newest first. Ends with 0 when there are none."""
    from orchestrator.cli.screen import print_lines, width
    from orchestrator.report.runs import runs_table

    history = open_history()
    found = history.runs(number) if history else []
    if as_json:
        print_json({"schema": RUNS_SCHEMA, "runs": [run.as_dict() for run in found]})
    elif found:
        print_lines(runs_table(found, width()))
    else:
        typer.echo("no runs yet: enginefarm build MODEL makes the first", err=True)


def state_folder() -> Path:
    """``.enginefarm`` of the project that this folder belongs to; finds it without reading any YAML."""
    import os

    from orchestrator.cli.settings import find_settings

    here = Path.cwd()
    found = find_settings(here)
    project = found.parent if found else here
    return (Path() if project == here else Path(os.path.relpath(project))) / ".enginefarm"


def open_history() -> History | None:
    """The history for reading; None when nothing was ever recorded. Raises EnginefarmError(HISTORY) when it cannot be read."""
    from orchestrator.pipeline.history import FILE_NAME, History

    path = state_folder() / FILE_NAME
    return History(path, reading=True) if path.exists() else None


def print_json(value: Any) -> None:
    import json

    from orchestrator.cli.screen import emit

    emit(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def meant(name: str, known: list[str]) -> str:
    """The end of a fix: names that are close, else some that there are."""
    import difflib

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(close)}?"
    some = ", ".join(known[:5])
    return f"there are {some}{', ...' if len(known) > 5 else ''}" if known else "enginefarm build MODEL makes some"
