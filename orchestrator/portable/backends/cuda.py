"""The CUDA driver API through ctypes: devices, memory, copies. Needs only the driver's libcuda, no toolkit.

A device's primary context is used, which is the one that the CUDA runtime inside TensorRT uses too.
"""

import ctypes
from typing import Any, Dict, List, Optional

from ..worker.errors import StepError

_NAMES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")
_ATTRIBUTE = {"sm_count": 16, "major": 75, "minor": 76}  # CUdevice_attribute, cuda.h: fixed since CUDA 5
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class Cuda:
    """One process's use of the driver; StepError no-device when there is no driver or it does not start."""

    def __init__(self) -> None:
        self._library = _load()
        self._call("cuInit", ctypes.c_uint(0), kind="no-device")

    def driver_cuda(self) -> str:
        """The newest CUDA that the driver knows, as ``13.0``."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return "{}.{}".format(number.value // 1000, number.value % 1000 // 10)

    def devices(self) -> List[Dict[str, Any]]:
        """The visible GPUs as the host description lists them; creates no context."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count), kind="no-device")
        return [self._device(index) for index in range(count.value)]

    def use(self, capabilities: List[str]) -> Dict[str, Any]:
        """Make the first visible GPU with one of ``capabilities`` (any GPU when empty) this thread's device."""
        devices = self.devices()
        fitting = [device for device in devices if not capabilities or device["compute_capability"] in capabilities]
        if not fitting:
            raise StepError("no-device", _no_fit(devices, capabilities))
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._handle(fitting[0]["index"]))
        self._call("cuCtxSetCurrent", context)
        return fitting[0]

    def allocate(self, size: int) -> int:
        """Device memory of ``size`` bytes (at least one, so that every address is valid); gives its address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def to_device(self, address: int, data: bytes) -> None:
        if data:
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def from_device(self, address: int, size: int) -> bytearray:
        data = bytearray(size)
        if size:
            target = (ctypes.c_char * size).from_buffer(data)
            self._call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def _handle(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        return device

    def _device(self, index: int) -> Dict[str, Any]:
        device = self._handle(index)
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, ctypes.c_int(256), device)
        memory = ctypes.c_size_t()
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        numbers = {key: self._attribute(code, device) for key, code in _ATTRIBUTE.items()}
        return {
            "index": index,
            "name": name.value.decode("utf-8", "replace"),
            "uuid": self._uuid(device),
            "compute_capability": "{}.{}".format(numbers["major"], numbers["minor"]),
            "memory_bytes": memory.value,
            "sm_count": numbers["sm_count"],
        }

    def _attribute(self, code: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(code), device)
        return value.value

    def _uuid(self, device: ctypes.c_int) -> Optional[str]:
        if not hasattr(self._library, "cuDeviceGetUuid"):  # CUDA 9.2 and newer
            return None
        raw = (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGetUuid", ctypes.byref(raw), device)
        text = bytes(raw).hex()
        return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def _call(self, name: str, *arguments: Any, kind: str = "run-failed") -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            kind = "out-of-memory" if code == _OUT_OF_MEMORY else kind
            raise StepError(kind, "{} failed: {}".format(name, self._error_name(code)), {"cuda_error": code})

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if hasattr(self._library, "cuGetErrorName"):
            self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        return "{} ({})".format((text.value or b"unknown error").decode("ascii", "replace"), code)


def _load() -> Any:
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise StepError("no-device", "no NVIDIA driver on this machine: {} is not found".format(_NAMES[0]))


def _no_fit(devices: List[Dict[str, Any]], capabilities: List[str]) -> str:
    wanted = " or ".join(capabilities)
    if not devices:
        return "the driver shows no GPU" + (" (compute capability {} is needed)".format(wanted) if wanted else "")
    found = ", ".join("{name} ({compute_capability})".format(**device) for device in devices)
    return "no GPU with compute capability {}; found {}".format(wanted, found)
