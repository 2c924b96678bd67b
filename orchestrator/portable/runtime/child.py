"""The other side of isolate.try_in_child: loads one engine and says how it went. It dies with the process that asked."""

import ctypes
import json
import os
import signal
import sys
from typing import Any, Dict

from .attempt import refusal_of
from .candidates import Candidate
from .files import Expected, check, read_checked
from .host import Described, ThisProcess
from .inputs import Spec
from .selection import check_backend
from .sessions import Job, open_session

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LINES, _LINE = 50, 500  # of the log in the answer


def main(given: Dict[str, Any]) -> None:
    """Answer on standard output, in one line that starts with the nonce."""
    _end_with(given["parent"])
    answer: Dict[str, Any] = {"ok": True}
    try:
        _load(given)
    except Exception as error:  # noqa: BLE001  (the edge of the process: whatever went wrong is the answer)
        refusal = refusal_of(error)
        log = [line[:_LINE] for line in getattr(error, "log", [])[-_LINES:]]
        answer = {"ok": False, "stage": refusal.stage, "message": refusal.why, "fix": refusal.fix, "kind": refusal.kind}
        answer.update(code=refusal.code, log=log)
    sys.stdout.flush()
    os.write(1, ("\n" + given["nonce"] + json.dumps(answer) + "\n").encode("utf-8"))
    os._exit(0)  # a library that was loaded may crash while the interpreter ends; that says nothing about the engine


def _load(given: Dict[str, Any]) -> None:
    candidate = Candidate(*given["candidate"])
    check_backend(candidate, Described(given["facts"]), ThisProcess().backend(candidate.record["backend"]))
    for plugin in given["plugins"]:
        check(Expected(*plugin))
    job = Job(**given["job"])
    job = job._replace(inputs=[_spec(item) for item in job.inputs], outputs=[_spec(item) for item in job.outputs])
    open_session(job, read_checked(Expected(*given["expected"])))


def _spec(item: Any) -> Spec:
    name, dtype, shape, low, high = item
    return Spec(name, dtype, tuple(shape), tuple(low), tuple(high))


def _end_with(parent: int) -> None:
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent:  # it died before the request to the kernel
        os.kill(os.getpid(), signal.SIGKILL)
