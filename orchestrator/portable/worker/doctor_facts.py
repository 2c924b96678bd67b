"""What the doctor knows beyond the probe: libraries and where they come from, packages, drivers, container toolkit, space.

The details, each None or empty where the machine has no such thing::

    {"libraries": [{"name": "libnvinfer.so.8", "path": str, "version": "8.6.1" | null, "from": "LD_LIBRARY_PATH" | "ldconfig" | "python"}],
     "missing_folders": [folders of LD_LIBRARY_PATH that are not there],
     "packages": [{"name": "tensorrt_cu12", "version": "10.3.0", "folder": str}],
     "debs": {"libnvinfer8": "8.6.1.6-1+cuda12.0"},
     "driver": {"kernel": "535.104.05" | null, "user": "535.104.05" | null, "user_path": str | null, "devices": ["nvidia0", ...]},
     "torch": {"version": str, "cuda": "12.1" | null, "folder": str} | null,
     "container_toolkit": {"binaries": [str], "version": str | null, "mode": str | null,
                           "cdi": [{"path": str, "kind": str | null, "driver": "535.104.05" | null}]},
     "docker": {"binary": bool, "socket": bool, "usable": bool, "address": str | null, "runtimes": [str], "default_runtime": str | null},
     "jetson": {"csv": {"cuda.csv": {"listed": 120, "missing": 3, "first_missing": str | null}}} | null,
     "mig": ["gpu0/gi3", ...],
     "space": {"/": {"total": int, "free": int}, "/dev/shm": {...}, ...},
     "environment": {"LD_LIBRARY_PATH": str, ...}}
"""

import json
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from .doctor_machine import Machine

_LIBRARIES = re.compile(
    r"^lib(?:nvinfer(?:_plugin|_lean|_dispatch)?|nvonnxparser|tensorrt_rtx|cudnn|cudart|cublas|cublasLt|cuda|nvidia-ml|onnxruntime)\.so(?:\.[\d.]+)?$"
)
_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)$")
_CACHE = re.compile(r"^\s*(\S+) \(([^)]*)\) => (\S+)", re.MULTILINE)
_PACKAGES = re.compile(r"^((?:tensorrt|nvidia|onnxruntime|torch|cuda)[\w.]*?)-([^-]+)\.(?:dist|egg)-info$")
_DEBS = re.compile(
    r"^(?:libnvinfer|libnvonnxparsers|libcudnn|cuda-toolkit-\d|cuda-compat|nvidia-container-toolkit|nvidia-jetpack|nvidia-l4t-core)"
)
_ENVIRONMENT = (
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DISABLE_REQUIRE",
    "DOCKER_HOST",
    "CUDA_VERSION",
)
_BINARIES = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-cli", "nvidia-smi")
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/sbin", "/sbin")
_CSV = "/etc/nvidia-container-runtime/host-files-for-container.d"


def collect(machine: Machine) -> Dict[str, Any]:
    """The details of this module's docstring."""
    packages = _packages(machine)
    libraries, missing = _libraries(machine)
    return {
        "libraries": libraries,
        "missing_folders": missing,
        "packages": packages,
        "debs": _debs(machine),
        "driver": _driver(machine, libraries),
        "torch": _torch(machine),
        "container_toolkit": _toolkit(machine),
        "docker": _docker(machine),
        "jetson": _jetson(machine),
        "mig": _mig(machine),
        "space": _space(machine),
        "environment": {name: machine.environment[name] for name in _ENVIRONMENT if name in machine.environment},
    }


def _libraries(machine: Machine) -> Tuple[List[Dict[str, Any]], List[str]]:
    """Libraries in the order in which the loader would find them, then those of Python packages."""
    found = []  # type: List[Dict[str, Any]]
    missing = []  # type: List[str]
    for folder in machine.environment.get("LD_LIBRARY_PATH", "").split(":"):
        if not folder:
            continue
        if not machine.exists(folder):
            missing.append(folder)
        found += _in_folder(machine, folder, "LD_LIBRARY_PATH")
    cache = machine.run("ldconfig", "-p") or machine.run("/sbin/ldconfig", "-p")
    for name, flags, path in _CACHE.findall(cache):
        if _LIBRARIES.match(name) and "64" in flags:  # x86-64 or AArch64: 32-bit libraries lie beside them
            found.append(_library(machine, name, path, "ldconfig"))
    for site in machine.python_path:
        for folder in _package_folders(machine, site):
            found += _in_folder(machine, folder, "python")
    return found, missing


def _package_folders(machine: Machine, site: str) -> List[str]:
    nvidia = ["{}/nvidia/{}/lib".format(site, name) for name in machine.names(site + "/nvidia")]
    own = ["{}/{}".format(site, name) for name in machine.names(site) if re.match(r"^tensorrt(_\w+)?_libs$|^tensorrt_rtx$", name)]
    return nvidia + own + [site + "/onnxruntime/capi"]


def _in_folder(machine: Machine, folder: str, source: str) -> List[Dict[str, Any]]:
    names = [name for name in machine.names(folder) if _LIBRARIES.match(name)]
    # of libx.so, libx.so.8 and libx.so.8.6.1 only the one that programs ask for: libx.so.8
    wanted = [name for name in names if re.search(r"\.so\.\d+$", name) or not _others(name, names)]
    return [_library(machine, name, folder.rstrip("/") + "/" + name, source) for name in wanted]


def _others(name: str, names: List[str]) -> List[str]:
    return [other for other in names if other.startswith(name + ".") or name.startswith(other + ".")]


def _library(machine: Machine, name: str, path: str, source: str) -> Dict[str, Any]:
    real = machine.real(path)
    version = _VERSION.search(real)
    return {"name": name, "path": path, "version": version.group(1) if version else None, "from": source}


def _packages(machine: Machine) -> List[Dict[str, Any]]:
    found = []
    for site in machine.python_path:
        for entry in machine.names(site):
            match = _PACKAGES.match(entry)
            if match:
                found.append({"name": match.group(1), "version": match.group(2), "folder": site})
    return found


def _debs(machine: Machine) -> Dict[str, str]:
    found = {}
    for block in machine.read("/var/lib/dpkg/status").split("\n\n"):
        name = re.search(r"^Package: (\S+)", block, re.MULTILINE)
        version = re.search(r"^Version: (\S+)", block, re.MULTILINE)
        if name and version and _DEBS.match(name.group(1)) and re.search(r"^Status: .* installed$", block, re.MULTILINE):
            found[name.group(1)] = version.group(1)
    return found


def _driver(machine: Machine, libraries: List[Dict[str, Any]]) -> Dict[str, Any]:
    kernel = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", machine.read("/proc/driver/nvidia/version"))
    user = [library for library in libraries if library["name"] == "libcuda.so.1"]
    return {
        "kernel": kernel.group(1) if kernel else None,
        "user": user[0]["version"] if user else None,
        "user_path": user[0]["path"] if user else None,
        "devices": [name for name in machine.names("/dev") if name.startswith("nvidia")],
    }


def _torch(machine: Machine) -> Optional[Dict[str, Any]]:
    """PyTorch's build, read from its version file: importing it takes seconds and memory."""
    for site in machine.python_path:
        text = machine.read(site + "/torch/version.py")
        version = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
        if version:
            cuda = re.search(r"^cuda(?:: [^=]+)? = ['\"]([\d.]+)", text, re.MULTILINE)
            return {"version": version.group(1), "cuda": cuda.group(1) if cuda else None, "folder": site}
    return None


def _toolkit(machine: Machine) -> Dict[str, Any]:
    mode = re.search(r'^\s*mode\s*=\s*"(\w+)"', machine.read("/etc/nvidia-container-runtime/config.toml"), re.MULTILINE)
    specs = []
    for folder in ("/etc/cdi", "/var/run/cdi"):
        for name in machine.names(folder):
            if name.endswith((".yaml", ".json")):
                text = machine.read(folder + "/" + name)
                kind = re.search(r"kind['\"]?: *['\"]?([\w./-]+)", text)
                driver = re.search(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)", text)
                spec = {"path": folder + "/" + name, "kind": kind.group(1) if kind else None}
                specs.append(dict(spec, driver=driver.group(1) if driver else None))
    return {
        "binaries": [name for name in _BINARIES if _program(machine, name)],
        "version": _debs(machine).get("nvidia-container-toolkit"),
        "mode": mode.group(1) if mode else None,
        "cdi": specs,
    }


def _program(machine: Machine, name: str) -> bool:
    return any(machine.exists(folder + "/" + name) for folder in _FOLDERS)


def _docker(machine: Machine) -> Dict[str, Any]:
    socket = "/var/run/docker.sock"
    try:
        daemon = json.loads(machine.read("/etc/docker/daemon.json") or "{}")
    except ValueError:
        daemon = {}
    daemon = daemon if isinstance(daemon, dict) else {}
    runtimes = daemon.get("runtimes")
    return {
        "binary": _program(machine, "docker"),
        "socket": machine.exists(socket),
        "usable": machine.usable(socket),
        "address": machine.environment.get("DOCKER_HOST"),
        "runtimes": sorted(runtimes) if isinstance(runtimes, dict) else [],
        "default_runtime": str(daemon["default-runtime"]) if "default-runtime" in daemon else None,
    }


def _jetson(machine: Machine) -> Optional[Dict[str, Any]]:
    """What the nvidia runtime would mount into containers on a Jetson (CSV mode), and how much of it is not there."""
    if not machine.exists("/etc/nv_tegra_release"):
        return None
    files = {}
    for name in machine.names(_CSV):
        listed = re.findall(r"^\s*(?:lib|sym|dir|dev)\s*,\s*(\S+)", machine.read(_CSV + "/" + name), re.MULTILINE)
        gone = [path for path in listed if not os.path.lexists(machine.at(path))]
        files[name] = {"listed": len(listed), "missing": len(gone), "first_missing": gone[0] if gone else None}
    return {"csv": files}


def _mig(machine: Machine) -> List[str]:
    base = "/proc/driver/nvidia/capabilities"
    gpus = [name for name in machine.names(base) if name.startswith("gpu")]
    return ["{}/{}".format(gpu, name) for gpu in gpus for name in machine.names("{}/{}/mig".format(base, gpu)) if name.startswith("gi")]


def _space(machine: Machine) -> Dict[str, Any]:
    temporary = machine.environment.get("TMPDIR") or "/tmp"  # noqa: S108  (looked at, nothing is written)
    found = {}
    for path in ("/", temporary, "/var/lib/docker", "/dev/shm"):  # noqa: S108
        space = machine.space(path) if machine.exists(path) else None
        if space is not None:
            found[path] = {"total": space[0], "free": space[1]}
    return found
