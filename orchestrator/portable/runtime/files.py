"""Files beside a manifest: names that stay in the folder, and bytes that are read only together with their digest.

A plan is code. What is handed to a backend are the very bytes that were hashed, never a path that can change in between.
"""

import errno
import hashlib
import os
import re
import stat
import threading
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .errors import Refusal

FILE_NAME = re.compile(r"^[^./\\\0][^/\\\0]*$")  # as the manifest's own schema: no separator, not hidden, not ".."
CHUNK_BYTES = 1 << 20
AGAIN = "copy or download it again, or build it again"

Expected = NamedTuple("Expected", [("path", str), ("digest", str), ("size", Optional[int])])
"""A file that the manifest describes: ``digest`` is ``sha256:...``, ``size`` in bytes."""

_DIGESTS: Dict[Tuple[Any, ...], str] = {}
_LOCK = threading.Lock()


def inside(folder: str, name: str) -> str:
    """The path of ``name`` in ``folder``; Refusal when it is no plain file name or a link that leads out of the folder."""
    if not isinstance(name, str) or not FILE_NAME.match(name):
        raise Refusal("file", "{!r} is not the name of a file beside the manifest".format(name))
    path = os.path.join(folder, name)
    base = os.path.realpath(folder)
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        raise Refusal("file", "{!r} is not the name of a file beside the manifest".format(name)) from error
    if not os.path.realpath(path).startswith(os.path.join(base, "")):
        raise Refusal("file", "{} is a link that leaves the manifest's folder".format(name), "put the file itself there")
    return path


def read_checked(expected: Expected) -> bytes:
    """The file's bytes, hashed; Refusal when they are not the ones that the manifest describes.

    A file is hashed once for each path, size, modification time and inode in this process.
    """
    with open_expected(expected) as file:
        found = os.fstat(file.fileno())
        _same_size(expected, found.st_size)
        data = file.read(found.st_size + 1)
        if len(data) != found.st_size:
            raise Refusal("file", "the file changes while it is read", AGAIN, "corrupt-engine")
        _same_digest(expected, _known(expected.path, found) or _remember(expected.path, found, hashlib.sha256(data).hexdigest()))
    return data


def check(expected: Expected) -> None:
    """As :func:`read_checked` in constant memory, for what need not be loaded here."""
    with open_expected(expected) as file:
        found = os.fstat(file.fileno())
        _same_size(expected, found.st_size)
        known = _known(expected.path, found)
        if known is None:
            digest = hashlib.sha256()
            for chunk in chunks(file):
                digest.update(chunk)
            known = _remember(expected.path, found, digest.hexdigest())
        _same_digest(expected, known)


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """The rest of ``file`` in pieces."""
    return iter(lambda: file.read(CHUNK_BYTES), b"")


def forget() -> None:
    """Drop all remembered digests."""
    with _LOCK:
        _DIGESTS.clear()


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading; OSError (EINVAL) for anything else: a pipe would wait for its writer for ever."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def open_expected(expected: Expected) -> BinaryIO:
    """Open what the manifest describes; Refusal (stage file) when it is not there, not readable or not a regular file."""
    name = os.path.basename(expected.path)
    try:
        return open_regular(expected.path)
    except OSError as error:
        reason = "is not there" if isinstance(error, FileNotFoundError) else "cannot be read: {}".format(error.strerror)
        raise Refusal("file", "{} {}".format(name, reason), "copy it beside the manifest, readable") from error


def _same_size(expected: Expected, size: int) -> None:
    if size == 0:
        raise Refusal("file", "the file is empty (0 bytes)", AGAIN, "corrupt-engine")
    if expected.size is not None and size != expected.size:
        text = "the file has {} bytes, the one that was checked has {}".format(size, expected.size)
        raise Refusal("file", text, AGAIN, "corrupt-engine")


def _same_digest(expected: Expected, digest: str) -> None:
    if digest != expected.digest:
        text = "its digest is {}..., the one that was checked has {}...".format(digest[:19], expected.digest[:19])
        raise Refusal("file", text, AGAIN, "corrupt-engine")


def _identity(path: str, found: os.stat_result) -> Tuple[Any, ...]:
    return (os.path.realpath(path), found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev)


def _known(path: str, found: os.stat_result) -> Optional[str]:
    with _LOCK:
        return _DIGESTS.get(_identity(path, found))


def _remember(path: str, found: os.stat_result, hexdigest: str) -> str:
    digest = "sha256:" + hexdigest
    with _LOCK:
        _DIGESTS[_identity(path, found)] = digest
    return digest


def diagnose(expected: Expected, others: List[Expected]) -> str:
    """What seems to have happened to a file that is not the one that was checked; empty when nothing is known.

    ``others``: the manifest's other files, to recognise two that were swapped.
    """
    from ..facts.file_kind import sniff
    from ..facts.plan_header import read

    try:
        size = os.path.getsize(expected.path)
        for other in others:
            if other.size == size and _is(expected.path, other):
                return "it is {} under this name".format(os.path.basename(other.path))
        facts = read(expected.path)
        with open_regular(expected.path) as file:
            kind = sniff(file.read(4096), size)
    except OSError:
        return ""
    if facts["kind"] != "not-a-plan":
        problems: List[Dict[str, str]] = facts["problems"]
        return problems[0]["text"] if problems else ""
    return "" if kind["kind"] in ("onnx-like", "torch-zip", "empty", "unknown") else "it is {}".format(kind["text"])


def _is(path: str, other: Expected) -> bool:
    try:
        check(Expected(path, other.digest, other.size))
    except Refusal:
        return False
    return True
