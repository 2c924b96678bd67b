"""One maker per key, over threads and processes: a lock that the system frees when its holder dies.

``flock`` holds between the processes of one machine on every file system, and between machines on NFS (Linux makes a lock of the server of
it) unless it is mounted with ``local_lock``: then two machines may make the same result, which costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.store.faults import StoreCancelled, unwritable
from orchestrator.store.layout import Layout, key_hex
from orchestrator.store.pins import is_free

_FIRST_POLL, _LONGEST_POLL = 0.01, 0.2  # seconds
_NAMELESS_POLLS = 3  # so often a holder may be found between taking the lock and signing it


@contextlib.contextmanager
def exclusive(layout: Layout, kind: str, key: str, cancel: Callable[[], bool], on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of a key. ``on_wait`` is told once who holds it. Raises StoreCancelled and StoreUnwritable, both before the body."""
    path = layout.locks / f"{key_hex(f'{kind} {key}')}.lock"
    with unwritable(layout.root):
        layout.make_folder(layout.locks)
    handle = _acquire(layout, path, cancel, on_wait)
    try:
        yield
    finally:
        # still locked: who opened this file meanwhile finds that it is not the one with the name any more
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _acquire(layout: Layout, path: Path, cancel: Callable[[], bool], on_wait: Callable[[str], None]) -> int:
    poll = _FIRST_POLL
    polls = 0
    told = False
    while True:
        with unwritable(layout.root):
            handle = _try(path)
        if handle is not None:
            return handle
        if cancel():
            raise StoreCancelled
        holder = None if told else _holder(path)
        if not told and (holder is not None or polls >= _NAMELESS_POLLS):
            told = True
            on_wait(f"waiting for {holder or 'another run'}, which makes the same")
        polls += 1
        time.sleep(poll)
        poll = min(poll * 1.5, _LONGEST_POLL)


def _try(path: Path) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        if is_free(handle) and _is_named(handle, path):
            _sign(handle)
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _is_named(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()})
    # on a full disk the lock holds all the same
    with contextlib.suppress(OSError):
        os.truncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def _holder(path: Path) -> str | None:
    """Who signed a lock, in words."""
    try:
        found = json.loads(path.read_bytes())
        since = time.strftime("%H:%M:%S", time.localtime(found["since"]))
        return f"process {int(found['pid'])} on {found['host']} (since {since})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
