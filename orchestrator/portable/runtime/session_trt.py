"""TensorRT and TensorRT-RTX: one engine, a pool of execution contexts with their own buffers, numpy or device memory.

How inputs and outputs are named in old and new releases is backends/trt_run.py's; here is what a service needs beside it.
"""

import ctypes
import threading
from typing import Any, Dict, List, Optional

from ..backends.cuda import Cuda
from ..backends.trt_common import enum_name, failure, import_rtx, import_tensorrt
from ..backends.trt_run import BindingSession, NamedSession
from ..facts.version import compare
from ..worker.errors import StepError, printable, quoted
from ..worker.tensors import Tensor, byte_count
from .inputs import Device
from .logs import DEBUG, ERROR, WARNING, log
from .sessions import Job, Session

_LOGGER = "enginefarm.runtime.tensorrt"
_LEVELS = {"INTERNAL_ERROR": ERROR, "ERROR": ERROR, "WARNING": WARNING, "INFO": DEBUG}
_KEPT_LINES = 200


def open_engine(job: Job, data: bytes) -> Session:
    """Deserialise a plan on a GPU that it runs on."""
    cuda = SharedCuda()
    device = cuda.use(job.capabilities)
    cuda.keep_context()
    trt = import_tensorrt() if job.backend == "tensorrt" else import_rtx()
    logger = make_logger(trt)
    for path in job.plugins:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise StepError("load-failed", "plugin library does not load: {}".format(error)) from error
    if job.backend == "tensorrt" and hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(logger, "")
    runtime, engine = deserialise(trt, logger, data, job.version_compatible)
    limit = job.contexts if shares_profiles(trt.__version__, job) else 1
    name = "{name} (compute capability {compute_capability})".format(**device)
    return TensorRTPool(runtime, engine, cuda, logger, limit, name, str(trt.__version__))


def deserialise(trt: Any, logger: Any, data: bytes, version_compatible: bool) -> Any:
    """Runtime and engine. TensorRT answers None and logs why; host code in a plan runs only where the manifest says that it has some."""
    try:
        runtime = trt.Runtime(logger)
    except TypeError as error:
        raise failure("no-device", "TensorRT did not start", logger.errors or [str(error)]) from error
    if version_compatible and hasattr(runtime, "engine_host_code_allowed"):
        runtime.engine_host_code_allowed = True
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        raise failure("load-failed", "the engine does not load", logger.errors)
    return runtime, engine


def shares_profiles(version: str, job: Job) -> bool:
    """Whether several contexts may use one optimization profile: before TensorRT 10 each dynamic context needs a profile of its own.

    Source: PreviewFeature.PROFILE_SHARING_0806, the default since 10.0 (NvInfer.h).
    """
    dynamic = any(-1 in spec.shape for spec in job.inputs)
    return not dynamic or job.backend == "tensorrt-rtx" or compare(version, "10") >= 0


def make_logger(trt: Any) -> Any:
    """TensorRT's lines into Python's logging; errors are kept, because they are the only reason that it gives."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: List[str] = []

        def log(self, severity: Any, msg: str) -> None:
            # an exception must not leave this callback
            try:
                level = _LEVELS.get(enum_name(severity), 0)
                if level >= ERROR and len(self.errors) < _KEPT_LINES:
                    self.errors.append(msg)
                if level:
                    log(level, "%s", printable(msg), logger=_LOGGER)
            except Exception:  # noqa: BLE001
                log(DEBUG, "a line of TensorRT's log was lost", logger=_LOGGER)

    return Logger()


class SharedCuda(Cuda):
    """The driver for many threads: the context that was chosen at loading is made each caller's own."""

    def keep_context(self) -> None:
        """Remember this thread's context."""
        self._context = ctypes.c_void_p()
        self._call("cuCtxGetCurrent", ctypes.byref(self._context))

    def enter(self) -> None:
        """Make the remembered context the calling thread's."""
        self._call("cuCtxSetCurrent", self._context)

    def copy_in(self, address: int, source: int, size: int) -> None:
        """Host memory to the device, without a copy in between."""
        if size:
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(source), ctypes.c_size_t(size))


class _Buffers:
    """Mixed into the sessions of backends/trt_run.py: arrays without copies, and memory that the caller owns."""

    def start(self) -> None:
        self._given: Dict[str, Device] = {}  # outputs that the caller wants filled

    def fill(self, outputs: Dict[str, Device]) -> None:
        self._given = outputs

    def _place_input(self, index: int, name: str, given: Dict[str, Tensor]) -> None:
        here: Any = self
        tensor = given[name]
        value = tensor.data
        if isinstance(value, Device):
            if here.on_host(index):
                raise StepError("run-failed", "input {} carries a shape: give it as a numpy array".format(quoted(name)))
            here._addresses[index] = value.address
        else:
            here._reserve(index, value.nbytes)
            if here.on_host(index):
                ctypes.memmove(here._addresses[index], value.ctypes.data, value.nbytes)
                tensor = tensor._replace(data=value.tobytes())
            else:
                here._cuda.copy_in(here._addresses[index], value.ctypes.data, value.nbytes)
        here.set_input(index, tensor)

    def place_outputs(self) -> None:
        """Put the caller's memory in the place of our own."""
        here: Any = self
        for index, name, dtype, shape in here._outputs:
            if name in self._given:
                device = self._given[name]
                if device.dtype != dtype or tuple(device.shape) != tuple(shape):
                    text = "output {} is {} {}; the memory given for it is {} {}"
                    raise StepError("bad-request", text.format(quoted(name), dtype, shape, device.dtype, device.shape))
                here._addresses[index] = device.address

    def results(self) -> Dict[str, Any]:
        import numpy as np

        here: Any = self
        found: Dict[str, Any] = {}
        for index, name, dtype, shape in here._outputs:
            if name in self._given:
                found[name] = self._given[name].owner
            else:
                raw = here._read(index, byte_count(dtype, shape))
                found[name] = np.frombuffer(bytearray(raw) if here.on_host(index) else raw, np.dtype(dtype)).reshape(shape)
        return found

    def free(self) -> None:
        here: Any = self
        for address, _ in here._buffers.values():
            here._cuda.free(address)
        here._buffers.clear()


class NamedContext(_Buffers, NamedSession):
    """8.5 and newer."""


class BindingContext(_Buffers, BindingSession):
    """7.1 to 8.4."""


class TensorRTPool(Session):
    """Contexts are made when calls overlap, up to ``limit`` or what the memory allows; then calls wait their turn."""

    pointers = True

    def __init__(self, runtime: Any, engine: Any, cuda: SharedCuda, logger: Any, limit: int, device: str, version: str) -> None:
        self._runtime = runtime  # has to outlive the engine
        self._engine = engine
        self._cuda = cuda
        self._logger = logger
        self._limit = limit
        self._free: List[Any] = []
        self._contexts: List[Any] = []
        self._turn = threading.Condition()
        self.device = device
        self.version = version
        first = self._make()
        if first is None:
            raise failure("load-failed", "the engine gave no execution context", logger.errors)
        self._free.append(first)

    def run(self, inputs: Dict[str, Any], outputs: Dict[str, Any]) -> Dict[str, Any]:
        self._cuda.enter()
        context = self._take()
        try:
            return self._run(context, inputs, outputs)
        finally:
            with self._turn:
                self._free.append(context)
                self._turn.notify()

    def close(self) -> None:
        self._cuda.enter()
        for context in self._contexts:
            context.free()
        self._contexts, self._free = [], []
        self._engine = self._runtime = None

    def _run(self, context: Any, inputs: Dict[str, Any], outputs: Dict[str, Any]) -> Dict[str, Any]:
        if any(isinstance(value, Device) for value in inputs.values()):
            self._cuda.synchronize()  # what the caller's own streams still write into them
        context.fill(outputs)
        context.prepare([_tensor(name, value) for name, value in inputs.items()])
        context.place_outputs()
        context.run()
        found: Dict[str, Any] = context.results()
        return found

    def _take(self) -> Any:
        with self._turn:
            while not self._free:
                if len(self._contexts) >= self._limit:
                    self._turn.wait()
                    continue
                made = self._make()
                if made is not None:
                    return made
                self._limit = len(self._contexts)
                log(WARNING, "no memory for more than %d execution contexts: calls wait for each other", self._limit, logger=_LOGGER)
            return self._free.pop()

    def _make(self) -> Optional[Any]:
        context = self._engine.create_execution_context()
        if context is None:
            return None
        kind = NamedContext if hasattr(self._engine, "num_io_tensors") else BindingContext
        made: Any = kind(self._engine, context, self._cuda, self._logger)
        made.start()
        self._contexts.append(made)
        return made


def _tensor(name: str, value: Any) -> Tensor:
    dtype = value.dtype if isinstance(value, Device) else value.dtype.name
    return Tensor(name, dtype, tuple(value.shape), value)
