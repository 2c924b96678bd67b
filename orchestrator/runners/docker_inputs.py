"""Folders of inputs that many steps share (a model): sent to an engine once, kept in a volume named by their digest.

A volume counts only with its marker file, the archive's last: the engine unpacks in order, and a transfer that was cut leaves none. The
container through which files are put is named after the digest too: the engine gives that name to one sender at a time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator.runners import docker_labels as marks
from orchestrator.runners.base import Cancel, Cancelled
from orchestrator.runners.docker_engine import Engine
from orchestrator.runners.docker_errors import engine_errors
from orchestrator.runners.docker_files import Entry, folders_of, pack

MARKER = ".enginefarm-complete"
_PLACE = "/inputs"
_claims = marks.Claims()  # volumes that a thread of this process fills
_POLL_SECONDS = 0.3
_SLOWEST = 1 << 20  # bytes a second: a sender slower than that loses its right to the volume
_LEAST_SECONDS = 600.0


def volume_name(digest: str) -> str:
    """The volume of a folder with this digest."""
    return "enginefarm-inputs-" + re.sub(r"[^A-Za-z0-9_.-]", "-", digest.removeprefix("sha256:"))


def mount(digest: str, target: str, labels: Mapping[str, str]) -> Any:
    """Mount of the volume, read-only; the engine makes the volume when it is not there."""
    from docker.types import Mount

    return Mount(target, volume_name(digest), type="volume", read_only=True, no_copy=True, labels=dict(labels))


def is_complete(engine: Engine, container: str, place: str) -> bool:
    """Whether the folder mounted at ``place`` in a container is whole.

    Asked by HEAD, which the SDK has no call for: to pack even an empty file, an engine starts a process of its own (over 0.1 s).
    """
    import docker.errors
    import requests

    api = engine.api
    url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
    answer = api.head(url, params={"path": f"{place}/{MARKER}"}, timeout=api.timeout)
    if answer.status_code == requests.codes.not_found:
        return False
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        docker.errors.create_api_error_from_http_exception(error)
    return True


def send(
    engine: Engine,
    image: str,
    digest: str,
    files: Mapping[str, Path],
    labels: Callable[[str, float], dict[str, str]],
    cancel: Cancel,
    on_phase: Callable[[str], None],
) -> None:
    """Fill the volume of ``digest`` with ``files`` (path inside the folder -> file). Raises EnginefarmError, Cancelled.

    When another process sends the same folder, wait for it instead.
    """
    size = sum(path.stat().st_size for path in files.values())
    while not _claims.take(engine.id, digest):
        if cancel.wait(_POLL_SECONDS):
            raise Cancelled
    sender = None
    try:
        sender = _wait_for_sender(engine, image, digest, labels, _LEAST_SECONDS + size / _SLOWEST, cancel, on_phase)
        with engine_errors(engine.runner, "send the model"):
            if is_complete(engine, sender, _PLACE):
                return
            on_phase(f"sending {size / 1e6:.1f} MB")
            names = list(files)
            entries = [*folders_of(names), *(Entry(name, files[name]) for name in names), Entry(MARKER, b"")]
            engine.api.put_archive(sender, _PLACE, pack(entries, lambda: _raise_if(cancel)))
    finally:
        if sender is not None:
            with contextlib.suppress(Exception):  # a later sender takes over what cannot be removed now
                engine.control.remove_container(sender, force=True)
        _claims.leave(engine.id, digest)


def _wait_for_sender(
    engine: Engine,
    image: str,
    digest: str,
    labels: Callable[[str, float], dict[str, str]],
    ttl: float,
    cancel: Cancel,
    on_phase: Callable[[str], None],
) -> str:
    waited = False
    while True:
        sender = _sender(engine, image, digest, labels, ttl)
        if sender is not None:
            return sender
        if not waited:
            on_phase("waiting for another run to send the model")
            waited = True
        if cancel.wait(_POLL_SECONDS):
            raise Cancelled


def _sender(engine: Engine, image: str, digest: str, labels: Callable[[str, float], dict[str, str]], ttl: float) -> str | None:
    """The container to put files through; None while another one has it."""
    import docker.errors
    from docker.types import Mount

    name = volume_name(digest).replace("-inputs-", "-send-")
    with engine_errors(engine.runner, "send the model"):
        writable = Mount(_PLACE, volume_name(digest), type="volume", no_copy=True, labels=labels("inputs", 0))
        config = engine.api.create_host_config(mounts=[writable], network_mode="none")
        own = labels("send", ttl)
        try:
            made = engine.api.create_container(
                image, ["never-started"], entrypoint=[], name=name, labels=own, host_config=config, use_config_proxy=False
            )
            return str(made["Id"])
        except docker.errors.APIError as error:
            if not marks.name_taken(error):
                raise
        with marks.already_gone():
            theirs = engine.api.inspect_container(name)
            owner = (theirs["Config"]["Labels"] or {}).get(marks.OWNER)
            # one of this very process could not be removed: nobody else here has the claim
            gone = owner == marks.this_owner() or marks.owner_state(owner) == "dead"
            if gone or marks.expired(theirs, marks.engine_time(engine.api.info()["SystemTime"])):
                engine.api.remove_container(theirs["Id"], force=True)
    return None


def _raise_if(cancel: Cancel) -> None:
    if cancel.is_set():
        raise Cancelled
