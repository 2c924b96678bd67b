"""What the end of a container means, and which of the files that came back count."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.portable.worker.errors import kind_of_text, memory_limit_text
from orchestrator.runners.base import Step
from orchestrator.runners.docker_engine import Engine
from orchestrator.runners.docker_files import Received
from orchestrator.runners.process import death, log_tail, named_files, raise_for_process_end, read_result
from orchestrator.runners.supervise import Ended

_SIGNALLED = 128  # a shell's and an init's exit code for signal N is 128 + N
_NOT_FOUND = (126, 127)  # the init could not start the program
_OUTSIDE = (137, 143)  # SIGKILL, SIGTERM: an engine that stops sends them too
_SECONDS_TO_STOP = 3.0


def raise_for_end(engine: Engine, ended: Ended, state: Mapping[str, Any], step: Step, memory: int, log: Path) -> NoReturn:
    """Raise what an end without a result means. ``state`` is the engine's; 137 means memory only where it says OOMKilled."""
    name = step.request["step"]
    if ended.stopped is not None:
        raise_for_process_end(ended, log, step)
    tail = log_tail(log)
    if state.get("OOMKilled"):
        raise EnginefarmError(
            errors.STEP_MEMORY,
            f"the {name} step ran out of memory and was killed ({memory_limit_text(memory)})",
            why=tail or None,
            fix="give it more: limits.memory in the target, or --memory",
            log=str(log),
        )
    if ended.code in _NOT_FOUND or "failed to exec pid1" in tail:  # the latter is Podman's catatonit, which exits with 1
        what = "the image has no python3 that can be started"
        fix = "take an image with Python 3.6 or newer on its PATH: every TensorRT image of NVIDIA has one"
        raise EnginefarmError(errors.IMAGE_UNFIT, what, why=tail or None, fix=fix, log=str(log))
    if kind_of_text(tail) == "disk-full" or kind_of_text(str(state.get("Error", ""))) == "disk-full":
        raise EnginefarmError(errors.DISK, f"the {name} step ran out of disk space on runner {engine.runner}", why=tail, log=str(log))
    if ended.code in _OUTSIDE and not _stays(engine):
        raise EnginefarmError(errors.ENGINE_LOST, f"the engine of runner {engine.runner} stopped during the {name} step", log=str(log))
    if kind_of_text(tail) == "out-of-memory":
        what = f"the {name} step ran out of memory and died ({memory_limit_text(memory)})"
        raise EnginefarmError(errors.STEP_MEMORY, what, why=tail, log=str(log))
    code = _SIGNALLED - ended.code if ended.code > _SIGNALLED else ended.code
    why = tail or None
    if ended.code in _OUTSIDE:
        why = "something outside sent it: the engine says that memory was not the reason"
    raise EnginefarmError(errors.STEP_CRASHED, f"the {name} step's process {death(code)}", why=why, log=str(log))


def _stays(engine: Engine) -> bool:
    """Whether the engine still answers after the time that a stopping one needs."""
    until = time.monotonic() + _SECONDS_TO_STOP
    while time.monotonic() < until:
        try:
            engine.control.ping()
        except Exception:  # noqa: BLE001  (whatever it is, it is no answer)
            return False
        time.sleep(0.2)
    return True


def settle_files(
    incoming: Path, folder: Path, received: Mapping[str, Received], request: Mapping[str, Any], log: Path, runner: str
) -> Mapping[str, Any]:
    """Check ``result.json``, move it and the files it names from ``incoming`` into ``folder``; gives the result. Raises EnginefarmError."""
    result = read_result(incoming, request, log)
    engine = result.get("engine")
    if engine:
        came = received[engine["file"]]
        if (came.size, came.sha256) != (engine.get("size_bytes"), engine.get("sha256")):
            raise EnginefarmError(
                errors.ENGINE_LOST, f"the engine file that came back from runner {runner} is not the one that was built there", log=str(log)
            )
    for name in (*named_files(result), "result.json"):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (incoming / name).rename(target)
    return result
