"""Removes what enginefarm left on an engine, and nothing else: objects are known by their labels.

What a live run uses is never removed: its containers have a live owner, and the engine itself refuses to remove volumes and images of
containers that exist.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.runners import docker_labels as marks
from orchestrator.runners.docker_engine import Engine
from orchestrator.runners.lease import is_stale

_PULLED = "enginefarm-pulled-"
_INPUTS = re.compile(r"^enginefarm-inputs-[0-9a-f]{64}$")
_IN_USE = 409


@dataclass
class Cleaned:
    """What was removed, by name, and the bytes that volumes and images took."""

    containers: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    bytes: int = 0


def sweep(engine: Engine) -> list[str]:
    """Remove containers whose process is gone, or whose time is up; gives their names."""
    removed = []
    now: float | None = None
    for listed in engine.api.containers(all=True, filters={"label": marks.KIND}):
        try:
            found = engine.api.inspect_container(listed["Id"])
        except Exception as error:
            if getattr(error, "status_code", None) == 404:  # it ended meanwhile
                continue
            raise
        labels = found["Config"]["Labels"] or {}
        if now is None:
            now = marks.engine_time(engine.api.info()["SystemTime"])
        if found["Id"] in marks.abandoned:
            gone = True
        elif labels.get(marks.KIND) == "lease":
            gone = is_stale(engine, found)
        else:
            gone = marks.owner_state(labels.get(marks.OWNER)) == "dead" or marks.expired(found, now)
        if gone:
            with marks.already_gone():
                engine.api.remove_container(found["Id"], force=True, v=True)
                removed.append(str(found["Name"]).lstrip("/"))
    return removed


def remember_pulled(engine: Engine, image: str, labels: Mapping[str, str]) -> None:
    """Note on the engine that we pulled ``image``, as an empty labelled volume: an image that was there before is never ours to remove."""
    name = _PULLED + re.sub(r"[^A-Za-z0-9_.-]", "-", image)[-120:]
    engine.api.create_volume(name, labels={**labels, marks.IMAGE: image})


def clean(engine: Engine, *, images: bool = False, volumes: bool = False, keep_bytes: int = 0) -> Cleaned:
    """Remove leftover containers, with ``volumes`` the folders kept for later runs, with ``images`` the images that we made or pulled.

    Of these the newest stay up to ``keep_bytes`` in all.
    """
    done = Cleaned(containers=sweep(engine))
    found = _volumes(engine) if volumes else []
    found += _images(engine) if images else []
    left = keep_bytes
    for item in sorted(found, key=lambda item: item.created, reverse=True):
        if item.size <= left:
            left -= item.size
            continue
        if _remove(engine, item):
            (done.images if item.image else done.volumes).append(item.name)
            done.bytes += item.size
    return done


@dataclass(frozen=True)
class _Item:
    name: str
    size: int
    created: float
    image: bool
    notes: tuple[str, ...] = ()  # volumes that say that the image is ours


def _volumes(engine: Engine) -> list[_Item]:
    sizes = {volume["Name"]: (volume.get("UsageData") or {}).get("Size", 0) for volume in engine.api.df().get("Volumes") or []}
    listed: Sequence[Mapping[str, Any]] = engine.api.volumes(filters={"label": marks.KIND}).get("Volumes") or []
    ours = [volume for volume in listed if (volume.get("Labels") or {}).get(marks.KIND) in ("inputs", "step")]
    # Podman 4 drops the labels of a volume that it makes together with a container
    every: Sequence[Mapping[str, Any]] = engine.api.volumes().get("Volumes") or []
    ours += [volume for volume in every if not volume.get("Labels") and _INPUTS.match(volume["Name"])]
    return [_Item(v["Name"], max(sizes.get(v["Name"], 0), 0), marks.engine_time(v["CreatedAt"]), image=False) for v in ours]


def _images(engine: Engine) -> list[_Item]:
    import docker.errors

    wanted: dict[str, list[str]] = {}
    for volume in engine.api.volumes(filters={"label": f"{marks.KIND}=pulled"}).get("Volumes") or []:
        wanted.setdefault(volume["Labels"].get(marks.IMAGE, ""), []).append(volume["Name"])
    for image in engine.api.images(filters={"label": f"{marks.KIND}=image"}):
        wanted.setdefault(image["Id"], [])
    found = []
    for name, notes in wanted.items():
        try:
            image = engine.api.inspect_image(name)
        except docker.errors.APIError as error:
            if error.status_code not in (400, 404):
                raise
            image = {"Size": 0, "Created": "1970-01-01T00:00:00Z"}  # gone already: only the note is left
        found.append(_Item(name, int(image["Size"]), marks.engine_time(image["Created"]), image=True, notes=tuple(notes)))
    return found


def _remove(engine: Engine, item: _Item) -> bool:
    """Whether it is gone now; False for what a container uses."""
    import docker.errors

    try:
        if item.image:
            engine.api.remove_image(item.name)
        else:
            engine.api.remove_volume(item.name)
    except docker.errors.APIError as error:
        if error.status_code == _IN_USE:
            return False
        if error.status_code != 404:
            raise
    for note in item.notes:
        with marks.already_gone():
            engine.api.remove_volume(note)
    return True
