"""Blobs: content under its own digest, hashed when it comes in and again when it leaves."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from orchestrator.errors import DIGEST_MISMATCH, DISK, EnginefarmError, Where
from orchestrator.store.faults import BlobLost, unwritable
from orchestrator.store.layout import Layout

CHUNK = 1 << 20  # bytes


def put(layout: Layout, path: Path, digest: str | None) -> str:
    """Copy a file in, unless a blob with this digest and the file's size is there; returns its digest.

    Raises StoreUnwritable, EnginefarmError(DIGEST_MISMATCH) when the file is not what ``digest`` says, OSError when it cannot be read.
    """
    with path.open("rb") as source:
        if digest is not None and layout.blob_size(digest) == os.fstat(source.fileno()).st_size:
            return digest
        with layout.new_file() as (target, temporary):
            found, size = _copy(layout, source, target)
            if digest is not None and found != digest:
                where = Where(file=str(path))
                why = f"it was {digest[:19]}..., it is {found[:19]}..."
                raise EnginefarmError(DIGEST_MISMATCH, f"{path.name} changed after it was made", where=where, why=why, fix="run it again")
            if layout.blob_size(found) != size:
                with unwritable(layout.root):
                    _place(layout, target, temporary, layout.blob(found))
    return found


def _copy(layout: Layout, source: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    sha = hashlib.sha256()
    size = 0
    while chunk := source.read(CHUNK):
        sha.update(chunk)
        size += len(chunk)
        with unwritable(layout.root):
            target.write(chunk)
    return f"sha256:{sha.hexdigest()}", size


def _place(layout: Layout, file: BinaryIO, temporary: Path, path: Path) -> None:
    file.flush()
    os.fchmod(file.fileno(), 0o444)
    # not its folder: a name that a power cut loses is a blob that is missing, which is found out before it is used
    os.fsync(file.fileno())
    layout.make_folder(path.parent)
    temporary.replace(path)


def take(layout: Layout, digest: str, dest: Path) -> None:
    """Copy a blob out into a new file with mode 0644, hashed on the way.

    Raises BlobLost when it is missing or damaged (it is then removed), EnginefarmError(DISK) when ``dest`` cannot be written.
    """
    with _reading(layout, digest) as (source, status):
        writer = _create(dest)
        try:
            with writer:
                whole = _leave(source, writer, digest, dest)
        except BaseException:
            dest.unlink(missing_ok=True)
            raise
    if not whole:
        dest.unlink(missing_ok=True)
        remove_damaged(layout, layout.blob(digest), status)
        raise BlobLost(DISK, f"{_name(digest)} in the cache was damaged and is removed", where=Where(file=str(layout.blob(digest))))


def _name(digest: str) -> str:
    return f"{digest[:19]}..."


@contextlib.contextmanager
def _reading(layout: Layout, digest: str) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    path = layout.blob(digest)
    where = Where(file=str(path))
    if layout.blob_size(digest) is None:
        with contextlib.suppress(OSError):
            layout.discard(path)  # a link or a pipe
        raise BlobLost(DISK, f"{_name(digest)} is missing in the cache", where=where)
    try:
        file = open_regular(path)
    except OSError as error:
        raise BlobLost(DISK, f"{_name(digest)} cannot be read in the cache", where=where, why=error.strerror) from error
    with file:
        yield file, os.fstat(file.fileno())


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file that is no link. Raises OSError."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def _create(dest: Path) -> BinaryIO:
    try:
        return os.fdopen(os.open(dest, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), "wb", buffering=0)
    except OSError as error:
        raise _cannot_write(dest, error) from error


def _leave(source: BinaryIO, writer: BinaryIO, digest: str, dest: Path) -> bool:
    """Copy everything; whether it was what the digest says."""
    sha = hashlib.sha256()
    while True:
        try:
            chunk = source.read(CHUNK)
        except OSError:
            return False  # the disk cannot give the bytes any more
        if not chunk:
            return f"sha256:{sha.hexdigest()}" == digest
        sha.update(chunk)
        try:
            while chunk:
                chunk = chunk[writer.write(chunk) :]
        except OSError as error:
            raise _cannot_write(dest, error) from error


def _cannot_write(dest: Path, error: OSError) -> EnginefarmError:
    where = Where(file=str(dest))
    return EnginefarmError(DISK, f"cannot write {dest.name}", where=where, why=error.strerror, fix="free some space there")


def remove_damaged(layout: Layout, path: Path, status: os.stat_result) -> bool:
    """Remove the blob whose status is ``status``, not a good one that another process has put in its place."""
    with contextlib.suppress(OSError):
        now = path.lstat()
        if (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino):
            return layout.discard(path)
    return False
