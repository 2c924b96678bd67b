"""The driver's library libcuda.so.1 as a double in Python: host memory in the place of a GPU's, one declared GPU.

Python imports this module at its start. What the worker's own code asks of the driver is answered here, and nothing else is changed.
"""

import ctypes
import os

_REAL = ctypes.CDLL
_MEMORY = {}
_NAMES = ("libcuda.so.1", "libcuda.so")
_ATTRIBUTES = {16: 1}  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


class DoubleLibcuda:
    """One GPU whose compute capability the image's variable DOUBLE_CAPABILITY names."""

    def cuInit(self, flags):
        return 0

    def cuDriverGetVersion(self, version):
        version._obj.value = 12020
        return 0

    def cuDeviceGetCount(self, count):
        count._obj.value = 1
        return 0

    def cuDeviceGet(self, device, index):
        device._obj.value = index.value
        return 0

    def cuDeviceGetName(self, name, size, device):
        name.value = b"Double GPU"
        return 0

    def cuDeviceTotalMem_v2(self, size, device):
        size._obj.value = 1 << 30
        return 0

    def cuDeviceGetAttribute(self, value, code, device):
        major, _, minor = os.environ["DOUBLE_CAPABILITY"].partition(".")
        known = dict(_ATTRIBUTES)
        known.update({75: int(major), 76: int(minor)})
        value._obj.value = known[code.value]
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 1
        return 0

    def cuCtxSetCurrent(self, context):
        return 0

    def cuCtxSynchronize(self):
        return 0

    def cuMemAlloc_v2(self, address, size):
        memory = ctypes.create_string_buffer(size.value)
        address._obj.value = ctypes.addressof(memory)
        _MEMORY[address._obj.value] = memory
        return 0

    def cuMemFree_v2(self, address):
        del _MEMORY[address.value]
        return 0

    def cuMemcpyHtoD_v2(self, address, data, size):
        ctypes.memmove(address.value, bytes(data), size.value)
        return 0

    def cuMemcpyDtoH_v2(self, target, address, size):
        ctypes.memmove(target, address.value, size.value)
        return 0


def _load(name, *arguments, **named):
    if name in _NAMES and "DOUBLE_CAPABILITY" in os.environ:
        return DoubleLibcuda()
    return _REAL(name, *arguments, **named)


ctypes.CDLL = _load
