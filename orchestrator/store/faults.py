"""What can go wrong with the store. None of it is ever a reason for a build to fail."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import DISK, EnginefarmError, Where


class StoreUnwritable(EnginefarmError):  # noqa: N818  (a state of the cache)
    """The cache cannot be written: no space, no rights, no locks. What was there before is whole; nothing half-written is visible."""


class BlobLost(EnginefarmError):  # noqa: N818  (a state of the cache)
    """A blob is missing, or was damaged and is removed: whatever it held must be made again."""


class StoreCancelled(Exception):  # noqa: N818  (no error: somebody asked for it)
    """The wait for another maker of the same key was cancelled."""


@contextlib.contextmanager
def unwritable(root: Path) -> Iterator[None]:
    """OSError -> StoreUnwritable about the store at ``root``."""
    try:
        yield
    except OSError as error:
        where = Where(file=str(error.filename or root))
        why = os.strerror(error.errno) if error.errno else str(error)
        fix = "free some space (enginefarm cache gc --keep SIZE), or make the folder writable"
        raise StoreUnwritable(DISK, f"cannot write to the cache {root}", where=where, why=why, fix=fix) from error
