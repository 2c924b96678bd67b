"""Reading a manifest without trusting it: schema, the fields that the loader uses, and ``latest.json``.

The format is that of docs/artifacts.md and docs/manifest.schema.json.
"""

import hashlib
import json
import os
import re
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .errors import LoadError, Refusal
from .files import FILE_NAME, inside, open_regular

MANIFEST_SCHEMA = "enginefarm.manifest/1"
LATEST_SCHEMA = "enginefarm.latest/1"
LATEST = "latest.json"
MAX_BYTES = 64 << 20  # as orchestrator/artifacts/manifest.py

_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_BACKENDS = ("tensorrt", "tensorrt-rtx", "onnxruntime")
_GIVE = "give <model>_v<N>.json, latest.json, or the model's folder"

Opened = NamedTuple("Opened", [("path", str), ("folder", str), ("raw", bytes), ("content", Dict[str, Any])])
"""A manifest that was read: ``path`` of its file, ``folder`` that holds its engines, its bytes, and what they say."""

Verifier = Callable[[str, bytes], Any]
"""A caller's own check of a signature: given the manifest's path and bytes it gives the signer, or raises."""


def open_manifest(path: str) -> Opened:
    """Read a manifest, or the one that a ``latest.json`` or a model's folder names. Raises LoadError."""
    path = os.fspath(path)
    if os.path.isdir(path):
        path = _in_folder(path)
    raw = _read(path)
    content = _json(path, raw)
    folder = os.path.dirname(os.path.abspath(path))
    if content.get("schema") == LATEST_SCHEMA:
        path, folder, raw = _follow(path, folder, content)
        content = _json(path, raw)
    if content.get("schema") != MANIFEST_SCHEMA:
        raise LoadError("manifest cannot be used", "{} is no {}".format(path, MANIFEST_SCHEMA), _GIVE)
    problem = _problem(content)
    if problem:
        raise LoadError("manifest cannot be used", "{}: {}".format(path, problem), "take it again from where it was published")
    return Opened(path, folder, raw, content)


def _in_folder(folder: str) -> str:
    latest = os.path.join(folder, LATEST)
    if os.path.lexists(latest):  # whatever it is: a damaged one must not make another manifest the newest
        return latest
    try:
        found = os.listdir(folder)
    except OSError as error:
        raise LoadError("manifest cannot be read", "{}: {}".format(folder, error.strerror or error), _GIVE) from error
    names = sorted(name for name in found if re.search(r"_v\d+\.json$", name) and FILE_NAME.match(name))
    if len(names) == 1:
        return os.path.join(folder, names[0])
    holds = "it holds {}".format(", ".join(names)) if names else "it holds neither {} nor a manifest".format(LATEST)
    raise LoadError("no manifest to load", "{}: {}".format(folder, holds), _GIVE)


def _read(path: str) -> bytes:
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise LoadError("manifest cannot be read", "{}: {}".format(path, error.strerror or error), _GIVE) from error
    if len(raw) > MAX_BYTES:
        raise LoadError("manifest cannot be used", "{} is larger than {} MiB".format(path, MAX_BYTES >> 20), _GIVE)
    return raw


def _json(path: str, raw: bytes) -> Dict[str, Any]:
    try:
        content = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise LoadError("manifest cannot be used", "{} is not JSON: {}".format(path, error), _GIVE) from error
    if not isinstance(content, dict):
        raise LoadError("manifest cannot be used", "{} is JSON, but no manifest".format(path), _GIVE)
    return content


def _follow(path: str, folder: str, latest: Dict[str, Any]) -> Tuple[str, str, bytes]:
    """Path, folder and bytes of the manifest that latest.json names, by digest: it may have been archived by a newer revision."""
    parts = str(latest.get("manifest")).split("/")
    digest = str(latest.get("digest"))
    if len(parts) != 2 or not _DIGEST.match(digest):
        raise LoadError("manifest cannot be used", "{} names no manifest and digest".format(path), _GIVE)
    try:
        version = inside(folder, parts[0])
        current = inside(version, parts[1])
        archive = inside(version, "manifests")
    except Refusal as refusal:
        raise LoadError("manifest cannot be used", "{}: {}".format(path, refusal.why), _GIVE) from refusal
    for candidate in (current, os.path.join(archive, digest[len("sha256:") :] + ".json")):
        if os.path.isfile(candidate):
            raw = _read(candidate)
            if "sha256:" + hashlib.sha256(raw).hexdigest() == digest:
                return candidate, version, raw
    why = "{} is not the one that {} names (digest {}...)".format(current, path, digest[:19])
    raise LoadError("manifest changed after it was published", why, "publish the folder again, whole; or load {} itself".format(current))


# --- the fields that are used: a wrong type is said once here and not met later ---


def _problem(content: Dict[str, Any]) -> Optional[str]:
    model = content.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("name"), str) or not isinstance(model.get("version"), int):
        return "model has no name or no version"
    if not FILE_NAME.match(model["name"]):
        return "the model's name is no name of a file or folder"
    if not isinstance(content.get("revision"), int):
        return "revision is not a number"
    engines = content.get("engines")
    if not isinstance(engines, list) or not all(isinstance(record, dict) for record in engines):
        return "engines is not a list of records"
    for record in engines:
        problem = _record_problem(record)
        if problem:
            return "engine {}: {}".format(record.get("target"), problem)
    return _tensors_problem(model) or _fallback_problem(content.get("fallback"))


def _record_problem(record: Dict[str, Any]) -> Optional[str]:
    verdict = record.get("verdict")
    if not isinstance(record.get("target"), str) or record.get("backend") not in _BACKENDS:
        return "no target, or backend is none of {}".format(", ".join(_BACKENDS))
    if not isinstance(verdict, dict) or not isinstance(verdict.get("status"), str):
        return "no verdict"
    if not isinstance(record.get("tag"), str) or not FILE_NAME.match(record["tag"]):
        return "its tag is no name of a file"
    if not isinstance(record.get("platform"), str):
        return "no platform"
    if not _texts(record.get("compute_capability", [])) or not isinstance(record.get("plugins", {}), dict):
        return "compute_capability or plugins cannot be read"
    if record.get("file") is not None and not (_is_digest(record.get("digest")) and isinstance(record.get("size_bytes"), int)):
        return "its file has no digest or no size"
    return _tensors_problem(record) or _profiles_problem(record.get("profiles", {}))


def _tensors_problem(owner: Dict[str, Any]) -> Optional[str]:
    for side in ("inputs", "outputs"):
        tensors = owner.get(side, [])
        if not isinstance(tensors, list):
            return "{} is not a list".format(side)
        for tensor in tensors:
            fine = isinstance(tensor, dict) and isinstance(tensor.get("name"), str) and isinstance(tensor.get("dtype"), str)
            if not fine or not _whole(tensor.get("shape")):
                return "{}: a tensor needs name, dtype and shape".format(side)
    return None


def _profiles_problem(profiles: Any) -> Optional[str]:
    if not isinstance(profiles, dict):
        return "profiles cannot be read"
    for name, ranges in profiles.items():
        if not isinstance(ranges, dict) or not all(_whole(ranges.get(key)) for key in ("min", "opt", "max")):
            return "the profile of {} needs min, opt and max".format(name)
    return None


def _fallback_problem(fallback: Any) -> Optional[str]:
    if fallback is None:
        return None
    if not isinstance(fallback, dict) or not isinstance(fallback.get("file"), str) or not _is_digest(fallback.get("digest")):
        return "fallback needs a file and its digest"
    return None


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and bool(_DIGEST.match(value))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, int) for item in value)


def engines_with_file(content: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The records that have an engine."""
    return [record for record in content["engines"] if record.get("file") is not None]
