"""What a Docker runner says of its host: the engine's own description, what a probe found, and what the configuration declares."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import EnginefarmError
from orchestrator.portable.worker.protocol import HOST_SCHEMA
from orchestrator.runners.base import Host
from orchestrator.runners.docker_engine import Engine
from orchestrator.runners.docker_gpu import GpuAccess

IN_IMAGE = "comes with the image"


@dataclass(frozen=True)
class DeclaredGpu:
    """A GPU that the configuration names."""

    name: str
    compute_capability: str
    memory_bytes: int | None = None
    uuid: str | None = None


@dataclass(frozen=True)
class Overrides:
    """What the configuration says about a host; it wins over every probe, and is marked in the description as declared."""

    gpus: tuple[DeclaredGpu, ...] | None = None
    driver: str | None = None
    cuda: str | None = None
    jetson: Mapping[str, str | None] | None = None


def base_host(engine: Engine, access: GpuAccess) -> dict[str, Any]:
    """The host as the engine describes it: no GPU, no backend. ``engine`` holds what is the engine's alone."""
    info, version = engine.info, engine.version
    return {
        "schema": HOST_SCHEMA,
        "platform": engine.platform,
        "os": info.get("OperatingSystem") or "unknown",
        "kernel": info.get("KernelVersion") or "",
        "libc": None,
        "python": None,
        "cpu": {"model": str(info.get("Architecture") or "unknown"), "count": int(info.get("NCPU") or 1)},
        "memory_bytes": info.get("MemTotal") or None,
        "gpus": [],
        "mig": [],
        "driver": None,
        "jetson": None,
        "container": True,
        "backends": {name: {"error": IN_IMAGE} for name in ("tensorrt", "tensorrt-rtx", "onnxruntime")},
        "engine": {
            "id": engine.id,
            "name": info.get("Name"),
            "address": str(engine.address),
            "version": version.get("Version"),
            "api": engine.api.api_version,
            "storage": info.get("Driver"),
            "runtimes": sorted(info.get("Runtimes") or {}),
            "cdi": [device.get("ID") for device in info.get("DiscoveredDevices") or []],
            "gpu_access": access.mode,
            "free_disk_bytes": free_disk(engine),
        },
    }


def free_disk(engine: Engine) -> int | None:
    """Free bytes where a local engine keeps its images; None for an engine elsewhere."""
    root = engine.info.get("DockerRootDir")
    if not engine.is_local or not root:
        return None
    try:
        return shutil.disk_usage(Path(root)).free
    except OSError:
        return None


def with_probe(host: dict[str, Any], probed: Host, *, in_image: bool) -> dict[str, Any]:
    """Add what a probe saw. ``in_image``: it ran in a container, so its Python and backends are those of that image."""
    names = ["gpus", "mig", "driver", "jetson", "cpu"] + (["libc", "python", "backends"] if in_image else [])
    merged = host | {name: probed[name] for name in names}
    count = int(host["cpu"]["count"])
    return merged | {"cpu": {"model": probed["cpu"]["model"], "count": count}}


def with_overrides(host: dict[str, Any], overrides: Overrides, runner: str) -> dict[str, Any]:
    """Put what is declared over what was found; ``declared`` lists the fields."""
    declared: list[str] = []
    merged = dict(host)
    if overrides.gpus is not None:
        merged["gpus"] = [_gpu(gpu, index, runner) for index, gpu in enumerate(overrides.gpus)]
        declared.append("gpus")
        merged.pop("gpu_problem", None)
    if overrides.driver is not None or overrides.cuda is not None:
        found = merged["driver"] or {"version": None, "cuda": None}
        merged["driver"] = {"version": overrides.driver or found["version"], "cuda": overrides.cuda or found["cuda"]}
        declared.append("driver")
    if overrides.jetson is not None:
        merged["jetson"] = {name: overrides.jetson.get(name) for name in ("l4t", "jetpack", "model")}
        declared.append("jetson")
    return merged | ({"declared": declared} if declared else {})


def _gpu(gpu: DeclaredGpu, index: int, runner: str) -> dict[str, Any]:
    """``declared_uuid`` says that the engine does not know the uuid: it names the lease and nothing else."""
    own = {"uuid": gpu.uuid} if gpu.uuid else {"uuid": f"declared-{runner}-{index}", "declared_uuid": True}
    found = {"index": index, "name": gpu.name, "compute_capability": gpu.compute_capability, "memory_bytes": gpu.memory_bytes}
    return {**found, "sm_count": None, **own}


def gpu_problem(error: EnginefarmError) -> dict[str, Any]:
    """Why no GPU could be found, for the description."""
    return {"gpu_problem": error.as_dict()}
