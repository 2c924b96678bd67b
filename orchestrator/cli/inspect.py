"""``enginefarm inspect``: what a file is. Models, engines of any kind, manifests; and files that are not what their name says."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.artifacts.entry import EngineFacts, Entry
    from orchestrator.artifacts.manifest import EngineRecord, Manifest
    from orchestrator.errors import EnginefarmError
    from orchestrator.models.model import Model, TensorInfo

Lines = list[tuple[str, str]]
"""Label and text of each line; an empty label continues the one above."""


_FOLDED = ("FILE", "RUNS ON", "BACKEND")
"""Columns of a manifest that may go below their row, in this order."""


@dataclass
class Finding:
    """What was found out about one file: ``kind`` is model, engine, manifest or unknown; ``fields`` are for ``--json``."""

    path: Path
    kind: str = "unknown"
    title: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    lines: Lines = field(default_factory=list)
    table: list[list[str]] = field(default_factory=list)
    problems: list[EnginefarmError] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        problems = [problem.as_dict() for problem in self.problems]
        return {"file": str(self.path), "kind": self.kind, "ok": not problems, **self.fields, "problems": problems}


def inspect_command(
    files: Annotated[list[Path], typer.Argument(help="Models, engines, manifests.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: one object per file.")] = False,
) -> None:
    """Show what a model, an engine or a manifest is, without a GPU and without loading it."""
    import shutil
    import sys

    from orchestrator.errors import raise_all
    from orchestrator.report.text import json_text

    findings = [look(path) for path in files]
    if as_json:
        typer.echo(json_text([finding.as_dict() for finding in findings]))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        texts = [_text(finding, width) for finding in findings if finding.title]
        if texts:
            typer.echo("\n\n".join(texts))
    raise_all(problem for finding in findings for problem in finding.problems)


def _text(finding: Finding, width: int | None = None) -> str:
    """The finding for people; ``width`` is that of the terminal in cells, None when there is none: then every row is one line."""
    from orchestrator.report.text import columns, hang, one_line

    lines = [f"{one_line(str(finding.path))}: {one_line(finding.title)}"]
    if width is None:
        lines += [f"  {line}" for line in columns([[label, one_line(text)] for label, text in finding.lines])]
    else:
        indent = 4 + max((len(label) for label, _ in finding.lines), default=0)
        lines += [line for label, text in finding.lines for line in hang(f"  {label}", one_line(text), width, indent)]
    if finding.table:
        rows = [[one_line(cell) for cell in row] for row in finding.table]
        lines += ["", *(columns(rows, indent=2) if width is None else _folded(rows, width))]
    return "\n".join(lines)


def _folded(rows: list[list[str]], width: int) -> list[str]:
    """The rows, the first of which names the columns, on ``width`` cells: what does not fit goes below its row, the longest texts first."""
    from orchestrator.report.text import columns, hang

    below: list[int] = []
    for column in (None, *_FOLDED):
        below += [] if column is None else [rows[0].index(column)]
        beside = columns([[cell for index, cell in enumerate(row) if index not in below] for row in rows], indent=2)
        if max(map(len, beside)) <= width:
            break
    lines = beside[:1]
    for row, line in zip(rows[1:], beside[1:], strict=True):
        lines.append(line)
        lines += [part for index in sorted(below) if row[index] for part in hang("", row[index], width, 6)]
    return lines


def look(path: Path) -> Finding:
    """Find out what ``path`` is; problems are in the finding, never raised."""
    from orchestrator.artifacts.entry import ENGINE_SUFFIXES
    from orchestrator.errors import EnginefarmError, flatten
    from orchestrator.portable.facts import plan_header

    finding = Finding(path)
    try:
        header = plan_header.read(str(path)) if path.is_file() else None
        if header is not None and header["kind"] == "not-a-plan" and header["file_kind"]["kind"] == "json":
            _look_at_manifest(finding)
        elif header is not None and (header["kind"] != "not-a-plan" or path.suffix.lower() in ENGINE_SUFFIXES):
            _look_at_engine(finding)
        else:
            _look_at_model(finding)
    except EnginefarmError as error:
        finding.problems += flatten(error)
    except (OSError, ValueError) as error:
        finding.problems.append(_unreadable(path, error))
    return finding


def _unreadable(path: Path, error: OSError | ValueError) -> EnginefarmError:
    from orchestrator.errors import DISK, EnginefarmError, Where

    why = error.strerror if isinstance(error, OSError) else str(error)
    return EnginefarmError(DISK, "the file cannot be read", where=Where(file=str(path)), why=why, fix="check the path and its permissions")


def _bytes(count: int) -> str:
    from orchestrator.report.text import size

    return f"{size(count)} ({count:,} bytes)" if count >= 1000 else f"{count} bytes"


# models


def _look_at_model(finding: Finding) -> None:
    from orchestrator.artifacts.entry import find_entry
    from orchestrator.artifacts.files import sha256_file
    from orchestrator.artifacts.names import parse_engine_file
    from orchestrator.models.load import load_model

    # an engine for ONNX Runtime is an ONNX file too: its manifest tells it from a model
    if finding.path.is_file():
        digest = sha256_file(finding.path) if parse_engine_file(finding.path.name) else None
        entry = find_entry(finding.path, digest)
        if entry is not None:
            _look_at_onnx_engine(finding, entry, digest or sha256_file(finding.path))
            return
    model = load_model(finding.path)
    finding.kind, finding.title = "model", "ONNX model"
    finding.fields = _model_fields(model)
    finding.lines = [("model digest", model.digest), *_model_lines(model)]


def _look_at_onnx_engine(finding: Finding, entry: Entry, digest: str) -> None:
    """A file that a manifest names: what is wrong with it makes it no engine, where a model would be unusable input."""
    from orchestrator.artifacts.entry import entry_problems
    from orchestrator.errors import ENGINE_UNREADABLE, EnginefarmError, Where, flatten
    from orchestrator.models.load import load_model

    finding.fields = {"backend": entry.record.backend, "digest": digest, "manifest": _entry_fields(entry, digest)}
    try:
        model = load_model(finding.path)
    except EnginefarmError as error:
        finding.title = "not an engine"
        finding.lines = [("size", _bytes(finding.path.stat().st_size))]
        where = Where(file=str(finding.path), target=entry.record.target)
        finding.problems += [
            EnginefarmError(ENGINE_UNREADABLE, each.what, where=where, why=each.why, fix=each.fix) for each in flatten(error)
        ]
    else:
        finding.kind, finding.title = "engine", "ONNX Runtime engine (an ONNX file)"
        finding.fields["model"] = _model_fields(model)
        finding.lines = _model_lines(model)
    finding.lines += [("file digest", digest), *_entry_lines(entry, digest, finding.path.name)]
    finding.problems += entry_problems(finding.path, entry, digest)


def _model_fields(model: Model) -> dict[str, Any]:
    fields = asdict(model)
    fields["path"] = str(model.path)
    del fields["staged"]
    return fields


def _shape(dims: Sequence[int | str | None] | None) -> str:
    if dims is None:
        return "any number of dimensions"
    return " x ".join("?" if dim is None or dim == -1 else str(dim) for dim in dims) or "scalar"


def _tensors(label: str, tensors: Sequence[TensorInfo]) -> Lines:
    from orchestrator.report.text import columns

    rows = columns([[tensor.name, tensor.dtype, _shape(tensor.shape)] for tensor in tensors])
    return [(label if not number else "", row) for number, row in enumerate(rows)]


def _most(counts: dict[str, int], limit: int = 8) -> str:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f", {len(ranked) - limit} more kinds" if len(ranked) > limit else ""
    return ", ".join(f"{name} {count}" for name, count in ranked[:limit]) + more


def _model_lines(model: Model) -> Lines:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    lines: Lines = [
        ("size", _bytes(model.size_bytes)),
        ("opset", f"{opsets} (IR {model.ir_version})"),
        ("producer", model.producer or "not said"),
        *_tensors("inputs", model.inputs),
        *_tensors("outputs", model.outputs),
        ("nodes", f"{model.nodes}: {_most(model.op_types)}" if model.nodes else "0"),
        ("weights", _most(model.weight_dtypes) or "none"),
    ]
    lines += [("external" if not number else "", f"{file.path}, {_bytes(file.size)}") for number, file in enumerate(model.external)]
    notes = {"custom ops": model.custom_ops, "random ops": model.random_ops, "no TensorRT": model.gpu_blockers, "warnings": model.warnings}
    for label, texts in notes.items():
        lines += [(label if not number else "", text) for number, text in enumerate(texts)]
    return lines


# engines


def _look_at_engine(finding: Finding) -> None:
    from orchestrator.artifacts.entry import KINDS, engine_facts

    facts = engine_facts(finding.path)
    header = facts.header
    finding.kind = "engine" if facts.is_plan else "unknown"
    finding.title = KINDS[header["kind"]] if facts.is_plan else "not an engine"
    finding.problems += facts.problems
    if facts.is_plan and facts.name is not None and facts.entry is None and not facts.problems:
        finding.problems += _against_target(finding.path, header, facts.name.tag)
    finding.fields = {
        "backend": header["kind"] if facts.is_plan else None,
        "version": header["version"],
        "serialization": header["serialization"],
        "capabilities": header["capabilities"],
        "platform_tag": header["platform_tag"],
        "declared_size": header["declared_size"],
        "prefix_bytes": header["prefix_bytes"],
        "size_bytes": header["size"],
        "digest": facts.digest,
        "file_kind": header["file_kind"]["kind"] if header["file_kind"] else None,
        "name": asdict(facts.name) if facts.name else None,
        "manifest": _entry_fields(facts.entry, facts.digest) if facts.entry else None,
    }
    finding.lines = _engine_lines(facts)


def _against_target(path: Path, header: dict[str, Any], tag: str) -> list[EnginefarmError]:
    """Whether the header fits the target whose tag the name carries, when there is such a target here."""
    from orchestrator.artifacts.entry import contradicted
    from orchestrator.cli.targets import project_matrix
    from orchestrator.errors import EnginefarmError

    try:
        rows = [row.target for row in project_matrix().select([]) if row.target.tag == tag]
    except EnginefarmError:
        return []  # `enginefarm targets check` says what is wrong with the targets here
    found = [contradicted(path, header, row.backend, row.compute_capability, f"target {row.name}") for row in rows]
    return [problem for problem in found if problem]


def _engine_lines(facts: EngineFacts) -> Lines:
    header = facts.header
    lines: Lines = []
    if header["version"] is not None:
        lines.append(("version", header["version"]))
    if header["serialization"] is not None:
        lines.append(("serialization", f"{header['serialization']} (a tag that error messages print, not a version)"))
    if header["capabilities"] is not None:
        lines.append(("capabilities", ", ".join(header["capabilities"]) or "none named"))
    elif facts.is_plan and facts.entry is None:
        lines.append(("capabilities", "not in a TensorRT header; only a manifest says it"))
    if header["prefix_bytes"]:
        lines.append(("prefix", f"{header['prefix_bytes']} bytes of metadata before the plan"))
    lines += [("size", _bytes(header["size"])), ("file digest", facts.digest)]
    if facts.name is not None:
        checked = "" if facts.name.validated else ", unvalidated"
        lines.append(("name says", f"model {facts.name.model}, version {facts.name.version}, tag {facts.name.tag}{checked}"))
    if facts.entry is not None:
        lines += _entry_lines(facts.entry, facts.digest, facts.path.name)
    elif facts.is_plan:
        lines.append(("manifest", "none beside it names this engine"))
    return lines


def _entry_fields(entry: Entry, digest: str) -> dict[str, Any]:
    return {
        "file": str(entry.path),
        "revision": entry.manifest.revision,
        "digest_matches": entry.record.digest == digest,
        "engine": entry.record.model_dump(mode="json"),
    }


def _runs_on(record: EngineRecord) -> str:
    parts = [f"compute capability {', '.join(record.compute_capability)}"] if record.compute_capability else []
    parts += ["and newer"] if record.hardware_compatibility == "ampere_plus" else []
    parts += [record.platform if record.platform != "any" else "any platform"]
    parts += [f"driver {record.minimum_driver} or newer"] if record.minimum_driver else []
    return ", ".join(parts).replace(", and newer", " and newer")


def _entry_lines(entry: Entry, digest: str, file: str) -> Lines:
    record = entry.record
    same = "the digest matches" if record.digest == digest else "the digest does NOT match"
    renamed = f", there named {record.file}" if record.file != file else ""
    model = entry.manifest.model
    return [
        ("manifest", f"{entry.path.name}, revision {entry.manifest.revision}, target {record.target}; {same}{renamed}"),
        ("model", f"{model.name} v{model.version}, model digest {model.digest}"),
        ("status", f"{record.verdict.status}: {record.verdict.reason}"),
        ("built by", f"{record.backend} {record.backend_version or ''}".rstrip() + f", {record.precision}"),
        ("runs on", _runs_on(record)),
    ]


# manifests


def _look_at_manifest(finding: Finding) -> None:
    from orchestrator.artifacts.manifest import read_manifest
    from orchestrator.artifacts.store import follow_latest

    path = follow_latest(finding.path)
    manifest = read_manifest(path)
    finding.kind = "manifest"
    model = manifest.model
    finding.title = f"manifest of {model.name} v{model.version}, revision {manifest.revision}"
    finding.fields = {"manifest": str(path), "content": manifest.model_dump(mode="json", by_alias=True)}
    finding.lines = [
        ("model digest", model.digest),
        ("model from", model.source),
        *((label, ", ".join(f"{t.name} {t.dtype} {_shape(t.shape)}" for t in tensors)) for label, tensors in _io(manifest)),
        ("made by", f"enginefarm {manifest.enginefarm}, run {manifest.run}, {manifest.created_at}"),
    ]
    finding.table = [["TARGET", "STATUS", "BACKEND", "RUNS ON", "SIZE", "FILE"]]
    for record in manifest.engines:
        finding.table.append(_engine_row(record, path.parent, finding))


def _io(manifest: Manifest) -> list[tuple[str, Any]]:
    return [("inputs", manifest.model.inputs), ("outputs", manifest.model.outputs)]


def _engine_row(record: EngineRecord, folder: Path, finding: Finding) -> list[str]:
    from orchestrator.errors import DIGEST_MISMATCH, ENGINE_UNREADABLE, EnginefarmError, Where
    from orchestrator.report.text import size

    backend = f"{record.backend} {record.backend_version or ''}".rstrip()
    if record.file is None:
        what = str((record.problem or {}).get("what") or record.verdict.reason)
        return [record.target, record.verdict.status, backend, "", "", f"none: {what}"]
    file = folder / record.file
    where = Where(file=str(file), target=record.target)
    note = ""
    if not file.is_file():
        note = " (not here)"
        fix = f"copy it beside the manifest, or build it again: enginefarm repro {finding.path} {record.target}"
        finding.problems.append(EnginefarmError(ENGINE_UNREADABLE, f"{record.file} is not here", where=where, fix=fix))
    elif file.stat().st_size != record.size_bytes:
        note = " (changed)"
        why = f"it has {file.stat().st_size:,} bytes, the manifest says {record.size_bytes:,}"
        finding.problems.append(EnginefarmError(DIGEST_MISMATCH, f"{record.file} changed after it was checked", where=where, why=why))
    return [record.target, record.verdict.status, backend, _runs_on(record), size(record.size_bytes), record.file + note]
