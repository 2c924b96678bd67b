"""A named double of onnxruntime for processes of their own: what a model's bytes say is what happens when they are loaded.

``abort`` and ``segfault`` kill the process, ``hang`` never comes back, ``refuse`` raises; anything else loads. It shows what the loader
does around a backend, never what ONNX Runtime does.
"""

import ctypes
import os
import pathlib
import time

__version__ = "0.0.double"


def get_available_providers():
    return ["CPUExecutionProvider"]


def set_default_logger_severity(level):
    pass


class SessionOptions:
    log_severity_level = 2
    intra_op_num_threads = 0


class _Argument:
    def __init__(self, name):
        self.name = name
        self.type = "tensor(float)"
        self.shape = [1]


class InferenceSession:
    def __init__(self, model, options, providers=None):
        self._providers = providers
        if isinstance(model, str):  # the worker gives a path, the loader bytes
            model = pathlib.Path(model).read_bytes()
        if model.startswith(b"abort"):
            os.abort()
        if model.startswith(b"segfault"):
            ctypes.string_at(0)
        if model.startswith(b"hang"):
            time.sleep(3600)
        if model.startswith(b"refuse"):
            raise RuntimeError("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model failed:Protobuf parsing failed.")

    def disable_fallback(self):
        pass

    def get_providers(self):
        return self._providers

    def get_inputs(self):
        return [_Argument("x")]

    def get_outputs(self):
        return [_Argument("y")]

    def run(self, names, feeds):
        return [feeds["x"] for _ in names]
