"""Files and locks of the remote end: names that stay inside a folder, links, removal, and who is still alive.

A lock is an flock on a file that lies beside what it is for; it goes with the process that holds it, however that ends.
"""

import fcntl
import os
import re
import shutil
import stat
import time
from typing import Any, Dict, Optional

from .wire import Refusal

_DIGEST = re.compile(r"^[0-9a-f]{64}$")
_NAME = re.compile(r"^[A-Za-z0-9_-]{1,100}$")
_PATIENCE_SECONDS = 30.0


def hexadecimal(text: str) -> str:
    """A sha256 in hex, as it becomes the name of a file."""
    return _matching(_DIGEST, text)


def plain(text: str) -> str:
    """A name of letters, digits, ``-`` and ``_``."""
    return _matching(_NAME, text)


def _matching(pattern: Any, text: str) -> str:
    if not pattern.match(text):
        raise Refusal("failed", "{!r} cannot be a file's name here".format(text))
    return text


def inside(folder: str, name: str) -> str:
    """The path of ``name`` in ``folder``, which it does not leave."""
    parts = name.split("/")
    if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise Refusal("failed", "{!r} leaves the step's folder".format(name))
    return os.path.join(folder, *parts)


def take(path: str, kind: int) -> Optional[int]:
    """Lock the file ``path``, made when it is not there: an open handle, or None when another process holds it.

    ``kind``: fcntl.LOCK_EX or LOCK_SH. Its last holder may remove the file between opening and locking; then a new one counts.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except FileNotFoundError:
            pass
        os.close(handle)


def take_soon(path: str, kind: int) -> int:
    """As ``take``, waiting for holders that need seconds."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        handle = take(path, kind)
        if handle is not None:
            return handle
        time.sleep(0.05)
    raise Refusal("failed", "another process does not let {} go".format(path))


def link(source: str, target: str) -> None:
    """The same file under another name; a copy where the file system knows no second name."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        if not os.path.exists(source):
            raise
        shutil.copyfile(source, target)
        os.chmod(target, 0o444)


def sizes(folder: str) -> Optional[Dict[str, int]]:
    """Name -> bytes of all files below ``folder``; None when it is not there, or holds anything but plain files."""
    found = {}
    if not os.path.isdir(folder):
        return None
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            status = os.lstat(path)
            if not stat.S_ISREG(status.st_mode):
                return None
            found[os.path.relpath(path, folder)] = status.st_size
    return found


def remove(path: str) -> None:
    """Remove a file or folder with all in it, also where a folder in it was closed against that."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.isdir(path) and not os.path.islink(path):
        for place, folders, _ in os.walk(path):
            for name in folders:
                if not os.path.islink(os.path.join(place, name)):
                    os.chmod(os.path.join(place, name), 0o700)
        shutil.rmtree(path, ignore_errors=True)


def free_bytes(folder: str) -> int:
    """Bytes that this user may still write there."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
