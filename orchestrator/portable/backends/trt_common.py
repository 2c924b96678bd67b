"""Common ground of TensorRT and TensorRT-RTX: importing, logging, and reading what they say.

Both are used by enum NAME only: the numbers behind the names move between releases.
"""

import ctypes
import importlib
import re
import sys
from typing import Any, Dict, List, Optional

from ..worker.errors import StepError, kind_of_text, printable
from ..worker.events import Events
from ..worker.files import inside

# TensorRT's DataType names -> numpy (or ml_dtypes) names
DTYPES = {
    "FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "FP8": "float8_e4m3fn", "INT8": "int8",
    "INT32": "int32", "INT64": "int64", "UINT8": "uint8", "BOOL": "bool", "INT4": "int4", "FP4": "float4_e2m1fn",
    "E8M0": "float8_e8m0fnu",
}  # fmt: skip

_LEVELS = {"INTERNAL_ERROR": "error", "ERROR": "error", "WARNING": "warning", "INFO": "info", "VERBOSE": "verbose"}
_KEPT_LINES = 200

# "IBuilder::f: Error Code 1: Myelin ([pass.cpp:337: g] TEXT In h at /_src/x.cpp:9)" -> TEXT
_WRAPPED = re.compile(r"^(?:[\w:]+: |\d+: )?(?:\[[^\]]*\] )?Error Code:? \d+: [\w ]+? ?\((?P<text>.*)\)\s*$", re.DOTALL)
_PLACE_BEFORE = re.compile(r"^\[[\w.]+:\d+: \w+\]\s*|^\[[\w.]+::[\w:]+::\d+\]\s*")
_PLACE_AFTER = re.compile(r"\.?\s+In [\w:~<>]+ at \S+:\d+\s*$")
_ASSERTION = re.compile(r"^Assertion failed: .*?: (?=\S)", re.DOTALL)
_QUOTED_CONDITION = re.compile(r'^.*&&\s*"(?P<text>[^"]+)"\s*$', re.DOTALL)


def import_tensorrt() -> Any:
    """The TensorRT module; StepError backend-missing when it cannot be imported."""
    return _import("TensorRT", ("tensorrt",))


def import_rtx() -> Any:
    """The TensorRT-RTX module; its bindings alone are enough (docs/facts/rtx.yaml)."""
    return _import("TensorRT-RTX", ("tensorrt_rtx", "tensorrt_rtx_bindings"))


def _import(title: str, names: Any) -> Any:
    problem = ""
    for name in names:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:
            if not (isinstance(error, ImportError) and error.name == name):  # there, but broken: that is the news
                problem = str(error)
    kind = kind_of_text(problem) or "backend-missing"
    text = "{} is not installed for {}".format(title, sys.executable)
    raise StepError(kind, "{} cannot be imported: {}".format(title, problem) if problem else text)


def enum_name(member: Any) -> str:
    """``ERROR`` of ``Severity.ERROR``; works for the enums of every release."""
    return str(member).rsplit(".", 1)[-1]


def dtype_name(dtype: Any) -> str:
    """numpy's name of a TensorRT data type, or TensorRT's own for one that is not known here."""
    name = enum_name(dtype)
    return DTYPES.get(name, name.lower())


def make_logger(trt: Any, events: Events) -> Any:
    """A logger that forwards everything but verbose lines as events and keeps errors in ``errors``."""

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: List[str] = []

        def log(self, severity: Any, msg: str) -> None:
            # an exception must not leave this callback: the builder swallows it and goes on without its log
            try:
                level = _LEVELS.get(enum_name(severity), "info")
                if level == "verbose" or not msg.strip("- "):  # rulers are no news
                    return
                events.log(level, msg)
                sys.stderr.write("[{}] {}\n".format(level, printable(msg)))
                if level == "error" and len(self.errors) < _KEPT_LINES:
                    self.errors.append(msg)
            except Exception as error:  # noqa: BLE001
                sys.stderr.write("log line lost: {!r}\n".format(error))

    return Logger()


def is_noise(line: str) -> bool:
    """Whether a line only says that there is no driver: RTX adds it after other failures on machines without a GPU."""
    return "catchCudaError" in line and "cudaError 35" in line


def telling(errors: List[str]) -> List[str]:
    """The error lines that say something, each once, in order; all of them when nothing else is left."""
    seen: List[str] = []
    for line in errors:
        if line not in seen:
            seen.append(line)
    return [line for line in seen if not is_noise(line)] or seen


def clean(text: str) -> str:
    """What a TensorRT error says, without source files, line numbers and repeated conditions, as one line."""
    wrapped = _WRAPPED.match(text.strip())
    text = wrapped.group("text") if wrapped else text.strip()
    text = _PLACE_AFTER.sub("", _PLACE_BEFORE.sub("", text))
    quoted = _QUOTED_CONDITION.match(text)
    text = quoted.group("text") if quoted else _ASSERTION.sub("", text)
    return printable(" ".join(text.split()), 1000)


def failure(kind: str, what: str, errors: List[str], details: Optional[Dict[str, Any]] = None) -> StepError:
    """A StepError whose message is ``what`` and the first telling line; memory and disk texts decide the kind."""
    lines = telling(errors)
    foreign = next((found for found in map(kind_of_text, lines) if found), None)
    if foreign == "out-of-memory":
        what = "{}: out of memory".format(what)
    elif lines:
        what = "{}: {}".format(what, clean(lines[0]))
    else:
        what = "{} and gave no reason".format(what)
    return StepError(foreign or kind, what, details, lines)


def load_plugins(trt: Any, logger: Any, folder: str, files: List[str]) -> List[str]:
    """Load plugin libraries of the step and register NVIDIA's own; gives their absolute paths.

    Needed before parsing and before loading a plan: creators are looked up by name in this process.
    """
    paths = [inside(folder, file) for file in files]
    for path in paths:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise StepError("load-failed", "plugin library does not load: {}".format(error)) from error
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(logger, "")
    return paths
