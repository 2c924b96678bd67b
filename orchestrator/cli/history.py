"""``enginefarm history``: every build of a target or a model: times, statuses, what became slower, when it last passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import complete_history
from orchestrator.cli.runs import Json, Newest

if TYPE_CHECKING:
    from orchestrator.pipeline.history import History
    from orchestrator.pipeline.history_rows import BuildRow

HISTORY_SCHEMA = "enginefarm.history/1"


def history_command(
    name: Annotated[
        str,
        typer.Argument(metavar="TARGET|MODEL", help="A target, a model, or MODEL/TARGET.", autocompletion=complete_history),
    ],
    number: Newest = 20,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also builds that did nothing: reused, skipped.")] = False,
    as_json: Json = False,
) -> None:
    """Show how the builds of a target or a model went: times, statuses, slow-downs, last pass."""
    from orchestrator.cli.runs import open_history, print_json
    from orchestrator.cli.screen import print_lines, width
    from orchestrator.report.runs import builds_table, slower

    history = open_history()
    rows = _rows(history, name)
    if as_json:
        slow = slower(rows)
        builds = [row.as_dict() | {"slower": slow.get(position)} for position, row in enumerate(rows[:number])]
        print_json({"schema": HISTORY_SCHEMA, "builds": builds})
    else:
        print_lines(builds_table(rows, number, width(), idle=everything or all(row.idle for row in rows)))


def _rows(history: History | None, name: str) -> list[BuildRow]:
    """Builds of a target, else of a model, else of a pair, newest first; raises EnginefarmError(EMPTY_SELECTION)."""
    from orchestrator.cli.runs import meant
    from orchestrator.errors import EMPTY_SELECTION, EnginefarmError

    if history is not None:
        model, _, target = name.rpartition("/")
        rows = history.of_pair(model, target) if model else history.of_target(name) or history.of_model(name)
        if rows:
            return rows
    models, targets = history.names() if history else ([], [])
    raise EnginefarmError(EMPTY_SELECTION, f'nothing named "{name}" was ever built here', fix=meant(name, [*targets, *models]))
