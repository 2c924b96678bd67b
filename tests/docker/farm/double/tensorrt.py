"""A named double of TensorRT inside an image: ``import tensorrt`` gives TensorRTDouble, which has only the names of its release.

It stands on the double of the backends' tests (trt_double.py beside it), with a real model in the place of y = 2 x: the parser reads the
ONNX with ONNX Runtime, the plan is TensorRT's header with the ONNX behind it, and ``execute_v2`` runs that on the CPU. So outputs are
those of the model, and what a plan is refused for (another version, another GPU, a shape outside of the profile) is refused here too.
The variables DOUBLE_INVENTORY, DOUBLE_VERSION and DOUBLE_CAPABILITY are the image's.
"""

import ctypes
import json
import mmap
import os
import re
import sys
import time

import numpy as np
import onnxruntime
import trt_double as base

MARK = b"TensorRTDouble plan: no TensorRT made this\n"
_ENUM_OF = {"float": "FLOAT", "float16": "HALF", "int32": "INT32", "int8": "INT8", "bool": "BOOL"}
_NUMPY = {"FLOAT": "float32", "HALF": "float16", "INT32": "int32", "INT8": "int8", "BOOL": "bool"}
_ASKED = re.compile(rb"double: ((?:[a-z]+ [0-9.]+; ?)+)")


def _session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _shape(tensor):
    return tuple(size if isinstance(size, int) else -1 for size in tensor.shape)


class Parser(base.DoubleParser):
    def _parse(self, call, data):
        self._network._world.calls.append((call,))
        self._network._read(data)
        return True


class Network(base.DoubleNetwork):
    def _read(self, model):
        self._model = model
        session = _session(model)
        self._inputs, self._outputs = session.get_inputs(), session.get_outputs()
        self.num_inputs, self.num_outputs = len(self._inputs), len(self._outputs)

    def get_input(self, index):
        return self._tensor(self._inputs[index])

    def get_output(self, index):
        return self._tensor(self._outputs[index])

    def _tensor(self, tensor):
        kind = getattr(self._world.module.DataType, _ENUM_OF[tensor.type[len("tensor(") : -1]])
        return base.DoubleTensor(tensor.name, _shape(tensor), kind)


class Profile(base.DoubleProfile):
    def __init__(self, world):
        super().__init__(world)
        self._shapes = {}

    def set_shape(self, name, *dims):
        self._shapes[name] = [list(side) for side in dims]


class Config(base.DoubleConfig):
    def add_optimization_profile(self, profile):
        self._world.profile = profile._shapes
        return 0


class Builder(base.DoubleBuilder):
    def build_serialized_network(self, network, config):
        super().build_serialized_network(network, config)
        asked = _asked(network._model)
        time.sleep(asked.get("sleep", 0))
        if "fill" in asked:  # shared memory is in no limit but the container's
            mmap.mmap(-1, int(asked["fill"]) << 20).write(bytes(int(asked["fill"]) << 20))
        if "signal" in asked:
            os.kill(os.getpid(), int(asked["signal"]))
        return _plan(self._world, network._model, int(asked.get("pad", 0)) << 20)


def _asked(model):
    """What a model's doc_string asks of the builder, like ``double: sleep 3; pad 300;``: seconds, megabytes more in the plan."""
    found = _ASKED.search(model)
    words = found.group(1).decode().replace(";", " ").split() if found else []
    return {name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)}


def _plan(world, model, pad):
    about = {"capability": os.environ["DOUBLE_CAPABILITY"], "profile": getattr(world, "profile", {}), "model": len(model)}
    about = json.dumps(about).encode()
    head = b"ftrt" + bytes(4) + (world.serialization).to_bytes(8, "little") + bytes(8)
    head += bytes(int(part) for part in world.module.__version__.split(".")) + bytes(4)
    return b"".join((head, MARK, len(about).to_bytes(4, "little"), about, model, bytes(pad)))


class Runtime(base.DoubleRuntime):
    def deserialize_cuda_engine(self, data):
        data = bytes(data)
        start = 32 + len(MARK)
        if data[:4] != b"ftrt" or data[32:start] != MARK:
            return self._refuse("Serialization (Magic tag does not match)")
        if data[24:28] != bytes(int(part) for part in self._world.module.__version__.split(".")):
            return self._refuse("Serialization (Version tag does not match)")
        size = int.from_bytes(data[start : start + 4], "little")
        about = json.loads(data[start + 4 : start + 4 + size].decode())
        if about["capability"] != os.environ["DOUBLE_CAPABILITY"]:
            return self._refuse("Serialization (The engine was built for compute capability {})".format(about["capability"]))
        engine = self._world.make(base.DoubleEngine, "ICudaEngine")
        model = start + 4 + size
        engine._open(data[model : model + about["model"]], about["profile"])
        return engine

    def _refuse(self, text):
        self._logger.log(self._world.module.ILogger.Severity.ERROR, "1: [x.cpp::f::3] Error Code 1: " + text)


class Engine(base.DoubleEngine):
    def _open(self, model, profile):
        self._session, self._profile = _session(model), profile
        self._tensors = list(self._session.get_inputs()) + list(self._session.get_outputs())
        self._input_count = len(self._session.get_inputs())
        for name in ("num_io_tensors", "num_bindings"):
            if name in type(self)._names:
                setattr(self, name, len(self._tensors))

    def _index(self, name):
        return [tensor.name for tensor in self._tensors].index(name)

    def _kind(self, index):
        return getattr(self._world.module.DataType, _ENUM_OF[self._tensors[index].type[len("tensor(") : -1]])

    def create_execution_context(self):
        context = self._world.make(base.DoubleContext, "IExecutionContext")
        context._engine, context._shapes = self, {}
        return context

    def get_tensor_name(self, index):
        return self._tensors[index].name

    def get_tensor_mode(self, name):
        mode = self._world.module.TensorIOMode
        return mode.INPUT if self._index(name) < self._input_count else mode.OUTPUT

    def get_tensor_dtype(self, name):
        return self._kind(self._index(name))

    def get_binding_name(self, index):
        return self._tensors[index].name

    def binding_is_input(self, index):
        return index < self._input_count

    def get_binding_shape(self, index):
        return _shape(self._tensors[index])

    def get_binding_dtype(self, index):
        return self._kind(index)


class Context(base.DoubleContext):
    def set_input_shape(self, name, shape):
        sides = self._engine._profile.get(name)
        low, high = (sides[0], sides[2]) if sides else (shape, shape)
        self._shapes[name] = tuple(shape)
        return len(low) == len(shape) and all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))

    def get_tensor_shape(self, name):
        return self._shape_of(self._engine._index(name))

    def set_binding_shape(self, index, shape):
        return Context.set_input_shape(self, self._engine._tensors[index].name, shape)

    def get_binding_shape(self, index):
        return self._shape_of(index)

    def _shape_of(self, index):
        tensor = self._engine._tensors[index]
        if index < self._engine._input_count:
            return self._shapes.get(tensor.name, _shape(tensor))
        zeros = {one.name: np.zeros(self._shape_of(number), self._dtype(number)) for number, one in self._inputs()}
        return self._engine._session.run([tensor.name], zeros)[0].shape

    def _inputs(self):
        return list(enumerate(self._engine._tensors[: self._engine._input_count]))

    def _dtype(self, index):
        return np.dtype(_NUMPY[self._engine._kind(index).name])

    def execute_v2(self, addresses):
        given = {}
        for index, tensor in self._inputs():
            dtype, shape = self._dtype(index), self._shape_of(index)
            size = int(np.prod(shape)) * dtype.itemsize
            given[tensor.name] = np.frombuffer(ctypes.string_at(addresses[index], size), dtype).reshape(shape)
        for number, output in enumerate(self._engine._session.run(None, given)):
            data = np.ascontiguousarray(output).tobytes()
            ctypes.memmove(addresses[self._engine._input_count + number], data, len(data))
        return True


_OF_A_MODEL = {
    base.DoubleParser: Parser,
    base.DoubleNetwork: Network,
    base.DoubleProfile: Profile,
    base.DoubleConfig: Config,
    base.DoubleBuilder: Builder,
    base.DoubleRuntime: Runtime,
    base.DoubleEngine: Engine,
    base.DoubleContext: Context,
}


class TensorRTDouble(base.DoubleTensorRT):
    """The module of one release over real models."""

    serialization = 236

    def _limited(self, kind, owner):
        return super()._limited(_OF_A_MODEL.get(kind, kind), owner)


_WORLD = TensorRTDouble(os.environ["DOUBLE_INVENTORY"])
_WORLD.module.__version__ = os.environ["DOUBLE_VERSION"]
_WORLD.module.__name__ = "TensorRTDouble"
sys.modules[__name__] = _WORLD.module
