"""Files of a step: paths that stay inside its folder, writes that are whole or absent."""

import hashlib
import json
import os
from typing import Any, Dict, Iterable, Tuple

from .errors import StepError

CHUNK_BYTES = 1 << 20


def inside(folder: str, path: str) -> str:
    """The absolute path of ``path`` in ``folder``; bad-request when it is absolute, empty or has ``..``."""
    parts = path.split("/") if isinstance(path, str) else []
    if not parts or path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise StepError("bad-request", "path {!r} does not stay in the step's folder".format(path))
    return os.path.join(folder, *parts)


def write_whole(path: str, chunks: Iterable[Any]) -> Tuple[int, str]:
    """Write bytes-like ``chunks`` to ``path`` (temp file, fsync, rename); gives size in bytes and sha256 in hex.

    An interrupted or failed write leaves nothing at ``path`` and no temp file.
    """
    temporary = "{}.{}.tmp".format(path, os.getpid())
    digest = hashlib.sha256()
    size = 0
    try:
        with open(temporary, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    _sync_folder(os.path.dirname(path))
    return size, digest.hexdigest()


def write_json(path: str, value: Dict[str, Any]) -> None:
    """Write ``value`` as JSON, whole or not at all."""
    write_whole(path, [json.dumps(value, sort_keys=True).encode("utf-8")])


def chunks_of(data: Any) -> Iterable[memoryview]:
    """``data`` (any C-contiguous buffer) in pieces, so that hashing and writing need no second copy."""
    view = memoryview(data).cast("B")
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def describe(path: str) -> Tuple[int, str]:
    """Size in bytes and sha256 in hex of a file, read in pieces."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def sync_file(path: str) -> None:
    """Force a file that a library wrote onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: str) -> None:
    """Make a rename durable; some file systems refuse fsync on a folder, which loses nothing that was promised."""
    try:
        sync_file(folder or ".")
    except OSError:
        pass
