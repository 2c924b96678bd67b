"""``targets/targets.lock``: for each image and platform of the matrix the digest that a registry gave, and what the image holds.

A digest gets into the file only from :func:`update`, which read it from a registry. The file is YAML, sorted, one entry per image and
platform, so that a change of an image is a few lines of a review.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.artifacts.files import disk_errors, sync_folder
from orchestrator.errors import CONFIG_FIELD, CONFIG_VALUE, EnginefarmError, Where, raise_all
from orchestrator.images.reference import is_digest, parse
from orchestrator.matrix.schema import Target
from orchestrator.matrix.yaml_reader import Mapping as YamlMapping
from orchestrator.matrix.yaml_reader import Node, Scalar, Sequence, display, read_file

SCHEMA = "enginefarm.lock/1"
FILE_NAME = "targets.lock"
PLATFORMS = ("linux/amd64", "linux/arm64")
_HEAD = f"""# Written by `enginefarm targets lock`: the digests that the registries gave for the images of the targets.
# Commit it. Renew it with `enginefarm targets lock --upgrade`; never by hand.
schema: {SCHEMA}
"""
_REFRESH = "write it anew with: enginefarm targets lock"
_REQUIRED = ("reference", "platform", "digest", "image_id", "size_bytes", "locked_at")
_OPTIONAL = ("tensorrt", "cuda", "requires")
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")


@dataclass(frozen=True)
class Entry:
    """One locked image. ``size_bytes``: of its compressed layers; ``locked_at``: UTC; other fields as in registry.Resolved."""

    reference: str
    platform: str
    digest: str
    image_id: str
    size_bytes: int
    locked_at: str
    tensorrt: str | None = None
    cuda: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        return self.reference, self.platform

    @property
    def pinned(self) -> str:
        """``nvcr.io/nvidia/tensorrt@sha256:...``."""
        return str(parse(self.reference).pinned(self.digest))

    @property
    def holds(self) -> str:
        """``TensorRT 8.6.1.6, CUDA 12.2.1``."""
        known = [f"{name} {value}" for name, value in (("TensorRT", self.tensorrt), ("CUDA", self.cuda)) if value]
        return ", ".join(known) or "versions unknown"


@dataclass(frozen=True)
class Lock:
    """Entries by (reference, platform)."""

    entries: Mapping[tuple[str, str], Entry] = field(default_factory=dict)

    def find(self, reference: str, platform: str) -> Entry | None:
        """The entry of an image as a target writes it."""
        return self.entries.get((str(parse(reference)), platform))


def wanted(target: Target) -> tuple[str, ...]:
    """The platforms for which a target's image is locked: none without an image, both for ``platform: any``."""
    if target.image is None:
        return ()
    return PLATFORMS if target.platform == "any" else (target.platform,)


def entry_for(lock: Lock, target: Target, platform: str | None = None) -> Entry | None:
    """The locked image of a target; ``platform``: the runner's, which decides for a target of ``platform: any``."""
    if target.image is None:
        return None
    chosen = target.platform if target.platform != "any" else platform
    candidates = (chosen,) if chosen else PLATFORMS
    return next((entry for name in candidates if (entry := lock.find(target.image, name)) is not None), None)


def pinned(lock: Lock, target: Target, platform: str | None = None) -> str | None:
    """``repository@sha256:...`` of a target's image; None when it has none or is not locked."""
    entry = entry_for(lock, target, platform)
    return None if entry is None else entry.pinned


def lock_file(project: Path) -> Path:
    return project / "targets" / FILE_NAME


def read_lock(path: Path) -> Lock:
    """Read a lock; a file that does not exist is an empty one. Raises EnginefarmError with every problem at its line."""
    if not path.exists():
        return Lock()
    document = read_file(path)
    problems = list(document.problems)
    entries: dict[tuple[str, str], Entry] = {}
    if document.root is not None:
        schema = document.root.entries.get("schema")
        if not isinstance(schema, Scalar) or schema.text != SCHEMA:
            said = f'"{schema.text[:60]}"' if isinstance(schema, Scalar) else "nothing"
            where = schema.where if schema is not None else document.root.where
            what = f"schema is {said}, not {SCHEMA}"
            problems.append(EnginefarmError(CONFIG_VALUE, what, where=where, why="another release wrote it", fix=_REFRESH))
        else:
            images = document.root.entries.get("images")
            for node in images.items if isinstance(images, Sequence) else []:
                entry = _entry(node, problems)
                if entry is not None and entry.key in entries:
                    problems.append(_wrong(node.where, f"{entry.reference} for {entry.platform} is locked twice"))
                elif entry is not None:
                    entries[entry.key] = entry
            if not isinstance(images, Sequence) and not (isinstance(images, Scalar) and not images.text):
                problems.append(_wrong(images.where if images else document.root.where, "images is not a list"))
    raise_all(problems)
    return Lock(entries)


def _wrong(where: Where, what: str, why: str | None = None) -> EnginefarmError:
    return EnginefarmError(CONFIG_VALUE, what, where=where, why=why, fix=_REFRESH)


def _entry(node: Node, problems: list[EnginefarmError]) -> Entry | None:
    if not isinstance(node, YamlMapping):
        problems.append(_wrong(node.where, "an entry of images is not a mapping"))
        return None
    before = len(problems)
    for name, key in node.keys.items():
        if name not in (*_REQUIRED, *_OPTIONAL):
            problems.append(EnginefarmError(CONFIG_FIELD, f'a locked image has no field "{name[:60]}"', where=key.where, fix=_REFRESH))
    texts: dict[str, str] = {}
    for name in (*_REQUIRED, "tensorrt", "cuda"):
        value = node.entries.get(name)
        if value is None:
            problems.extend([_wrong(node.where, f"{name} is missing")] if name in _REQUIRED else [])
        elif not isinstance(value, Scalar):
            problems.append(_wrong(value.where, f"{name} is not a text"))
        else:
            texts[name] = value.text
            why = _why_not(name, value.text)
            problems.extend([_wrong(value.where, f'{name} cannot be "{value.text[:80]}"', why)] if why else [])
    requires = _requires(node.entries.get("requires"), problems)
    if len(problems) > before:
        return None
    return Entry(
        reference=str(parse(texts["reference"])),
        platform=texts["platform"],
        digest=texts["digest"],
        image_id=texts["image_id"],
        size_bytes=int(texts["size_bytes"]),
        locked_at=texts["locked_at"],
        tensorrt=texts.get("tensorrt"),
        cuda=texts.get("cuda"),
        requires=requires,
    )


def _why_not(name: str, text: str) -> str | None:
    """Why a field cannot have this value; None when it can."""
    if name == "reference":
        try:
            parse(text)
        except EnginefarmError as error:
            return error.why or error.what
        return None
    if name == "platform":
        return None if text in PLATFORMS else f"it is one of {', '.join(PLATFORMS)}"
    if name in ("digest", "image_id"):
        return None if is_digest(text) else "it is sha256: and 64 lower-case hexadecimal digits"
    if name == "size_bytes":
        return None if text.isascii() and text.isdigit() and len(text) < 16 else "it is a number of bytes"
    if name == "locked_at":
        return None if _TIME.match(text) else "it is a time in UTC: 2026-01-31T12:00:00Z"
    return None if re.fullmatch(r"\d+(\.\d+)*", text) else "it is a version"


def _requires(node: Node | None, problems: list[EnginefarmError]) -> dict[str, str]:
    if node is None:
        return {}
    if not isinstance(node, YamlMapping) or not all(isinstance(value, Scalar) for value in node.entries.values()):
        problems.append(_wrong(node.where, "requires is not a mapping of texts"))
        return {}
    return {name: value.text for name, value in node.entries.items() if isinstance(value, Scalar)}


def lock_text(lock: Lock) -> str:
    """The file's text: sorted, texts in quotes where YAML could take them for something else."""
    lines = ["images:"] if lock.entries else ["images: []"]
    for _, entry in sorted(lock.entries.items()):
        lines += [f"  - reference: {entry.reference}", f"    platform: {entry.platform}", f"    digest: {entry.digest}"]
        lines += [f"    {name}: {json.dumps(value)}" for name, value in (("tensorrt", entry.tensorrt), ("cuda", entry.cuda)) if value]
        lines += ["    requires:"] if entry.requires else []
        lines += [f"      {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(entry.requires.items())]
        lines += [f"    image_id: {entry.image_id}", f"    size_bytes: {entry.size_bytes}", f'    locked_at: "{entry.locked_at}"']
    return _HEAD + "\n".join(lines) + "\n"


def write_lock(path: Path, lock: Lock) -> None:
    """Replace the file at once, or not at all. Raises EnginefarmError(DISK)."""
    with disk_errors(f"write {display(path)}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(lock_text(lock))
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def unlocked(lock: Lock, targets: Iterable[Target]) -> list[tuple[str, str, str]]:
    """(target, reference, platform) of images that the lock lacks; one platform is enough for a target of ``platform: any``."""
    return [
        (target.name, str(parse(target.image)), target.platform)
        for target in targets
        if target.image is not None and entry_for(lock, target) is None
    ]
