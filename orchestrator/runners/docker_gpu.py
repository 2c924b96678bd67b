"""How a container gets a GPU: device request (``--gpus``), CDI, the runtime ``nvidia``, or explicit devices and the driver's folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.portable.facts.drivers import driver_check, is_data_center
from orchestrator.portable.facts.images import image_facts

Mode = Literal["auto", "request", "cdi", "runtime", "devices", "none"]
DRIVER_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
COMPAT_FOLDER = "/usr/local/cuda/compat"  # where NVIDIA's images keep the user-mode driver of forward compatibility
_VIDEO = "44"  # group video of Debian and Ubuntu, so of L4T: its device nodes belong to it
_NUMBERED = re.compile(r"^/dev/nvidia(\d+)$")


@dataclass(frozen=True)
class GpuAccess:
    """``devices`` and ``driver_folder`` (with its libraries in ``lib64``) belong to the mode ``devices``."""

    mode: Mode = "auto"
    devices: tuple[str, ...] = ()
    driver_folder: str | None = None


@dataclass
class GpuOptions:
    """What a container gets for its GPU: host configuration, environment, folders of libraries that go first."""

    host_config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)


def settle(access: GpuAccess, info: Mapping[str, Any]) -> GpuAccess:
    """``auto`` becomes what the engine's own description says it has: the runtime ``nvidia`` or CDI devices, else none.

    A device request works wherever the toolkit registered its runtime, except on a Jetson (arm64), whose runtime works alone.
    """
    if access.mode != "auto":
        return access
    if "nvidia" in (info.get("Runtimes") or {}):
        return GpuAccess("runtime" if info.get("Architecture") == "aarch64" else "request")
    cdi = [device.get("ID", "") for device in info.get("DiscoveredDevices") or []]
    return GpuAccess("cdi" if any(name.startswith("nvidia.com/gpu") for name in cdi) else "none")


def options(access: GpuAccess, gpus: Sequence[Mapping[str, Any]] | None, *, jetson: bool) -> GpuOptions:
    """Options for exactly these GPUs; None: all of them (probe); empty: none, also where ``nvidia`` is the engine's default runtime."""
    if gpus is not None and not gpus:
        return GpuOptions(environment={"NVIDIA_VISIBLE_DEVICES": "void"})
    names = None if gpus is None else [str(gpu["uuid"]) for gpu in gpus if gpu.get("uuid") and not gpu.get("declared_uuid")]
    known = bool(names) and len(names or ()) == len(gpus or ())
    visible = ",".join(names or ()) if known else "all"
    found = GpuOptions(environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    if access.mode == "request":
        wanted = {"device_ids": names} if known else {"count": -1}
        found.host_config["device_requests"] = [_request(capabilities=[["gpu", "compute", "utility"]], **wanted)]
    elif access.mode == "cdi":
        devices = [f"nvidia.com/gpu={name}" for name in names or ()] if known else ["nvidia.com/gpu=all"]
        found.host_config["device_requests"] = [_request(driver="cdi", device_ids=devices)]
    elif access.mode == "runtime":
        found.host_config["runtime"] = "nvidia"
        found.environment |= {"NVIDIA_VISIBLE_DEVICES": visible, "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    elif access.mode == "devices":
        _devices(access, gpus, found)
        if known:  # a device node that is another GPU than the leased one must not be used
            found.environment["CUDA_VISIBLE_DEVICES"] = visible
    if jetson:
        # newer toolkits mount only the driver's libraries on L4T r32 unless asked (docs/facts/jetson.yaml)
        found.environment |= {"NVIDIA_REQUIRE_JETPACK": "csv-mounts=all", "NVIDIA_DRIVER_CAPABILITIES": "all"}
        found.host_config["group_add"] = [_VIDEO]
    return found


def _request(**values: Any) -> Any:
    from docker.types import DeviceRequest

    return DeviceRequest(**values)


def _devices(access: GpuAccess, gpus: Sequence[Mapping[str, Any]] | None, found: GpuOptions) -> None:
    """All nodes but those of other GPUs: the driver numbers its nodes as it lists its GPUs."""
    from docker.types import Mount

    nodes = access.devices or ("/dev/nvidia0", *DRIVER_DEVICES)
    numbered = sorted((node for node in nodes if _NUMBERED.match(node)), key=lambda node: int(node[len("/dev/nvidia") :]))
    chosen = set(numbered)
    # of a declared slice (MIG) nobody knows which GPU it is a part of: its uuid alone keeps the others out
    placed = gpus is not None and all("mig" in gpu or not str(gpu.get("uuid")).startswith("MIG-") for gpu in gpus)
    if gpus is not None and placed and len(numbered) > 1:
        chosen = {numbered[gpu["index"]] for gpu in gpus if gpu.get("index", len(numbered)) < len(numbered)}
    found.host_config["devices"] = [f"{node}:{node}:rw" for node in nodes if node not in numbered or node in chosen]
    if access.driver_folder:
        found.host_config["mounts"] = [Mount(access.driver_folder, access.driver_folder, type="bind", read_only=True)]
        found.libraries.append(f"{access.driver_folder.rstrip('/')}/lib64")


def needs_compat(image: str, environment: Mapping[str, str], host: Mapping[str, Any], gpu: Mapping[str, Any]) -> bool:
    """Whether the image's CUDA runs on the host's driver only through the image's compat package.

    NVIDIA's entrypoint decides this itself; it is bypassed, so the runner puts COMPAT_FOLDER on the library path. ``environment`` is the
    image's.
    """
    driver = (host.get("driver") or {}).get("version")
    facts = image_facts(image) or {}
    cuda = ".".join(environment.get("CUDA_VERSION", "").split(".")[:3]) or facts.get("cuda")
    if not driver or not cuda or host.get("jetson"):
        return False
    data_center = is_data_center(str(gpu.get("name", "")))
    alone = driver_check(driver, cuda, data_center, None)
    helped = driver_check(driver, cuda, data_center, facts.get("driver_datacenter") or [])
    return alone.verdict == "no" and helped.verdict != "no"
