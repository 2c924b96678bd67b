"""The worker's entry: ``python3 worker.pyz request.json`` runs one step, ``python3 worker.pyz probe`` prints the host,
``python3 worker.pyz doctor [--json] [--save host.json]`` says what is wrong with it.

Exit codes: 0 when ``result.json`` was written (ok or not) or the host was printed, 2 for wrong usage, 3 when no
result could be written, 4 when the doctor found something that does not work.
"""

import importlib
import json
import os
import signal
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Optional, Tuple, cast

from .errors import StepError, kind_of_exception, memory_fix, memory_limit_text, printable
from .events import Events, take_stdout
from .files import inside, write_json
from .protocol import REQUEST_SCHEMA, RESULT_SCHEMA
from .steps import STEPS

EXIT_WRITTEN, EXIT_USAGE, EXIT_NO_RESULT = 0, 2, 3
PARENT_VARIABLE = "ENGINEFARM_PARENT"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PACKAGE = __name__.rsplit(".", 2)[0]

StepFunction = Callable[[Dict[str, Any], str, Events], Dict[str, Any]]


def main(arguments: Optional[List[str]] = None) -> int:
    """Run what the arguments ask for; gives the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    examining = arguments[:1] == ["doctor"]
    if not examining and (len(arguments) != 1 or arguments[0].startswith("-")):
        sys.stderr.write("usage: python3 worker.pyz request.json | probe | doctor [--json] [--save host.json]\n")
        return EXIT_USAGE
    stdout = take_stdout()
    _end_with_parent()
    if examining:
        return cast("int", importlib.import_module(_PACKAGE + ".worker.doctor").main(arguments[1:], stdout))
    if arguments[0] == "probe":
        host = _step_function("probe", "")({}, "", Events(stdout, ""))["host"]
        os.write(stdout, (json.dumps(host, indent=2, sort_keys=True) + "\n").encode("utf-8"))
        return EXIT_WRITTEN
    return _run_request(arguments[0], stdout)


def version() -> str:
    """``<release>+<digest>`` as the bundle carries it; a checkout that runs unbundled says so."""
    try:
        bundle = importlib.import_module("_enginefarm_bundle")
    except ImportError:
        return "unbundled"
    return str(bundle.VERSION)


def _run_request(path: str, stdout: int) -> int:
    folder = os.path.dirname(os.path.abspath(path))
    started = time.time()
    own_version = version()  # before the memory limit: the answer must not need memory that is gone
    step: Optional[str] = None
    limit: Optional[int] = None
    try:
        request = _read_request(path)
        step = request.get("step")
        _check(request)
        limit = request.get("limits", {}).get("memory_bytes")
        _limit_memory(limit)
        with Events(stdout, request["nonce"]) as events:
            answer = _step_function(request["step"], request.get("backend", ""))(request, folder, events)
        result = dict(answer, ok=True, error=None)
    except Exception as error:  # noqa: BLE001  (the edge of the process: whatever went wrong is the step's result)
        result = {"ok": False, "error": _describe(error, limit)}
    result.update(schema=RESULT_SCHEMA, step=step, worker=own_version, seconds=round(time.time() - started, 3))
    try:
        write_json(os.path.join(folder, "result.json"), result)
    except (OSError, MemoryError) as error:
        sys.stderr.write("result.json could not be written: {}\n".format(error))
        return EXIT_NO_RESULT
    return EXIT_WRITTEN


def _read_request(path: str) -> Dict[str, Any]:
    try:
        with open(path, "rb") as file:
            request = json.loads(file.read().decode("utf-8"))
    except (OSError, ValueError) as error:
        raise StepError("bad-request", "{} cannot be read as JSON: {}".format(path, error)) from error
    if not isinstance(request, dict) or request.get("schema") != REQUEST_SCHEMA:
        raise StepError("bad-request", "{} is not a request of {}".format(path, REQUEST_SCHEMA))
    return request


def _check(request: Dict[str, Any]) -> None:
    if not isinstance(request.get("nonce"), str) or not request["nonce"]:
        raise StepError("bad-request", "the request has no nonce")
    key = (request.get("step"), request.get("backend", ""))
    if key not in STEPS:
        raise StepError("bad-request", "no step {!r} of backend {!r}".format(*key))
    for field in ("model", "engine"):
        if field in request:
            inside("", request[field])


def _step_function(step: str, backend: str) -> StepFunction:
    module, function = STEPS[(step, backend)]
    return cast("StepFunction", getattr(importlib.import_module("{}.{}".format(_PACKAGE, module)), function))


def _limit_memory(limit: Optional[int]) -> None:
    """Limit what the process may allocate, before any backend is imported.

    RLIMIT_DATA counts private writable mappings (Linux 4.7 and newer). RLIMIT_AS would count the 230 MB of a builder's
    library as well, and CUDA's reserved address space: under RLIMIT_AS of 2 GiB cuInit fails on an H200, under RLIMIT_DATA
    it works.
    """
    if limit is None:
        return
    try:
        import resource

        kinds = [resource.RLIMIT_DATA] if sys.platform == "linux" else [resource.RLIMIT_AS, resource.RLIMIT_DATA]
        most = min(limit, sys.maxsize)  # a C long; more than any machine has is no limit
        for kind in kinds:
            resource.setrlimit(kind, (most, most))
    except (ImportError, ValueError, OSError) as error:  # macOS refuses some; the runner's own limits remain
        sys.stderr.write("memory limit not set: {}\n".format(error))


def _end_with_parent() -> None:
    """Die when the process that started the worker dies, if it asked for that (Linux)."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError):
        return
    if str(os.getppid()) != parent:  # it died before the request to the kernel
        os.kill(os.getpid(), signal.SIGKILL)


def _describe(error: BaseException, memory_limit: Optional[int] = None) -> Dict[str, Any]:
    kind, message, details, log = _classify(error)
    if kind == "out-of-memory":
        details = dict(details, fix=memory_fix(memory_limit, message))
        message += " ({})".format(memory_limit_text(memory_limit)) if memory_limit else ""
    return {"kind": kind, "message": message, "details": details, "log": log[-200:]}


def _classify(error: BaseException) -> Tuple[str, str, Dict[str, Any], List[str]]:
    if isinstance(error, StepError):
        return error.kind, error.message, error.details, error.log
    kind = kind_of_exception(error)
    if kind == "out-of-memory":  # no traceback: formatting it reads sources into memory
        return kind, "the step ran out of memory", {}, []
    if kind == "disk-full":
        return kind, printable("the disk is full: {}".format(error)), {}, []
    trace = traceback.format_exception(type(error), error, error.__traceback__)
    lines = [printable(line) for block in trace for line in block.rstrip().split("\n")]
    return "crashed", printable("{}: {}".format(type(error).__name__, error)), {}, lines
