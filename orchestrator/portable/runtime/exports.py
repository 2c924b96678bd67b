"""What the exports to other servers share: which engines go out, and copies that are checked while they are made."""

import contextlib
import fnmatch
import hashlib
import os
import shutil
import tempfile
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

from .errors import LoadError, Refusal
from .files import Expected, chunks, inside, open_expected
from .manifest import Opened, engines_with_file

Left = NamedTuple("Left", [("target", str), ("why", str)])
"""An engine that an export leaves out."""

Exported = NamedTuple("Exported", [("folder", str), ("targets", List[str]), ("left", List[Left]), ("notes", List[str])])
"""What an export wrote: its folder, the targets in it, what was left out and why, and what the server needs to be told."""


def outgoing(opened: Opened, patterns: Sequence[str], allow_unvalidated: bool, left: List[Left]) -> List[Dict[str, Any]]:
    """The records of the manifest that may go out; the others are added to ``left``. LoadError for a pattern that names nothing."""
    records = engines_with_file(opened.content)
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(record["target"], pattern) for record in records):
            names = ", ".join(record["target"] for record in records) or "none"
            raise LoadError("no engine of target {}".format(pattern), "the manifest has {}".format(names), kind="usage")
    found = []
    for record in records:
        if patterns and not any(fnmatch.fnmatchcase(record["target"], pattern) for pattern in patterns):
            continue
        status = record["verdict"]["status"]
        if status in ("failed", "skipped") or (status != "passed" and not allow_unvalidated):
            left.append(Left(record["target"], "it is {}".format(status)))
        else:
            found.append(record)
    return found


def copy_engine(opened: Opened, record: Dict[str, Any], path: str) -> None:
    """Copy an engine, hashed on its way; LoadError when it is not the one that was checked."""
    try:
        source = inside(opened.folder, record["file"])
        _copy(Expected(source, record["digest"], record["size_bytes"]), path)
    except Refusal as refusal:
        raise LoadError("{} cannot be exported".format(record["file"]), refusal.why, refusal.fix or None, kind="engine") from refusal
    except OSError as error:
        raise LoadError("{} cannot be exported".format(record["file"]), str(error), kind="engine") from error


def _copy(expected: Expected, path: str) -> None:
    digest = hashlib.sha256()
    with open_expected(expected) as source, open(path, "wb") as target:
        for chunk in chunks(source):
            digest.update(chunk)
            target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    if "sha256:" + digest.hexdigest() != expected.digest:
        raise Refusal("file", "its digest is not the manifest's", "build it again, or copy it again")


def write_text(path: str, text: str) -> None:
    """Write a file and flush it to the disk."""
    with open(path, "wb") as file:
        file.write(text.encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def new_folder(path: str) -> Iterator[str]:
    """A folder that takes the name ``path`` when everything in it is written. FileExistsError when something is there."""
    if os.path.lexists(path):
        raise FileExistsError(path)
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    stage = tempfile.mkdtemp(prefix=".{}-".format(os.path.basename(path)), dir=parent)
    try:
        fresh = os.path.join(stage, "new")
        os.mkdir(fresh)
        yield fresh
        os.rename(fresh, path)
    finally:
        shutil.rmtree(stage)
