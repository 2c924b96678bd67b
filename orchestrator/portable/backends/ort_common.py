"""ONNX Runtime: importing it, opening a session on exactly the provider that was asked for, and reading its errors."""

import re
import sys
from typing import Any, Dict, List, Tuple

from ..worker.errors import StepError, kind_of_text, printable, quoted
from .cuda import Cuda

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

# ONNX Runtime's element types -> numpy names
_TYPES = {
    "float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16", "bool": "bool",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    "float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2", "complex64": "complex64", "complex128": "complex128",
}  # fmt: skip

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .*? failed: ?)?")
_SOURCE = re.compile(r"(?:/\S+/)?[\w/]+\.(?:cc|h):\d+ (?:\S*::)?(?:\w+\(.*?\) ?(?:const )?)?")
_UNREGISTERED = re.compile(r'In Node, \("(?P<node>.*?)", (?P<op>\S+), "(?P<domain>.*?)", -?\d+\).*not a registered', re.DOTALL)
_UNKNOWN = re.compile(r"Fatal error: (?P<domain>[^:]*):(?P<op>\w+)\(-?\d+\) is not a registered")
_NO_KERNEL = re.compile(r"Could not find an implementation for (?P<op>\w+)\(\d+\) node with name '(?P<node>.*?)'")


def import_onnxruntime() -> Any:
    """The module, quiet; StepError backend-missing when it cannot be imported."""
    try:
        import onnxruntime
    except (ImportError, OSError) as error:
        kind = kind_of_text(str(error)) or "backend-missing"
        raise StepError(kind, "ONNX Runtime cannot be imported by {}: {}".format(sys.executable, error)) from error
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


def provider_of(request: Dict[str, Any]) -> str:
    """``cpu`` or ``cuda``."""
    provider = request.get("provider") or "cpu"
    if provider not in PROVIDERS:
        raise StepError("bad-request", "provider {} is none of {}".format(quoted(provider), ", ".join(PROVIDERS)))
    return str(provider)


def choose_device(ort: Any, provider: str, capabilities: List[str]) -> Tuple[List[Any], Dict[str, Any]]:
    """The providers argument of a session, and the GPU (empty for cpu). StepError no-device when there is none."""
    if provider == "cpu":
        return [PROVIDERS["cpu"]], {}
    if PROVIDERS[provider] not in ort.get_available_providers():
        text = "ONNX Runtime {} here has no CUDA provider: install onnxruntime-gpu for {}"
        raise StepError("backend-missing", text.format(ort.__version__, sys.executable))
    device = Cuda().use(capabilities)
    return [(PROVIDERS["cuda"], {"device_id": str(device["index"])}), PROVIDERS["cpu"]], device


def open_session(ort: Any, path: str, options: Any, providers: List[Any], kind: str) -> Any:
    """A session whose first provider is the one asked for; StepError (``kind``, or what the text says) otherwise.

    ONNX Runtime drops a provider that does not start and goes on with the CPU: that is an error here.
    """
    options.log_severity_level = 3
    wanted = providers[0] if isinstance(providers[0], str) else providers[0][0]
    try:
        session = ort.InferenceSession(path, options, providers=providers)
    except Exception as error:  # its exceptions share no base class
        raise explain(error, kind) from error
    session.disable_fallback()
    if session.get_providers()[0] != wanted:
        text = "{} did not start and ONNX Runtime fell back to {}"
        raise StepError("no-device", text.format(wanted, session.get_providers()[0]))
    return session


def signature(session: Any) -> List[Dict[str, Any]]:
    """Inputs, then outputs; a dynamic dimension is -1, an unknown rank an empty shape."""
    arguments = [("input", argument) for argument in session.get_inputs()]
    arguments += [("output", argument) for argument in session.get_outputs()]
    return [
        {
            "name": argument.name,
            "mode": mode,
            "dtype": dtype_name(argument.type),
            "shape": [dim if isinstance(dim, int) and dim >= 0 else -1 for dim in argument.shape or []],
        }
        for mode, argument in arguments
    ]


def dtype_name(text: str) -> str:
    """``float32`` of ``tensor(float)``; other kinds (``seq(tensor(float))``) stay as they are."""
    found = re.match(r"^tensor\((\w+)\)$", text)
    return _TYPES.get(found.group(1), found.group(1)) if found else text


def explain(error: BaseException, kind: str) -> StepError:
    """A StepError from what ONNX Runtime raised."""
    text = printable(str(error))
    foreign = kind_of_text(text)
    if foreign:
        return StepError(foreign, "ONNX Runtime: " + clean(text), log=[text])
    operator = _UNREGISTERED.search(text) or _UNKNOWN.search(text) or _NO_KERNEL.search(text)
    if operator:
        found = operator.groupdict()
        op = ".".join(part for part in (found.get("domain"), found["op"]) if part)
        node = found.get("node") or ""
        place = "operator {}{}".format(op, " at node {}".format(quoted(node)) if node else "")
        fix = "export the model without this operator, or in another precision"
        details = {"node": node, "op": op, "text": clean(text), "fix": fix}
        return StepError("unsupported-op", place + ": ONNX Runtime has no implementation of it", details, [text])
    return StepError(kind, "ONNX Runtime refuses the model: " + clean(text), {"text": clean(text)}, [text])


def clean(text: str) -> str:
    """What an ONNX Runtime error says, without its code, its source files and its line breaks."""
    return printable(" ".join(_SOURCE.sub("", _PREFIX.sub("", text)).split()), 1000)
