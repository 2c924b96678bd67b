"""``enginefarm repro``: the command that builds an engine again, from its manifest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.artifacts.entry import Entry
    from orchestrator.artifacts.manifest import EngineRecord


def repro_command(
    source: Annotated[Path, typer.Argument(help="Manifest (or latest.json), or an engine beside its manifest.", show_default=False)],
    target: Annotated[str | None, typer.Argument(help="Which target, when the manifest has several.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the command that builds an engine again; what it was built from goes to standard error as comments."""
    from orchestrator.artifacts.reproduce import arguments
    from orchestrator.report.text import command_line, json_text, one_line

    entry = _entry(source, target)
    words = arguments(entry.manifest.model, entry.record)
    inputs = _inputs(entry)
    if as_json:
        content = {"command": command_line(words), "arguments": words, "inputs": inputs}
        typer.echo(json_text(content))
        return
    if entry.record.file is None:
        typer.echo(f"# there is no engine: {entry.record.verdict.status}: {one_line(_flat(entry.record.verdict.reason))}", err=True)
    for name, value in inputs.items():
        if value:
            typer.echo(f"# {name.replace('_', ' ')}: {one_line(_flat(value))}", err=True)
    typer.echo("# the same inputs give an equivalent engine, not the same bytes: builders are not deterministic", err=True)
    typer.echo(command_line(words))


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(item)}" for name, item in value.items() if item not in (None, [], {}))
    if isinstance(value, (list, tuple)):
        return ", ".join(_flat(item) for item in value)
    return str(value).replace("\n", " ")


def _inputs(entry: Entry) -> dict[str, Any]:
    """What the recorded engine was built from."""
    record, model = entry.record, entry.manifest.model
    return {
        "engine": record.file,
        "engine_digest": record.digest,
        "model": model.source,
        "model_digest": model.digest,
        "backend": f"{record.backend} {record.backend_version or ''}".rstrip(),
        "image": "@".join(part for part in (record.image, record.image_digest) if part) or None,
        "compute_capability": list(record.compute_capability),
        "options": record.options,
        "plugins": record.plugins,
        "worker": record.worker,
        "enginefarm": entry.manifest.enginefarm,
        "built_at": record.built_at,
        "built_on": record.built_on,
        "build_key": record.build_key,
    }


def _entry(source: Path, target: str | None) -> Entry:
    from orchestrator.artifacts.entry import Entry
    from orchestrator.artifacts.manifest import read_manifest
    from orchestrator.artifacts.store import follow_latest

    if source.suffix.lower() != ".json":
        return _engine_entry(source, target)
    path = follow_latest(source)
    manifest = read_manifest(path)
    records = {record.target: record for record in manifest.engines}
    if target is None:
        target = _only(source, path, records)
    if target not in records:
        raise _unknown(target, list(records), path)
    entry = Entry(path, manifest, records[target])
    _require_tried(entry)
    return entry


def _only(source: Path, path: Path, records: Mapping[str, EngineRecord]) -> str:
    """The one target of a manifest. Raises EnginefarmError when it has several, with one that has an engine as example."""
    import shlex

    from orchestrator.errors import USAGE, EnginefarmError, Where

    if len(records) == 1:
        return next(iter(records))
    built = [name for name, record in records.items() if record.file]
    what = f"the manifest has {len(records)} targets: {', '.join(records) or 'none'}"
    fix = f"enginefarm repro {shlex.quote(str(source))} {built[0]}" if built else None
    why = None if built or not records else "and an engine of none of them"
    raise EnginefarmError(USAGE, what, where=Where(file=str(path)), why=why, fix=fix)


def _require_tried(entry: Entry) -> None:
    """Raise EnginefarmError for a target that was skipped: no command did anything for it."""
    import shlex

    from orchestrator.errors import USAGE, EnginefarmError, Where

    target, verdict = entry.record.target, entry.record.verdict
    if verdict.status != "skipped":
        return
    again = shlex.join(["enginefarm", "build", entry.manifest.model.source, "--target", target])
    raise EnginefarmError(
        USAGE,
        f"nothing was built for {target}: it was skipped",
        where=Where(file=str(entry.path), target=target),
        why=verdict.reason,
        fix=f"where a runner can take it: {again}",
    )


def _unknown(target: str, known: list[str], path: Path) -> Exception:
    import difflib

    from orchestrator.errors import TARGET_UNKNOWN, EnginefarmError, Where

    close = difflib.get_close_matches(target, known, n=1)
    fix = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
    return EnginefarmError(TARGET_UNKNOWN, f"the manifest has no target {target!r}", where=Where(file=str(path)), fix=fix)


def _engine_entry(source: Path, target: str | None) -> Entry:
    from orchestrator.artifacts.entry import changed, find_entry
    from orchestrator.artifacts.files import sha256_file
    from orchestrator.errors import MANIFEST_UNREADABLE, MODEL_MISSING, USAGE, EnginefarmError, Where

    where = Where(file=str(source))
    if not source.is_file():
        raise EnginefarmError(
            MODEL_MISSING, "no such engine or manifest", where=where, fix="give <model>_v<N>.json, or an engine beside it"
        )
    digest = sha256_file(source)
    entry = find_entry(source, digest)
    if entry is None:
        why = "no manifest beside it names this file or its digest"
        raise EnginefarmError(MANIFEST_UNREADABLE, "nothing says how this engine was built", where=where, why=why, fix="give its manifest")
    mismatch = changed(source, entry, digest)
    if mismatch is not None:
        raise mismatch
    if target not in (None, entry.record.target):
        raise EnginefarmError(
            USAGE, f"{source.name} is of target {entry.record.target}, not {target}", where=where, fix="leave the target out"
        )
    return entry
