"""What marks our objects on an engine, and whether the process that made one is still there.

Every container and volume carries ``enginefarm.kind`` (step, lease, send, inputs, pulled), ``enginefarm.project``,
``enginefarm.run``, ``enginefarm.owner`` and ``enginefarm.ttl``: seconds after the engine created it from which on anybody may remove
it. Times are the engine's own (``Created``, ``SystemTime``), so that clocks of different clients do not matter.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

KIND = "enginefarm.kind"
PROJECT = "enginefarm.project"
RUN = "enginefarm.run"
OWNER = "enginefarm.owner"
TTL = "enginefarm.ttl"
GPU = "enginefarm.gpu"
IMAGE = "enginefarm.image"
DEFAULT_PROJECT = "enginefarm"

abandoned: set[str] = set()
"""Containers that this process could not remove, because their engine did not answer."""

OwnerState = Literal["alive", "dead", "elsewhere"]


@functools.cache
def _this_machine() -> tuple[str, str]:
    """Boot and PID namespace: two processes with both equal see each other's process ids. Empty where /proc is not Linux's."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return "", ""


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks: tells it from a later one of the same id. None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    after_name = stat.rpartition(")")[2].split()
    return None if after_name[0] in ("Z", "X") else after_name[19]


def this_owner() -> str:
    """The owner label of this process."""
    boot, space = _this_machine()
    pid = os.getpid()
    return json.dumps({"host": socket.gethostname(), "pid": pid, "start": _started(pid), "boot": boot, "ns": space}, sort_keys=True)


def owner_state(label: str | None) -> OwnerState:
    """Whether the process of an owner label runs: known for processes of this machine only."""
    try:
        owner = json.loads(label or "")
        boot, space = owner["boot"], owner["ns"]
        pid, start = int(owner["pid"]), owner["start"]
    except (ValueError, KeyError, TypeError):
        return "elsewhere"
    if not boot or (boot, space) != _this_machine():
        return "elsewhere"
    return "alive" if start is not None and _started(pid) == start else "dead"


def owner_name(label: str | None) -> str:
    """An owner for people: ``process 4711 on build-3``."""
    try:
        owner = json.loads(label or "")
        return f"process {owner['pid']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "an unknown owner"


def labels(kind: str, *, project: str, run: str, ttl: float, **more: str) -> dict[str, str]:
    """The labels of a new object; ``ttl`` in seconds."""
    return {KIND: kind, PROJECT: project, RUN: run, OWNER: this_owner(), TTL: str(int(ttl)), **more}


def engine_time(text: str) -> float:
    """Seconds since the epoch of a time that an engine wrote (RFC 3339, up to nanoseconds). Raises ValueError."""
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$", text)
    if not match:
        raise ValueError(f"{text!r} is not a time")
    zone = "+00:00" if match[3] == "Z" else match[3]
    return datetime.fromisoformat(match[1] + zone).astimezone(timezone.utc).timestamp() + float(match[2] or 0)


def expired(attributes: Mapping[str, Any], now: float) -> bool:
    """Whether a container (as inspect gives it) outlived its ttl; False when it carries none."""
    found = attributes.get("Config", {}).get("Labels") or {}
    try:
        return now - engine_time(attributes["Created"]) > float(found[TTL])
    except (KeyError, ValueError):
        return False


class Claims:
    """What threads of this process have taken between them; an engine is asked only by the one that has the claim."""

    def __init__(self) -> None:
        self._taken: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def take(self, engine: str, name: str) -> bool:
        with self._lock:
            free = (engine, name) not in self._taken
            self._taken.add((engine, name))
            return free

    def leave(self, engine: str, name: str) -> None:
        with self._lock:
            self._taken.discard((engine, name))


def name_taken(error: Any) -> bool:
    """Whether an engine (``docker.errors.APIError``) made no container because its name exists: Docker says 409, Podman 4 says 500."""
    said = str(error.explanation or error)
    return error.status_code == 409 or (error.status_code == 500 and "name" in said and "already in use" in said)


@contextlib.contextmanager
def already_gone() -> Iterator[None]:
    """For a removal: what is not there any more, or on its way out, is what was wanted."""
    import docker.errors

    try:
        yield
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):
            raise
