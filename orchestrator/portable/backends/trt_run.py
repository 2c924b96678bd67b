"""Validate step of TensorRT and TensorRT-RTX: load the plan in this fresh process, run it on the GPU, hand back raw outputs.

Two ways to name inputs and outputs: by name (8.5 and newer) and by binding number (7.1 to 8.4); ``execute_v2`` runs
both (docs/facts/tensorrt_api.yaml).
"""

import ctypes
import time
from typing import Any, Dict, List, Tuple

from ..worker.errors import StepError, quoted
from ..worker.events import Events
from ..worker.exercise import Session, exercise
from ..worker.files import inside
from ..worker.tensors import Tensor, byte_count
from .cuda import Cuda
from .trt_common import dtype_name, enum_name, failure, import_rtx, import_tensorrt, load_plugins, make_logger


def validate_tensorrt(request: Dict[str, Any], folder: str, events: Events) -> Dict[str, Any]:
    """Answer a validate request for a TensorRT plan."""
    return _validate(import_tensorrt, request, folder, events, has_plugins=True)


def validate_rtx(request: Dict[str, Any], folder: str, events: Events) -> Dict[str, Any]:
    """Answer a validate request for a TensorRT-RTX plan."""
    return _validate(import_rtx, request, folder, events, has_plugins=False)


def _validate(import_backend: Any, request: Dict[str, Any], folder: str, events: Events, has_plugins: bool) -> Dict[str, Any]:
    cuda = Cuda()
    device = cuda.use(list(request.get("compute_capability") or []))
    trt = import_backend()
    logger = make_logger(trt, events)
    if has_plugins:
        load_plugins(trt, logger, folder, request.get("plugins") or [])
    events.phase("loading")
    started = time.perf_counter()
    engine = load(trt, logger, inside(folder, request["engine"]))
    context = engine.create_execution_context()
    if context is None:
        raise failure("load-failed", "the engine gave no execution context", logger.errors)
    seconds = round(time.perf_counter() - started, 6)
    kind = NamedSession if hasattr(engine, "num_io_tensors") else BindingSession
    found = exercise(request, folder, kind(engine, context, cuda, logger), events)
    return {
        "backend_version": trt.__version__,
        "device": "{name} (compute capability {compute_capability})".format(**device),
        "outputs": found["outputs"],
        "timings": {"load_seconds": seconds, "run_ms": found["run_ms"]},
        "soak": found["soak"],
        "details": {"device": device},
    }


def load(trt: Any, logger: Any, path: str) -> Any:
    """The deserialized engine. Failure is None from TensorRT, with the reason only in the log."""
    try:
        runtime = trt.Runtime(logger)
    except TypeError as error:
        raise failure("no-device", "TensorRT did not start", logger.errors or [str(error)]) from error
    if hasattr(runtime, "engine_host_code_allowed"):  # version compatible plans carry a lean runtime (8.6)
        runtime.engine_host_code_allowed = True
    with open(path, "rb") as file:
        engine = runtime.deserialize_cuda_engine(file.read())
    if engine is None:
        raise failure("load-failed", "the engine does not load", logger.errors)
    return engine


class _TensorRTSession(Session):
    """Device buffers and the order of addresses; the two subclasses know how to name inputs and outputs."""

    def __init__(self, engine: Any, context: Any, cuda: Cuda, logger: Any) -> None:
        self.engine = engine
        self.context = context
        self._cuda = cuda
        self._logger = logger
        self._buffers: Dict[int, Tuple[int, int]] = {}
        self._host: Dict[int, Any] = {}
        self._addresses: List[int] = []
        self._outputs: List[Tuple[int, str, str, Tuple[int, ...]]] = []

    def names(self) -> List[str]:
        """Names of all inputs and outputs, in the order of addresses."""
        raise NotImplementedError

    def is_input(self, index: int) -> bool:
        raise NotImplementedError

    def on_host(self, index: int) -> bool:
        """Whether the tensor carries a shape and lives in host memory."""
        raise NotImplementedError

    def set_input(self, index: int, tensor: Tensor) -> None:
        """Tell the context the input's shape (and, for one that carries a shape, its values)."""
        raise NotImplementedError

    def output(self, index: int) -> Tuple[str, Tuple[int, ...]]:
        """dtype and shape of an output, once all inputs are set."""
        raise NotImplementedError

    def prepare(self, inputs: List[Tensor]) -> None:
        given = {tensor.name: tensor for tensor in inputs}
        names = self.names()
        self._addresses = [0] * len(names)
        for index, name in enumerate(names):
            if self.is_input(index):
                self._place_input(index, name, given)
        self._outputs = []
        for index, name in enumerate(names):
            if not self.is_input(index):
                dtype, shape = self.output(index)
                if any(dim < 0 for dim in shape):
                    text = "output {} has a shape that depends on the data, which this step cannot run"
                    raise StepError("run-failed", text.format(quoted(name)))
                self._outputs.append((index, name, dtype, shape))
                self._reserve(index, byte_count(dtype, shape))

    def run(self) -> None:
        if not self.context.execute_v2(self._addresses):
            raise failure("run-failed", "the engine does not run", self._logger.errors)
        self._cuda.synchronize()

    def fetch(self) -> List[Tensor]:
        found = []
        for index, name, dtype, shape in self._outputs:
            size = byte_count(dtype, shape)
            found.append(Tensor(name, dtype, shape, self._read(index, size)))
        return found

    def _read(self, index: int, size: int) -> Any:
        if self.on_host(index):
            return self._host[index].raw[:size]
        return self._cuda.from_device(self._addresses[index], size)

    def _place_input(self, index: int, name: str, given: Dict[str, Tensor]) -> None:
        if name not in given:
            raise StepError("bad-request", "the sample has no input {}".format(quoted(name)))
        tensor = given[name]
        self._reserve(index, len(tensor.data))
        if self.on_host(index):
            ctypes.memmove(self._addresses[index], tensor.data, len(tensor.data))
        else:
            self._cuda.to_device(self._addresses[index], tensor.data)
        self.set_input(index, tensor)

    def _reserve(self, index: int, size: int) -> None:
        """Memory for one tensor; kept between samples and replaced when it is too small."""
        if self.on_host(index):
            self._host[index] = ctypes.create_string_buffer(max(size, 1))
            self._addresses[index] = ctypes.addressof(self._host[index])
            return
        address, capacity = self._buffers.get(index, (0, -1))
        if capacity < size:
            if address:
                self._cuda.free(address)
            address, capacity = self._cuda.allocate(size), size
            self._buffers[index] = (address, capacity)
        self._addresses[index] = address


class NamedSession(_TensorRTSession):
    """8.5 and newer: tensors have names."""

    def names(self) -> List[str]:
        return [self.engine.get_tensor_name(index) for index in range(self.engine.num_io_tensors)]

    def is_input(self, index: int) -> bool:
        return enum_name(self.engine.get_tensor_mode(self.engine.get_tensor_name(index))) == "INPUT"

    def on_host(self, index: int) -> bool:
        return enum_name(self.engine.get_tensor_location(self.engine.get_tensor_name(index))) == "HOST"

    def set_input(self, index: int, tensor: Tensor) -> None:
        if not self.context.set_input_shape(tensor.name, tuple(tensor.shape)):
            raise _shape_refused(tensor, self._logger.errors)
        if self.on_host(index):  # shapes of other tensors follow from its values
            self.context.set_tensor_address(tensor.name, self._addresses[index])

    def output(self, index: int) -> Tuple[str, Tuple[int, ...]]:
        name = self.engine.get_tensor_name(index)
        return dtype_name(self.engine.get_tensor_dtype(name)), tuple(self.context.get_tensor_shape(name))


class BindingSession(_TensorRTSession):
    """7.1 to 8.4: tensors have numbers. Profile 0 is used, whose bindings come first."""

    def _count(self) -> int:
        return int(self.engine.num_bindings) // max(int(self.engine.num_optimization_profiles), 1)

    def names(self) -> List[str]:
        return [self.engine.get_binding_name(index) for index in range(self._count())]

    def is_input(self, index: int) -> bool:
        return bool(self.engine.binding_is_input(index))

    def on_host(self, index: int) -> bool:
        return bool(self.engine.is_shape_binding(index))

    def set_input(self, index: int, tensor: Tensor) -> None:
        shape = tuple(self.engine.get_binding_shape(index))
        if -1 in shape and not self.context.set_binding_shape(index, tuple(tensor.shape)):
            raise _shape_refused(tensor, self._logger.errors)
        if self.on_host(index):
            view = memoryview(tensor.data)
            values = view.cast("q") if tensor.dtype == "int64" else view.cast("i")
            if not self.context.set_shape_input(index, list(values)):
                raise _shape_refused(tensor, self._logger.errors)

    def output(self, index: int) -> Tuple[str, Tuple[int, ...]]:
        return dtype_name(self.engine.get_binding_dtype(index)), tuple(self.context.get_binding_shape(index))


def _shape_refused(tensor: Tensor, errors: List[str]) -> StepError:
    what = "input {} cannot have shape {}".format(quoted(tensor.name), "x".join(map(str, tensor.shape)) or "()")
    return failure("run-failed", what, errors)
