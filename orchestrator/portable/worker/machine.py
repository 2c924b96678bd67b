"""What the operating system says about the machine. Every function answers on any system, None where nothing is known."""

import os
import platform
import re
import sys
from typing import Any, Dict, Optional

_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def platform_name() -> str:
    """``linux/amd64``, ``linux/arm64``, ``darwin/arm64`` and the like."""
    name = platform.machine().lower()
    return "{}/{}".format(platform.system().lower(), _MACHINES.get(name, name))


def os_name() -> str:
    """The distribution's own name with its version."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', read("/etc/os-release"), re.MULTILINE)
    if found:
        return found.group(1)
    return "macOS {}".format(platform.mac_ver()[0]) if sys.platform == "darwin" else platform.system()


def kernel() -> str:
    return platform.release()


def python_version() -> str:
    return platform.python_version()


def libc() -> Optional[str]:
    """``glibc 2.36``; None for other C libraries."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        return None


def cpu_model() -> str:
    """The CPU's name where the kernel gives one (arm64 kernels do not), else the instruction set."""
    found = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1).strip() if found else (platform.processor() or platform.machine())


def cpu_count() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> Optional[int]:
    """The machine's memory, or the control group's limit when that is smaller."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = read(path).strip()
        if limit.isdigit():
            total = min(total, int(limit))
    return total


def in_container() -> bool:
    """Whether the usual marks of a container are there."""
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    return bool(re.search(r"docker|kubepods|containerd|lxc|libpod", read("/proc/1/cgroup")))


def kernel_module_version() -> Optional[str]:
    """Version of the loaded NVIDIA kernel module."""
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", read("/proc/driver/nvidia/version"))
    return found.group(1) if found else None


def jetson() -> Optional[Dict[str, Any]]:
    """L4T release, JetPack (as installed from its Debian package) and model of a Jetson, None elsewhere.

    The release file is not there in a container, the device tree is.
    """
    model = read("/proc/device-tree/model").strip("\0\n ")
    l4t = l4t_release(read("/etc/nv_tegra_release"))
    if l4t is None and not re.search(r"jetson|tegra", model, re.IGNORECASE):
        return None
    return {"l4t": l4t, "jetpack": jetpack_package(read("/var/lib/dpkg/status")), "model": model or None}


def l4t_release(text: str) -> Optional[str]:
    """``32.7.1`` out of ``# R32 (release), REVISION: 7.1, GCID: ...``."""
    found = re.search(r"R(\d+)\s*\(release\)\s*,\s*REVISION:\s*(\d+(?:\.\d+)*)", text)
    return "{}.{}".format(found.group(1), found.group(2)) if found else None


def jetpack_package(status: str) -> Optional[str]:
    """``4.6.1`` out of dpkg's status file, when the package nvidia-jetpack is installed."""
    found = re.search(r"^Package: nvidia-jetpack\n(?:.+\n)*?Version: (\d+(?:\.\d+)*)", status, re.MULTILINE)
    return found.group(1) if found else None


def read(path: str) -> str:
    """The file's text, empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
