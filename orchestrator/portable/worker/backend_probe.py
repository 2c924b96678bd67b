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

_RTX = """m = __import__(name)
import re
found = [re.match(r"SM(\\d+)(\\d)$", member) for member in m.ComputeCapability.__members__]
say(version=m.__version__, compute_capabilities=[f.group(1) + "." + f.group(2) for f in found if f])"""

_ONNXRUNTIME = """import onnxruntime as m
say(version=m.__version__, providers=[p.replace("ExecutionProvider", "").lower() for p in m.get_available_providers()])"""

# Backend -> modules (the first that is installed is asked) and the question; it prints one marked line. Names of enum
# members and providers are read, never numbers.
_QUESTIONS = {
    "tensorrt": (("tensorrt",), "import tensorrt as m; say(version=m.__version__)"),
    "tensorrt-rtx": (("tensorrt_rtx", "tensorrt_rtx_bindings"), _RTX),
    "onnxruntime": (("onnxruntime",), _ONNXRUNTIME),
}


def probe_backends() -> Dict[str, Dict[str, Any]]:
    """Backend name -> version and abilities, or ``{"error": str}``."""
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
    say = "import json\nname = {!r}\ndef say(**facts): print({!r} + json.dumps(facts))\n".format(name, _MARK)
    return _Child(say + body)


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
