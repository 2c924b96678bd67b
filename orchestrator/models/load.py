"""Reads a model: path, kind of file, the bounded scan, external data, digest; with ``stage`` into a private copy.

The digest is sha256 over these lines, so that it covers every byte of the graph and of each side file once::

    enginefarm.model/1
    graph <size> <sha256 of the graph file>
    file <size> <sha256> <path relative to the model's folder>     (sorted by path)

The graph's own file name is not in it: a renamed model is the same model.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import DIGEST_MISMATCH, DISK, MODEL_HOSTILE, MODEL_MISSING, MODEL_NOT_ONNX, EnginefarmError, Where
from orchestrator.models.declared import declared_shape_warnings
from orchestrator.models.external import SideFile, check_external, normalised, open_side_file
from orchestrator.models.model import STAGED_NAME, ExternalFile, Model
from orchestrator.models.operators import QDQ_OPS
from orchestrator.models.scan import Scan, scan
from orchestrator.models.text import shown
from orchestrator.models.weights import nan_warnings
from orchestrator.portable.facts.file_kind import sniff

MAX_BYTES = 1 << 40
"""Graph and external data together: a sparse file can claim exabytes that would be hashed for years."""

_CHUNK = 1 << 20
_HEAD = 4096


@dataclass(frozen=True)
class _Hashed:
    size: int
    sha256: str


def load_model(path: Path, *, stage: Path | None = None, deep: bool = True, seen: dict[Path, os.stat_result] | None = None) -> Model:
    """The model at ``path``, read with bounds; memory stays flat whatever its size, and each file is read once.

    With ``stage``, a new or empty private folder, graph and external data are copied there while they are hashed,
    made read-only, and the copy is what is scanned; after an error the folder may hold left-overs. ``deep`` also
    looks for NaN in the weights and for declared shapes that are wrong (in a child process). ``seen`` is filled with every file that was
    read and its status from before that: what the answer rests on.

    Raises EnginefarmError: MODEL_MISSING, MODEL_NOT_ONNX, MODEL_DAMAGED, MODEL_HOSTILE, MODEL_INVALID,
    MODEL_EXTERNAL_UNSAFE, MODEL_EXTERNAL_MISSING, DIGEST_MISMATCH (changed while it was read), DISK.
    """
    where = Where(file=str(path))
    try:
        return _load(path, stage, deep, where, {} if seen is None else seen)
    except EnginefarmError as error:
        error.where = error.where or where
        raise
    except OSError as error:
        what = "the model cannot be read or copied"
        raise EnginefarmError(DISK, what, where=where, why=error.strerror, fix="check the disk and the permissions") from None


def _load(path: Path, stage: Path | None, deep: bool, where: Where, seen: dict[Path, os.stat_result]) -> Model:
    source = _open(path, where)
    try:
        status = seen[path] = os.fstat(source)
        _check_kind(source, status.st_size, where)
        if stage is not None:
            stage.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_space(stage, status.st_size)
        graph = _copy(source, status.st_size, None if stage is None else stage / STAGED_NAME)
        found, side_files = _scan(path, source, graph.size, stage, where)
        total = graph.size + sum(file.size for file in side_files)
        if total > MAX_BYTES:
            raise EnginefarmError(MODEL_HOSTILE, f"the model has {total:,} bytes of weights (limit {MAX_BYTES:,})")
        if stage is not None:
            _check_space(stage, total - graph.size)
        external = tuple(_external(path.parent, file, stage, seen) for file in side_files)
        warnings = _deep(path, source, stage, found, side_files, graph.size) if deep else ()
        if _version(os.fstat(source)) != _version(status):
            raise EnginefarmError(DIGEST_MISMATCH, "the model changed while it was read", fix="run it again")
    finally:
        os.close(source)
    return _model(path, stage, found, graph, external, warnings)


def _open(path: Path, where: Where) -> int:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path, where) from None
    except ValueError:
        raise EnginefarmError(MODEL_MISSING, "the path holds a NUL character", where=Where(file=shown(str(path)))) from None
    except OSError as error:
        raise EnginefarmError(MODEL_MISSING, "the model cannot be reached", where=where, why=error.strerror) from None
    if stat.S_ISDIR(status.st_mode):
        models = sorted(entry.name for entry in path.iterdir() if entry.suffix == ".onnx")
        fix = f"give a file, for example {path / models[0]}" if models else "give the .onnx file"
        raise EnginefarmError(MODEL_NOT_ONNX, "this is a folder, not a model", where=where, fix=fix)
    if not stat.S_ISREG(status.st_mode):
        what = "this is not a regular file but a FIFO, socket or device"
        raise EnginefarmError(MODEL_NOT_ONNX, what, where=where, fix="save the model to a file first")
    try:
        # not blocking: what was a file a moment ago may be a FIFO now
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise EnginefarmError(MODEL_MISSING, "the model cannot be opened", where=where, why=error.strerror) from None
    now = os.fstat(fd)
    if not stat.S_ISREG(now.st_mode) or (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
        os.close(fd)
        raise EnginefarmError(DIGEST_MISMATCH, "the model was replaced while it was opened", where=where, fix="run it again")
    return fd


def _missing(path: Path, where: Where) -> EnginefarmError:
    text = str(path)
    if re.match(r"[A-Za-z]:[\\/]|\\\\", text) or "\\" in text:
        name = re.split(r"[\\/]", text.rstrip("\\/"))[-1]
        what = f"{shown(text)} is a Windows path, and this system has no such file"
        fix = f"give the path as this system sees it, with forward slashes, for example models/{name or 'lane.onnx'}"
        return EnginefarmError(MODEL_MISSING, what, where=where, fix=fix)
    folder = path.parent
    if not folder.is_dir():
        what = f"there is no folder {folder}" if not folder.exists() else f"{folder} is not a folder"
        return EnginefarmError(MODEL_MISSING, what, where=where, fix="check the path")
    # without its own name: a dangling link would be the closest match of itself
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix.lower() == ".onnx" and entry.name != path.name)
    close = difflib.get_close_matches(path.name, names, 1, 0.65)
    if close:
        fix = f"did you mean {folder / close[0]}?"
    else:
        fix = f"models in this folder: {', '.join(names[:8])}" if names else f"there is no .onnx file in {folder}"
    what = f"this link leads to {shown(str(path.readlink()))}, where no file is" if path.is_symlink() else "there is no such file"
    return EnginefarmError(MODEL_MISSING, what, where=where, fix=fix)


def _check_kind(fd: int, size: int, where: Where) -> None:
    kind = sniff(os.pread(fd, _HEAD, 0), size)
    # "unknown" goes to the scan, which says where it stops making sense
    if kind["kind"] not in ("onnx-like", "unknown"):
        raise EnginefarmError(MODEL_NOT_ONNX, f"this is {kind['text'].removeprefix('the file is ')}", where=where, fix=kind["fix"])


def _check_space(stage: Path, size: int) -> None:
    free = shutil.disk_usage(stage).free
    if size > free:
        what = f"no space for a private copy of the model: {size:,} bytes needed, {free:,} free in {stage}"
        raise EnginefarmError(DISK, what, fix="free space, or set TMPDIR to a folder on a larger disk")


def _copy(source: int, size: int, dest: Path | None) -> _Hashed:
    """Hashes ``size`` bytes of ``source`` and writes them to ``dest`` on the way."""
    sha = hashlib.sha256()
    sink = None if dest is None else os.open(dest, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        done = 0
        while done < size:
            part = os.pread(source, min(_CHUNK, size - done), done)
            if not part:
                raise EnginefarmError(DIGEST_MISMATCH, "the model became shorter while it was read", fix="run it again")
            sha.update(part)
            done += len(part)
            while sink is not None and part:
                part = part[os.write(sink, part) :]
        if sink is not None:
            os.fchmod(sink, 0o444)
    finally:
        if sink is not None:
            os.close(sink)
    return _Hashed(size, sha.hexdigest())


def _scan(path: Path, source: int, size: int, stage: Path | None, where: Where) -> tuple[Scan, tuple[SideFile, ...]]:
    staged = None if stage is None else os.open(stage / STAGED_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = scan(source if staged is None else staged, size, where)
    finally:
        if staged is not None:
            os.close(staged)
    return found, check_external(found.external, path.parent, path.name, where)


def _external(folder: Path, file: SideFile, stage: Path | None, seen: dict[Path, os.stat_result]) -> ExternalFile:
    fd = open_side_file(folder, file)
    try:
        dest = None
        if stage is not None:
            dest = stage / file.path
            dest.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = seen[folder / file.path] = os.fstat(fd)
        before = _version(status)
        hashed = _copy(fd, file.size, dest)
        if _version(os.fstat(fd)) != before:
            raise EnginefarmError(DIGEST_MISMATCH, f"{shown(file.path)} changed while it was read", fix="run it again")
    finally:
        os.close(fd)
    return ExternalFile(file.path, hashed.size, f"sha256:{hashed.sha256}")


def _version(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _deep(path: Path, source: int, stage: Path | None, found: Scan, files: tuple[SideFile, ...], size: int) -> tuple[str, ...]:
    by_path = {file.path: file for file in files}

    def open_external(location: str) -> int:
        name = normalised(location, "a tensor")
        if stage is not None:
            return os.open(stage / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        return open_side_file(path.parent, by_path[name])

    graph = path if stage is None else stage / STAGED_NAME
    return nan_warnings(found.proto.tensors, source, open_external) + declared_shape_warnings(graph, size)


def _model(
    path: Path, stage: Path | None, found: Scan, graph: _Hashed, external: tuple[ExternalFile, ...], warnings: tuple[str, ...]
) -> Model:
    lines = ["enginefarm.model/1", f"graph {graph.size} {graph.sha256}"]
    lines += [f"file {file.size} {file.digest.removeprefix('sha256:')} {file.path}" for file in external]
    digest = hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    findings, proto = found.findings, found.proto
    return Model(
        path=path,
        digest=f"sha256:{digest}",
        size_bytes=graph.size + sum(file.size for file in external),
        ir_version=proto.ir_version,
        opsets=dict(sorted(proto.opsets.items())),
        producer=proto.producer,
        inputs=findings.inputs,
        outputs=findings.outputs,
        external=external,
        nodes=proto.node_count,
        op_types=findings.op_types,
        weight_dtypes=found.weight_dtypes,
        has_qdq=not QDQ_OPS.isdisjoint(findings.op_types),
        custom_ops=findings.custom_ops,
        random_ops=findings.random_ops,
        data_dependent_ops=findings.data_dependent_ops,
        gpu_blockers=findings.gpu_blockers,
        placeholder_dims=findings.placeholder_dims,
        warnings=(*findings.warnings, *warnings),
        staged=None if stage is None else stage / STAGED_NAME,
        graph_digest=f"sha256:{graph.sha256}",
    )
