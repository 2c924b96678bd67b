"""What a step costs over the same done by hand: our runner against the Docker SDK's calls, in turns, on one engine.

By hand means: create a container with the same limits, put the same files as one archive, start, wait, get the step's folder, unpack it,
remove the container with its volume. The runner adds the labels, the attached stream, events, checks of every file, and that the
model is kept on the engine for the next step.
"""

from __future__ import annotations

import io
import itertools
import json
import shutil
import statistics
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import farm_lab as lab

from orchestrator.runners.base import Cancel, Step
from orchestrator.runners.bundle import worker_pyz
from orchestrator.runners.docker import DEFAULT_UID, DockerRunner
from orchestrator.runners.docker_engine import Address

MOST_ADDED_MS, MOST_RATIO = 60.0, 1.15
BASE = "/enginefarm"


def _archive(step: Step) -> bytes:
    """The step's files as one tar archive: inputs and worker in ``in``, links to them in the worker's folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(name: str, data: bytes | None, kind: bytes, mode: int, link: str = "") -> None:
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.linkname, info.size = kind, mode, link, len(data or b"")
            tar.addfile(info, io.BytesIO(data or b""))

        request = {**step.request, "schema": "enginefarm.request/1", "nonce": "0" * 32, "limits": {"memory_bytes": step.memory_bytes}}
        add("in", None, tarfile.DIRTYPE, 0o755)
        add("in/worker.pyz", worker_pyz().read_bytes(), tarfile.REGTYPE, 0o444)
        add("in/request.json", json.dumps(request).encode(), tarfile.REGTYPE, 0o444)
        for parent in sorted({parent.as_posix() for name in step.inputs for parent in Path(name).parents} - {"."}):
            add(f"in/{parent}", None, tarfile.DIRTYPE, 0o755)
        for name, path in step.inputs.items():
            add(f"in/{name}", path.read_bytes(), tarfile.REGTYPE, 0o444)
        add("step", None, tarfile.DIRTYPE, 0o1777)
        for top in sorted({"request.json", *(name.split("/")[0] for name in step.inputs)}):
            add(f"step/{top}", None, tarfile.SYMTYPE, 0o777, f"../in/{top}")
    return buffer.getvalue()


def by_hand(api: Any, step: Step, folder: Path) -> None:
    """The step with the SDK's calls alone."""
    from docker.types import LogConfig, Mount

    host = api.create_host_config(
        mounts=[Mount(BASE, None, type="volume", no_copy=True)],
        network_mode="none",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        init=True,
        tmpfs={"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={step.memory_bytes}"},
        pids_limit=1024,
        mem_limit=step.memory_bytes,
        memswap_limit=step.memory_bytes,
        shm_size=256 << 20,
        log_config=LogConfig(type="none"),
    )
    made = api.create_container(
        step.image,
        [f"{BASE}/in/worker.pyz", "request.json"],
        entrypoint=["python3"],
        user=f"{DEFAULT_UID}:{DEFAULT_UID}",
        working_dir=f"{BASE}/step",
        environment={"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"},
        host_config=host,
        network_disabled=True,
    )
    api.put_archive(made["Id"], BASE, _archive(step))
    api.start(made["Id"])
    code = api.wait(made["Id"])["StatusCode"]
    pieces, _ = api.get_archive(made["Id"], f"{BASE}/step")
    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        tar.extractall(folder, filter="fully_trusted")
    api.remove_container(made["Id"], force=True, v=True)
    if code or not json.loads((folder / "step" / "result.json").read_text())["ok"]:
        raise SystemExit(f"the step by hand failed with {code}")


def by_runner(runner: DockerRunner, step: Step, folder: Path) -> None:
    """The step as the farm does it."""
    answer = runner.run(step, folder, lambda _: None, Cancel()).result
    if not answer["ok"]:
        raise SystemExit(f"the step failed: {answer['error']}")


def compare(name: str, engine: Any, ours: Callable[[Path], None], raw: Callable[[Path], None], folder: Path, rounds: int) -> dict[str, Any]:
    """Both ways in turns, the first of a pair changing each time; the first pair warms up and does not count."""
    seconds: dict[str, list[float]] = {"runner": [], "by hand": []}
    client_cpu: dict[str, list[float]] = {"runner": [], "by hand": []}
    daemon_cpu: dict[str, list[float]] = {"runner": [], "by hand": []}
    for number in range(rounds + 1):
        ways = [("runner", ours), ("by hand", raw)]
        for way, call in ways if number % 2 else reversed(ways):
            place = folder / "step"
            own, theirs, started = lab.own_cpu_seconds(), lab.daemon_cpu_seconds(engine), time.perf_counter()
            call(place)
            if number:
                seconds[way].append(time.perf_counter() - started)
                client_cpu[way].append(lab.own_cpu_seconds() - own)
                daemon_cpu[way].append(lab.daemon_cpu_seconds(engine) - theirs)
            shutil.rmtree(place)
    pairs = [ours - raw for ours, raw in zip(seconds["runner"], seconds["by hand"], strict=True)]
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {
        "step": name,
        "rounds": rounds,
        "median_ms": {way: round(value * 1e3, 1) for way, value in medians.items()},
        "added_ms": round(statistics.median(pairs) * 1e3, 1),
        "added_quartiles_ms": [round(value * 1e3, 1) for value in statistics.quantiles(pairs, n=4)],
        # of a machine that others use the quickest tenth says most about the thing itself
        "tenth_ms": {way: round(statistics.quantiles(values, n=10)[0] * 1e3, 1) for way, values in seconds.items()},
        "ratio": round(medians["runner"] / medians["by hand"], 3),
        "client_cpu_ms": {way: round(statistics.median(values) * 1e3, 1) for way, values in client_cpu.items()},
        "daemon_cpu_ms": {way: round(statistics.mean(values) * 1e3, 1) for way, values in daemon_cpu.items()},
        "seconds": {way: lab.rounded(values) for way, values in seconds.items()},
    }


def measure(rounds: int) -> dict[str, Any]:
    """A build of a model that is on the engine already, as for every target but the first; a validation; the first build of a model."""
    with lab.work_folder(2 << 30) as folder, lab.engine_with_image(folder) as engine:
        runner = DockerRunner("bench", Address(engine.url))
        client = engine.client()
        build = lab.build_step(lab.small_model(folder / "model"), "sha256:" + "ab" * 32)
        runner.run(build, folder / "built", lambda _: None, Cancel())
        validate = lab.validate_step(folder / "built" / "engine.onnx", folder)
        before = lab.load()
        cases = []
        digests = (f"sha256:{number:064x}" for number in itertools.count())
        for name, make in (
            ("build", lambda: build),
            ("validate", lambda: validate),
            ("first build of a model", lambda: replace(build, shared_inputs={"model": next(digests)})),
        ):
            ours = lambda place, make=make: by_runner(runner, make(), place)  # noqa: E731
            raw = lambda place, make=make: by_hand(client.api, make(), place)  # noqa: E731
            cases.append(compare(name, engine, ours, raw, folder, rounds))
        runner.close()
        client.close()
        return {"load_before": before, "load_after": lab.load(), "cases": cases}
