"""NVML through ctypes: driver version and GPUs without touching them (no context, no CUDA start-up).

Jetson devices before JetPack 6 have no NVML; cuda.py answers there.
"""

import ctypes
from typing import Any, Dict, List, Optional

_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")


class NvmlError(Exception):
    """NVML is not there or refused a call; the text says which."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Attributes(ctypes.Structure):
    _fields_ = [("multiprocessors", ctypes.c_uint), ("others", ctypes.c_uint * 8), ("memory_mb", ctypes.c_ulonglong)]


class Nvml:
    """Use as a context manager; raises NvmlError when NVML is missing or does not start."""

    def __init__(self) -> None:
        self._library = _load()

    def __enter__(self) -> "Nvml":
        self._call("nvmlInit_v2")
        return self

    def __exit__(self, *_: Any) -> None:
        self._library.nvmlShutdown()

    def driver_version(self) -> str:
        """For example ``580.159.04``."""
        text = ctypes.create_string_buffer(96)
        self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(96))
        return text.value.decode("ascii", "replace")

    def driver_cuda(self) -> str:
        """The newest CUDA that the driver knows, as ``13.0``."""
        number = ctypes.c_int()
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
        return "{}.{}".format(number.value // 1000, number.value % 1000 // 10)

    def devices(self) -> List[Dict[str, Any]]:
        """All GPUs, in PCI order, as the host description lists them."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._device(index) for index in range(count.value)]

    def _device(self, index: int) -> Dict[str, Any]:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return {
            "index": index,
            "name": self._text("nvmlDeviceGetName", device),
            "uuid": self._text("nvmlDeviceGetUUID", device),
            "compute_capability": "{}.{}".format(major.value, minor.value),
            "memory_bytes": memory.total,
            "sm_count": self._sm_count(device),
        }

    def _text(self, name: str, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        self._call(name, device, text, ctypes.c_uint(96))
        return text.value.decode("utf-8", "replace")

    def _sm_count(self, device: ctypes.c_void_p) -> Optional[int]:
        attributes = _Attributes()
        try:
            self._call("nvmlDeviceGetAttributes_v2", device, ctypes.byref(attributes))
        except NvmlError:  # Ampere and newer only
            return None
        return attributes.multiprocessors or None

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise NvmlError("{} is not in this NVML".format(name))
        code = function(*arguments)
        if code:
            raise NvmlError("{} failed with code {}".format(name, code))


def _load() -> Any:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NvmlError("no NVML on this machine: {} is not found".format(_NAMES[0]))
