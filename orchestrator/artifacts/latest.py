"""``latest.json``: the version of a model that services take; reading it without trusting it, and when it moves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.artifacts.files import member, read_regular, sha256_bytes
from orchestrator.artifacts.manifest import MAX_MANIFEST_BYTES, EngineRecord, Manifest, read_manifest
from orchestrator.artifacts.merge import lost, statuses
from orchestrator.artifacts.names import manifest_file
from orchestrator.errors import EnginefarmError

LATEST_SCHEMA = "enginefarm.latest/1"
LATEST = "latest.json"


def _ours(content: Any) -> bool:
    if not isinstance(content, dict) or content.get("schema") != LATEST_SCHEMA:
        return False
    version, targets, parts = content.get("version"), content.get("targets"), str(content.get("manifest")).split("/")
    texts = isinstance(targets, dict) and all(isinstance(status, str) for status in targets.values())
    return texts and type(version) is int and version > 0 and len(parts) == 2 and all(_is_member(part) for part in parts)


def _is_member(name: str) -> bool:
    try:
        member(Path(), name)
    except EnginefarmError:
        return False
    return True


def read_latest(model_folder: Path) -> dict[str, Any] | None:
    """``latest.json`` of a model; None when there is none or it is not ours: another schema, wrong types, a path that leaves the folder."""
    try:
        content = json.loads(read_regular(model_folder / LATEST, MAX_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return content if _ours(content) else None


def follow_latest(path: Path) -> Path:
    """The manifest that a ``latest.json`` names; any other path as it is."""
    latest = read_latest(path.parent) if path.name == LATEST else None
    return path.parent.joinpath(*latest["manifest"].split("/")) if latest else path


def latest_bytes(manifest: Manifest, data: bytes, targets: Mapping[str, str]) -> bytes:
    """The content of ``latest.json`` for a manifest and the bytes of its file."""
    name, version = manifest.model.name, manifest.model.version
    content = {
        "schema": LATEST_SCHEMA,
        "model": name,
        "version": version,
        "revision": manifest.revision,
        "manifest": f"v{version}/{manifest_file(name, version)}",
        "digest": sha256_bytes(data),
        "targets": dict(targets),
    }
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


@dataclass(frozen=True)
class Decision:
    """``moved``: latest.json takes all of this revision; ``targets``: what it has to list, None when it stays as it is."""

    moved: bool
    note: str
    targets: dict[str, str] | None = None


def decide(model_folder: Path, version: int, engines: Sequence[EngineRecord], *, good: bool, changed: bool) -> Decision:
    """Whether ``latest.json`` moves to the revision of ``version`` that holds ``engines``.

    ``good``: the run ended with exit code 0; ``changed``: engine files of the previous revision are replaced or removed. When it stays at
    this very version and the engines that it lists are untouched, it only takes the new revision and digest: the manifest that it names is
    this revision now.
    """
    latest, now = read_latest(model_folder), statuses(engines)
    moves = Decision(True, "every target that it had is there", now)
    if latest is None:
        return moves if good else Decision(False, "it stays: the run did not end well")
    here = latest["version"] == version
    if here and (changed or any(now.get(target) != status for target, status in latest["targets"].items())):
        # the engines that it described are gone from this folder: it would point at nothing
        return Decision(True, "it follows this version's engines", now)
    if not good:
        return Decision(False, "it stays: the run did not end well", latest["targets"] if here else None)
    current = follow_latest(model_folder / LATEST)
    if here or not current.is_file():  # a version that was deleted has nothing to lose
        return moves
    if latest["version"] > version:
        return Decision(False, f"it stays at v{latest['version']}: it never moves to a lower version")
    losses = lost(latest["targets"], now, renamed=_renamed(current, engines))
    return Decision(False, f"it stays at v{latest['version']}: in v{version}, {'; '.join(losses)}") if losses else moves


def _renamed(current: Path, engines: Sequence[EngineRecord]) -> dict[str, str]:
    """Target of the manifest at ``current`` -> the target whose engine has its tag now."""
    try:
        before = read_manifest(current).engines
    except EnginefarmError:
        return {}
    by_tag = {record.tag: record.target for record in engines if record.file is not None}
    return {record.target: by_tag[record.tag] for record in before if record.tag in by_tag}
