"""Writes what a run built for one model into ``artifacts/``: engines under their names, then the manifest, then ``latest.json``."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import orchestrator
from orchestrator.artifacts.files import disk_errors
from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord
from orchestrator.artifacts.names import engine_file, manifest_file
from orchestrator.artifacts.store import Placed, Release, is_latest, read_manifest
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.outcome import Outcome
from orchestrator.pipeline.prepare import PreparedModel
from orchestrator.pipeline.record import tensor_record
from orchestrator.pipeline.runfolder import RunFolder
from orchestrator.store.memo import Memo


@dataclass(frozen=True)
class Committed:
    """``manifest`` is None when there was nothing to write; ``files`` maps a target to its engine in artifacts."""

    model: str
    version: int
    revision: int
    manifest: Path | None
    files: dict[str, Path]
    notes: tuple[str, ...] = ()
    written: tuple[tuple[Path, Placed], ...] = ()


def check_output(output: Path, models: Iterable[PreparedModel]) -> None:
    """Write and remove a file where the engines will go: what cannot be written must show before hours of building, not after."""
    for folder in {output / model.name for model in models}:
        made = next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent)), folder)
        with disk_errors(f"write to {folder}"):
            if not made.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(made))
            with tempfile.TemporaryFile(dir=made) as file:
                file.write(bytes(4096))
                file.flush()
                os.fsync(file.fileno())


def previous_engines(output: Path, model: PreparedModel, memo: Memo) -> dict[str, tuple[EngineRecord, Path]]:
    """Engines of the newest manifest of this very model version that still are what the manifest says."""
    manifest = model.version.held
    if manifest is None:
        return {}
    path = output / model.name / f"v{model.version.version}" / manifest_file(model.name, model.version.version)
    found = {}
    for record in manifest.engines:
        if record.file is None:
            continue
        engine = path.parent / record.file
        # a link may lead anywhere: nobody who loads takes one
        if engine.is_file() and not engine.is_symlink() and memo.digest(engine) == record.digest:
            found[record.target] = (record, engine)
    return found


def _files(folder: Path, manifest: Manifest | None) -> dict[str, Path]:
    return {record.target: folder / record.file for record in manifest.engines if record.file} if manifest else {}


def commit_model(
    options: BuildOptions, model: PreparedModel, outcomes: Sequence[Outcome], run: RunFolder, *, good: bool, on_wait: Callable[[str], None]
) -> Committed:
    """Write the outcomes of one model; ``good``: all that was asked for is good, so that ``latest.json`` may move.

    Nothing is written when every build was reused as it was, or when nothing was built and there is no manifest to keep.
    """
    version = model.version.version
    folder = options.output / model.name / f"v{version}"
    changed = [outcome for outcome in outcomes if not outcome.unchanged and outcome.status != "skipped"]
    current = folder / manifest_file(model.name, version)
    manifest = read_manifest(current) if current.exists() else None
    if not changed and (manifest is None or manifest.fallback == model.fallback):
        if manifest is not None and good and not is_latest(options.output / model.name, manifest, current):
            with Release(options.output, model.name, version, on_wait=on_wait) as release:
                release.follow(move_latest=True)
        revision = manifest.revision if manifest else 0
        return Committed(model.name, version, revision, current if manifest else None, _files(folder, manifest))
    with Release(options.output, model.name, version, on_wait=on_wait) as release:
        records = [_place(release, model, outcome) for outcome in outcomes]
        _attach(release, model, outcomes)
        path = release.commit(_manifest(model, records, run), move_latest=good)
        if release.manifest is None:
            raise AssertionError("a commit leaves its manifest")
        notes = release.notes + _kept(records, release.manifest)
        if not release.latest_moved:
            notes += (f"latest.json: {release.latest_note}",)
        return Committed(model.name, version, release.manifest.revision, path, _files(folder, release.manifest), notes, release.written)


def _kept(records: Sequence[EngineRecord], manifest: Manifest) -> tuple[str, ...]:
    """A line for each target whose earlier engine, or whose better verdict on the same one, stays although this run has a result of it."""
    now = {record.target: record for record in manifest.engines}
    lines = []
    for record in records:
        kept = now[record.target]
        if kept.file is not None and (kept.digest, kept.verdict.status) != (record.digest, record.verdict.status):
            what = "engine stays" if kept.digest != record.digest else "verdict on this engine stays"
            lines.append(f"{record.target}: the earlier {what}, {kept.verdict.status}, as {kept.file}")
    return tuple(lines)


def _place(release: Release, model: PreparedModel, outcome: Outcome) -> EngineRecord:
    """The record of one outcome; its engine under its name, or in quarantine when it failed."""
    record = outcome.record
    if outcome.status == "failed":
        _quarantine(release, outcome)
        return record
    if outcome.status == "skipped" or outcome.engine is None:
        return record
    validated = outcome.status == "passed"
    name = engine_file(model.name, model.version.version, record.tag, record.backend, validated=validated)
    release.place(outcome.engine, name, digest=record.digest)
    return record.model_copy(update={"file": name})


def _attach(release: Release, model: PreparedModel, outcomes: Sequence[Outcome]) -> None:
    """What the loader needs beside the engines, under its own name: plugins and the fallback."""
    if model.config is not None and model.fallback is not None and model.config.config.fallback is not None:
        release.attach(model.config.resolve(model.config.config.fallback), model.fallback["file"])
    plugins = {name for outcome in outcomes if outcome.engine is not None for name in outcome.build.effective.target.plugins}
    for name in sorted(plugins):
        release.attach(Path(name), Path(name).name)


def _quarantine(release: Release, outcome: Outcome) -> None:
    evidence: dict[str, bytes | Path] = {"record.json": outcome.record.model_dump_json(indent=2).encode()}
    if outcome.problem is not None:
        evidence["problem.json"] = json.dumps(outcome.problem.as_dict(), indent=2, ensure_ascii=False).encode()
        if outcome.problem.log and Path(outcome.problem.log).is_file():
            evidence["worker.log"] = Path(outcome.problem.log)
    release.quarantine(outcome.record.tag, outcome.engine, evidence)


def _manifest(model: PreparedModel, records: Sequence[EngineRecord], run: RunFolder) -> Manifest:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Manifest(
        model=ModelRecord(
            name=model.name,
            version=model.version.version,
            digest=model.model.digest,
            source=str(model.model.path),
            inputs=tuple(tensor_record(tensor) for tensor in model.model.inputs),
            outputs=tuple(tensor_record(tensor) for tensor in model.model.outputs),
        ),
        revision=1,  # counted by Release.commit, under its lock
        run=run.id,
        created_at=now,
        enginefarm=orchestrator.__version__,
        engines=tuple(records),
        fallback=model.fallback,
    )
