"""NVML through ctypes: driver version, GPUs and MIG slices without touching them (no context, no CUDA start-up).

Jetson devices before JetPack 6 have no NVML; cuda.py answers there. Functions, structures and codes are those of nvml.h (NVML API
Reference Guide); drivers before 450 have none of the MIG functions.
"""

import ctypes
from typing import Any, Dict, List, Optional, Tuple

_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
_MIG_ENABLED = 1  # NVML_DEVICE_MIG_ENABLE


class NvmlError(Exception):
    """NVML is not there or refused a call; the text says which."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Attributes(ctypes.Structure):
    """nvmlDeviceAttributes_t: after the multiprocessors seven counts of engines and slices."""

    _fields_ = [("multiprocessors", ctypes.c_uint), ("others", ctypes.c_uint * 7), ("memory_mb", ctypes.c_ulonglong)]


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
        """Everything that CUDA could run on, in PCI order, as the host description lists it.

        A GPU in MIG mode is not among them: its slices are, each with the GPU's ``index`` and a ``mig`` that says whose part it is.
        """
        found = []  # type: List[Dict[str, Any]]
        for index, handle in enumerate(self._handles()):
            gpu = self._device(index, handle)
            found += self._slices(gpu, handle) if self._mig_mode(handle)[0] else [gpu]
        return found

    def mig(self) -> List[Dict[str, Any]]:
        """The GPUs that can be divided (MIG), as the host description lists them; none with a driver that does not know of it."""
        found = []
        for index, handle in enumerate(self._handles()):
            enabled, pending = self._mig_mode(handle)
            if enabled is None:
                continue
            gpu = self._device(index, handle)
            slices = len(self._mig_handles(handle)) if enabled else 0
            found.append(
                {"index": index, "name": gpu["name"], "uuid": gpu["uuid"], "enabled": enabled, "pending": pending, "devices": slices}
            )
        return found

    def _handles(self) -> List[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
            found.append(device)
        return found

    def _device(self, index: int, device: ctypes.c_void_p) -> Dict[str, Any]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
        return {
            "index": index,
            "name": self._text("nvmlDeviceGetName", device),
            "uuid": self._text("nvmlDeviceGetUUID", device),
            "compute_capability": "{}.{}".format(major.value, minor.value),
            "memory_bytes": self._memory(device),
            "sm_count": self._sm_count(device),
        }

    def _memory(self, device: ctypes.c_void_p) -> int:
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
        return int(memory.total)

    # --- MIG ---

    def _mig_mode(self, device: ctypes.c_void_p) -> Tuple[Optional[bool], Optional[bool]]:
        """Whether the GPU is divided now, and after its next reset; None for one that cannot be."""
        now, then = ctypes.c_uint(), ctypes.c_uint()
        try:
            self._call("nvmlDeviceGetMigMode", device, ctypes.byref(now), ctypes.byref(then))
        except NvmlError:
            return None, None
        return now.value == _MIG_ENABLED, then.value == _MIG_ENABLED

    def _mig_handles(self, device: ctypes.c_void_p) -> List[ctypes.c_void_p]:
        """The slices that this process may see: their numbers have gaps, and a container is shown its own ones alone."""
        count = ctypes.c_uint()
        try:
            self._call("nvmlDeviceGetMaxMigDeviceCount", device, ctypes.byref(count))
        except NvmlError:
            return []
        found = []
        for number in range(count.value):
            handle = ctypes.c_void_p()
            try:
                self._call("nvmlDeviceGetMigDeviceHandleByIndex", device, ctypes.c_uint(number), ctypes.byref(handle))
            except NvmlError:
                continue
            found.append(handle)
        return found

    def _slices(self, gpu: Dict[str, Any], device: ctypes.c_void_p) -> List[Dict[str, Any]]:
        found = []
        for handle in self._mig_handles(device):
            part = {
                "gpu": gpu["uuid"],
                "gpu_instance": self._number("nvmlDeviceGetGpuInstanceId", handle),
                "compute_instance": self._number("nvmlDeviceGetComputeInstanceId", handle),
            }
            own = {"name": self._text("nvmlDeviceGetName", handle), "uuid": self._text("nvmlDeviceGetUUID", handle)}
            size = {"memory_bytes": self._memory(handle), "sm_count": self._sm_count(handle)}
            found.append(dict(gpu, mig=part, **own, **size))
        return found

    def _number(self, name: str, device: ctypes.c_void_p) -> Optional[int]:
        number = ctypes.c_uint()
        try:
            self._call(name, device, ctypes.byref(number))
        except NvmlError:
            return None
        return number.value

    def _text(self, name: str, device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        self._call(name, device, text, ctypes.c_uint(96))
        return text.value.decode("utf-8", "replace")

    def _sm_count(self, device: ctypes.c_void_p) -> Optional[int]:
        attributes = _Attributes()
        try:
            self._call("nvmlDeviceGetAttributes_v2", device, ctypes.byref(attributes))
        except NvmlError:  # NVML answers for slices only
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
