"""What the loader knows of the machine: this process's own, found out only as far as it is needed, or a host description.

A description is "enginefarm.host/1" of worker/probe.py.
"""

import importlib
import threading
from typing import Any, Dict, List, Optional

from ..worker import machine

HOST_SCHEMA = "enginefarm.host/1"  # worker/protocol.py
MODULES = {
    "tensorrt": ("tensorrt",),
    "tensorrt-rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
    "onnxruntime": ("onnxruntime",),
    "torchscript": ("torch",),
}
INSTALL = {
    "tensorrt": "install TensorRT's Python package for this interpreter",
    "tensorrt-rtx": "pip install tensorrt-rtx",
    "onnxruntime": "pip install onnxruntime (onnxruntime-gpu for CUDA)",
    "torchscript": "pip install torch",
}
NAMES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX", "onnxruntime": "ONNX Runtime", "torchscript": "PyTorch"}

_GPUS: List[Dict[str, Any]] = []  # GPUs and driver of this process: they do not change while it runs
_LOCK = threading.Lock()


class Host:
    """``facts`` without backends, and ``backend``: version and abilities, or ``{"error": str}``."""

    def facts(self) -> Dict[str, Any]:
        raise NotImplementedError

    def backend(self, name: str) -> Dict[str, Any]:
        raise NotImplementedError


class Described(Host):
    """A machine by its description, which people may have edited: what has the wrong form is not known."""

    def __init__(self, description: Dict[str, Any]) -> None:
        gpus, backends = description.get("gpus"), description.get("backends")
        known = gpus if isinstance(gpus, list) and all(isinstance(gpu, dict) for gpu in gpus) else None
        self._description = dict(description, gpus=known, backends=backends if isinstance(backends, dict) else {})

    def facts(self) -> Dict[str, Any]:
        return self._description

    def backend(self, name: str) -> Dict[str, Any]:
        found = self._description["backends"].get(name)
        if isinstance(found, dict):
            return found
        # the probe does not ask for PyTorch: not known is not a refusal
        return {"unknown": True} if name == "torchscript" else {"error": "not installed"}


class ThisProcess(Host):
    """Where this code runs. A backend is imported when an engine of it is about to be loaded, and not before."""

    def facts(self) -> Dict[str, Any]:
        with _LOCK:
            if not _GPUS:
                _GPUS.append(_look())
        return _GPUS[0]

    def backend(self, name: str) -> Dict[str, Any]:
        module: Optional[Any] = None
        problem = "not installed"
        for candidate in MODULES[name]:
            try:
                module = importlib.import_module(candidate)
                break
            except Exception as error:  # noqa: BLE001  (a broken installation raises anything; it must not end the service)
                if not (isinstance(error, ImportError) and error.name == candidate):
                    problem = "{}: {}".format(type(error).__name__, error)
        if module is None:
            return {"error": problem}
        found: Dict[str, Any] = {"version": str(module.__version__), "cuda": _cuda_of(name)}
        if name == "onnxruntime":
            found["providers"] = list(module.get_available_providers())
        return found


def _cuda_of(name: str) -> Optional[str]:
    """The CUDA that TensorRT or ONNX Runtime was built with, None when nothing says it.

    TensorRT's builds for CUDA 11, 12 and 13 share their version number and load each other's engines, which then crash under load.
    """
    if name == "torchscript":
        return None
    if name == "onnxruntime":
        try:
            built = importlib.import_module("onnxruntime.capi.build_and_package_info")
        except ImportError:
            return None
        return getattr(built, "cuda_version", None) or None
    from ..worker import backend_probe

    known: Dict[str, Any] = {}
    exec(backend_probe._PRELUDE.format(name="", mark=""), known)  # noqa: S102  (our own text, which the probe runs in a child)
    cuda = known["cuda_of"](MODULES[name][0])
    return None if cuda is None else str(cuda)


def _has_driver() -> bool:
    """Whether NVIDIA's user-space driver is here: one of the two libraries that the probe asks."""
    from ..backends.cuda import Cuda
    from ..backends.nvml import Nvml, NvmlError
    from ..worker.errors import StepError

    try:
        Nvml()
        return True
    except NvmlError:
        pass
    try:
        Cuda()
        return True
    except StepError:
        return False


def _look() -> Dict[str, Any]:
    gpus: List[Dict[str, Any]] = []
    version = machine.kernel_module_version()
    driver: Any = {"version": version, "cuda": None} if version else None
    if _has_driver():
        from ..worker.probe import gpus_and_driver  # not before: a machine without a driver need not pay for it

        gpus, driver = gpus_and_driver()
    return {
        "schema": HOST_SCHEMA,
        "platform": machine.platform_name(),
        "gpus": gpus,
        "driver": driver,
        "jetson": machine.jetson(),
        "container": machine.in_container(),
    }
