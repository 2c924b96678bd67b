"""Files to and from a container as streamed tar archives, in constant memory.

What is sent belongs to root and is read-only; what comes back is taken for hostile: only regular files with plain names, into a folder of
their own, and only whole archives count.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

CHUNK_BYTES = 1 << 18  # larger pieces are slower: urllib3 copies each, and memory of that size is mapped anew each time
MOST_ENTRIES = 100_000
_BLOCK = tarfile.BLOCKSIZE


class LocalDiskError(Exception):
    """A file that came back could not be written on this machine."""


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True)
class Entry:
    """One entry of an archive to send: a folder (no content), a link, bytes, or a file of this machine."""

    name: str
    content: bytes | Path | None = None
    link: str | None = None
    mode: int = 0o444


def folders_of(names: Iterable[str]) -> list[Entry]:
    """The folders above ``names``, outermost first."""
    parents = {parent.as_posix() for name in names for parent in PurePosixPath(name).parents if parent.as_posix() != "."}
    return [Entry(name, mode=0o755) for name in sorted(parents)]


def pack(entries: Iterable[Entry], check: Callable[[], None]) -> Iterator[bytes]:
    """The archive in pieces of about 256 KiB; ``check`` is called before each, may raise. Raises OSError for a file that gets shorter."""
    pending: list[bytes] = []
    size = 0
    for entry in entries:
        for piece in _entry(entry):
            if size and size + len(piece) > CHUNK_BYTES:
                check()
                yield b"".join(pending)
                pending, size = [], 0
            pending.append(piece)
            size += len(piece)
    check()
    yield b"".join([*pending, bytes(2 * _BLOCK)])


def _entry(entry: Entry) -> Iterator[bytes]:
    info = tarfile.TarInfo(entry.name)
    info.mode = entry.mode
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    elif entry.content is None:
        info.type = tarfile.DIRTYPE
    elif isinstance(entry.content, bytes):
        info.size = len(entry.content)
    if not isinstance(entry.content, Path):
        yield info.tobuf(tarfile.PAX_FORMAT)
        if isinstance(entry.content, bytes):
            yield entry.content + bytes(-len(entry.content) % _BLOCK)
        return
    with entry.content.open("rb") as file:
        info.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        yield info.tobuf(tarfile.PAX_FORMAT)
        left = info.size
        while left:
            piece = file.read(min(left, CHUNK_BYTES))
            if not piece:
                raise OSError(f"{entry.content} became shorter while it was sent")
            left -= len(piece)
            yield piece
    yield bytes(-info.size % _BLOCK)


class _Pieces(io.RawIOBase):
    """A readable file over pieces of bytes."""

    def __init__(self, pieces: Iterable[bytes], check: Callable[[], None]) -> None:
        self._pieces = iter(pieces)
        self._check = check
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._check()
            self._rest = memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


@dataclass(frozen=True)
class Received:
    """A file that came back."""

    path: Path
    size: int
    sha256: str


def unpack(
    pieces: Iterable[bytes], folder: Path, *, limit_bytes: int, skip: Mapping[str, str], check: Callable[[], None]
) -> dict[str, Received]:
    """Write the regular files of an archive with one top folder under ``folder``: name below the top -> file.

    ``skip``: links that are expected at the top, name -> where they point. Raises ValueError for anything else that is no plain file or
    folder, for names that leave the folder and for more than ``limit_bytes``; tarfile.ReadError for an archive that is cut short.
    """
    found: dict[str, Received] = {}
    total = 0
    with tarfile.open(fileobj=io.BufferedReader(_Pieces(pieces, check), CHUNK_BYTES), mode="r|") as archive:
        for count, member in enumerate(archive):
            name = "/".join(PurePosixPath(member.name).parts[1:])
            if count > MOST_ENTRIES:
                raise ValueError(f"the step left more than {MOST_ENTRIES} files")
            if member.isdir() or (member.issym() and skip.get(name) == member.linkname):
                continue
            if not member.isreg() or member.issparse():
                raise ValueError(f"{member.name!r} is no plain file")
            if not name or member.name.startswith("/") or ".." in PurePosixPath(member.name).parts or "\0" in name:
                raise ValueError(f"{member.name!r} leaves the step's folder")
            total += member.size
            if total > limit_bytes:
                raise ValueError(f"the step left more than {limit_bytes} bytes")
            found[name] = _write(archive, member, folder / name)
    return found


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> Received:
    digest: _Digest = hashlib.sha256()
    source = archive.extractfile(member)
    assert source is not None  # noqa: S101  (a regular file has content)
    size = 0
    with source, _open(path) as file:
        for piece in iter(lambda: source.read(CHUNK_BYTES), b""):
            try:
                file.write(piece)
            except OSError as error:
                raise LocalDiskError(str(error)) from error
            digest.update(piece)
            size += len(piece)
    if size != member.size:
        raise tarfile.ReadError("unexpected end of data")
    return Received(path, size, digest.hexdigest())


def _open(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb", buffering=0)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(f"two files have the name of {path.name!r}") from error
    except OSError as error:
        raise LocalDiskError(str(error)) from error
