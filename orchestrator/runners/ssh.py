"""A runner on another machine without Docker: its own Python over ssh, one killable process per step, one build per GPU."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.portable.worker.protocol import HOST_SCHEMA, REQUEST_SCHEMA
from orchestrator.runners import docker_labels as marks
from orchestrator.runners.base import Cancel, Cancelled, Host, Step, StepResult, WorkerEvent
from orchestrator.runners.docker_host import Overrides, with_overrides
from orchestrator.runners.process import PROBE_SECONDS
from orchestrator.runners.ssh_errors import Destination, is_passing
from orchestrator.runners.ssh_link import Link
from orchestrator.runners.ssh_step import RemoteStep

_TRIES = 3  # to connect, where a server had no place for one more connection
_TRY_AGAIN_SECONDS = 1.0
_REMEMBER_SECONDS = 30.0  # a host that did not answer is not asked again for every target of a run


class SshRunner:
    """Runs steps with ``to.python`` on ``to``. ``slots``: steps at a time; those that need a GPU also wait for its lease.

    Links stay open between steps. They end with ``close``, and with this process however it ends.
    """

    kind = "ssh"

    def __init__(
        self, name: str, to: Destination, *, slots: int = 1, labels: tuple[str, ...] = (), overrides: Overrides | None = None
    ) -> None:
        self.name = name
        self.to = to
        self.slots = slots
        self.labels = labels
        self.overrides = overrides or Overrides()
        self._sent_before = 0
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self._host_lock = threading.Lock()
        self._host: Host | None = None
        self._failed: tuple[float, EnginefarmError] | None = None

    # --- what it is ---

    def host(self) -> Host:
        """The host description, probed once, then remembered, with ``remote`` (address, workdir, free_disk_bytes) beside it.

        Raises EnginefarmError; the same again for some seconds, without asking anew.
        """
        with self._host_lock:
            if self._failed and time.monotonic() < self._failed[0]:
                last = self._failed[1]
                raise EnginefarmError(last.kind, last.what, why=last.why, fix=last.fix)
            if self._host is None:
                try:
                    self._host = self._probe()
                except EnginefarmError as error:
                    self._failed = (time.monotonic() + _REMEMBER_SECONDS, error)
                    raise
            return self._host

    def _probe(self) -> Host:
        with tempfile.TemporaryDirectory(prefix="enginefarm-probe-") as place:
            step = Step(request={"step": "probe"}, timeout_seconds=PROBE_SECONDS)
            with self._link(Cancel()) as link:
                result = self._on(link, step, {}, Path(place), lambda _: None, Cancel()).result
                about = link.host
        host = result.get("host")
        if not result["ok"] or not isinstance(host, dict) or host.get("schema") != HOST_SCHEMA:
            told = (result.get("error") or {}).get("message", "it described no host")
            raise EnginefarmError(errors.RUNNER_BROKEN, f"runner {self.name} cannot be asked what it is: {told}")
        remote = {"address": str(self.to), "workdir": about["workdir"], "free_disk_bytes": about["free"]}
        return with_overrides({**host, "remote": remote}, self.overrides, self.name)

    def holders(self) -> dict[str, str]:
        """GPU uuid -> who holds it now, for people. Raises EnginefarmError."""
        gpus = {lease_name(gpu): str(gpu.get("uuid")) for gpu in self.host()["gpus"]}
        with self._link(Cancel()) as link:
            found = link.ask("ask who holds its GPUs", _never, op="holders", names=list(gpus))["holders"]
        return {gpus[name]: owner or "an unknown owner" for name, owner in found.items()}

    def clean(self, *, inputs: bool = False, keep_bytes: int = 0) -> dict[str, Any]:
        """Remove the folders of steps whose process is gone and, with ``inputs``, files kept for later steps, but for the ``keep_bytes``
        last used and what a step uses. Gives ``steps`` and ``inputs`` (names) and ``bytes``. Raises EnginefarmError."""
        with self._link(Cancel()) as link:
            found = link.ask("clean up", _never, op="clean", inputs=inputs, keep=keep_bytes)
            return {**found, "steps": sorted({*found["steps"], *link.host["swept"]})}

    # --- steps ---

    def run(self, step: Step, folder: Path, on_event: Callable[[WorkerEvent], None], cancel: Cancel) -> StepResult:
        """Run ``step`` and bring its files into ``folder``. Raises what runners/base.py says, and errors.EF43x."""
        folder.mkdir(parents=True, exist_ok=True)
        gpus = self._gpus(step)
        try:
            with self._link(cancel) as link:
                environment = self._lease(link, gpus, on_event, cancel) if gpus else {"CUDA_VISIBLE_DEVICES": ""}
                return self._on(link, step, environment, folder, on_event, cancel)
        except OSError as error:
            raise EnginefarmError(errors.RUNNER_BROKEN, f"runner {self.name} could not send the step's files: {error}") from error

    def _on(
        self,
        link: Link,
        step: Step,
        environment: Mapping[str, str],
        folder: Path,
        on_event: Callable[[WorkerEvent], None],
        cancel: Cancel,
    ) -> StepResult:
        log = folder / "worker.log"
        log.touch()
        nonce = secrets.token_hex(16)
        request = {**step.request, "schema": REQUEST_SCHEMA, "nonce": nonce, "limits": {"memory_bytes": step.memory_bytes}}
        return RemoteStep(link, step, request, environment, on_event, cancel).run(folder, log)

    def _gpus(self, step: Step) -> list[Mapping[str, Any]]:
        """The host's GPUs that the step can use; none when it needs none."""
        if not step.compute_capability:
            return []
        fitting = [gpu for gpu in self.host()["gpus"] if gpu.get("compute_capability") in step.compute_capability]
        if not fitting:
            wanted = " or ".join(step.compute_capability)
            raise EnginefarmError(errors.RUNNER_BROKEN, f"runner {self.name} has no GPU of compute capability {wanted}")
        return fitting

    def _lease(
        self, link: Link, gpus: Sequence[Mapping[str, Any]], on_event: Callable[[WorkerEvent], None], cancel: Cancel
    ) -> dict[str, str]:
        """Wait for one of ``gpus`` and hold it on the link; what the worker's environment says of it."""
        doing, own = "take a GPU's lease", marks.owner_name(marks.this_owner())
        names = {lease_name(gpu): gpu for gpu in gpus}

        def check() -> None:
            if cancel.is_set():
                raise Cancelled

        link.tell(doing, check, op="lease", names=list(names), owner=own)
        while "held" not in (answer := link.answer(doing, check)):
            holder = answer.get("waiting") or "an unknown owner"
            gpu = ", ".join(str(gpu.get("name")) for gpu in gpus[:2])
            who = "another step of this run" if holder == own else holder
            on_event({"event": "phase", "phase": f"waiting for {gpu}: held by {who}"})
        if len(self.host()["gpus"]) == 1:
            return {}
        held = names[answer["held"]]
        declared = held.get("declared_uuid") or not held.get("uuid")
        return {"CUDA_VISIBLE_DEVICES": str(held["index"] if declared else held["uuid"])}

    # --- links ---

    @contextlib.contextmanager
    def _link(self, cancel: Cancel) -> Iterator[Link]:
        """A link with a step begun on it. One that was left in order is used again, any other is closed, and with it what it had."""
        link = self._open(cancel)
        try:
            yield link
        except BaseException:
            self._closed(link)
            raise
        try:
            link.ask("end the step", _never, op="finish")
        except EnginefarmError:  # the step's files are here: all that is lost is the link
            self._closed(link)
            return
        with self._lock:
            self._idle.append(link)

    def _open(self, cancel: Cancel) -> Link:
        def check() -> None:
            if cancel.is_set():
                raise Cancelled

        while True:
            with self._lock:
                used = self._idle.pop() if self._idle else None
            link = used or self._connect(check, cancel)
            try:
                link.ask("begin a step", check, op="begin", name=f"step-{secrets.token_hex(8)}")
            except BaseException as error:
                self._closed(link)
                if used and isinstance(error, EnginefarmError):  # it broke while nobody used it: nothing has begun
                    continue
                raise
            return link

    def _closed(self, link: Link) -> None:
        link.close()
        with self._lock:
            self._sent_before += link.sent_bytes

    @property
    def sent_bytes(self) -> int:
        """All bytes that went to the host over links that no step uses now."""
        with self._lock:
            return self._sent_before + sum(link.sent_bytes for link in self._idle)

    def _connect(self, check: Callable[[], None], cancel: Cancel) -> Link:
        for attempt in range(1, _TRIES + 1):
            try:
                return Link(self.to, self.name, check)
            except EnginefarmError as error:
                if attempt == _TRIES or not is_passing(error):
                    raise
            if cancel.wait(_TRY_AGAIN_SECONDS * attempt):
                raise Cancelled
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        """Close the links that no step uses; the next step opens a new one."""
        with self._lock:
            links, self._idle = self._idle, []
        for link in links:
            self._closed(link)


def lease_name(gpu: Mapping[str, Any]) -> str:
    """What a GPU is called among all programs on its machine: its uuid, else its place."""
    return str(gpu["uuid"]) if gpu.get("uuid") and not gpu.get("declared_uuid") else f"index-{gpu['index']}"


def _never() -> None:
    """Nothing stops a short call."""
