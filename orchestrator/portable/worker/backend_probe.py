"""Which backends can be imported here: each is asked in a child process, so that a broken one cannot hurt the probe."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from typing import Any, Dict, Iterable, List, Optional

from .errors import printable

TIMEOUT_SECONDS = 60.0
_MARK = "enginefarm-backend:"

_TENSORRT = """import tensorrt as m
say(version=m.__version__, cuda=cuda_of("tensorrt"))"""

_RTX = """m = __import__(name)
import re
found = [re.match(r"SM(\\d+)(\\d)$", member) for member in m.ComputeCapability.__members__]
capabilities = [f.group(1) + "." + f.group(2) for f in found if f]
say(version=m.__version__, cuda=cuda_of("tensorrt_rtx"), compute_capabilities=capabilities)"""

_ONNXRUNTIME = """import onnxruntime as m
try:
    import onnxruntime.capi.build_and_package_info as b
except ImportError:
    b = None
providers = [p.replace("ExecutionProvider", "").lower() for p in m.get_available_providers()]
say(version=m.__version__, cuda=getattr(b, "cuda_version", None) or None, providers=providers)"""

# What every question may use. CUDA of a build: a Debian package says it in its version ("8.6.1.6-1+cuda12.0"), a wheel in its name
# (tensorrt_cu12). The module itself does not know it, and the builds for CUDA 11, 12 and 13 have one version number.
_PRELUDE = """import json, os, re, sys
name = {name!r}
def say(**facts): print({mark!r} + json.dumps({{k: v for k, v in facts.items() if v is not None}}))
def cuda_of(start):
    pattern = re.compile("^" + start + r"_cu(\\d+)(?:_libs|_bindings)?-[^-]+[.]dist-info$")
    for folder in sys.path:
        try:
            found = [pattern.match(entry) for entry in os.listdir(folder or ".")]
        except OSError:
            continue
        if any(found):
            return next(match.group(1) for match in found if match)
    if start != "tensorrt":
        return None
    try:
        with open("/var/lib/dpkg/status", "rb") as file:
            status = file.read().decode("utf-8", "replace")
    except OSError:
        status = ""
    found = re.search(r"^Package: libnvinfer\\d+\\n(?:.+\\n)*?Version: \\S+[+]cuda(\\d+[.]\\d+)", status, re.MULTILINE)
    if found:
        return found.group(1)
    return os.environ.get("CUDA_VERSION") if "TRT_VERSION" in os.environ else None  # set together by NVIDIA's images
"""

# Backend -> modules (the first that is installed is asked) and the question; it prints one marked line. Names of enum
# members and providers are read, never numbers.
_QUESTIONS = {
    "tensorrt": (("tensorrt",), _TENSORRT),
    "tensorrt-rtx": (("tensorrt_rtx", "tensorrt_rtx_bindings"), _RTX),
    "onnxruntime": (("onnxruntime",), _ONNXRUNTIME),
}


def probe_backends() -> Dict[str, Dict[str, Any]]:
    """Backend name -> version, abilities and (where it can be told) the CUDA that it was built with, or ``{"error": str}``."""
    running = {backend: _ask(*question) for backend, question in _QUESTIONS.items()}
    return {backend: _answer(child) for backend, child in running.items()}


class _Child:
    """A question under way; its output goes to files, so that no pipe can fill up."""

    def __init__(self, code: str) -> None:
        self.stdout = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the answer is read)
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, *_interpreter_flags(), "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=self.stdout,
            stderr=self.stderr,
        )


def _ask(modules: Iterable[str], body: str) -> Optional[_Child]:
    name = next((module for module in modules if _is_installed(module)), None)
    if name is None:
        return None
    return _Child(_PRELUDE.format(name=name, mark=_MARK) + body)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _answer(child: Optional[_Child]) -> Dict[str, Any]:
    if child is None:
        return {"error": "not installed"}
    with child.stdout, child.stderr:
        try:
            child.process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
            return {"error": "import took more than {:.0f} s".format(TIMEOUT_SECONDS)}
        for line in _text(child.stdout).splitlines():
            if line.startswith(_MARK):
                return dict(json.loads(line[len(_MARK) :]))
        lines = _text(child.stderr).strip().splitlines()
        return {"error": printable(lines[-1] if lines else _death(child.process.returncode), 500)}


def _death(code: Optional[int]) -> str:
    return "import ended with signal {}".format(-code) if code and code < 0 else "import ended without an answer"


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))


def _interpreter_flags() -> List[str]:
    """The flags that decide where modules are found, as this process got them."""
    flags = []
    if sys.flags.isolated:
        flags.append("-I")
    if sys.flags.no_site:
        flags.append("-S")
    return flags
