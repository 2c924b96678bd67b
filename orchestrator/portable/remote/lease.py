"""One build per GPU on this machine: an flock on a file whose name is the GPU's, for all users and programs that ask the same way.

The file's text says who holds it. The lock goes with the process that holds it, so nothing has to be taken over or to run out.
"""

import fcntl
import os
import re
import time
from typing import Callable, Dict, List, Optional

from .wire import Message

_FOLDERS = ("/run/lock", "/tmp")  # noqa: S108  (every user's: the lease is the machine's)
_POLL_SECONDS = 0.2


def lease_path(gpu: str) -> str:
    """The file that stands for a GPU."""
    folder = next((folder for folder in _FOLDERS if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)), _FOLDERS[-1])
    return os.path.join(folder, "enginefarm-gpu-{}.lock".format(re.sub(r"[^A-Za-z0-9_.-]", "-", gpu)))


def wait_for(gpus: List[str], owner: str, held: List[int], on_wait: Callable[[Message], None]) -> str:
    """Wait until one of ``gpus`` is ours; gives its name, and the lock's handle in ``held``. ``on_wait`` hears of each new holder."""
    said = None
    while True:
        for gpu in gpus:
            handle = _take(gpu)
            if handle is not None:
                os.ftruncate(handle, 0)
                os.write(handle, owner.encode("utf-8"))
                held.append(handle)
                return gpu
        holder = _text(gpus[0])
        if holder != said:
            said = holder
            on_wait({"waiting": holder})
        time.sleep(_POLL_SECONDS)


def holders(gpus: List[str]) -> Dict[str, str]:
    """GPU -> who holds it, for those that somebody holds."""
    found = {}
    for gpu in gpus:
        if os.path.exists(lease_path(gpu)):
            handle = _take(gpu)
            if handle is None:
                found[gpu] = _text(gpu)
            else:
                os.close(handle)
    return found


def _take(gpu: str) -> Optional[int]:
    handle = _open(lease_path(gpu))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _open(path: str) -> int:
    """Open the file of any user; in a folder of all users the kernel refuses O_CREAT for another's file (fs.protected_regular)."""
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            pass
        try:
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        os.fchmod(handle, 0o666)
        return handle


def _text(gpu: str) -> str:
    try:
        with open(lease_path(gpu), "rb") as file:
            return file.read(1000).decode("utf-8", "replace")
    except OSError:
        return ""
