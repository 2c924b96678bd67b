"""``nvml_double``: a double of NVML as ctypes functions, with the GPUs and MIG slices that a test describes. Python 3.6 syntax.

Signatures, structures and return codes are those of nvml.h (NVML API Reference Guide, "Multi Instance GPU Management" and "Device
Queries"): every function is a real C function pointer, so wrong arguments end as they would at the library. No hardware is behind it.

A GPU is ``{"name", "uuid", "capability": (8, 0), "memory", "mig": None | (now, pending), "slots": 7, "slices": {number: slice}}``, a
slice ``{"name", "uuid", "memory", "sm", "ids": (gpu instance, compute instance)}``. ``without`` names functions that an older driver lacks.
"""

import ctypes

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 0, 2, 3, 6, 7  # nvmlReturn_t
_UINT = ctypes.POINTER(ctypes.c_uint)
_INT = ctypes.POINTER(ctypes.c_int)
_DEVICE = ctypes.c_void_p  # nvmlDevice_t


class _Memory(ctypes.Structure):  # nvmlMemory_t
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Attributes(ctypes.Structure):  # nvmlDeviceAttributes_t
    _fields_ = [
        ("multiprocessorCount", ctypes.c_uint),
        ("sharedCopyEngineCount", ctypes.c_uint),
        ("sharedDecoderCount", ctypes.c_uint),
        ("sharedEncoderCount", ctypes.c_uint),
        ("sharedJpegCount", ctypes.c_uint),
        ("sharedOfaCount", ctypes.c_uint),
        ("gpuInstanceSliceCount", ctypes.c_uint),
        ("computeInstanceSliceCount", ctypes.c_uint),
        ("memorySizeMB", ctypes.c_ulonglong),
    ]


SIGNATURES = {
    "nvmlInit_v2": (),
    "nvmlShutdown": (),
    "nvmlSystemGetDriverVersion": (ctypes.c_void_p, ctypes.c_uint),
    "nvmlSystemGetCudaDriverVersion_v2": (_INT,),
    "nvmlDeviceGetCount_v2": (_UINT,),
    "nvmlDeviceGetHandleByIndex_v2": (ctypes.c_uint, ctypes.POINTER(_DEVICE)),
    "nvmlDeviceGetName": (_DEVICE, ctypes.c_void_p, ctypes.c_uint),
    "nvmlDeviceGetUUID": (_DEVICE, ctypes.c_void_p, ctypes.c_uint),
    "nvmlDeviceGetCudaComputeCapability": (_DEVICE, _INT, _INT),
    "nvmlDeviceGetMemoryInfo": (_DEVICE, ctypes.c_void_p),
    "nvmlDeviceGetAttributes_v2": (_DEVICE, ctypes.c_void_p),
    "nvmlDeviceGetMigMode": (_DEVICE, _UINT, _UINT),
    "nvmlDeviceGetMaxMigDeviceCount": (_DEVICE, _UINT),
    "nvmlDeviceGetMigDeviceHandleByIndex": (_DEVICE, ctypes.c_uint, ctypes.POINTER(_DEVICE)),
    "nvmlDeviceGetGpuInstanceId": (_DEVICE, _UINT),
    "nvmlDeviceGetComputeInstanceId": (_DEVICE, _UINT),
}
MIG_FUNCTIONS = [name for name in SIGNATURES if "Mig" in name or "Instance" in name]
_FIRST_SLICE = 1000  # handles: GPU i is i + 1, its slice n is 1000 * (i + 1) + n


class Double:
    """Stands where ``ctypes.CDLL("libnvidia-ml.so.1")`` does."""

    def __init__(self, gpus, driver="580.159.04", cuda=13000, without=()):
        self.gpus, self.driver, self.cuda = gpus, driver, cuda
        for name, arguments in SIGNATURES.items():
            if name not in without:
                setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(getattr(self, "_" + name)))

    def _gpu(self, device):
        return self.gpus[device - 1] if device and device < _FIRST_SLICE else None

    def _part(self, device):
        if not device or device < _FIRST_SLICE:
            return None
        return self.gpus[device // _FIRST_SLICE - 1]["slices"][device % _FIRST_SLICE]

    def _either(self, device):
        return self._part(device) or self._gpu(device)

    def _nvmlInit_v2(self):
        return SUCCESS

    def _nvmlShutdown(self):
        return SUCCESS

    def _nvmlSystemGetDriverVersion(self, buffer, length):
        return _put(self.driver, buffer, length)

    def _nvmlSystemGetCudaDriverVersion_v2(self, version):
        version[0] = self.cuda
        return SUCCESS

    def _nvmlDeviceGetCount_v2(self, count):
        count[0] = len(self.gpus)
        return SUCCESS

    def _nvmlDeviceGetHandleByIndex_v2(self, index, device):
        if index >= len(self.gpus):
            return INVALID_ARGUMENT
        device[0] = index + 1
        return SUCCESS

    def _nvmlDeviceGetName(self, device, buffer, length):
        return _put(self._either(device)["name"], buffer, length)

    def _nvmlDeviceGetUUID(self, device, buffer, length):
        return _put(self._either(device)["uuid"], buffer, length)

    def _nvmlDeviceGetCudaComputeCapability(self, device, major, minor):
        if self._gpu(device) is None:
            return INVALID_ARGUMENT
        major[0], minor[0] = self._gpu(device)["capability"]
        return SUCCESS

    def _nvmlDeviceGetMemoryInfo(self, device, memory):
        ctypes.cast(memory, ctypes.POINTER(_Memory))[0].total = self._either(device)["memory"]
        return SUCCESS

    def _nvmlDeviceGetAttributes_v2(self, device, attributes):
        part = self._part(device)
        if part is None:  # "This API currently only supports MIG device handles"
            return NOT_SUPPORTED
        found = ctypes.cast(attributes, ctypes.POINTER(_Attributes))[0]
        found.multiprocessorCount, found.memorySizeMB = part["sm"], part["memory"] >> 20
        return SUCCESS

    def _nvmlDeviceGetMigMode(self, device, now, pending):
        gpu = self._gpu(device)
        if gpu is None or gpu["mig"] is None:
            return NOT_SUPPORTED
        now[0], pending[0] = gpu["mig"]
        return SUCCESS

    def _nvmlDeviceGetMaxMigDeviceCount(self, device, count):
        count[0] = self._gpu(device)["slots"]
        return SUCCESS

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, device, index, part):
        gpu = self._gpu(device)
        if gpu is None or index not in gpu["slices"]:
            return NOT_FOUND
        part[0] = _FIRST_SLICE * device + index
        return SUCCESS

    def _nvmlDeviceGetGpuInstanceId(self, device, number):
        return self._id(device, number, 0)

    def _nvmlDeviceGetComputeInstanceId(self, device, number):
        return self._id(device, number, 1)

    def _id(self, device, number, which):
        part = self._part(device)
        if part is None:
            return INVALID_ARGUMENT
        number[0] = part["ids"][which]
        return SUCCESS


def _put(text, buffer, length):
    data = text.encode("ascii") + b"\0"
    if len(data) > length:
        return INSUFFICIENT_SIZE
    ctypes.memmove(buffer, data, len(data))
    return SUCCESS


def whole(index=0, mig=(0, 0)):
    """An A100; ``mig`` None: a GPU that cannot be divided."""
    name = "NVIDIA A100-SXM4-40GB" if mig is not None else "NVIDIA L4"
    uuid = f"GPU-{index:08d}-aaaa"
    return {"name": name, "uuid": uuid, "capability": (8, 0) if mig else (8, 9), "memory": 40 << 30, "mig": mig, "slots": 7, "slices": {}}


def divided(index=0, numbers=(0, 3)):
    """An A100 in MIG mode with a slice at each of ``numbers``."""
    gpu = whole(index, (1, 1))
    for number in numbers:
        uuid = f"MIG-{index:08d}-{number:04d}"
        own = {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "uuid": uuid, "memory": 5 << 30, "sm": 14, "ids": (7 + number, 0)}
        gpu["slices"][number] = own
    return gpu
