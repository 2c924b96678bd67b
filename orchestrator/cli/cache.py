"""``enginefarm cache``: what was made and is kept, so that it need not be made again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestrator.store import Store
    from orchestrator.store.sweep import Entry, Report

CACHE_SCHEMA = "enginefarm.cache/1"

app = typer.Typer(help="List, shrink and verify the cache of engines, outputs and references.", no_args_is_help=True)

_Cache = Annotated[
    Path | None,
    typer.Option("--cache", envvar="ENGINEFARM_CACHE", help="Folder of the cache. Default: as for enginefarm build."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON; sizes in bytes, times in seconds since 1970 (UTC).")]


@app.command("list", hidden=True)
@app.command("ls")
def ls_command(cache: _Cache = None, as_json: _Json = False) -> None:
    """List what is kept, the most recently used first."""
    from orchestrator.cli.runs import print_json
    from orchestrator.cli.screen import emit
    from orchestrator.report.runs import moment
    from orchestrator.report.text import columns, one_line, size

    store = _store(cache)
    entries = list(store.ls())
    if as_json:
        print_json(
            {"schema": CACHE_SCHEMA, "folder": str(store.root), "bytes": store.size(), "results": [_as_dict(entry) for entry in entries]}
        )
    elif not entries:
        typer.echo(f"nothing is kept in {one_line(str(store.root))}", err=True)
    else:
        rows = [(moment(entry.used), entry.kind, size(entry.bytes), one_line(entry.what)) for entry in entries]
        emit("".join(f"{line}\n" for line in columns([("USED", "KIND", "SIZE", "WHAT"), *rows], right=frozenset({2}))))
        total = f"{_count(len(entries), 'result')}, {size(store.size())} in {one_line(str(store.root))}"
        typer.echo(total, err=True)


@app.command("gc")
def gc_command(
    keep: Annotated[str, typer.Option("--keep", metavar="SIZE", help="Bytes to keep at most, like 20 GiB; 0 empties the cache.")],
    cache: _Cache = None,
    as_json: _Json = False,
) -> None:
    """Remove what was least recently used, and what killed runs left. What a live run uses stays."""
    from orchestrator.cli.runs import print_json
    from orchestrator.report.text import size

    kept = _size(keep)
    store = _store(cache)
    report = store.gc(kept)
    if as_json:
        print_json({"schema": CACHE_SCHEMA, "folder": str(store.root), **_report(report), "keep": kept})
        return
    typer.echo(f"removed {_count(len(report.removed), 'result')}, freed {size(report.freed)}; {_left(report)}")
    if report.in_use:
        typer.echo(f"{_count(report.in_use, 'result')} stayed: in use by a live run", err=True)


@app.command("verify")
def verify_command(cache: _Cache = None, as_json: _Json = False) -> None:
    """Read everything that is kept; remove what is damaged, so that it is made again. Ends with 1 when something was."""
    from orchestrator.cli.runs import print_json
    from orchestrator.errors import Exit
    from orchestrator.report.text import one_line

    store = _store(cache)
    report = store.verify()
    if as_json:
        print_json({"schema": CACHE_SCHEMA, "folder": str(store.root), **_report(report)})
    else:
        for line in report.damaged:
            typer.echo(one_line(line))
        for name in report.foreign:
            typer.echo(f"not ours, left alone: {one_line(name)}", err=True)
        found = f"{len(report.damaged)} damaged" if report.damaged else "all whole"
        typer.echo(f"{found}; {_left(report)}")
    if report.damaged:
        raise typer.Exit(Exit.FAILED)


def _store(folder: Path | None) -> Store:
    """The store that a build in this folder would use. Raises EnginefarmError for a broken enginefarm.yaml and a folder that is none."""
    from orchestrator.cli.runs import state_folder
    from orchestrator.cli.settings import load_settings
    from orchestrator.errors import USAGE, EnginefarmError, Where
    from orchestrator.store import Store

    if folder is None:
        said = load_settings(Path.cwd()).values.get("cache")
        folder = Path(said) if said else state_folder() / "cache"
    if os.path.lexists(folder) and not folder.is_dir():
        raise EnginefarmError(USAGE, "the cache is not a folder", where=Where(file=str(folder)), fix="name a folder: --cache FOLDER")
    return Store(folder)


def _size(text: str) -> int:
    from orchestrator.errors import USAGE, EnginefarmError
    from orchestrator.matrix.binder import read_bytes

    try:
        return read_bytes(text)
    except ValueError as error:
        raise EnginefarmError(USAGE, f"--keep: {error}", fix='write it like --keep "20 GiB"') from error


def _as_dict(entry: Entry) -> dict[str, object]:
    return entry._asdict()


def _report(report: Report) -> dict[str, object]:
    return {**vars(report), "removed": [_as_dict(entry) for entry in report.removed]}


def _left(report: Report) -> str:
    from orchestrator.report.text import size

    return f"{_count(report.results, 'result')} and {_count(report.blobs, 'blob')} left, {size(report.bytes)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
