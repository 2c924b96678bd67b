"""Which version N of a model a run makes: chosen once, before anything is built.

``--model-version`` wins. Else the versions under ``artifacts/<name>/`` decide: the same digest keeps its N and gets a new revision, a new
digest gets the next number. Versions are compared as numbers: v10 is after v9. In CI, where ``artifacts/`` is empty, nothing is guessed.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.artifacts.manifest import Manifest, read_manifest
from orchestrator.artifacts.names import manifest_file
from orchestrator.artifacts.store import finish_interrupted
from orchestrator.errors import MANIFEST_UNREADABLE, NAME_TAKEN, VERSION_UNKNOWN, EnginefarmError, Where

_FOLDER = re.compile(r"v([1-9][0-9]*)")


class Tensor(Protocol):
    """An input or output; only the number of dimensions of ``shape`` counts here (None: not known)."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[object] | None: ...


class Signature(Protocol):
    """What a model takes and gives."""

    @property
    def inputs(self) -> Sequence[Tensor]: ...
    @property
    def outputs(self) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class VersionChoice:
    """``revision`` is what the next commit most likely gets (settled under the lock); ``held``: the manifest of this digest's version, when
    it has one already."""

    version: int
    revision: int
    reason: str
    held: Manifest | None = None


def versions(output: Path, name: str) -> dict[int, Path]:
    """Version -> manifest file of ``name``, lowest first; folders without a manifest hold nothing committed and do not count."""
    found = {}
    folder = output / name
    for entry in folder.iterdir() if folder.is_dir() else ():
        match = _FOLDER.fullmatch(entry.name)
        manifest = entry / manifest_file(name, int(match[1])) if match else None
        if match and manifest and manifest.is_file():
            found[int(match[1])] = manifest
    return dict(sorted(found.items()))


def _read(path: Path, name: str, version: int) -> Manifest:
    manifest = read_manifest(path)
    if (manifest.model.name, manifest.model.version) != (name, version):
        raise EnginefarmError(
            MANIFEST_UNREADABLE,
            f"manifest of {manifest.model.name} v{manifest.model.version} lies in the folder of {name} v{version}",
            where=Where(file=str(path)),
            fix="move the folder back to its own name",
        )
    return manifest


def _alike(left: Tensor, right: Tensor) -> bool:
    same_rank = left.shape is None or right.shape is None or len(left.shape) == len(right.shape)
    return left.name == right.name and left.dtype == right.dtype and same_rank


def _common(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    return any(_alike(one, other) for one in left for other in right) or not (left or right)


def related(left: Signature, right: Signature) -> bool:
    """Whether two signatures can be of one model: an input and an output in common, by name, dtype and number of dimensions."""
    return _common(left.inputs, right.inputs) and _common(left.outputs, right.outputs)


def _names(signature: Signature) -> str:
    inputs = ", ".join(tensor.name for tensor in signature.inputs)
    return f"{inputs or 'nothing'} -> {', '.join(tensor.name for tensor in signature.outputs) or 'nothing'}"


def _holding(found: dict[int, Path], digest: str) -> list[int]:
    """The versions whose manifest can be read and is of the model with ``digest``."""
    same = []
    for version, path in found.items():
        with contextlib.suppress(EnginefarmError):
            same += [version] if read_manifest(path).model.digest == digest else []
    return same


def _requested(found: dict[int, Path], name: str, digest: str, requested: int) -> VersionChoice:
    """The other versions do not matter, so a damaged manifest of theirs is in nobody's way."""
    if requested not in found:
        return VersionChoice(requested, 1, "as --model-version says")
    held = _read(found[requested], name, requested)
    if held.model.digest == digest:
        return VersionChoice(requested, held.revision + 1, f"as --model-version says; revision {held.revision} is there already", held)
    same = _holding(found, digest)
    raise EnginefarmError(
        NAME_TAKEN,
        f"{name} v{requested} is another model",
        why=f"it holds {held.model.digest[:19]}..., this one is {digest[:19]}..." + (f", which is v{same[-1]}" if same else ""),
        fix=f"--model-version {same[-1] if same else max(found) + 1}",
    )


def choose_version(output: Path, name: str, model_digest: str, signature: Signature, *, requested: int | None, ci: bool) -> VersionChoice:
    """The version of the model with ``model_digest`` named ``name``; ``signature`` has its inputs and outputs.

    Raises EnginefarmError: NAME_TAKEN (the name or the requested version is another model's), VERSION_UNKNOWN (in CI with nothing to go
    by), MANIFEST_UNREADABLE (a damaged manifest could hide a version, so without ``requested`` it is not skipped).
    """
    finish_interrupted(output, name)
    found = versions(output, name)
    if requested is not None:
        return _requested(found, name, model_digest, requested)
    manifests = {version: _read(path, name, version) for version, path in found.items()}
    for version, manifest in reversed(manifests.items()):
        if manifest.model.digest == model_digest:
            return VersionChoice(version, manifest.revision + 1, f"the same model as revision {manifest.revision}", manifest)
    if not manifests:
        if ci:
            raise EnginefarmError(
                VERSION_UNKNOWN,
                f"nothing says which version of {name} this is",
                why=f"CI is set, and {output / name} holds no earlier version to count from",
                fix="--model-version 1",
            )
        return VersionChoice(1, 1, "the first version")
    latest = max(manifests)
    if not related(manifests[latest].model, signature):
        raise EnginefarmError(
            NAME_TAKEN,
            f"{name} is the name of another model",
            where=Where(file=str(output / name)),
            why=f"v{latest} is {_names(manifests[latest].model)}, this one is {_names(signature)}",
            fix=f"--name {shlex.quote(name + '-2')}, or --model-version {latest + 1} when it does replace it",
        )
    return VersionChoice(latest + 1, 1, f"a new model after v{latest}")
