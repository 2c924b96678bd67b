"""One build per GPU, also between programs: a lease that lies on the engine itself.

A lease is a container that is created and never started: its name, taken atomically by the engine, says which GPU it is. Its owner is in
a label; while it is held a small file in it says until when it counts (in seconds after the engine created the container, so no clock
of a client matters). A lease of a process of this machine that is gone, or one that was not renewed in time, is taken over: removed by its
id, which cannot hit a successor, together with the steps that its owner still has on that GPU.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from orchestrator import errors
from orchestrator.runners import docker_labels as marks
from orchestrator.runners.base import Cancel, Cancelled
from orchestrator.runners.docker_engine import Engine
from orchestrator.runners.docker_errors import engine_errors

TTL_SECONDS = 60.0
RENEW_SECONDS = 15.0
_POLL_SECONDS = 1.0  # how often the engine is asked while waiting
_LOCAL_POLL_SECONDS = 0.1
_AGE_SECONDS = 10.0  # how often the age of a lease is looked at, which takes the engine more than a look at its owner
_FILE = "enginefarm-lease"
_LOG = logging.getLogger(__name__)

_claims = marks.Claims()  # GPUs that a thread of this process holds or asks for


def lease_name(gpu: str) -> str:
    """The name of the container that stands for a GPU."""
    return "enginefarm-gpu-" + re.sub(r"[^A-Za-z0-9_.-]", "-", gpu)


class Lease:
    """A held GPU. ``lost`` turns true when it was taken over or could not be renewed: the step must end."""

    def __init__(self, engine: Engine, gpu: Mapping[str, Any], container: str) -> None:
        self.gpu = gpu
        self._engine = engine
        self._container = container
        self._since = time.monotonic()
        self._valid_until = self._since + TTL_SECONDS
        self._gone = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease {gpu['uuid']}", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        return self._gone.is_set() or time.monotonic() > self._valid_until

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join(2 * RENEW_SECONDS)
        with contextlib.suppress(Exception):  # what cannot be removed now expires
            self._engine.control.remove_container(self._container, force=True, v=True)
        _claims.leave(self._engine.id, str(self.gpu["uuid"]))

    def _renew(self) -> None:
        import docker.errors

        while not self._done.wait(RENEW_SECONDS):
            started = time.monotonic()
            try:
                self._engine.control.put_archive(self._container, "/", _note(started - self._since + TTL_SECONDS))
                self._valid_until = started + TTL_SECONDS
            except docker.errors.NotFound:
                self._gone.set()
                return
            except Exception as error:  # noqa: BLE001  (any failure to renew is tried again until the lease has run out)
                _LOG.debug("lease %s not renewed: %s", self._container, error)


def acquire(
    engine: Engine,
    gpus: Sequence[Mapping[str, Any]],
    image: str,
    labels: Callable[[str, float], dict[str, str]],
    cancel: Cancel,
    on_wait: Callable[[str], None],
) -> Lease:
    """Wait for one of ``gpus`` (each with ``uuid``) and hold it.

    ``image`` is any image on the engine; ``labels`` makes the labels for a kind and a ttl.

    ``on_wait`` gets one sentence each time another holder is waited for. Raises Cancelled; EnginefarmError when the engine fails.
    """
    said = None
    asked = aged = float("-inf")
    while True:
        holder = "another step of this run"
        now = time.monotonic()
        ask, look = now - asked >= _POLL_SECONDS, now - aged >= _AGE_SECONDS
        for gpu in gpus:
            uuid = str(gpu["uuid"])
            if not _claims.take(engine.id, uuid):
                continue
            held = False
            try:
                container, other = _try(engine, gpu, image, labels, look) if ask else (None, said)
                held = container is not None
                asked, aged, holder = now if ask else asked, now if ask and look else aged, other or holder
                if container is not None:
                    return Lease(engine, gpu, container)
            finally:
                if not held:
                    _claims.leave(engine.id, uuid)
        if holder != said:
            said = holder
            names = ", ".join(str(gpu.get("name") or gpu["uuid"]) for gpu in gpus[:2])
            on_wait(f"waiting for {names}: held by {holder}")
        if cancel.wait(_LOCAL_POLL_SECONDS):
            raise Cancelled


def _try(
    engine: Engine, gpu: Mapping[str, Any], image: str, labels: Callable[[str, float], dict[str, str]], look_at_age: bool
) -> tuple[str | None, str | None]:
    """The id of a lease that is now ours, or who has it."""
    import docker.errors

    name = lease_name(str(gpu["uuid"]))
    own = labels("lease", TTL_SECONDS) | {marks.GPU: str(gpu["uuid"])}
    owner = None
    for _attempt in range(3):  # after a removal another one may be faster
        with engine_errors(engine.runner, "take a GPU's lease"):
            try:
                made = engine.api.create_container(
                    image, ["never-started"], name=name, entrypoint=[], labels=own, network_disabled=True, use_config_proxy=False
                )
                return str(made["Id"]), None
            except docker.errors.APIError as error:
                if not marks.name_taken(error):
                    raise
            try:
                theirs = engine.api.inspect_container(name)
            except docker.errors.NotFound:
                continue
            owner = (theirs["Config"]["Labels"] or {}).get(marks.OWNER)
            # one of this very process that nobody here holds could not be removed when its step ended
            left = owner == marks.this_owner() or marks.owner_state(owner) == "dead"
            if not left and not (look_at_age and is_stale(engine, theirs)):
                break
            take_over(engine, theirs)
    return None, marks.owner_name(owner)


def is_stale(engine: Engine, lease: Mapping[str, Any]) -> bool:
    """Whether nobody holds a lease (as inspect gives it) any more."""
    if marks.owner_state((lease["Config"]["Labels"] or {}).get(marks.OWNER)) == "dead":
        return True
    now = marks.engine_time(engine.api.info()["SystemTime"])
    return now - marks.engine_time(lease["Created"]) > _counts_for(engine, lease["Id"])


def take_over(engine: Engine, lease: Mapping[str, Any]) -> None:
    """Remove a stale lease and what its owner still runs on the GPU."""
    labels = lease["Config"]["Labels"] or {}
    filters = [f"{name}={labels.get(name, '')}" for name in (marks.OWNER, marks.GPU)]
    steps = engine.api.containers(all=True, filters={"label": [f"{marks.KIND}=step", *filters]})
    for container in (*(step["Id"] for step in steps), lease["Id"]):
        with marks.already_gone():
            engine.api.remove_container(container, force=True, v=True)


def _counts_for(engine: Engine, container: str) -> float:
    """Seconds after its creation that a lease counts for: what its owner last wrote, at first the ttl."""
    import docker.errors

    try:
        pieces, _ = engine.api.get_archive(container, f"/{_FILE}")
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
            file = archive.extractfile(_FILE)
            return float(file.read(32)) if file else TTL_SECONDS
    except (docker.errors.NotFound, tarfile.TarError, ValueError, KeyError):
        return TTL_SECONDS


def _note(seconds: float) -> bytes:
    text = f"{seconds:.1f}".encode()
    info = tarfile.TarInfo(_FILE)
    info.size = len(text)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(info, io.BytesIO(text))
    return buffer.getvalue()


def holders(engine: Engine) -> dict[str, str]:
    """GPU uuid -> who holds it now, for people."""
    found = {}
    with engine_errors(engine.runner, "ask who holds its GPUs", errors.ENGINE_UNREACHABLE):
        for listed in engine.api.containers(all=True, filters={"label": f"{marks.KIND}=lease"}):
            with marks.already_gone():
                lease = engine.api.inspect_container(listed["Id"])
                labels = lease["Config"]["Labels"] or {}
                if not is_stale(engine, lease):
                    found[labels.get(marks.GPU, "")] = marks.owner_name(labels.get(marks.OWNER))
    return found
