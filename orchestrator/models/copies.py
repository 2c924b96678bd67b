"""Copies of large files that share no name with their source.

Never a hard link: onnx refuses external data that has several names (onnx/checker.cc: "potential hardlink attack").
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import IO

_CHUNK = 1 << 20
_FICLONE = 0x40049409  # linux/fs.h; the same number on x86-64 and arm64


def read_only_copy(source: Path, dest: Path) -> None:
    """A new read-only file ``dest`` with the bytes of ``source``; memory stays flat. Raises OSError.

    Where the file system can (btrfs, XFS), the two share their blocks until one is written to, so that the copy takes neither time
    nor space.
    """
    with source.open("rb") as reader, dest.open("xb") as writer:
        if not _cloned(reader, writer):
            shutil.copyfileobj(reader, writer, _CHUNK)
        os.fchmod(writer.fileno(), 0o444)


def _cloned(reader: IO[bytes], writer: IO[bytes]) -> bool:
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
    except OSError:  # another file system, or one that shares no blocks
        return False
    return True
