"""A Python 3.6 that says it is a Jetson's, with the named double of TensorRT 8.2 in it. No test here has a Jetson.

The double (tests/docker/farm/double) is the one that images carry, rewritten in the syntax of Python 3.6, for which there is no numpy and
no ONNX Runtime here: two stand-ins beside it have a newer interpreter run the model.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ABOUT = {"DOUBLE_VERSION": "8.2.1.8", "DOUBLE_INVENTORY": "8.2", "DOUBLE_CAPABILITY": "7.2"}
_SITE = "import os, platform\nos.environ.update({about!r})\nplatform.machine = lambda: 'aarch64'\n"

NUMPY = '''
"""As much of numpy as the double uses."""
SIZES = {"float32": 4, "float16": 2, "int32": 4, "int8": 1, "bool": 1}
class dtype:
    def __init__(self, name):
        self.name = getattr(name, "name", name)
        self.itemsize = SIZES[self.name]
def prod(shape):
    count = 1
    for size in shape:
        count *= size
    return count
class Array:
    def __init__(self, data, kind, shape):
        self.data, self.kind, self.shape = bytes(data), dtype(kind), tuple(shape)
    def reshape(self, shape):
        return Array(self.data, self.kind, shape)
    def tobytes(self):
        return self.data
def zeros(shape, kind):
    return Array(bytes(prod(shape) * dtype(kind).itemsize), kind, shape)
def frombuffer(data, kind):
    return Array(data, kind, (len(data) // dtype(kind).itemsize,))
def ascontiguousarray(array):
    return array
'''

ONNXRUNTIME = '''
"""Sessions of another interpreter's ONNX Runtime."""
import pickle, subprocess
import numpy
class SessionOptions:
    pass
class Tensor:
    def __init__(self, name, shape, type):
        self.name, self.shape, self.type = name, shape, type
class InferenceSession:
    def __init__(self, model, options, providers):
        self._process = subprocess.Popen([PYTHON, "-I", "-c", FAR], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._ends = [[Tensor(*tensor) for tensor in side] for side in self._ask(bytes(model))]
    def _ask(self, value):
        pickle.dump(value, self._process.stdin, 2)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)
    def get_inputs(self):
        return self._ends[0]
    def get_outputs(self):
        return self._ends[1]
    def run(self, names, given):
        asked = {name: (array.data, array.kind.name, array.shape) for name, array in given.items()}
        return [numpy.Array(*answer) for answer in self._ask((names, asked))]
'''

FAR = """
import pickle, sys
import numpy as np, onnxruntime
read = lambda: pickle.load(sys.stdin.buffer)
def write(value):
    pickle.dump(value, sys.stdout.buffer, 2)
    sys.stdout.buffer.flush()
session = onnxruntime.InferenceSession(read(), providers=["CPUExecutionProvider"])
write([[(t.name, t.shape, t.type) for t in side] for side in (session.get_inputs(), session.get_outputs())])
while True:
    try:
        names, asked = read()
    except EOFError:
        break
    given = {name: np.frombuffer(data, kind).reshape(shape) for name, (data, kind, shape) in asked.items()}
    write([(np.ascontiguousarray(found).tobytes(), found.dtype.name, found.shape) for found in session.run(names, given)])
"""


class _Older(ast.NodeTransformer):
    """Leaves out what Python 3.6 does not know: annotations, and zip's strict."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]:
            if argument is not None:
                argument.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else ast.copy_location(ast.Pass(), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [word for word in node.keywords if word.arg != "strict"]
        return node


def older(source: Path) -> str:
    return ast.unparse(ast.fix_missing_locations(_Older().visit(ast.parse(source.read_text())))) + "\n"


def make(folder: Path, python36: str) -> str:
    """The interpreter of the device, in a virtual environment of its own."""
    subprocess.run([python36, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    double = TESTS / "docker/farm/double"
    (site / "sitecustomize.py").write_text(_SITE.format(about=ABOUT) + older(double / "sitecustomize.py"))
    (site / "tensorrt.py").write_text(older(double / "tensorrt.py"))
    (site / "trt_double.py").write_text(older(TESTS / "portable/backends/trt_double.py"))
    (site / "numpy.py").write_text(NUMPY)
    (site / "onnxruntime.py").write_text(f"PYTHON = {sys.executable!r}\nFAR = {FAR!r}\n{ONNXRUNTIME}")
    (site / "trt_api").mkdir()
    for file in (TESTS / "portable/backends/trt_api").glob("*.json"):
        (site / "trt_api" / file.name).write_bytes(file.read_bytes())
    return str(folder / "bin" / "python3")
