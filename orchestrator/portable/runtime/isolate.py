"""A trial of an engine in a child process.

A thread that hangs inside a library cannot be ended from outside; a child can. A damaged or foreign plan can also kill its process.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

from ..worker.errors import printable
from .attempt import explained
from .candidates import Candidate
from .errors import Refusal
from .files import Expected
from .sessions import Job

CHILD = "{}.child".format(__package__)
_TAIL_BYTES = 1 << 16
_START = (
    "import importlib, json, sys\n"
    "given = json.load(sys.stdin)\n"
    "sys.path[:] = given['path']\n"
    "importlib.import_module(given['module']).main(given)\n"
)


def try_in_child(
    candidate: Candidate, facts: Dict[str, Any], job: Job, expected: Expected, plugins: List[Expected], seconds: Optional[float]
) -> None:
    """Check the backend and load the engine in a process of its own; Refusal when that process fails, dies or does not end in time.

    ``facts``: of this machine (host.py), so that the child need not find them out again.
    """
    nonce = os.urandom(16).hex()
    given = {
        "path": sys.path,
        "module": CHILD,
        "nonce": nonce,
        "parent": os.getpid(),
        "candidate": list(candidate),
        "facts": facts,
        "expected": list(expected),
        "plugins": [list(plugin) for plugin in plugins],
        "job": dict(job._asdict(), inputs=[list(spec) for spec in job.inputs], outputs=[list(spec) for spec in job.outputs]),
    }
    command = [sys.executable, *_interpreter_flags(), "-c", _START]
    with tempfile.TemporaryFile() as question, tempfile.TemporaryFile() as output:
        question.write(json.dumps(given).encode("ascii"))
        question.seek(0)
        started = time.monotonic()
        try:
            child = subprocess.Popen(command, stdin=question, stdout=output, stderr=output, start_new_session=True)
        except OSError as error:
            raise Refusal("load", "no child process for the trial: {}".format(error), "load without isolate") from error
        late = _wait(child, seconds)
        lines = _tail(output)
    _judge(child.returncode, late, lines, nonce, time.monotonic() - started)


def _wait(child: Any, seconds: Optional[float]) -> bool:
    """Whether the child had to be killed; with it goes what it started."""
    try:
        child.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        if child.returncode is None:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except (OSError, AttributeError):  # Windows has no killpg
                child.kill()
            child.wait()


def _tail(output: Any) -> List[str]:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL_BYTES))
    return [line for line in output.read().decode("utf-8", "replace").splitlines() if line.strip()]


def _judge(code: int, late: bool, lines: List[str], nonce: str, seconds: float) -> None:
    answers = [line[len(nonce) :] for line in lines if line.startswith(nonce)]
    said = [printable(line) for line in lines if not line.startswith(nonce)]
    if late:
        raise Refusal("load", "a trial in a child process hung and was killed after {:.0f} s".format(seconds), "", "timeout")
    if not answers:
        death = "was killed by signal {} ({})".format(-code, _signal_name(-code)) if code < 0 else "ended with exit code {}".format(code)
        text = "a trial in a child process {}".format(death)
        raise explained(Refusal("load", text, "rebuild the engine for what is installed here", "crash"), said)
    answer = json.loads(answers[-1])
    if not answer["ok"]:
        refusal = Refusal(answer["stage"], answer["message"], answer["fix"], answer["kind"], answer["code"])
        raise refusal if refusal.code else explained(refusal, answer["log"] or said)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def _interpreter_flags() -> List[str]:
    flags = []
    if sys.flags.isolated:
        flags.append("-I")
    if sys.flags.no_site:
        flags.append("-S")
    return flags
