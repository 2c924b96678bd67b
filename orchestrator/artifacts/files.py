"""Files that matter: written beside their place, flushed to the disk, renamed; constant memory for any size."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import DISK, ENGINE_UNREADABLE, EnginefarmError, Where

CHUNK = 1 << 20  # bytes


def member(folder: Path, name: str) -> Path:
    """``folder/name`` for a plain file name; raises EnginefarmError(ENGINE_UNREADABLE) for a name that would leave the folder."""
    if name in ("", ".", "..") or any(character in name for character in "/\\\0"):
        where = Where(file=str(folder))
        raise EnginefarmError(ENGINE_UNREADABLE, f"{name!r} is not a file name", where=where, why="it would leave the folder")
    return folder / name


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """OSError -> EnginefarmError(DISK): ``doing`` completes "cannot ..."."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        fixes = {
            errno.ENOSPC: "free some space, or choose another place with --output",
            errno.EDQUOT: "free some of your quota, or choose another place with --output",
            errno.EACCES: "make the folder writable, or choose another place with --output",
            errno.EPERM: "make the folder writable, or choose another place with --output",
            errno.EROFS: "choose a writable place with --output",
            errno.ENOTDIR: "move the file away that lies where a folder has to be, or choose another place with --output",
        }
        where = Where(file=str(error.filename)) if error.filename else None
        fix = fixes.get(error.errno or 0)
        raise EnginefarmError(DISK, f"cannot {doing}", where=where, why=reason, fix=fix) from error


def read_regular(path: Path, limit: int) -> bytes:
    """At most ``limit`` + 1 bytes of a regular file; OSError for anything else: a pipe would wait for a writer for ever."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read(limit + 1)


def sha256_file(path: Path) -> str:
    """``sha256:...`` of a file, streamed."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def sha256_bytes(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries; file systems that cannot are left alone."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that must not exist yet, flushed."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def copy_new(source: Path, path: Path) -> tuple[str, int, os.stat_result]:
    """Copy into a file that must not exist yet, flushed; returns ``sha256:...`` and the size in bytes of what was copied, and the status of
    the file when the last byte was in it."""
    digest = hashlib.sha256()
    size = 0
    with source.open("rb") as reader, path.open("xb") as writer:
        while chunk := reader.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
        status = os.fstat(writer.fileno())
    return f"sha256:{digest.hexdigest()}", size, status
