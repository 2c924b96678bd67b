"""The remote end of an ssh runner: its modules are sent as text to ``python3 -I -c`` on the other machine.

The caller asks with ``{"op": ...}``, and each operation below ends with one answer; after ``{"error": kind, "message": str}`` nothing more
is answered. When the connection ends, or the caller gives no sign of life, the worker and all it started are killed, the step's folder is
removed, and the lease and this process are gone. Kept files: kept.py. ``sessions/<name>`` is what one step needs; the file
``<name>.lock`` beside it says, by flock, that its process lives. Needs Python 3.6 and a Unix.
"""

import fcntl
import hashlib
import json
import os
import signal
import stat
import sys
import threading
import time
from typing import IO, Any, List, Optional

from . import child, lease
from .files import free_bytes, hexadecimal, inside, link, plain, remove, take
from .kept import Kept, kind_of, receive
from .wire import CHUNK_BYTES, DATA, JSON, MAGIC, PULSE_SECONDS, SILENCE_SECONDS, Message, Refusal, Wire

_LOCK = ".lock"


class Remote(object):
    """Everything that one connection holds: its session's folder, locks, lease and worker."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.root = ""
        self.session = ""
        self.process: Any = None
        self.nonce = ""
        self._held: List[int] = []
        self._kept: Optional[Kept] = None
        self._dying = threading.Lock()
        self._spawning = threading.Lock()

    def serve(self) -> None:
        """Answer until the connection ends; never returns."""
        while True:
            try:
                asked = json.loads(self.wire.next(JSON).decode("utf-8"))
                operation = getattr(self, "op_" + str(asked["op"]), None)
                if operation is None:
                    raise Refusal("failed", "there is no operation {}".format(asked["op"]))
                self.wire.message(operation(asked))
                continue
            except Refusal as error:
                answer = {"error": error.kind, "message": str(error)}
            except BrokenPipeError:
                self.die()
            except OSError as error:
                answer = {"error": kind_of(error), "message": str(error)}
            except Exception as error:  # noqa: BLE001  (the edge of the process: the other side says it)
                answer = {"error": "failed", "message": "{}: {}".format(type(error).__name__, error)}
            try:
                self.wire.message(answer)
            except OSError:
                self.die()
            self.wire.drain()

    def read(self) -> None:
        self.wire.read()
        self.die()

    def watch(self) -> None:
        """Give signs of life, and end all when the caller gives none."""
        last = time.monotonic()
        while True:
            time.sleep(PULSE_SECONDS)
            now = time.monotonic()
            if now - last > 2 * PULSE_SECONDS:  # it was this process that stood still
                self.wire.heard = now
            last = now
            self.wire.ping()
            if not self.wire.full and now - self.wire.heard > SILENCE_SECONDS:
                self.die()

    def die(self) -> None:
        """End the worker, remove what is this connection's alone, and end this process."""
        if not self._dying.acquire(False):
            threading.Event().wait()  # another thread is at it
        self._spawning.acquire(True, 1.0)
        try:
            if self.process is not None:
                child.end(self.process, self.nonce)
            self._drop()
        finally:
            os._exit(0)

    # --- op_hello once, then op_begin ... op_finish for each step ---

    def op_hello(self, asked: Message) -> Message:
        """Make the working folder and remove the sessions of processes that are gone."""
        self.root = os.path.abspath(os.path.expanduser(asked["workdir"]))
        sessions = os.path.join(self.root, "sessions")
        try:
            os.makedirs(sessions, 0o700, True)
            self._kept = Kept(self.root, self._held)
            swept = self._sweep()
            with open(os.path.join(sessions, ".writable"), "wb"):
                pass
        except OSError as error:
            kind = kind_of(error)
            raise Refusal("folder" if kind == "failed" else kind, str(error)) from error
        return {"python": sys.version.split()[0], "workdir": self.root, "free": free_bytes(self.root), "swept": swept}

    def op_begin(self, asked: Message) -> Message:
        """Begin a step; ``name`` becomes its folder's."""
        session = os.path.join(self.root, "sessions", plain(asked["name"]))
        handle = take(session + _LOCK, fcntl.LOCK_EX)
        if handle is None:
            raise Refusal("failed", "another process has a step of that name")
        self._held.append(handle)
        os.makedirs(os.path.join(session, "blobs"), 0o700)
        self.session = session
        return {"begun": True}

    def op_finish(self, _asked: Message) -> Message:
        """Remove the step's folder and let the lease go."""
        self._drop()
        return {"finished": True}

    def _drop(self) -> None:
        if self.session:
            remove(self.session)
            if not os.path.exists(self.session):
                os.unlink(self.session + _LOCK)
            self.session = ""
        while self._held:
            os.close(self._held.pop())

    def _sweep(self) -> List[str]:
        """Remove sessions that no process holds; gives their names."""
        folder = os.path.join(self.root, "sessions")
        gone = []
        for name in sorted(entry for entry in os.listdir(folder) if entry.endswith(_LOCK)):
            path = os.path.join(folder, name)
            handle = take(path, fcntl.LOCK_EX)
            if handle is not None:
                child.end_orphans(os.path.join(path[: -len(_LOCK)], "step"))
                remove(path[: -len(_LOCK)])
                os.unlink(path)
                os.close(handle)
                gone.append(name[: -len(_LOCK)])
        return gone

    # --- what a step needs ---

    @property
    def kept(self) -> Kept:
        if self._kept is None:
            raise Refusal("failed", "hello comes first")
        return self._kept

    def _blob(self, digest: str) -> str:
        return os.path.join(self.session, "blobs", hexadecimal(digest))

    def op_have(self, asked: Message) -> Message:
        """Which of ``blobs`` (sha256 -> bytes) and ``trees`` (digest -> name -> bytes) must be sent."""
        return self.kept.missing(asked["blobs"], asked["trees"], os.path.join(self.session, "blobs"))

    def op_blobs(self, asked: Message) -> Message:
        """Take and keep ``files`` ([sha256, bytes]), whose bytes follow one after another."""
        for digest, size in asked["files"]:
            path, found = self._blob(digest), hashlib.sha256()
            receive(self.wire, path, size, found.update)
            if found.hexdigest() != digest:
                raise Refusal("changed", "a file changed while it was sent")
            self.kept.keep(path, digest)
        return {"kept": len(asked["files"])}

    def op_tree(self, asked: Message) -> Message:
        """Take and keep a folder of ``files`` ([name, bytes]), whose bytes follow one after another."""
        files = [(name, size) for name, size in asked["files"]]
        self.kept.receive_tree(self.wire, asked["digest"], files, os.path.join(self.session, "incoming"))
        return {"kept": asked["digest"]}

    def op_lease(self, asked: Message) -> Message:
        """Wait until one of the GPUs ``names`` is held; who has them is said meanwhile. Goes with the step, or with this process."""
        return {"held": lease.wait_for(asked["names"], asked["owner"], self._held, self.wire.message)}

    def op_holders(self, asked: Message) -> Message:
        """Who holds the GPUs ``names`` now."""
        return {"holders": lease.holders(asked["names"])}

    # --- the step ---

    def op_run(self, asked: Message) -> Message:
        """Run the worker over ``request`` until it ends or its ``timeout`` (seconds) is up. What it prints is sent on meanwhile."""
        folder = os.path.join(self.session, "step")
        os.mkdir(folder, 0o700)
        for name, digest in asked["inputs"].items():
            path = inside(folder, name)
            os.makedirs(os.path.dirname(path), 0o700, True)
            link(self._blob(digest), path)
        for top, digest in asked["trees"].items():
            os.symlink(self.kept.tree(digest), inside(folder, top))
        with open(os.path.join(folder, "request.json"), "w", encoding="utf-8") as file:
            json.dump(asked["request"], file)
        worker = os.path.join(self.session, "worker.pyz")
        link(self._blob(asked["worker"]), worker)
        self.nonce = asked["request"]["nonce"]
        variables = child.environment(folder, self.nonce, asked["environment"])
        started = time.monotonic()
        with self._spawning:
            self.process = child.start([sys.executable, "-I", worker, "request.json"], folder, variables)
        try:
            stopped = child.follow(self.process, self.wire, started + asked["timeout"])
        finally:
            child.end(self.process, self.nonce)
        answer = {"code": self.process.returncode, "stopped": stopped, "seconds": time.monotonic() - started}
        self.process = None
        for scratch in ("home", "tmp"):
            remove(os.path.join(folder, scratch))
        return dict(answer, free=free_bytes(self.root))

    def op_fetch(self, asked: Message) -> Message:
        """Send the plain files ``names`` of the step's folder, ``size`` null for what is not there; those in ``keep`` stay for later."""
        folder = os.path.realpath(os.path.join(self.session, "step"))
        for name in asked["names"]:
            path = inside(folder, name)
            try:
                if os.path.realpath(path) != path or not stat.S_ISREG(os.lstat(path).st_mode):
                    raise FileNotFoundError(name)
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:
                self.wire.message({"file": name, "size": None})
                continue
            with os.fdopen(handle, "rb", 0) as file:
                digest = self._send(name, file)
            if name in asked["keep"]:
                self.kept.keep(path, digest)
            self.wire.message({"sha256": digest})
        return {"fetched": len(asked["names"])}

    def _send(self, name: str, file: IO[bytes]) -> str:
        left = os.fstat(file.fileno()).st_size
        self.wire.message({"file": name, "size": left})
        digest = hashlib.sha256()
        while left:
            data = file.read(min(left, CHUNK_BYTES))
            if not data:
                raise Refusal("changed", "{!r} became shorter while it was sent".format(name))
            digest.update(data)
            left -= len(data)
            self.wire.send(DATA, data)
        return digest.hexdigest()

    def op_clean(self, asked: Message) -> Message:
        """Remove what dead steps left and, with ``inputs``, kept files; of these the last used stay up to ``keep`` bytes."""
        found = self.kept.clean(asked["keep"]) if asked["inputs"] else {"inputs": [], "bytes": 0}
        return dict(found, steps=self._sweep())


def main() -> None:
    """Speak on the standard streams; ends the process."""
    sink = os.dup(1)
    os.dup2(2, 1)  # nothing else writes between the frames
    wire = Wire(sys.stdin.buffer, sink)
    remote = Remote(wire)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: threading.Thread(target=remote.die).start())
    wire.line("\n" + MAGIC)
    for task in (remote.read, remote.watch):
        threading.Thread(target=task, daemon=True).start()
    remote.serve()
