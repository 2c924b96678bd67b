"""A runner on this machine: one killable process per step, with a named Python interpreter."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.models.copies import read_only_copy
from orchestrator.portable.worker.errors import kind_of_text, memory_fix, memory_limit_text
from orchestrator.portable.worker.main import EXIT_WRITTEN, PARENT_VARIABLE
from orchestrator.portable.worker.protocol import HOST_SCHEMA, REQUEST_SCHEMA, RESULT_SCHEMA
from orchestrator.runners.base import Cancel, Cancelled, Host, Step, StepResult, WorkerEvent
from orchestrator.runners.bundle import worker_pyz

if TYPE_CHECKING:
    from orchestrator.runners.supervise import Ended

MOST_SLOTS = 8
PROBE_SECONDS = 120.0
_RESULT_LIMIT = 64 << 20
_LOG_TAIL_BYTES = 4096
_NO_SPACE_BYTES = 64 << 10  # a file system with less left takes no result
# What a step may see of this process's environment: where programs and libraries are, and which GPUs are its own.
_PASSED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


class ProcessRunner:
    """Runs ``python -I worker.pyz request.json`` in the step's folder; packages of that interpreter stay importable.

    ``slots``: steps at a time, by default one per CPU, at most 8 (builders are single-threaded and hold the model several times).
    """

    kind = "process"

    def __init__(self, name: str, python: str | Path | None = None, slots: int | None = None, labels: tuple[str, ...] = ()) -> None:
        self.name = name
        self.python = str(python or sys.executable)
        self.slots = slots or min(_cpus(), MOST_SLOTS)
        self.labels = labels
        self.known: Host | None = None  # a probe's answer that still holds: spares the probe
        self._host: Host | None = None
        self._host_lock = threading.Lock()

    def host(self) -> Host:
        """The host description; probed once, then remembered. Raises EnginefarmError RUNNER_BROKEN."""
        with self._host_lock:
            if self._host is None:
                self._host = self.known or self._probe()
            return self._host

    def run(self, step: Step, folder: Path, on_event: Callable[[WorkerEvent], None], cancel: Cancel) -> StepResult:
        """Run ``step`` in the new, empty ``folder``. Raises what runners/base.py says.

        Inputs are read-only copies, but for a read-only folder that steps share: the step sees that one through a link.
        """
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "worker.log"
        nonce = secrets.token_hex(16)
        limits = {"memory_bytes": step.memory_bytes}
        request = {**step.request, "schema": REQUEST_SCHEMA, "nonce": nonce, "limits": limits}
        try:
            _place_inputs(step, folder)
            (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
            ended = self._supervise("request.json", folder, nonce, log, step.timeout_seconds, on_event, cancel)
        except OSError as error:
            raise _os_problem(error, self.name) from error
        finally:
            for scratch in ("home", "tmp"):
                shutil.rmtree(folder / scratch, ignore_errors=True)
        raise_for_process_end(ended, log, step)
        return StepResult(result=read_result(folder, request, log), folder=folder, log=log, seconds=ended.seconds)

    def _supervise(
        self,
        argument: str,
        folder: Path,
        nonce: str,
        log: Path,
        timeout_seconds: float,
        on_event: Callable[[WorkerEvent], None],
        cancel: Cancel,
    ) -> Ended:
        from orchestrator.runners.supervise import supervise

        return supervise(
            [self.python, "-I", str(worker_pyz()), argument],
            folder=folder,
            environment=_environment(folder),
            nonce=nonce,
            log=log,
            timeout_seconds=timeout_seconds,
            on_event=on_event,
            cancel=cancel,
        )

    def _probe(self) -> Host:
        """Run the probe step; its answer travels as any result does."""
        with tempfile.TemporaryDirectory(prefix="enginefarm-probe-") as place:
            step = Step(request={"step": "probe"}, timeout_seconds=PROBE_SECONDS)
            try:
                result = self.run(step, Path(place), lambda _: None, Cancel()).result
            except EnginefarmError as error:
                if error.kind is errors.DISK:
                    raise
                raise self._broken(error.what, error.why) from error
        host = result.get("host")
        if not result["ok"] or not isinstance(host, dict) or host.get("schema") != HOST_SCHEMA:
            raise self._broken((result.get("error") or {}).get("message", "it described no host"), None)
        return host

    def _broken(self, what: str, why: str | None) -> EnginefarmError:
        return EnginefarmError(
            errors.RUNNER_BROKEN,
            f"runner {self.name} cannot be asked what it is: {what}",
            why=why,
            fix=f"check that `{self.python} --version` says 3.6 or newer",
        )


def _environment(folder: Path) -> dict[str, str]:
    """A scrubbed environment: an allow-list, and home and temporary files inside the step's folder."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    for name in ("home", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    absolute = folder.resolve()
    own = {"HOME": str(absolute / "home"), "TMPDIR": str(absolute / "tmp"), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {"LANG": "C.UTF-8", **passed, **own, PARENT_VARIABLE: str(os.getpid())}


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_safe_name(name: object) -> bool:
    """Whether a path stays in the folder that it is relative to."""
    return isinstance(name, str) and bool(name) and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts


def _place_inputs(step: Step, folder: Path) -> None:
    """Put the inputs into ``folder``, read-only. Raises OSError; ValueError for a name that leaves the folder."""
    for name in step.inputs:
        if not is_safe_name(name):
            raise ValueError(f"input name {name!r} leaves the step's folder")
    linked = set()
    for top in step.shared_inputs:
        whole = _whole_folder(top, step.inputs)
        if whole is not None:
            (folder / top).symlink_to(whole, target_is_directory=True)
            linked.add(top)
    for name, source in step.inputs.items():
        if PurePosixPath(name).parts[0] not in linked:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            read_only_copy(source.resolve(strict=True), target)


def _whole_folder(top: str, inputs: Mapping[str, Path]) -> Path | None:
    """The folder on this machine that is just what the step wants to see as ``top``; None when no folder is.

    It can then be seen through a link, as in a container, where it is a volume (runners/docker_step.py): many gigabytes need no copy
    per step, and its files keep the single name and the place inside the model's folder that onnx and ONNX Runtime insist on.
    """
    wanted = {name[len(top) + 1 :]: source.absolute() for name, source in inputs.items() if name.startswith(f"{top}/")}
    if not wanted:
        return None
    name, source = next(iter(wanted.items()))
    folder = source.parents[name.count("/")]
    if any(source != folder / name for name, source in wanted.items()):
        return None
    there = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*")}
    files = {name: status for name, status in there.items() if not stat.S_ISDIR(status.st_mode)}
    own = all(stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and not status.st_mode & 0o222 for status in files.values())
    return folder.resolve() if own and files.keys() == wanted.keys() else None


def _os_problem(error: OSError, runner: str) -> EnginefarmError:
    if kind_of_text(str(error)) == "disk-full":
        return EnginefarmError(
            errors.DISK, f"no space for the step's files: {error}", fix="free some space, or set TMPDIR or --output elsewhere"
        )
    return EnginefarmError(errors.RUNNER_BROKEN, f"runner {runner} could not start the step: {error}")


def raise_for_process_end(ended: Ended, log: Path, step: Step) -> None:
    """Raise for every end that left no result to read."""
    if ended.stopped == "cancelled":
        raise Cancelled
    name = step.request["step"]
    if ended.stopped == "timeout":
        raise EnginefarmError(
            errors.STEP_TIMEOUT,
            f"the {name} step was ended after {step.timeout_seconds:g} s",
            fix=f"give it more time: limits.{name}_timeout in the target, or --{name}-timeout",
            log=str(log),
        )
    if ended.code == EXIT_WRITTEN:
        return
    tail = log_tail(log)
    kind = kind_of_text(tail)
    # a full disk may take the log and Python's own words with it: all that is left is exit code 120, and a SIGBUS of mapped files
    if kind == "disk-full" or (ended.code != -signal.SIGKILL and is_full(log.parent)):
        raise _disk_full(name, log, tail)
    if kind == "out-of-memory":
        what = f"the {name} step ran out of memory and died ({memory_limit_text(step.memory_bytes)})"
        raise EnginefarmError(errors.STEP_MEMORY, what, why=tail, fix=memory_fix(step.memory_bytes, tail), log=str(log))
    raise EnginefarmError(errors.STEP_CRASHED, f"the {name} step's process {death(ended.code)}", why=_cause(ended.code, tail), log=str(log))


def is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < _NO_SPACE_BYTES
    except OSError:
        return False


def _disk_full(name: str, log: Path, tail: str) -> EnginefarmError:
    fix = f"free some space on the disk of {log.parent}"
    return EnginefarmError(errors.DISK, f"the {name} step ran out of disk space", why=tail or None, fix=fix, log=str(log))


def death(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code} and left no result"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _cause(code: int, tail: str) -> str | None:
    if code == -signal.SIGKILL:
        return (
            "something outside sent it; the kernel does that when memory is short (`dmesg` would say so), so may a person or a supervisor"
        )
    return tail or None


def log_tail(log: Path) -> str:
    """The last lines of a step's log, printable, at most a few kilobytes."""
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = ["".join(c if c.isprintable() else " " for c in line) for line in text.splitlines()[-8:]]
    return "\n".join(lines).strip()


def read_result(folder: Path, request: Mapping[str, Any], log: Path) -> Mapping[str, Any]:
    """``result.json``, checked: of this protocol and step, and every file it names a regular file inside the folder."""
    path = folder / "result.json"
    try:
        if path.stat().st_size > _RESULT_LIMIT:
            raise ValueError("it is too large")
        result = json.loads(path.read_bytes())
        if not isinstance(result, dict) or result.get("schema") != RESULT_SCHEMA or result.get("step") != request["step"]:
            raise ValueError("it is not a result of this step")
        if not isinstance(result.get("ok"), bool) or not (result["ok"] or isinstance(result.get("error"), dict)):
            raise ValueError("it does not say how the step ended")
        for name in named_files(result):
            if not is_safe_name(name) or not stat.S_ISREG((folder / name).lstat().st_mode):
                raise ValueError(f"it names {name!r}, which is no file of the step")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if is_full(folder):
            raise _disk_full(request["step"], log, log_tail(log)) from error
        raise EnginefarmError(
            errors.STEP_CRASHED, f"the {request['step']} step left no usable result: {error}", why=log_tail(log) or None, log=str(log)
        ) from error
    # libraries name the symptom ("serialization failed") of a file that could not be written
    if not result["ok"] and is_full(folder):
        raise _disk_full(request["step"], log, str(result["error"].get("message") or ""))
    return result


def named_files(result: Mapping[str, Any]) -> list[Any]:
    engine = [result["engine"]["file"]] if result.get("engine") else []
    return engine + [tensor["file"] for sample in result.get("outputs") or [] for tensor in sample["outputs"]]
