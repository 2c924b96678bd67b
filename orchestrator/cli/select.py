"""``enginefarm select``: which engine of a manifest a service would load, on this machine or another, and why not the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from orchestrator.errors import EnginefarmError
    from orchestrator.portable.runtime.choice import Choice


def select_command(
    manifest: Annotated[Path, typer.Argument(help="<model>_v<N>.json, latest.json, or the model's folder.", show_default=False)],
    on: Annotated[
        Path | None,
        typer.Option("--on", metavar="HOST.json", help="Description of another machine. Default: this one.", show_default=False),
    ] = None,
    allow_unvalidated: Annotated[bool, typer.Option("--allow-unvalidated", help="Also take engines that did not pass.")] = False,
    require: Annotated[
        list[str] | None, typer.Option("--require", metavar="BACKEND", help="Take only this backend. Repeatable.", show_default=False)
    ] = None,
    key: Annotated[
        list[Path] | None,
        typer.Option("--key", metavar="PUB", help="Public key that has to have signed the manifest. Repeatable.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which engine the loader takes, and why not the others. Files are checked, nothing is loaded."""
    import json

    from orchestrator.portable.runtime.api import select
    from orchestrator.portable.runtime.errors import LoadError
    from orchestrator.publish.loader_errors import as_problem
    from orchestrator.verdict.compat_subjects import read_host

    host = _this_host() if on is None else read_host(on)
    trusted = [str(path) for path in key] if key else None
    try:
        choice = select(str(manifest), host, allow_unvalidated=allow_unvalidated, require=require, trusted=trusted)
    except LoadError as error:
        raise as_problem(error, manifest) from error
    typer.echo(json.dumps(choice.as_dict() | {"host": _host_line(host)}, indent=2, ensure_ascii=False) if as_json else _text(choice, host))
    if choice.chosen is None:
        raise _nothing(choice, manifest, allow_unvalidated)


def _nothing(choice: Choice, manifest: Path, allow_unvalidated: bool) -> EnginefarmError:
    from orchestrator.errors import NO_ENGINE, EnginefarmError, Where

    fix = "build for that machine: enginefarm build"
    if not allow_unvalidated and any("allow_unvalidated" in refused.fix for refused in choice.refused):
        fix = "validate an engine where it can run, or accept it as it is with --allow-unvalidated"
    what = f"no engine of {choice.model} v{choice.version} is taken"
    return EnginefarmError(NO_ENGINE, what, where=Where(file=str(manifest)), fix=fix)


def _this_host() -> dict[str, Any]:
    from orchestrator.portable.worker.probe import describe_host

    return describe_host()


def _host_line(host: dict[str, Any]) -> str:
    gpus = [f"{gpu.get('name')} ({gpu.get('compute_capability')})" for gpu in host.get("gpus") or ()]
    found = [f"{name} {state['version']}" for name, state in sorted(host.get("backends", {}).items()) if "version" in state]
    return ", ".join([str(host.get("platform")), *(gpus or ["no NVIDIA GPU"]), *(found or ["no backend"])])


def _text(choice: Choice, host: dict[str, Any]) -> str:
    from orchestrator.portable.runtime.choice import status_of
    from orchestrator.report.text import columns, safe

    lines = [f"{safe(choice.model)} v{choice.version}, revision {choice.revision}, on {safe(_host_line(host))}", ""]
    chosen = choice.chosen
    if chosen is not None:
        lines += columns([["takes", safe(chosen.target)], ["", f"{chosen.tier}, {status_of(chosen)}"], ["", safe(chosen.file)]])
    for reason in choice.reasons:
        lines.append(f"degraded: {safe(reason)}")
    if choice.refused:
        lines += [""] * (chosen is not None)
        rows = [["NOT TAKEN", "AS", "BECAUSE"]]
        rows += [[safe(refused.target), refused.tier, safe(refused.why)] for refused in choice.refused]
        lines += columns(rows)
    return "\n".join(lines)
