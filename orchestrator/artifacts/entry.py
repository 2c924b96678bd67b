"""What is known of an engine file: its header, its name, and the entry of the manifest that lies beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.artifacts.files import sha256_file
from orchestrator.artifacts.manifest import EngineRecord, Manifest, read_manifest
from orchestrator.artifacts.names import EngineName, manifest_file, parse_engine_file
from orchestrator.errors import DIGEST_MISMATCH, ENGINE_MISNAMED, ENGINE_UNREADABLE, MODEL_NOT_ONNX, EnginefarmError, Where
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


def misnamed(engine: Path, entry: Entry) -> EnginefarmError | None:
    """ENGINE_MISNAMED when a file's name says something else than the manifest that holds it: whoever goes by names loads the wrong one.

    A name of another form (``newest.engine``) says nothing, and so nothing wrong.
    """
    said, recorded = parse_engine_file(engine.name), parse_engine_file(entry.record.file or "")
    if said is None or recorded is None or said == recorded:
        return None
    differ = [(ours, theirs) for ours, theirs in zip(said.claims, recorded.claims, strict=True) if ours != theirs]
    ours, theirs = (" and ".join(claims) for claims in zip(*differ, strict=True))
    return EnginefarmError(
        ENGINE_MISNAMED,
        f"{engine.name} is not what its name says",
        where=Where(file=str(engine), target=entry.record.target),
        why=f"the name says {ours}; {entry.path.name} says {theirs}",
        fix=f"rename it to {entry.record.file}",
    )


def contradicted(
    engine: Path, header: Mapping[str, Any], backend: str, capabilities: Collection[str], said_by: str
) -> EnginefarmError | None:
    """ENGINE_MISNAMED when the header is of another backend, or lists other compute capabilities, than ``said_by`` says."""
    found = header["capabilities"]
    kind = "tensorrt" if header["kind"] == "tensorrt-7" else header["kind"]
    if header["kind"] == "not-a-plan" or (kind == backend and (found is None or set(found) == set(capabilities))):
        return None
    own = f"{KINDS[header['kind']]} for compute capability {', '.join(found) or 'none'}" if found is not None else KINDS[header["kind"]]
    named = f"{backend} and {', '.join(capabilities)}" if capabilities else backend
    return EnginefarmError(
        ENGINE_MISNAMED,
        f"{engine.name} is not what its name says",
        where=Where(file=str(engine)),
        why=f"its header is that of a {own}; {said_by} says {named}",
        fix="give it back the name that it was built with",
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
    problems = _header_problems(path, header, entry)
    problems += entry_problems(path, entry, digest) if entry else []
    if entry and not problems:
        record = entry.record
        said_by = f"{entry.path.name} for target {record.target}"
        contradiction = contradicted(path, header, record.backend, record.compute_capability, said_by)
        problems += [contradiction] if contradiction else []
    return EngineFacts(path, header, digest, parse_engine_file(path.name), entry, tuple(problems))


def entry_problems(engine: Path, entry: Entry, digest: str) -> list[EnginefarmError]:
    """What is wrong with a file according to the manifest that holds it."""
    return [problem for problem in (changed(engine, entry, digest), misnamed(engine, entry)) if problem]


def _header_problems(path: Path, header: dict[str, Any], entry: Entry | None) -> list[EnginefarmError]:
    where = Where(file=str(path))
    if header["kind"] == "not-a-plan" and header["file_kind"]["kind"] == "onnx-like":
        model = path.with_suffix(".onnx").name
        what = "this is an ONNX model with the name of an engine"
        return [EnginefarmError(ENGINE_UNREADABLE, what, where=where, fix=f"rename it to {model} and build an engine from it")]
    problems = [EnginefarmError(ENGINE_UNREADABLE, problem["text"], where=where, fix=problem["fix"]) for problem in header["problems"]]
    if header["kind"] in KINDS and path.suffix.lower() == ".onnx":
        what = f"this is a {KINDS[header['kind']]} with the name of an ONNX model"
        fix = f"rename it to {path.with_suffix('.engine').name}; to build, give the ONNX model it was made from"
        # beside its manifest it is an engine that was overwritten, not a model that somebody wants to build
        kind = ENGINE_UNREADABLE if entry else MODEL_NOT_ONNX
        problems.append(EnginefarmError(kind, what, where=where, fix=fix))
    return problems
