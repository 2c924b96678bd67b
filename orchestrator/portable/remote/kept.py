"""Files that stay on the machine for later steps: ``blobs/<sha256>``, single files, and ``trees/<digest>``, whole folders.

All of them are read-only and whole: written elsewhere, synced, renamed. A step that uses a blob has a second name of it; one that uses a
tree holds a shared lock on the file ``<digest>.lock`` beside it.
"""

import errno
import fcntl
import os
import stat
from typing import Callable, Dict, List, Tuple

from .files import free_bytes, hexadecimal, inside, link, remove, sizes, take, take_soon
from .wire import DATA, Message, Refusal, Wire


class Kept(object):
    """The kept files below ``root``. Locks that are taken are put into ``held`` by their handles."""

    def __init__(self, root: str, held: List[int]) -> None:
        self.root = root
        self._held = held
        for name in ("blobs", "trees"):
            os.makedirs(os.path.join(root, name), 0o700, True)

    def blob(self, digest: str) -> str:
        return os.path.join(self.root, "blobs", hexadecimal(digest))

    def tree(self, digest: str) -> str:
        return os.path.join(self.root, "trees", hexadecimal(digest))

    def missing(self, blobs: Dict[str, int], trees: Dict[str, Dict[str, int]], folder: str) -> Message:
        """Which blobs (sha256 -> bytes) and trees (digest -> name -> bytes) are missing; the others are held, blobs by links in ``folder``.

        Raises Refusal "disk-full" when what is missing does not fit.
        """
        absent = [digest for digest, size in sorted(blobs.items()) if not self._adopt(digest, size, folder)]
        other = [digest for digest, files in sorted(trees.items()) if not self._hold(digest, files)]
        needed = sum(blobs[digest] for digest in absent) + sum(sum(trees[digest].values()) for digest in other)
        free = free_bytes(self.root)
        if needed > free:
            raise Refusal("disk-full", "{} has {} bytes left, the step's files need {}".format(self.root, free, needed))
        return {"blobs": absent, "trees": other}

    def _adopt(self, digest: str, size: int, folder: str) -> bool:
        try:
            found = os.lstat(self.blob(digest))
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                return False
            link(self.blob(digest), os.path.join(folder, digest))
            os.utime(self.blob(digest))
        except FileNotFoundError:
            return False
        return True

    def _hold(self, digest: str, files: Dict[str, int]) -> bool:
        handle = take_soon(self.tree(digest) + ".lock", fcntl.LOCK_SH)
        if sizes(self.tree(digest)) != files:
            os.close(handle)
            return False
        os.utime(self.tree(digest))
        self._held.append(handle)
        return True

    def keep(self, path: str, digest: str) -> None:
        """Keep the file ``path``, whose sha256 is ``digest``, under a second name."""
        os.chmod(path, 0o444)
        temporary = "{}.{}".format(self.blob(digest), os.getpid())
        link(path, temporary)
        os.rename(temporary, self.blob(digest))

    def receive_tree(self, wire: Wire, digest: str, files: List[Tuple[str, int]], incoming: str) -> None:
        """Take a folder file by file into ``incoming``, then keep it, whole or not at all, and hold it."""
        for name, size in files:
            path = inside(incoming, name)
            os.makedirs(os.path.dirname(path), 0o700, True)
            receive(wire, path, size, lambda _: None)  # a tree's digest is no digest over bytes that lie here
            os.chmod(path, 0o444)
        tree = self.tree(digest)
        handle = take_soon(tree + ".lock", fcntl.LOCK_EX)
        if sizes(tree) == dict(files):  # another step was faster
            remove(incoming)
        else:
            remove(tree)
            os.rename(incoming, tree)
        fcntl.flock(handle, fcntl.LOCK_SH)
        self._held.append(handle)

    def clean(self, keep_bytes: int) -> Message:
        """Remove what no step uses; the last used stay up to ``keep_bytes``. Gives the names and the bytes."""
        removed, count = [], 0
        for _, size, path in sorted(self._all(), reverse=True):
            if size <= keep_bytes:
                keep_bytes -= size
            elif self._forget(path):
                removed.append(os.path.relpath(path, self.root))
                count += size
        return {"inputs": removed, "bytes": count}

    def _all(self) -> List[Tuple[float, int, str]]:
        """(last used, bytes, path) of everything, with what a killed process left half-named."""
        found = []
        for place in ("blobs", "trees"):
            for name in os.listdir(os.path.join(self.root, place)):
                path = os.path.join(self.root, place, name)
                try:
                    hexadecimal(name.split(".")[0])
                    status = os.lstat(path)
                except (Refusal, FileNotFoundError):
                    continue
                if not name.endswith(".lock"):
                    size = sum((sizes(path) or {}).values()) if stat.S_ISDIR(status.st_mode) else status.st_size
                    found.append((status.st_mtime, size, path))
        return found

    def _forget(self, path: str) -> bool:
        if os.path.basename(os.path.dirname(path)) == "blobs":
            os.unlink(path)
            return True
        handle = take(path + ".lock", fcntl.LOCK_EX)
        if handle is None:
            return False
        remove(path)
        os.unlink(path + ".lock")
        os.close(handle)
        return True


def receive(wire: Wire, path: str, size: int, on_piece: Callable[[bytearray], None]) -> None:
    """Write the next ``size`` bytes of file pieces to a new file and sync it."""
    with open(path, "xb", 0) as file:
        while size > 0:
            data = wire.next(DATA)
            on_piece(data)
            size -= len(data)
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        os.fsync(file.fileno())
    if size:
        raise Refusal("failed", "a file is longer than was said")


def kind_of(error: OSError) -> str:
    """The kind of a Refusal for what the system said."""
    return "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "failed"
