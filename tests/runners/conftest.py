"""Scripts in the place of the worker; an ssh server of the tests' own, and what is left on the machine behind it."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.runners import process
from orchestrator.runners.base import Cancel, Step
from orchestrator.runners.docker_host import DeclaredGpu, Overrides
from orchestrator.runners.ssh import SshRunner
from orchestrator.runners.ssh_errors import Destination

PATIENCE_SECONDS = 60.0
DOUBLE = """
import json, os, signal, subprocess, sys, time
request = json.load(open("request.json"))
BEGIN, END = ("===enginefarm-events " + request["nonce"] + " " + word + "===" for word in ("begin", "end"))
def answer(**fields):
    whole = {"schema": "enginefarm.result/1", "step": request["step"], "ok": True, "worker": "double", "seconds": 0.0, "error": None}
    json.dump({**whole, **fields}, open("result.json", "w"))
def phase(text):
    print(BEGIN, json.dumps({"event": "phase", "phase": text}), END, sep="\\n", flush=True)
"""


def eventually(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """What ``condition`` gives as soon as that is true."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)
    return found


@pytest.fixture
def misbehave(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Put a script in the place of the process runner's worker. ``answer(**fields)`` in it writes a result."""

    def write(code: str) -> None:
        script = tmp_path / "double_worker.py"
        script.write_text(DOUBLE + code)
        monkeypatch.setattr(process, "worker_pyz", lambda: script)

    return write


class Server:
    """``sshd`` on a loopback port, that this user may log into with one key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        for name in ("host", "user", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        self.known("host")
        lines = [f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/authorized"]
        lines += ["StrictModes no", "PermitRootLogin yes", "UsePAM no", "PasswordAuthentication no", f"PidFile {folder}/pid"]
        (folder / "sshd_config").write_text("\n".join(lines) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert program is not None
        self._process = subprocess.Popen([program, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.PIPE)
        assert self._process.stderr is not None
        assert b"listening" in self._process.stderr.readline()
        threading.Thread(target=self._process.stderr.read, daemon=True).start()

    def known(self, key: str) -> None:
        """Let known_hosts name that key for the server."""
        kind, text = (self.folder / f"{key}.pub").read_text().split()[:2]
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {kind} {text}\n")

    def to(self, **more: Any) -> Destination:
        values = {"port": self.port, "identity": self.folder / "user", "known_hosts": self.folder / "known", "python": sys.executable}
        return Destination("127.0.0.1", getpass.getuser(), **{**values, **more})

    def sessions(self) -> list[int]:
        """The server's processes that each serve one login."""
        return [pid for pid in _descendants(self._process.pid) if _name(pid).startswith("sshd")]

    def remote_ends(self) -> list[int]:
        return [pid for pid in _descendants(self._process.pid) if not _name(pid).startswith("sshd")]

    def cut(self) -> None:
        """All connections are gone at once; nobody says goodbye."""
        for pid in self.sessions():
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        self.cut()
        self._process.terminate()
        self._process.wait()


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [found for child in children for found in (child, *_descendants(child))]


@pytest.fixture(scope="session")
def make_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Server]]:
    if shutil.which("ssh") is None or shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
        pytest.skip("needs ssh and sshd (openssh-client, openssh-server)")
    started = []

    def start() -> Server:
        started.append(Server(tmp_path_factory.mktemp("sshd")))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def server(make_server: Callable[[], Server]) -> Server:
    return make_server()


class There:
    """The working folder on the other side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def steps(self) -> list[str]:
        """Folders of steps that are there now."""
        place = self.folder / "sessions"
        return sorted(path.name for path in place.iterdir() if path.is_dir()) if place.exists() else []

    def kept(self) -> set[str]:
        places = [self.folder / name for name in ("blobs", "trees")]
        return {path.name for place in places if place.exists() for path in place.iterdir() if path.suffix != ".lock"}

    def workers(self) -> list[int]:
        """Processes of steps whose home lies there."""
        mark = f"HOME={self.folder}/sessions/".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if mark in _bytes(path)]

    def is_clean(self) -> bool:
        return not self.steps() and not self.workers()

    def wait_until_clean(self) -> None:
        eventually(self.is_clean, 10)

    def wait_for_worker(self) -> None:
        eventually(self.workers)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.fixture
def there(tmp_path: Path) -> There:
    return There(tmp_path / "there")


@pytest.fixture
def make_runner(server: Server, there: There) -> Iterator[Callable[..., SshRunner]]:
    """``make_runner(name=..., gpu=uuid, **of the destination)``; nothing of a step may be left on the other side after the test."""
    made = []

    def make(name: str = "lab", gpu: str | None = None, where: Server = server, slots: int = 1, **more: Any) -> SshRunner:
        declared = Overrides((DeclaredGpu("Xavier", "7.2", uuid=gpu),)) if gpu else None
        made.append(SshRunner(name, where.to(**{"workdir": str(there.folder), **more}), slots=slots, overrides=declared))
        return made[-1]

    yield make
    for runner in made:
        runner.close()
    there.wait_until_clean()


@pytest.fixture
def runner(make_runner: Callable[..., SshRunner]) -> SshRunner:
    return make_runner()


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Step]:
    """``play(code, **of Step)``: a step with this script in the place of the worker. ``answer(**fields)`` in it writes a result."""

    def make(code: str, **more: Any) -> Step:
        script = tmp_path / "played.py"
        script.write_text(DOUBLE + code)
        os.utime(script, ns=(time.time_ns(), time.time_ns()))
        monkeypatch.setattr("orchestrator.runners.ssh_step.worker_pyz", lambda: script)
        return Step(request={"step": "build", "backend": "onnxruntime"}, **{"timeout_seconds": 60.0, **more})

    return make


class Job:
    """A step in a thread of its own."""

    def __init__(self, runner: SshRunner, step: Step, folder: Path) -> None:
        self.cancel = Cancel()
        self.events: list[Mapping[str, Any]] = []
        self.error: BaseException | None = None
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(runner, step, folder))
        self._thread.start()

    def _run(self, runner: SshRunner, step: Step, folder: Path) -> None:
        try:
            self.result = runner.run(step, folder, self.events.append, self.cancel)
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def wait_for(self, text: str) -> str:
        """The first event that holds ``text``."""

        def seen() -> str | None:
            assert self.error is None, self.error
            return next((event for event in map(json.dumps, self.events) if text in event), None)

        return str(eventually(seen))

    def end(self) -> Job:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self


@pytest.fixture
def start() -> Iterator[Callable[..., Job]]:
    """``start(runner, step, folder)``; what a test leaves running is cancelled."""
    started: list[Job] = []

    def begin(runner: SshRunner, step: Step, folder: Path) -> Job:
        started.append(Job(runner, step, folder))
        return started[-1]

    yield begin
    for job in started:
        job.cancel.set()
        job.end()
