"""Results: small JSON values under a key, with the blobs that they name.

Three lines, so that a change of any byte is noticed and that older releases can tell what belongs to a result of a newer one: the first two
lines keep their form in every schema::

    enginefarm.result/1 <sha256 of all that follows>
    {"kind": ..., "key": ..., "what": ..., "blobs": {digest: bytes}}
    <value>
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.store.faults import unwritable
from orchestrator.store.layout import Layout, blob_hex

SCHEMA = "enginefarm.result/1"
_FIRST = re.compile(rb"(enginefarm\.result/[1-9][0-9]{0,5}) ([0-9a-f]{64})")


@dataclass(frozen=True)
class Record:
    """A result as it lies in its file. ``known``: its value is of our schema; ``blobs`` maps digests to sizes in bytes; ``used`` is when it
    was used last, in seconds since 1970."""

    kind: str
    key: str
    what: str
    blobs: dict[str, int]
    value: bytes
    known: bool
    used: float


def parse(data: bytes, used: float = 0.0) -> Record | None:
    """None for anything that is not, byte for byte, what was written."""
    first, _, rest = data.partition(b"\n")
    match = _FIRST.fullmatch(first)
    if match is None or hashlib.sha256(rest).hexdigest().encode() != match[2]:
        return None
    head, _, value = rest.partition(b"\n")
    try:
        found = json.loads(head)
        blobs = {str(digest): int(size) for digest, size in found["blobs"].items()}
        for digest in blobs:
            blob_hex(digest)
        return Record(str(found["kind"]), str(found["key"]), str(found["what"]), blobs, value, match[1].decode() == SCHEMA, used)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def read(path: str | Path) -> Record | None:
    """The result in a file; None when it is missing or damaged."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        # results are replaced, never written to
        return parse(os.read(file, status.st_size), status.st_mtime) if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None
    finally:
        os.close(file)


def write(layout: Layout, kind: str, key: str, value: Mapping[str, Any], blobs: Mapping[str, int]) -> None:
    """Put a result in the place of whatever is there. Raises StoreUnwritable."""
    path = Path(layout.result(kind, key))
    for digest in blobs:
        blob_hex(digest)
    head = {"kind": kind, "key": key, "what": str(value.get("what", "")), "blobs": dict(blobs)}
    rest = json.dumps(head).encode() + b"\n" + json.dumps(dict(value), separators=(",", ":")).encode()
    first = f"{SCHEMA} {hashlib.sha256(rest).hexdigest()}\n".encode()
    with layout.new_file() as (file, temporary), unwritable(layout.root):
        # not flushed to the disk: what a power cut leaves of it is not what its first line says, so it counts as missing
        file.write(first + rest)
        file.flush()
        layout.make_folder(path.parent)
        temporary.replace(path)
