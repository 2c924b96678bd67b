"""The probe step: what this host is and which backends it has. Works with nothing present; creates no GPU context.

The host description::

    {"schema": "enginefarm.host/1", "platform": "linux/amd64", "os": "Ubuntu 22.04.3 LTS", "kernel": "5.15.0",
     "libc": "glibc 2.36" | null, "python": "3.11.7", "python_executable": "/usr/bin/python3", "cpu": {"model": str, "count": int},
     "memory_bytes": int | null,
     "gpus": [{"index": 0, "name": "NVIDIA H200", "uuid": "GPU-..." | null, "compute_capability": "9.0",
               "memory_bytes": int, "sm_count": int | null,
               "mig": {"gpu": "GPU-...", "gpu_instance": 1 | null, "compute_instance": 0 | null}}],
     "mig": [{"index": 0, "name": "NVIDIA H200", "uuid": "GPU-...", "enabled": true, "pending": true, "devices": 2}],
     "driver": {"version": "580.159.04" | null, "cuda": "13.0" | null} | null,
     "jetson": {"l4t": "32.7.1" | null, "jetpack": "4.6.1" | null, "model": str | null} | null,
     "container": bool,
     "backends": {"tensorrt": {"version": "8.6.1.6", "cuda": "12.0"} | {"error": str},
                  "tensorrt-rtx": {"version": str, "cuda": "13", "compute_capabilities": ["7.5", ...]} | {"error": str},
                  "onnxruntime": {"version": str, "cuda": "13.0", "providers": ["cpu", "cuda", ...]} | {"error": str}}}

``cpu.count`` is what this process may use; ``memory_bytes`` is the smaller of the machine's memory and the
container's limit; ``gpus`` are those that CUDA_VISIBLE_DEVICES leaves visible; ``cuda`` of a backend is what it was built with, as
exactly as its package says it, and missing where no package does.

In the place of a GPU that is divided (MIG), ``gpus`` lists its slices: only these have ``mig``; their ``index`` is the GPU's, their
``uuid`` starts with ``MIG-``. The host's ``mig`` lists the GPUs that can be divided: whether they are now and after the next reset
(``pending``), and into how many slices that can be seen here.
"""

import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from ..backends.cuda import Cuda
from ..backends.nvml import Nvml, NvmlError
from . import machine
from .backend_probe import probe_backends
from .errors import StepError
from .events import Events
from .protocol import HOST_SCHEMA


def probe(request: Dict[str, Any], folder: str, events: Events) -> Dict[str, Any]:
    """Answer the probe step: ``{"host": description}``."""
    del request, folder, events
    return {"host": describe_host()}


def describe_host() -> Dict[str, Any]:
    """The host description of this module's docstring."""
    gpus, driver = gpus_and_driver()
    return {
        "schema": HOST_SCHEMA,
        "platform": machine.platform_name(),
        "os": machine.os_name(),
        "kernel": machine.kernel(),
        "libc": machine.libc(),
        "python": machine.python_version(),
        "python_executable": sys.executable,
        "cpu": {"model": machine.cpu_model(), "count": machine.cpu_count()},
        "memory_bytes": machine.memory_bytes(),
        "gpus": gpus,
        "mig": divisible(),
        "driver": driver,
        "jetson": machine.jetson(),
        "container": machine.in_container(),
        "backends": probe_backends(),
    }


def gpus_and_driver() -> Tuple[List[Dict[str, Any]], Optional[Dict[str, Any]]]:
    """GPUs and driver from NVML, else from the CUDA driver API, else from the kernel module's version file."""
    version = machine.kernel_module_version()
    try:
        with Nvml() as nvml:
            driver = {"version": nvml.driver_version(), "cuda": nvml.driver_cuda()}
            return visible(nvml.devices(), os.environ.get("CUDA_VISIBLE_DEVICES")), driver
    except NvmlError:
        pass
    try:
        cuda = Cuda()
        return cuda.devices(), {"version": version, "cuda": cuda.driver_cuda()}
    except StepError:
        return [], ({"version": version, "cuda": None} if version else None)


def divisible() -> List[Dict[str, Any]]:
    """The host's ``mig``: none where NVML is not there, or does not know of it."""
    try:
        with Nvml() as nvml:
            return nvml.mig()
    except NvmlError:
        return []


def visible(gpus: List[Dict[str, Any]], variable: Optional[str]) -> List[Dict[str, Any]]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` names, in its order: indexes or beginnings of UUIDs.

    As CUDA reads it: the list ends at the first name that is no GPU; of a divided GPU (MIG) its index stands for the first slice. Indexes
    count in PCI order, which the process runner asks CUDA for too (CUDA_DEVICE_ORDER).
    """
    if variable is None:
        return gpus
    chosen: List[Dict[str, Any]] = []
    for name in (part.strip() for part in variable.split(",")):
        found = [gpu for gpu in gpus if name and name == str(gpu["index"])][:1]
        found = found or [gpu for gpu in gpus if name and str(gpu["uuid"]).startswith(name)]
        if len(found) != 1 or found[0] in chosen:
            break
        chosen.append(found[0])
    return chosen
