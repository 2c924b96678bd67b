"""One ssh session with the remote end in it (portable/remote): frames out, frames in, and its end.

OpenSSH's client makes the connection, since users keep hosts, jump hosts, agents and hardware keys in its configuration. Hosts whose key is
not known are refused, whatever that configuration says. The remote command is a fixed text with one word that is not: the interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.portable.remote.wire import DATA, FRAME_LIMIT, HEAD, JSON, MAGIC, PING, PULSE_SECONDS, QUEUED_FRAMES, SILENCE_SECONDS
from orchestrator.runners.bundle import PORTABLE
from orchestrator.runners.ssh_errors import TOO_OLD, Destination, explain_start, last_lines, lost, refused

CONNECT_SECONDS = 10  # for the connection itself
START_SECONDS = 30.0  # until the remote end answers
CLOSE_SECONDS = 4.5  # the remote end kills and removes what it has
_POLL_SECONDS = 0.2
_NOISE_BYTES = 1 << 20  # what a login may print before the remote end speaks
_END = b""
_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "UpdateHostKeys=no",
    f"ConnectTimeout={CONNECT_SECONDS}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlPath=none",  # a master of the user's may go at any time, and takes all its sessions along
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "LogLevel=ERROR",
)
_BOOT = (
    f'import sys;v=sys.version_info;v<(3,6) and sys.exit("{TOO_OLD} or newer, this is %d.%d"%v[:2]);'
    'i=sys.stdin.buffer;exec(compile(i.read(int(i.readline())),"remote","exec"))'
)
_MODULES = ("wire", "files", "kept", "lease", "child", "main")  # each after those that it imports
_LOADER = """\
import json, sys, types
package = sys.modules["enginefarm_remote"] = types.ModuleType("enginefarm_remote")
package.__path__ = []
for name, text in json.loads(SOURCES):
    module = types.ModuleType("enginefarm_remote." + name)
    module.__package__ = "enginefarm_remote"
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    exec(compile(text, "enginefarm_remote/" + name + ".py", "exec"), module.__dict__)
module.main()
"""


@cache
def bootstrap() -> bytes:
    """What the remote Python reads first: its own length, then the modules of portable/remote with a loader behind them."""
    sources = [(name, (PORTABLE / "remote" / f"{name}.py").read_text(encoding="utf-8")) for name in _MODULES]
    text = f"SOURCES = {json.dumps(sources)!r}\n{_LOADER}".encode()
    return b"%d\n%s" % (len(text), text)


def command_of(to: Destination) -> list[str]:
    """The ssh command."""
    words = ["ssh", "-T", *(word for option in _OPTIONS for word in ("-o", option))]
    if to.identity:
        words += ["-o", f"IdentityFile={_quoted(to.identity)}", "-o", "IdentitiesOnly=yes"]
    if to.known_hosts:
        words += ["-o", f"UserKnownHostsFile={_quoted(to.known_hosts)}", "-o", "GlobalKnownHostsFile=none"]
    words += ["-p", str(to.port)] if to.port else []
    words += ["-l", to.user] if to.user else []
    return [*words, "--", to.host, f"exec {shlex.quote(to.python)} -I -c {shlex.quote(_BOOT)}"]


def _quoted(path: Path) -> str:
    """A path for ssh's configuration, where ``%`` begins a token and a space ends a word."""
    return '"{}"'.format(str(path).replace("%", "%%"))


class Link:
    """An open session. Not for several threads at once, but for ``close``."""

    def __init__(self, to: Destination, runner: str, check: Callable[[], None]) -> None:
        """Connect and greet. ``check`` is called while waiting and may raise. Raises EnginefarmError."""
        self.to = to
        self.runner = runner
        self.sent_bytes = 0
        self._check = check
        self._frames: queue.Queue[tuple[bytes, bytes]] = queue.Queue(QUEUED_FRAMES)
        self._writing = threading.Lock()
        self._heard = time.monotonic()
        self._full = self._silent = self._spoke = False
        self._closed = threading.Event()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the link)
        try:
            self._process = subprocess.Popen(
                command_of(to),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                bufsize=0,
                start_new_session=True,  # Ctrl-C must not end it before the step is cleaned up
            )
        except FileNotFoundError as error:
            what = "there is no ssh on this machine"
            raise EnginefarmError(errors.RUNNER_BROKEN, what, fix="install OpenSSH's client (openssh-client)") from error
        assert self._process.stdin is not None  # noqa: S101  (PIPE above)
        assert self._process.stdout is not None  # noqa: S101
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        for task in (self._read, self._watch):
            threading.Thread(target=task, name=f"{task.__name__} {to}", daemon=True).start()
        try:
            self._greet()
        except BaseException:
            self.close()
            raise

    def _greet(self) -> None:
        until = time.monotonic() + START_SECONDS
        hello = {"op": "hello", "workdir": self.to.workdir}

        def check() -> None:
            self._check()
            if time.monotonic() > until:
                raise explain_start(self.to, self.runner, None, self._text())

        try:
            with self._writing:
                self._write(bootstrap(), check)
            self._frame(JSON, json.dumps(hello).encode(), check)
            kind, data = self._next(check)
        except (BrokenPipeError, EnginefarmError) as error:
            if isinstance(error, EnginefarmError) and error.kind is not errors.SSH_LOST:
                raise
            kind, data = _END, b""
        if kind == _END:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_POLL_SECONDS * 5)
            if self._spoke:
                raise lost(self.to, self.runner, "begin", self._why())
            raise explain_start(self.to, self.runner, self._process.poll(), self._text())
        self.host: Mapping[str, Any] = self.message(kind, data, "begin")

    # --- asking ---

    def ask(self, doing: str, check: Callable[[], None], **asked: Any) -> dict[str, Any]:
        """Send ``asked`` and give the answer. ``doing`` completes "could not". Raises EnginefarmError."""
        self.tell(doing, check, **asked)
        return self.answer(doing, check)

    def tell(self, doing: str, check: Callable[[], None], **asked: Any) -> None:
        self._sending(JSON, json.dumps(asked).encode(), doing, check)

    def answer(self, doing: str, check: Callable[[], None]) -> dict[str, Any]:
        kind, data = self.next(doing, check)
        return self.message(kind, data, doing)

    def data(self, piece: bytes, doing: str, check: Callable[[], None]) -> None:
        """Send a piece of a file; an error that was answered meanwhile is raised here."""
        self._sending(DATA, piece, doing, check)
        if not self._frames.empty():
            self.answer(doing, check)  # before the file's end only an error or the end can come
            raise lost(self.to, self.runner, doing, "it answered too early")

    def next(self, doing: str, check: Callable[[], None]) -> tuple[bytes, bytes]:
        """The next frame. Raises EnginefarmError SSH_LOST when the connection ended."""
        kind, data = self._next(check)
        if kind == _END:
            raise lost(self.to, self.runner, doing, self._why())
        return kind, data

    def message(self, kind: bytes, data: bytes, doing: str) -> dict[str, Any]:
        """A frame's JSON message. Raises EnginefarmError for an error that the remote end answered."""
        try:
            message = json.loads(data) if kind == JSON else None
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise lost(self.to, self.runner, doing, "what came is not of this protocol")
        if "error" in message:
            raise refused(self.to, self.runner, doing, str(message["error"]), str(message.get("message")))
        return message

    def _sending(self, kind: bytes, data: bytes, doing: str, check: Callable[[], None]) -> None:
        try:
            self._frame(kind, data, check)
        except (BrokenPipeError, ValueError) as error:
            with contextlib.suppress(queue.Empty):  # the remote end may have said why it goes
                while True:
                    last, said = self._frames.get(timeout=_POLL_SECONDS)
                    if last == JSON:
                        self.message(last, said, doing)
                    elif last == _END:
                        break
            raise lost(self.to, self.runner, doing, self._why()) from error

    def _frame(self, kind: bytes, data: bytes, check: Callable[[], None]) -> None:
        with self._writing:
            self._write(HEAD.pack(kind, len(data)) + data, check)

    def _write(self, data: bytes, check: Callable[[], None]) -> None:
        view = memoryview(data)
        while view:
            try:
                count = os.write(self._stdin.fileno(), view)
            except BlockingIOError:
                select.select([], [self._stdin], [], _POLL_SECONDS)
                check()
                continue
            view = view[count:]
            self.sent_bytes += count

    def _next(self, check: Callable[[], None]) -> tuple[bytes, bytes]:
        while True:
            try:
                frame = self._frames.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                check()
                continue
            if frame[0] == _END:
                self._frames.put(frame)
            return frame

    # --- threads ---

    def _read(self) -> None:
        """Frames into the queue until the session ends; signs of life are noted and dropped."""
        try:
            if self._skip_noise():
                self._spoke = True
                while head := self._exactly(HEAD.size):
                    kind, size = HEAD.unpack(head)
                    if size > FRAME_LIMIT:
                        break
                    data = self._exactly(size) if size else b""
                    if size and not data:
                        break
                    if kind != PING:
                        self._put((kind, data))
        except (OSError, ValueError):
            pass
        self._put((_END, b""))

    def _skip_noise(self) -> bool:
        """Skip what the login shell prints; whether the remote end spoke after it."""
        wanted, seen, skipped = MAGIC.encode() + b"\n", b"", 0
        while skipped < _NOISE_BYTES:
            piece = self._stdout.read(1)
            if not piece:
                return False
            seen = (seen + piece)[-len(wanted) :]
            skipped += 1
            if seen == wanted:
                self._heard = time.monotonic()
                return True
        return False

    def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._stdout.read(size - len(found))  # unbuffered: what is there
            if not piece:
                return b""
            self._heard = time.monotonic()
            found += piece
        return bytes(found)

    def _put(self, frame: tuple[bytes, bytes]) -> None:
        self._full = True
        while not self._closed.is_set():
            try:
                self._frames.put(frame, timeout=0.5)
                break
            except queue.Full:
                continue
        self._heard = time.monotonic()
        self._full = False

    def _watch(self) -> None:
        """Give signs of life; end the session when the other side gives none."""
        last = time.monotonic()
        while not self._closed.wait(PULSE_SECONDS):
            now = time.monotonic()
            if now - last > 2 * PULSE_SECONDS:  # it was this process that stood still
                self._heard = now
            last = now
            if self._writing.acquire(blocking=False):
                try:
                    if self._spoke and select.select([], [self._stdin], [], 0)[1]:
                        self._write(HEAD.pack(PING, 0), lambda: None)
                except (OSError, ValueError):
                    return
                finally:
                    self._writing.release()
            if self._spoke and not self._full and now - self._heard > SILENCE_SECONDS:
                self._silent = True
                self._process.kill()
                return

    # --- its end ---

    def close(self) -> None:
        """End the session. When this returns the remote end has killed and removed what it had, or does not answer any more."""
        if self._closed.is_set():
            return
        self._closed.set()
        with contextlib.suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS if self._spoke else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            self._stdout.close()
        self._said.close()

    def _why(self) -> str | None:
        if self._silent:
            return f"it gave no sign of life for {SILENCE_SECONDS:.0f} s"
        return last_lines(self._text()) or None

    def _text(self) -> str:
        return _tail(self._said)


def _tail(file: IO[bytes], most: int = 8192) -> str:
    """The end of a file that another process writes."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), most, max(size - most, 0)).decode("utf-8", "replace")
