"""``enginefarm targets``: what the matrix holds, and where each value comes from."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.completion import complete_targets
from orchestrator.cli.settings import load_settings

if TYPE_CHECKING:
    from orchestrator.errors import Where
    from orchestrator.matrix.axes import ExcludedCell
    from orchestrator.matrix.layers import EffectiveTarget
    from orchestrator.matrix.schema import Target
    from orchestrator.matrix.select import Matrix

app = typer.Typer(no_args_is_help=True, help="Show and check the target matrix.")

HEAD = ("TARGET", "TAG", "BACKEND", "VERSION", "CUDA", "CAPABILITY", "PLATFORM", "PRECISION", "FOR")
_LEAVE_OUT = ("FOR", "TAG", "PRECISION", "PLATFORM", "CUDA", "VERSION")
_LEAST_DESCRIPTION = 12  # cells; of less than that nothing is understood

Selectors = Annotated[
    list[str] | None,
    typer.Argument(help="Names, globs or label:NAME. Default: all.", show_default=False, autocompletion=complete_targets),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def project_matrix() -> Matrix:
    """The matrix of the project that the current folder is in: that of the nearest enginefarm.yaml, else the folder itself."""
    from orchestrator.matrix.load import load_matrix

    return load_matrix(load_settings(Path.cwd()).project)


@app.command("ls", hidden=True)
@app.command("list")
def list_targets(selectors: Selectors = None, as_json: Json = False) -> None:
    """List targets, one a line."""
    matrix = project_matrix()
    chosen, excluded = matrix.select(selectors or []), matrix.excluded(selectors or [])
    if as_json:
        _print_json([*(_cell_json(effective) for effective in chosen), *map(_excluded_json, excluded)])
        return
    rows: list[tuple[str, ...]] = [HEAD, *(_row(effective.target) for effective in chosen)]
    if sys.stdout.isatty():
        rows = fit(rows, shutil.get_terminal_size().columns)
    from orchestrator.report.text import columns

    for line in columns(rows):
        typer.echo(line)
    for cell in excluded:
        typer.echo(_excluded_text(cell))
    hidden = [name for name in HEAD if name not in rows[0]]
    if hidden:
        typer.echo(f"too narrow for {', '.join(hidden)}: widen the terminal, or give --json", err=True)


def _cell_json(effective: EffectiveTarget) -> dict[str, Any]:
    of = {} if effective.cell_of is None else {"cell_of": effective.cell_of}
    return {**effective.target.model_dump(mode="json"), **of}


def _excluded_json(cell: ExcludedCell) -> dict[str, Any]:
    return {**_cell_json(cell.effective), "excluded": {"why": cell.why, **_place_json(cell.where)}}


def _excluded_text(cell: ExcludedCell) -> str:
    return f"{cell.name} is excluded: {cell.why} ({cell.where})"


def fit(rows: list[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Rows, of which the first names the columns, for a terminal of ``width`` cells: the descriptions are cut first, then
    columns are left out in the order of ``_LEAVE_OUT``; those that tell targets apart stay."""
    from orchestrator.report.text import columns

    def wide(table: list[tuple[str, ...]]) -> int:
        return max(len(line) for line in columns(table))

    room = width - wide([(*row[:-1], "") for row in rows]) - 2
    if room >= _LEAST_DESCRIPTION:
        return [(*row[:-1], _cut(row[-1], room)) for row in rows]
    for name in _LEAVE_OUT:
        if wide(rows) <= width:
            break
        column = rows[0].index(name)
        rows = [(*row[:column], *row[column + 1 :]) for row in rows]
    return rows


def _cut(text: str, room: int) -> str:
    """``text`` in at most ``room`` cells; a Chinese character takes two."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= room else set_cell_size(text, room - 1).rstrip() + "…"


def _row(target: Target) -> tuple[str, ...]:
    backend = f"{target.backend} ({target.provider})" if target.provider else target.backend
    capabilities = target.compute_capability
    shown = f"{capabilities[0]} to {capabilities[-1]}" if len(capabilities) > 3 else ", ".join(capabilities)
    version = target.tensorrt or target.tensorrt_rtx or "-"
    return (
        target.name,
        target.tag,
        backend,
        version,
        target.cuda or "-",
        shown or "-",
        target.platform,
        target.precision,
        target.description,
    )


@app.command("show")
def show_target(
    name: Annotated[
        str,
        typer.Argument(help="Name of one target. One with axes is shown as the cells that it forks into.", autocompletion=complete_targets),
    ],
    model: Annotated[Path | None, typer.Option("--model", help="Lay the YAML beside this ONNX file over the target.")] = None,
    as_json: Json = False,
) -> None:
    """Show one target after all layers, with where each value comes from."""
    from orchestrator.errors import EMPTY_SELECTION, EnginefarmError
    from orchestrator.matrix.load import apply_model, find_model_config

    matrix = project_matrix()
    chosen = matrix.select([name])
    forks = name in matrix.forks
    if len(chosen) != 1 and not forks:
        names = ", ".join(effective.target.name for effective in chosen)
        raise EnginefarmError(EMPTY_SELECTION, f'"{name}" means {len(chosen)} targets: {names}', fix="name one of them")
    if model is not None:
        config = find_model_config(model)
        chosen = [apply_model(effective, config, {}) for effective in chosen]
    if not forks:
        if as_json:
            _print_json(_shown_json(chosen[0]))
        else:
            typer.echo(target_text(chosen[0]))
        return
    excluded = matrix.excluded([name])
    if as_json:
        _print_json({"cells": [_shown_json(effective) for effective in chosen], "excluded": [_excluded_json(cell) for cell in excluded]})
        return
    texts = [f"# one of {len(chosen)} cells of {name}\n{target_text(effective)}" for effective in chosen]
    typer.echo("\n---\n".join(texts))
    for cell in excluded:
        typer.echo(f"# {_excluded_text(cell)}")


def _shown_json(effective: EffectiveTarget) -> dict[str, Any]:
    sources = {field: _source_json(effective, field) for field in effective.sources}
    return {"target": effective.target.model_dump(mode="json"), "sources": sources}


def _source_json(effective: EffectiveTarget, field: str) -> dict[str, Any]:
    source = effective.sources[field]
    return {"layer": source.layer} | ({} if source.where is None else _place_json(source.where))


def _place_json(where: Where) -> dict[str, Any]:
    return {key: value for key, value in vars(where).items() if value is not None}


def target_text(effective: EffectiveTarget) -> str:
    """A target as YAML that loads again, each line with its source as a comment."""
    from orchestrator.matrix.schema import Profile
    from orchestrator.matrix.shapes import format_profile

    lines: list[tuple[str, str]] = []
    for field in type(effective.target).model_fields:
        value = getattr(effective.target, field)
        source = str(effective.sources[field])
        if isinstance(value, dict):
            lines.append((f"{field}:" if value else f"{field}: {{}}", "" if value else source))
            for key, profile in value.items():
                text = format_profile(profile) if isinstance(profile, Profile) else str(profile)
                lines.append((f"  {_yaml(key)}: {_yaml(text)}", str(effective.sources[f"{field}.{key}"])))
        elif hasattr(value, "model_fields_set"):
            lines.append((f"{field}:", ""))
            for key in type(value).model_fields:
                origin = effective.sources.get(f"{field}.{key}", "default")
                lines.append((f"  {key}: {_yaml(getattr(value, key))}", str(origin)))
        else:
            lines.append((f"{field}: {_yaml(value)}", source))
    width = max(len(text) for text, _ in lines if len(text) <= 60)
    return "\n".join(f"{text.ljust(width)}  # {source}" if source else text for text, source in lines)


def _yaml(value: Any) -> str:
    """One value in flow style; every text in quotes, since JSON is YAML."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


@app.command("check")
def check_targets(
    files: Annotated[list[Path] | None, typer.Argument(help="Target files. Default: the whole matrix.", show_default=False)] = None,
) -> None:
    """Load the matrix and report every problem in it."""
    from orchestrator.matrix.load import load_files

    matrix = load_files(files) if files else project_matrix()
    count = len(files or matrix.targets)
    cells = f", {len(matrix.without)} excluded" if matrix.without and not files else ""
    typer.echo(f"{count} target{'s are' if count != 1 else ' is'} fine{cells}")


@app.command("schema")
def schema(
    check: Annotated[bool, typer.Option("--check", help="Exit 5 when targets/schema.json is not this schema.")] = False,
) -> None:
    """Print the JSON Schema of a target file."""
    from orchestrator.errors import GENERATED_STALE, EnginefarmError, Where
    from orchestrator.matrix.export import schema_text
    from orchestrator.matrix.yaml_reader import display
    from orchestrator.resources import builtin_targets

    if not check:
        typer.echo(schema_text(), nl=False)
        return
    path = builtin_targets() / "schema.json"
    if not path.is_file() or path.read_text(encoding="utf-8") != schema_text():
        name = display(path)
        raise EnginefarmError(GENERATED_STALE, f"{name} is stale", where=Where(file=name), fix=f"enginefarm targets schema > {name}")
    typer.echo(f"{display(path)} is current")


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
