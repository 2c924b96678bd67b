"""One step in one locked-down container: created, filled, started, watched, emptied, removed. Nothing of it stays, however it ends.

The container's volume at /enginefarm holds ``in`` (what we sent: root's, read-only) and ``step`` (the worker's folder, sticky, with
links to what is in ``in``); so the folder that comes back holds what the worker wrote and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.portable.worker.main import EXIT_WRITTEN
from orchestrator.runners import docker_inputs, docker_labels
from orchestrator.runners.base import Cancel, Cancelled, Step, WorkerEvent
from orchestrator.runners.docker_engine import Engine
from orchestrator.runners.docker_errors import engine_errors
from orchestrator.runners.docker_files import CHUNK_BYTES, Entry, LocalDiskError, Received, folders_of, pack, unpack
from orchestrator.runners.docker_gpu import GpuOptions
from orchestrator.runners.supervise import Ended, EventLines

BASE = "/enginefarm"
HEARTBEAT_SECONDS = 5.0
MISSED_HEARTBEATS = 3
ORPHAN_SECONDS = 120  # how much longer than its time limit a container lives whose client is gone
RETURN_LIMIT_BYTES = 64 << 30
_POLL_SECONDS = 0.1
# The alarm ends a worker whose client is gone; sys.path gets no current folder, as with `python3 worker.pyz`.
_BOOT = (
    "import sys; del sys.path[0]\n"
    "import runpy, signal\n"
    "signal.alarm(int(sys.argv[1])); sys.argv[:] = sys.argv[2:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


@dataclass(frozen=True)
class Limits:
    """What a container may use. ``memory_bytes`` covers its processes, /tmp and shared memory; there is no swap."""

    memory_bytes: int
    uid: int
    pids: int = 1024
    shm_bytes: int = 256 << 20


@dataclass
class ContainerStep:
    """Everything that one step needs on one engine."""

    engine: Engine
    image: str
    step: Step
    request: Mapping[str, Any]
    nonce: str
    limits: Limits
    gpu: GpuOptions
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    make_labels: Callable[[str, float], dict[str, str]]
    worker: Path
    on_event: Callable[[WorkerEvent], None]
    cancel: Cancel
    lost_lease: Callable[[], bool] = lambda: False
    received: dict[str, Received] = field(default_factory=dict)

    def run(self, incoming: Path, log: Path) -> tuple[Ended, Mapping[str, Any]]:
        """Run it; gives its end and the engine's state of it. The worker's files lie in ``incoming`` if it says that it wrote a result."""
        self._check_cancel()
        with engine_errors(self.engine.runner, "create a container"):
            container = str(self.engine.api.create_container(self.image, **self._configuration())["Id"])
        try:
            self._phase("sending")
            self._send(container)
            ended, state = self._start_and_watch(container, log)
            if ended.stopped is None and ended.code == EXIT_WRITTEN:
                self._fetch(container, incoming)
            return ended, state
        finally:
            self._remove(container)

    # --- what it is ---

    def _configuration(self) -> dict[str, Any]:
        from docker.types import LogConfig, Mount

        mounts = [Mount(BASE, None, type="volume", no_copy=True, labels=dict(self.labels))]
        shared_labels = self.make_labels("inputs", 0)
        mounts += [docker_inputs.mount(digest, f"{BASE}/in/{top}", shared_labels) for top, digest in self.step.shared_inputs.items()]
        extra = dict(self.gpu.host_config)
        mounts += extra.pop("mounts", [])
        scratch = min(self.limits.memory_bytes, 16 << 30)
        host = self.engine.api.create_host_config(
            mounts=mounts,
            network_mode="none",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            init=True,
            tmpfs={"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={scratch}"},  # noqa: S108  (the container's own; code is loaded from it)
            pids_limit=self.limits.pids,
            mem_limit=self.limits.memory_bytes,
            memswap_limit=self.limits.memory_bytes,
            shm_size=self.limits.shm_bytes,
            log_config=LogConfig(type="none"),  # the attached stream is the log: nothing piles up on the engine
            **extra,
        )
        alarm = int(self.step.timeout_seconds) + ORPHAN_SECONDS
        return {
            "entrypoint": ["python3"],  # an image's own entrypoint prints banners and may do anything else
            "command": ["-c", _BOOT, str(alarm), f"{BASE}/in/worker.pyz", "request.json"],
            "user": f"{self.limits.uid}:{self.limits.uid}",
            "working_dir": f"{BASE}/step",
            "environment": dict(self.environment),
            "labels": dict(self.labels),
            "host_config": host,
            "network_disabled": True,
            "use_config_proxy": False,  # else the client's proxy settings, with their passwords, would be in its environment
        }

    def _own_inputs(self) -> dict[str, Path]:
        return {name: path for name, path in self.step.inputs.items() if name.split("/")[0] not in self.step.shared_inputs}

    def _links(self) -> dict[str, str]:
        """Top names in the step's folder -> where they point."""
        tops = {name.split("/")[0] for name in self.step.inputs} | set(self.step.shared_inputs) | {"request.json"}
        return {top: f"../in/{top}" for top in sorted(tops)}

    def _entries(self) -> Iterator[Entry]:
        own = self._own_inputs()
        yield Entry("in", mode=0o755)
        yield from folders_of(f"in/{name}" for name in own)
        yield Entry("in/worker.pyz", self.worker)
        yield Entry("in/request.json", json.dumps(self.request).encode())
        for name, path in own.items():
            yield Entry(f"in/{name}", path)
        yield Entry("step", mode=0o1777)
        for name, link in self._links().items():
            yield Entry(f"step/{name}", link=link)

    def _send(self, container: str) -> None:
        """All files to the engine; what it lacks of the shared ones on another connection than the step's own."""
        with engine_errors(self.engine.runner, "look for the model on the engine"):
            missing = [top for top in self.step.shared_inputs if not docker_inputs.is_complete(self.engine, container, f"{BASE}/in/{top}")]
        if not missing:
            self._send_own(container)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="send") as pool:
            own = pool.submit(self._send_own, container)
            for top in missing:
                files = {name[len(top) + 1 :]: path for name, path in self.step.inputs.items() if name.startswith(f"{top}/")}
                digest = self.step.shared_inputs[top]
                docker_inputs.send(self.engine, self.image, digest, files, self.make_labels, self.cancel, self._phase)
            own.result()

    def _send_own(self, container: str) -> None:
        with engine_errors(self.engine.runner, "send the step's files"):
            self.engine.api.put_archive(container, BASE, pack(self._entries(), self._check_cancel))

    # --- running ---

    def _start_and_watch(self, container: str, log: Path) -> tuple[Ended, Mapping[str, Any]]:
        self._check_cancel()
        with log.open("ab", buffering=0) as log_file:
            with engine_errors(self.engine.runner, "start the container"):
                stream = _Stream(self.engine, container)
                try:
                    self.engine.api.start(container)
                except BaseException:
                    stream.close()
                    raise
            started = time.monotonic()
            try:
                stopped = self._watch(container, stream, EventLines(self.nonce, log_file, self.on_event), log_file, started)
            finally:
                stream.close()
            seconds = time.monotonic() - started
            if stopped is not None:
                return Ended(-1, stopped, seconds), {}
            with engine_errors(self.engine.runner, "ask how the container ended"):
                state = self.engine.api.inspect_container(container)["State"]
        return Ended(int(state["ExitCode"]), None, seconds), state

    def _watch(self, container: str, stream: _Stream, lines: EventLines, log_file: IO[bytes], started: float) -> str | None:
        """Follow the container; gives why it has to be stopped, or None when it ended by itself."""
        deadline = started + self.step.timeout_seconds
        pause = 0.002
        pulse = _Pulse(self.engine)
        while True:
            kind, data = stream.next(_POLL_SECONDS)
            if kind == _Stream.STDOUT:
                lines.feed(data)
            elif kind == _Stream.STDERR:
                log_file.write(data)
            elif kind == _Stream.END:
                if self._has_ended(container):
                    lines.finish()
                    return None
                pause = min(2 * pause, 0.5)
                self.cancel.wait(pause)  # either it ends now, or the connection went and the container runs on
            if self.cancel.is_set():
                return "cancelled"
            if time.monotonic() > deadline:
                return "timeout"
            if self.lost_lease():
                raise EnginefarmError(
                    errors.GPU_TAKEN,
                    f"another run took over the GPU on runner {self.engine.runner}",
                    why="this process did not renew its lease in time: it was suspended, or did not reach the engine",
                )
            pulse.check()

    def _has_ended(self, container: str) -> bool:
        """The stream's end alone means nothing: it also ends with the engine, or with the connection."""
        with engine_errors(self.engine.runner, "ask how the container ended"):
            state = self.engine.api.inspect_container(container)["State"]
        return not state["Running"] and state["Status"] not in ("created", "restarting")

    # --- its end ---

    def _fetch(self, container: str, incoming: Path) -> None:
        self._phase("bringing back")
        try:
            with engine_errors(self.engine.runner, "bring the results back"):
                pieces, _ = self.engine.api.get_archive(container, f"{BASE}/step", chunk_size=CHUNK_BYTES)
                self.received = unpack(pieces, incoming, limit_bytes=RETURN_LIMIT_BYTES, skip=self._links(), check=self._check_cancel)
        except LocalDiskError as error:
            raise EnginefarmError(
                errors.DISK, f"the results could not be written here: {error}", fix="free some space, or set --output elsewhere"
            ) from error
        except tarfile.TarError as error:
            raise EnginefarmError(errors.ENGINE_LOST, f"the results of runner {self.engine.runner} came back cut: {error}") from error
        except ValueError as error:
            raise EnginefarmError(errors.STEP_CRASHED, f"the {self.request['step']} step left files that are not taken: {error}") from error

    def _remove(self, container: str) -> None:
        """Kill and remove it with its volume. What an engine that is gone keeps is noted, and removed when it is met again (clean.py)."""
        for _attempt in range(2):  # the second time on a fresh connection
            with contextlib.suppress(Exception), docker_labels.already_gone():
                self.engine.control.remove_container(container, force=True, v=True)
                return
        docker_labels.abandoned.add(container)

    def _phase(self, text: str) -> None:
        self.on_event({"event": "phase", "phase": text})

    def _check_cancel(self) -> None:
        if self.cancel.is_set():
            raise Cancelled


class _Pulse:
    """Asks the engine now and then whether it is there: a frozen one, or a dead line, ends no stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._next = time.monotonic() + HEARTBEAT_SECONDS
        self._missed = 0

    def check(self) -> None:
        """Raises EnginefarmError ENGINE_LOST after MISSED_HEARTBEATS calls without an answer."""
        if time.monotonic() < self._next:
            return
        try:
            self._engine.control.ping()
            self._missed = 0
        except Exception as error:
            self._missed += 1
            if self._missed >= MISSED_HEARTBEATS:
                why = f"{self._missed} calls in a row had no answer"
                what = f"the engine of runner {self._engine.runner} does not answer any more"
                raise EnginefarmError(errors.ENGINE_LOST, what, why=why) from error
        self._next = time.monotonic() + (1.0 if self._missed else HEARTBEAT_SECONDS)


class _Stream:
    """The attached output of a container, read in a thread: (kind, data), END once when it ends for whatever reason."""

    STDOUT, STDERR, END, NOTHING = 1, 2, -1, 0

    def __init__(self, engine: Engine, container: str) -> None:
        attached = engine.api.attach_socket(container, params={"stdout": 1, "stderr": 1, "stream": 1})
        self._attached = attached  # its response keeps a TLS connection open
        self._socket: Any = getattr(attached, "_sock", attached)
        self._socket.settimeout(None)
        self._frames: queue.Queue[tuple[int, bytes]] = queue.Queue(maxsize=256)
        self._closed = threading.Event()
        threading.Thread(target=self._read, name=f"stream {container[:12]}", daemon=True).start()

    def next(self, seconds: float) -> tuple[int, bytes]:
        """The next frame; NOTHING when there is none within ``seconds``. END again and again after the end."""
        try:
            frame = self._frames.get(timeout=seconds)
        except queue.Empty:
            return self.NOTHING, b""
        if frame[0] == self.END:
            self._frames.put(frame)
        return frame

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(OSError, ValueError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, ValueError):
            self._attached.close()

    def _read(self) -> None:
        try:
            while header := self._exactly(8):
                data = self._exactly(int.from_bytes(header[4:], "big"))
                self._put((header[0], data))
        except (OSError, ValueError):
            pass
        self._put((self.END, b""))

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            data = self._socket.recv(count - len(found))
            if not data:
                return b""
            found += data
        return bytes(found)

    def _put(self, frame: tuple[int, bytes]) -> None:
        while not self._closed.is_set():
            try:
                self._frames.put(frame, timeout=0.5)
            except queue.Full:
                continue
            return
