"""A large model to an engine: our sending against ``docker cp`` of the same file into the same kind of volume, in turns.

Then two steps with that model through a relay that counts what goes over the engine's socket: the second must send nothing of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import farm_lab as lab

from orchestrator.runners import docker_inputs, docker_labels
from orchestrator.runners.base import Cancel
from orchestrator.runners.docker import DockerRunner
from orchestrator.runners.docker_engine import Address, Engine

LEAST_RATIO = 0.9
MODEL_BYTES = 2_000_000_000
SMALL_BYTES = 20_000_000
_PIECE = 1 << 20
_VOLUME = "enginefarm-bench-cp"


def _write(path: Path, size: int) -> None:
    """A file without holes that does not compress."""
    with path.open("wb") as file:
        for _ in range(size // _PIECE):
            file.write(os.urandom(_PIECE))
        file.write(os.urandom(size % _PIECE))


def _docker() -> str:
    """Debian's client, which is of the engine's version, where it is installed."""
    found = "/usr/bin/docker" if os.access("/usr/bin/docker", os.X_OK) else shutil.which("docker")
    if found is None:
        raise SystemExit("this needs the docker command")
    return found


def _settle() -> None:
    """What was written before must not be written to the disk on another measurement's time."""
    os.sync()


def _labels(kind: str, ttl: float) -> dict[str, str]:
    return docker_labels.labels(kind, project="bench", run="", ttl=ttl)


def _by_runner(engine: Engine, path: Path) -> float:
    """Seconds of our sending, with everything that belongs to it."""
    digest = "sha256:" + hashlib.sha256(str(path).encode()).hexdigest()
    started = time.perf_counter()
    docker_inputs.send(engine, lab.IMAGE, digest, {path.name: path}, _labels, Cancel(), lambda _: None)
    seconds = time.perf_counter() - started
    engine.api.remove_volume(docker_inputs.volume_name(digest))
    return seconds


def _by_cp(engine: Engine, path: Path) -> float:
    """Seconds of ``docker cp`` into a new volume, with making and removing the container that it goes through."""
    from docker.types import Mount

    started = time.perf_counter()
    host = engine.api.create_host_config(mounts=[Mount("/inputs", _VOLUME, type="volume", no_copy=True)], network_mode="none")
    made = str(engine.api.create_container(lab.IMAGE, ["never-started"], entrypoint=[], host_config=host)["Id"])
    subprocess.run([_docker(), "-H", engine.url, "cp", str(path), f"{made}:/inputs/"], check=True, stdout=subprocess.DEVNULL)
    engine.api.remove_container(made, force=True)
    seconds = time.perf_counter() - started
    engine.api.remove_volume(_VOLUME)
    return seconds


def _peak_bytes(call: Callable[[], object]) -> int:
    """Highest resident size of this process during ``call`` (Linux resets its own mark when told to)."""
    Path("/proc/self/clear_refs").write_text("5")
    call()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def _throughput(url: str, folder: Path, rounds: int) -> dict[str, Any]:
    big, small = folder / "big" / "weights.bin", folder / "small" / "weights.bin"
    for path, size in ((big, MODEL_BYTES), (small, SMALL_BYTES)):
        path.parent.mkdir()
        _write(path, size)
    engine = Engine(Address(url), "bench")
    ways = {"runner": lambda: _by_runner(engine, big), "docker cp": lambda: _by_cp(engine, big)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    try:
        peaks = {"20 MB": _peak_bytes(lambda: _by_runner(engine, small)), "2 GB": _peak_bytes(ways["runner"])}
        for number in range(rounds):
            for way in list(ways) if number % 2 else reversed(list(ways)):
                _settle()
                used = lab.own_cpu_seconds()
                seconds[way].append(ways[way]())
                cpu[way].append(lab.own_cpu_seconds() - used)
    finally:
        engine.close()
    rates = {way: MODEL_BYTES / statistics.median(values) for way, values in seconds.items()}
    return {
        "bytes": MODEL_BYTES,
        "rounds": rounds,
        "median_mb_s": {way: round(rate / 1e6, 1) for way, rate in rates.items()},
        "ratio": round(rates["runner"] / rates["docker cp"], 3),
        "ratio_of_pairs": lab.median([cp / ours for cp, ours in zip(seconds["docker cp"], seconds["runner"], strict=True)], 3),
        "client_cpu_s": {way: lab.median(values, 2) for way, values in cpu.items()},
        "peak_rss_mb": {size: round(peak / 1e6, 1) for size, peak in peaks.items()},
        "seconds": {way: lab.rounded(values, 3) for way, values in seconds.items()},
    }


class _Relay:
    """A socket in front of the engine's that counts the bytes each way."""

    def __init__(self, path: Path, behind: str) -> None:
        self.url = f"unix://{path}"
        self.sent = self.received = 0
        self._behind = behind.removeprefix("unix://")
        self._guard = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._behind)
                for source, target, to_engine in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._carry, args=(source, target, to_engine), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, to_engine: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                with self._guard:
                    self.sent += len(data) if to_engine else 0
                    self.received += 0 if to_engine else len(data)
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def _relay(folder: Path, behind: str) -> Iterator[_Relay]:
    relay = _Relay(folder / "relay", behind)
    try:
        yield relay
    finally:
        relay.close()


def _second_build(url: str, folder: Path) -> dict[str, Any]:
    """Bytes over the socket in two builds of one 2 GB model: a small graph with the large file beside it."""
    model = lab.small_model(folder / "model")
    (folder / "big" / "weights.bin").rename(model / "weights.bin")
    step = lab.build_step(model, "sha256:" + "cd" * 32)
    found = []
    with _relay(folder, url) as relay:
        runner = DockerRunner("bench", Address(relay.url))
        runner.engine()
        for number in range(2):
            before = relay.sent
            answer = runner.run(step, folder / f"build-{number}", lambda _: None, Cancel()).result
            if not answer["ok"]:
                raise SystemExit(f"the build failed: {answer['error']}")
            found.append(relay.sent - before)
        runner.close()
    return {"first_build_bytes": found[0], "second_build_bytes": found[1]}


def measure(rounds: int) -> dict[str, Any]:
    """Throughput, memory and what a second build sends; everything written is removed again."""
    with lab.work_folder(4 * MODEL_BYTES) as folder, lab.engine_with_image(folder) as engine:
        before = lab.load()
        throughput = _throughput(engine.url, folder, rounds)
        return {"load_before": before, "load_after": lab.load(), "throughput": throughput, "twice": _second_build(engine.url, folder)}
