"""External data of a model: which side files it names, and that each is a regular file inside the model's folder.

Everything is decided by path and lstat before a byte of any side file is read: a named FIFO would block, a device
or a link out of the folder would hand over what is none of the model's business. The files are then opened one
folder at a time without following links, so that a swap after the check is caught.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import (
    DIGEST_MISMATCH,
    MODEL_EXTERNAL_MISSING,
    MODEL_EXTERNAL_UNSAFE,
    MODEL_INVALID,
    EnginefarmError,
    Where,
    raise_all,
)
from orchestrator.models.dtypes import dtype_name, raw_bytes
from orchestrator.models.model import STAGED_NAME
from orchestrator.models.proto import Tensor
from orchestrator.models.text import listed, shown

_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True)
class SideFile:
    """One checked side file. ``path`` is what the model says, normalised; ``resolved`` its path below the real folder."""

    path: str
    resolved: str
    size: int
    identity: tuple[int, int]
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class _Slice:
    tensor: str
    offset: int
    length: int


def check_external(tensors: Sequence[Tensor], folder: Path, own_name: str, where: Where) -> tuple[SideFile, ...]:
    """The side files, sorted by path; every one was lstat'ed and is large enough, none was read.

    ``own_name`` is the file name of the graph. Raises EnginefarmError: MODEL_EXTERNAL_UNSAFE, MODEL_EXTERNAL_MISSING,
    MODEL_INVALID (entries that contradict themselves); all problems at once.
    """
    problems: list[EnginefarmError] = []
    slices: dict[str, list[_Slice]] = {}
    for tensor in tensors:
        try:
            path, part = _entry(tensor, own_name)
        except EnginefarmError as error:
            error.where = where
            problems.append(error)
            continue
        slices.setdefault(path, []).append(part)
    root = os.path.realpath(folder)
    files: list[SideFile] = []
    missing: list[str] = []
    for path, parts in sorted(slices.items()):
        try:
            found = _side_file(root, path, parts)
        except EnginefarmError as error:
            error.where = where
            problems.append(error)
            continue
        if found is None:
            missing.append(f"{shown(path)} (tensors {listed([part.tensor for part in parts], 3)})")
        else:
            files.append(found)
    if missing:
        problems.append(_missing(missing, folder, where))
    raise_all(problems[:20])
    return tuple(files)


def open_side_file(folder: Path, file: SideFile) -> int:
    """An open descriptor of the checked file. Raises EnginefarmError (DIGEST_MISMATCH) when it is another file now."""
    *folders, name = file.resolved.split("/")
    at = os.open(os.path.realpath(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in folders:
            following = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = following
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except OSError as error:
        why = error.strerror
        raise EnginefarmError(DIGEST_MISMATCH, f"{shown(file.path)} cannot be opened as it was checked", why=why) from None
    finally:
        os.close(at)
    now = os.fstat(fd)
    if not stat.S_ISREG(now.st_mode) or (now.st_dev, now.st_ino) != file.identity or now.st_size != file.size:
        os.close(fd)
        raise EnginefarmError(DIGEST_MISMATCH, f"{shown(file.path)} changed while the model was read", fix="run it again")
    return fd


def _entry(tensor: Tensor, own_name: str) -> tuple[str, _Slice]:
    name = f"tensor {shown(tensor.name)}"
    entries = tensor.external or ()
    counts = Counter(key for key, _ in entries)
    doubled = sorted(key for key, count in counts.items() if count > 1)
    if doubled:
        raise EnginefarmError(MODEL_INVALID, f"{name} gives {listed(doubled)} of its external data twice")
    values = dict(entries)
    if "location" not in values:
        raise EnginefarmError(MODEL_INVALID, f"{name} has external data without a location")
    path = normalised(values["location"], name)
    first = path.partition("/")[0]
    if first in (own_name, STAGED_NAME):
        own = "the name of the model file itself" if first == path else "a folder with the name of the model file itself"
        fix = f"save the model with its weights in a {'file' if first == path else 'folder'} of another name"
        raise EnginefarmError(MODEL_EXTERNAL_UNSAFE, f"{name} keeps its data in {shown(path)}, {own}", fix=fix)
    need = raw_bytes(dtype_name(tensor.code) or "uint8", tensor.elements)
    offset = _number(values.get("offset", "0"), "offset", name)
    length = _number(values["length"], "length", name) if values.get("length") else need
    if length < need:
        raise EnginefarmError(MODEL_INVALID, f"{name} has {length:,} of {need:,} bytes of external data")
    return path, _Slice(tensor.name, offset, length)


def _number(text: str, key: str, name: str) -> int:
    # int() would take "1_000", " 7 " and digits of other scripts, which C++ readers take for something else
    if re.fullmatch(r"[0-9]{1,19}", text) is None or int(text) > _MAX_NUMBER:
        raise EnginefarmError(MODEL_INVALID, f"{name} has a bad {key} of external data: {shown(text)}", fix="save the model again")
    return int(text)


def normalised(location: str, name: str) -> str:
    """The location as a relative posix path without ``.``; refuses all that could name a file elsewhere."""
    parts = [part for part in location.split("/") if part not in ("", ".")]
    why = None
    if location.startswith("/") or re.match(r"[A-Za-z]:", location):
        why = "it is an absolute path"
    elif "\\" in location:
        why = "it has a backslash: another system's path"
    elif ".." in parts:
        why = "it leaves the model's folder with '..'"
    elif not parts or location.endswith(("/", "/.")):
        why = "it names no file"
    if why is None:
        return "/".join(parts)
    what = f"{name} keeps its data in {shown(location)}"
    fix = "put the weights beside the model and save it with a plain file name as location"
    raise EnginefarmError(MODEL_EXTERNAL_UNSAFE, what, why=why, fix=fix)


def _side_file(root: str, path: str, parts: list[_Slice]) -> SideFile | None:
    """The checked file; None when there is none."""
    real = os.path.realpath(os.path.join(root, path))  # noqa: PTH118  (Path would drop what is checked here)
    shown_path = shown(path)
    # compare whole components: /models-evil starts with /models
    if os.path.commonpath([root, real]) != root:
        raise EnginefarmError(
            MODEL_EXTERNAL_UNSAFE,
            f"external data {shown_path} is a link that leaves the model's folder",
            why=f"it leads to {shown(real, 200)}",
            fix="copy the model with its links resolved (cp -rL FOLDER COPY) and give the copy",
        )
    try:
        status = os.lstat(real)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnginefarmError(MODEL_EXTERNAL_MISSING, f"external data {shown_path} cannot be looked at", why=error.strerror) from None
    if not stat.S_ISREG(status.st_mode):
        what = f"external data {shown_path} is not a regular file but {_file_type(status.st_mode)}"
        raise EnginefarmError(MODEL_EXTERNAL_UNSAFE, what, fix="put the weights file itself there")
    for part in parts:
        end = part.offset + part.length
        if end > status.st_size:
            what = f"external data {shown_path} is too short for tensor {shown(part.tensor)}"
            why = f"it has {status.st_size:,} bytes, the tensor needs {part.length:,} from byte {part.offset:,} on"
            raise EnginefarmError(MODEL_EXTERNAL_MISSING, what, why=why, fix="copy the weights file again")
    resolved = os.path.relpath(real, root)
    return SideFile(path, resolved, status.st_size, (status.st_dev, status.st_ino), tuple(part.tensor for part in parts))


def _file_type(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link to itself"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _missing(missing: list[str], folder: Path, where: Where) -> EnginefarmError:
    shown_files = "; ".join(missing[:10]) + (f"; and {len(missing) - 10} more files" if len(missing) > 10 else "")
    plural = f"{len(missing)} external data files are" if len(missing) > 1 else "an external data file is"
    fix = f"copy the weights beside the model, into {folder}"
    return EnginefarmError(MODEL_EXTERNAL_MISSING, f"{plural} missing: {shown_files}", where=where, fix=fix)
