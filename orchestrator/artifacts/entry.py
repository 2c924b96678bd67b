"""What is known of an engine file: its header, its name, and the entry of the manifest that lies beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.artifacts.files import sha256_file
from orchestrator.artifacts.manifest import EngineRecord, Manifest, read_manifest
from orchestrator.artifacts.names import EngineName, manifest_file, parse_engine_file
from orchestrator.errors import DIGEST_MISMATCH, ENGINE_UNREADABLE, MODEL_NOT_ONNX, EnginefarmError, Where
from orchestrator.portable.facts import plan_header

ENGINE_SUFFIXES = frozenset({".engine", ".plan", ".trt"})
KINDS = {"tensorrt": "TensorRT engine", "tensorrt-rtx": "TensorRT-RTX engine", "tensorrt-7": "TensorRT engine of version 7 or older"}
_CANDIDATES = 32  # JSON files that are looked at beside an engine


@dataclass(frozen=True)
class Entry:
    """A record, and the manifest that holds it at ``path``."""

    path: Path
    manifest: Manifest
    record: EngineRecord


def _manifests_beside(engine: Path) -> Iterator[tuple[Path, Manifest]]:
    """Readable manifests in the engine's folder, the one that its name asks for first."""
    name = parse_engine_file(engine.name)
    found = sorted(islice(engine.parent.glob("*.json"), _CANDIDATES))
    named = [engine.with_name(manifest_file(name.model, name.version))] if name else []
    for path in dict.fromkeys([*named, *found]):
        manifest = _readable(path)
        if manifest:
            yield path, manifest


def _readable(path: Path) -> Manifest | None:
    try:
        return read_manifest(path)
    except EnginefarmError:
        return None  # some other JSON file: `inspect` on it says what is wrong


def find_entry(engine: Path, digest: str | None = None) -> Entry | None:
    """The manifest entry of an engine file: the one that names it, else (after a renaming) one with its ``digest``."""
    renamed = None
    for path, manifest in _manifests_beside(engine):
        for record in manifest.engines:
            if record.file == engine.name:
                return Entry(path, manifest, record)
            if digest is not None and record.digest == digest and renamed is None:
                renamed = Entry(path, manifest, record)
    return renamed


def changed(engine: Path, entry: Entry, digest: str) -> EnginefarmError | None:
    """DIGEST_MISMATCH when the file is not the one that was checked: never to be loaded."""
    if entry.record.digest is None or entry.record.digest == digest:
        return None
    again = f"copy {engine.name} again from the release, or build it again: enginefarm repro {entry.path} {entry.record.target}"
    return EnginefarmError(
        DIGEST_MISMATCH,
        f"{engine.name} changed after it was checked",
        where=Where(file=str(engine), target=entry.record.target),
        why=f"{entry.path.name} says {entry.record.digest}, the file is {digest}",
        fix=again,
    )


@dataclass(frozen=True)
class EngineFacts:
    """Everything that a file says without a GPU; ``header`` as portable/facts/plan_header.py gives it, ``digest`` as ``sha256:...``."""

    path: Path
    header: dict[str, Any]
    digest: str
    name: EngineName | None
    entry: Entry | None
    problems: tuple[EnginefarmError, ...] = field(default=())

    @property
    def is_plan(self) -> bool:
        return bool(self.header["kind"] != "not-a-plan")


def engine_facts(path: Path) -> EngineFacts:
    """Look at a file that is or should be an engine; streamed. Raises OSError when it cannot be read."""
    header = plan_header.read(str(path))
    digest = sha256_file(path)
    entry = find_entry(path, digest)
    problems = _header_problems(path, header)
    mismatch = changed(path, entry, digest) if entry else None
    if mismatch:
        problems.append(mismatch)
    return EngineFacts(path, header, digest, parse_engine_file(path.name), entry, tuple(problems))


def _header_problems(path: Path, header: dict[str, Any]) -> list[EnginefarmError]:
    where = Where(file=str(path))
    if header["kind"] == "not-a-plan" and header["file_kind"]["kind"] == "onnx-like":
        model = path.with_suffix(".onnx").name
        what = "this is an ONNX model with the name of an engine"
        return [EnginefarmError(ENGINE_UNREADABLE, what, where=where, fix=f"rename it to {model} and build an engine from it")]
    problems = [EnginefarmError(ENGINE_UNREADABLE, problem["text"], where=where, fix=problem["fix"]) for problem in header["problems"]]
    if header["kind"] in KINDS and path.suffix.lower() == ".onnx":
        what = f"this is a {KINDS[header['kind']]} with the name of an ONNX model"
        fix = f"rename it to {path.with_suffix('.engine').name}; to build, give the ONNX model it was made from"
        problems.append(EnginefarmError(MODEL_NOT_ONNX, what, where=where, fix=fix))
    return problems
