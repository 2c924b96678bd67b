"""One step over an ssh link: what it needs is sent unless it is there, the worker runs, its files come back whole. Nothing of it stays."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.portable.remote.wire import CHUNK_BYTES, DATA, JSON, LOG, OUT
from orchestrator.portable.worker.errors import kind_of_text
from orchestrator.portable.worker.main import EXIT_WRITTEN
from orchestrator.runners.base import Cancel, Cancelled, Step, StepResult, WorkerEvent
from orchestrator.runners.bundle import worker_pyz
from orchestrator.runners.process import is_safe_name, log_tail, named_files, raise_for_process_end, read_result
from orchestrator.runners.ssh_errors import lost, refused
from orchestrator.runners.ssh_link import Link
from orchestrator.runners.supervise import Ended, EventLines

RETURN_LIMIT_BYTES = 64 << 30
_RESULT_LIMIT = 64 << 20
_NO_SPACE_BYTES = 64 << 10  # a file system with less left takes no result


@dataclass
class RemoteStep:
    """One step on one link. ``environment`` is added to the scrubbed one there."""

    link: Link
    step: Step
    request: Mapping[str, Any]
    environment: Mapping[str, str]
    on_event: Callable[[WorkerEvent], None]
    cancel: Cancel
    received: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Name -> size in bytes and sha256 in hex of each file that came back."""

    def run(self, folder: Path, log: Path) -> StepResult:
        """Run it; its files lie in ``folder``. Raises what runners/base.py says and errors.EF43x."""
        blobs = self._send()
        with log.open("ab", buffering=0) as log_file:
            ended, free = self._run(blobs, log_file)
        if ended.stopped is not None or ended.code != EXIT_WRITTEN:
            self._raise_for_end(ended, free, log)
        incoming = folder / ".incoming"
        try:
            result = self._bring_back(incoming, log, free)
            for name in (*named_files(result), "result.json"):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                (incoming / name).rename(target)
        except OSError as error:
            fix = "free some space, or set --output elsewhere"
            raise EnginefarmError(errors.DISK, f"the results could not be written here: {error}", fix=fix) from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return StepResult(result=result, folder=folder, log=log, seconds=ended.seconds)

    def _check(self) -> None:
        if self.cancel.is_set():
            raise Cancelled

    # --- sending ---

    def _send(self) -> dict[str, str]:
        """Send what the other machine has not; gives name -> sha256 of the inputs that are single files."""
        doing = "send the step's files"
        for name in self.step.inputs:
            if not is_safe_name(name):
                raise ValueError(f"input name {name!r} leaves the step's folder")
        trees = {digest: self._files_of(top) for top, digest in self.step.shared_inputs.items()}
        own = {name: path for name, path in self.step.inputs.items() if name.split("/")[0] not in self.step.shared_inputs}
        digests = {name: _digest(path, self._check) for name, path in own.items()}
        files = {digests[name]: path for name, path in own.items()} | {_worker_digest(): worker_pyz()}
        missing = self.link.ask(
            doing,
            self._check,
            op="have",
            blobs={digest: path.stat().st_size for digest, path in files.items()},
            trees={_hex(digest): {name: path.stat().st_size for name, path in tree.items()} for digest, tree in trees.items()},
        )
        if missing["blobs"] or missing["trees"]:
            self.on_event({"event": "phase", "phase": "sending"})
        for digest, tree in trees.items():
            if _hex(digest) in missing["trees"]:
                self._stream({"op": "tree", "digest": _hex(digest)}, tree.items(), doing)
        if missing["blobs"]:
            self._stream({"op": "blobs"}, ((digest, files[digest]) for digest in missing["blobs"]), doing)
        return digests

    def _files_of(self, top: str) -> dict[str, Path]:
        return {name[len(top) + 1 :]: path for name, path in self.step.inputs.items() if name.startswith(f"{top}/")}

    def _stream(self, asked: dict[str, Any], files: Iterable[tuple[str, Path]], doing: str) -> None:
        sized = [(name, path, path.stat().st_size) for name, path in files]
        self.link.tell(doing, self._check, **asked, files=[(name, size) for name, _, size in sized])
        for _, path, size in sized:
            with path.open("rb") as file:
                while size:
                    piece = file.read(min(size, CHUNK_BYTES))
                    if not piece:
                        raise OSError(f"{path} became shorter while it was sent")
                    size -= len(piece)
                    self.link.data(piece, doing, self._check)
        self.link.answer(doing, self._check)

    # --- running ---

    def _run(self, blobs: Mapping[str, str], log_file: IO[bytes]) -> tuple[Ended, int]:
        """How the worker ended, and the bytes that are free on its disk then."""
        name = self.request["step"]
        doing = f"follow the {name} step"
        trees = {top: _hex(digest) for top, digest in self.step.shared_inputs.items()}
        lines = EventLines(self.request["nonce"], log_file, self.on_event)
        self.link.tell(
            doing,
            self._check,
            op="run",
            request=self.request,
            inputs=blobs,
            trees=trees,
            worker=_worker_digest(),
            environment=self.environment,
            timeout=self.step.timeout_seconds,
        )
        while True:
            kind, data = self.link.next(doing, self._check)
            if kind == OUT:
                lines.feed(data)
            elif kind == LOG:
                log_file.write(data)
            else:
                answer = self.link.message(kind, data, doing)
                break
            self._check()
        lines.finish()
        return Ended(int(answer["code"]), answer["stopped"], float(answer["seconds"])), int(answer["free"])

    def _raise_for_end(self, ended: Ended, free: int, log: Path) -> None:
        tail = log_tail(log)
        if ended.stopped is None and (kind_of_text(tail) == "disk-full" or free < _NO_SPACE_BYTES):
            raise self._disk_full(tail)
        raise_for_process_end(ended, log, self.step)

    def _disk_full(self, message: str) -> EnginefarmError:
        return refused(self.link.to, self.link.runner, f"finish the {self.request['step']} step", "disk-full", message)

    # --- bringing back ---

    def _bring_back(self, incoming: Path, log: Path, free: int) -> Mapping[str, Any]:
        """Fetch ``result.json`` and the files that it names into ``incoming``; gives the checked result."""
        incoming.mkdir()
        self._fetch(["result.json"], [], incoming, _RESULT_LIMIT)
        names = _names_in(incoming / "result.json")
        if names:
            self.on_event({"event": "phase", "phase": "bringing back"})
            self._fetch(names, names[:1], incoming, RETURN_LIMIT_BYTES)
        result = read_result(incoming, self.request, log)
        if not result["ok"] and free < _NO_SPACE_BYTES:  # libraries name the symptom of a file that could not be written
            raise self._disk_full(str(result["error"].get("message") or ""))
        engine = result.get("engine")
        if engine and self.received[engine["file"]] != (engine.get("size_bytes"), engine.get("sha256")):
            what = f"the engine file that came back from runner {self.link.runner} is not the one that was built there"
            raise EnginefarmError(errors.SSH_LOST, what, log=str(log))
        return result

    def _fetch(self, names: list[str], keep: list[str], incoming: Path, limit: int) -> None:
        doing = "bring the results back"
        self.link.tell(doing, self._check, op="fetch", names=names, keep=keep)
        while "fetched" not in (message := self.link.answer(doing, self._check)):
            size, name = message.get("size"), message.get("file")
            if size is None:
                continue  # not there: reading the result says so
            if name not in names or not isinstance(size, int) or not 0 <= size <= limit:
                raise lost(self.link.to, self.link.runner, doing, f"it sends {size} bytes as {name!r}")
            limit -= size
            self._receive(incoming / name, name, size, doing)

    def _receive(self, path: Path, name: str, size: int, doing: str) -> None:
        digest, left = hashlib.sha256(), size
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb", buffering=0) as file:
            while left:
                kind, data = self.link.next(doing, self._check)
                if kind == JSON:
                    self.link.message(kind, data, doing)  # an error
                if kind != DATA or len(data) > left:
                    raise lost(self.link.to, self.link.runner, doing, "what came is not of this protocol")
                file.write(data)
                digest.update(data)
                left -= len(data)
                self._check()
        if self.link.answer(doing, self._check).get("sha256") != digest.hexdigest():
            raise lost(self.link.to, self.link.runner, doing, f"{name} came back altered")
        self.received[name] = (size, digest.hexdigest())


def _names_in(path: Path) -> list[str]:
    """The files that a result names, the engine first, as far as it can be read; ``read_result`` says what is wrong with it."""
    try:
        names = named_files(json.loads(path.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return list(dict.fromkeys(name for name in names if is_safe_name(name) and name != "result.json"))


def _hex(digest: str) -> str:
    """The name of a digest on the other machine: letters and digits only."""
    text = digest.removeprefix("sha256:")
    return text if len(text) == 64 else hashlib.sha256(digest.encode()).hexdigest()


def _digest(path: Path, check: Callable[[], None]) -> str:
    """sha256 in hex, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            check()
    return digest.hexdigest()


@functools.cache
def _digest_of_worker(path: Path, modified: int) -> str:
    del modified
    return _digest(path, lambda: None)


def _worker_digest() -> str:
    path = worker_pyz()
    return _digest_of_worker(path, path.stat().st_mtime_ns)
