"""Locked images in a folder, for labs without a network: ``save`` writes them from an engine, ``load`` checks and puts them into one.

The folder holds ``index.json`` and one tar per image, as the engine writes it. Everything streams: memory stays flat for images of any
size. The folder appears under its name when it is whole; an engine gets a tar only after the tar was found to be what the index says, and
the configuration in it to be the image that the digest was locked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import errors
from orchestrator.artifacts.files import CHUNK, disk_errors, sha256_file, sync_folder, write_new
from orchestrator.errors import EnginefarmError, Where
from orchestrator.images.lock import PLATFORMS, Entry, Lock
from orchestrator.images.reference import is_digest, parse

if TYPE_CHECKING:
    import docker

SCHEMA = "enginefarm.bundle/1"
INDEX = "index.json"
_MAX_JSON = 4 << 20  # bytes of the index, and of the two small files of a tar that are looked at
_DAMAGED = "copy the bundle again, or save it anew"


@dataclass(frozen=True)
class Bundled:
    """One image of a bundle. ``id``: on the engine that saved it; ``file``: its tar, with ``sha256`` and ``size`` in bytes."""

    reference: str
    platform: str
    digest: str
    id: str
    file: str
    sha256: str
    size: int


OnFile = Callable[[Bundled], None]


def save(client: docker.DockerClient, images: Sequence[tuple[Entry, str]], folder: Path, on_file: OnFile | None = None) -> list[Bundled]:
    """Write images to the new folder: each with its id on the engine, where :func:`orchestrator.images.pull.ensure` brought it.

    Raises EnginefarmError: FILE_EXISTS, DISK, ENGINE_UNREACHABLE; then nothing is left of the folder.
    """
    if folder.exists():
        where = Where(file=str(folder))
        raise EnginefarmError(errors.FILE_EXISTS, f"{folder} exists", where=where, fix="name a folder that does not exist")
    with disk_errors(f"write {folder}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            saved = []
            for entry, image_id in images:
                item = _save_one(client, entry, image_id, work)
                saved.append(item)
                if on_file is not None:
                    on_file(item)
            index = {"schema": SCHEMA, "images": [asdict(item) for item in saved]}
            write_new(work / INDEX, (json.dumps(index, indent=2) + "\n").encode())
            sync_folder(work)
            work.chmod(0o755)
            work.rename(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return saved


def _save_one(client: docker.DockerClient, entry: Entry, image_id: str, work: Path) -> Bundled:
    name = image_id.rpartition(":")[2][:16] + ".tar"
    digest, size = hashlib.sha256(), 0
    if not (work / name).exists():
        with _engine_errors("save"), (work / name).open("xb") as file:
            # by id and not by name: a tar with names would move the names of the engine that loads it
            for chunk in client.api.get_image(image_id, chunk_size=CHUNK):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        sha256 = f"sha256:{digest.hexdigest()}"
    else:
        sha256, size = sha256_file(work / name), (work / name).stat().st_size
    return Bundled(entry.reference, entry.platform, entry.digest, image_id, name, sha256, size)


def load(client: docker.DockerClient, folder: Path, lock: Lock, on_file: OnFile | None = None) -> list[Bundled]:
    """Put the images of a bundle into an engine; all files are checked before the first is loaded.

    Each image must be in ``lock`` with the same digest and the same configuration. Raises EnginefarmError: IMAGE_DIGEST for a bundle that
    is damaged or not what was locked, DISK, ENGINE_UNREACHABLE.
    """
    items = read_index(folder)
    ids = {item.file: _check_item(folder, item, lock) for item in items}
    done: set[str] = set()
    for item in items:
        if item.file not in done:
            _load_one(client, folder, item, ids[item.file])
            done.add(item.file)
        if on_file is not None:
            on_file(item)
    return items


def read_index(folder: Path) -> list[Bundled]:
    """The index of a bundle. Raises EnginefarmError(IMAGE_DIGEST) when it cannot be one."""
    path = folder / INDEX
    with disk_errors(f"read {path}"), path.open("rb") as file:
        raw = file.read(_MAX_JSON + 1)
    try:
        read = json.loads(raw) if len(raw) <= _MAX_JSON else None
        if not isinstance(read, dict) or read.get("schema") != SCHEMA:
            raise ValueError(f"it is not of the schema {SCHEMA}")
        return [_item(value) for value in read["images"]]
    except (ValueError, KeyError, TypeError, EnginefarmError) as error:
        why = error.what if isinstance(error, EnginefarmError) else str(error)
        raise _refused(path, "the index of the bundle cannot be used", why, _DAMAGED) from None


def _item(value: Mapping[str, Any]) -> Bundled:
    item = Bundled(**value)
    texts = (item.reference, item.platform, item.digest, item.id, item.file, item.sha256)
    if not all(isinstance(text, str) for text in texts) or not isinstance(item.size, int):
        raise ValueError("a field has the wrong type")
    if not (is_digest(item.digest) and is_digest(item.id) and is_digest(item.sha256) and item.platform in PLATFORMS):
        raise ValueError(f"{item.reference[:100]} has a digest or platform that cannot be one")
    if item.file != Path(item.file).name or item.file.startswith("."):
        raise ValueError(f"{item.file[:100]!r} is not a file name")
    parse(item.reference)
    return item


def _check_item(folder: Path, item: Bundled, lock: Lock) -> str:
    """The id of the image's configuration, after everything about the file was checked."""
    path = folder / item.file
    entry = lock.find(item.reference, item.platform)
    shown = f"{item.reference} ({item.platform})"
    if entry is None:
        what = f"{shown} is not in targets.lock"
        raise EnginefarmError(errors.IMAGE_NOT_LOCKED, what, where=Where(file=str(path)), fix="take the targets.lock that the bundle is of")
    if entry.digest != item.digest:
        fix = "save the bundle anew from this targets.lock"
        raise _refused(path, f"{shown} is not the locked image", f"the bundle has {item.digest}, targets.lock {entry.digest}", fix)
    with disk_errors(f"read {path}"):
        if not path.is_file() or path.stat().st_size != item.size or sha256_file(path) != item.sha256:
            raise _refused(path, f"the file of {shown} is damaged", "it is not what index.json says", _DAMAGED)
    with _tar_errors(path):
        config = _config_of(path)
    if config != entry.image_id:
        why = f"it holds the configuration {config}, targets.lock says {entry.image_id}"
        raise _refused(path, f"the file of {shown} holds another image", why, "do not use this bundle; ask who made it")
    return config


def _config_of(path: Path) -> str:
    """The digest of the only image's configuration in a tar of ``docker save``. Raises ValueError for a tar with names or more images."""
    with tarfile.open(path, "r:") as tar:
        manifest = json.loads(_small(tar, "manifest.json"))
        if not (isinstance(manifest, list) and len(manifest) == 1 and isinstance(manifest[0], dict)):
            raise ValueError("it does not hold exactly one image")
        if manifest[0].get("RepoTags"):
            raise ValueError(f"it would give the image the name {manifest[0]['RepoTags']}")
        return "sha256:" + hashlib.sha256(_small(tar, str(manifest[0].get("Config")))).hexdigest()


def _small(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.getmember(name)
    file = tar.extractfile(member)
    data = file.read(_MAX_JSON + 1) if file is not None else b""
    if file is None or len(data) > _MAX_JSON:
        raise ValueError(f"{name} is not a small file")
    return data


def _load_one(client: docker.DockerClient, folder: Path, item: Bundled, config: str) -> None:
    import docker.errors

    path = folder / item.file
    with disk_errors(f"read {path}"), _engine_errors("load"), path.open("rb") as file:
        api: Any = client.api
        # not quiet: progress keeps the connection from timing out, and the SDK leaves it to us to look for an error
        for event in api.load_image(_chunks(file), quiet=False):
            said = event.get("error") or event.get("message")
            if said:
                raise _not_loaded(str(said), item)
        try:
            # where the engine keeps images in containerd the id is the manifest's
            found = any(_has(client, name) for name in dict.fromkeys((config, item.id, item.digest)))
        except docker.errors.APIError as error:
            raise _not_loaded(str(error.explanation), item) from None
    if not found:
        raise _refused(path, f"the engine loaded the file but has no {item.reference}", f"its id would be {config}", _DAMAGED)


def _chunks(file: Any) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def _has(client: docker.DockerClient, name: str) -> bool:
    import docker.errors

    try:
        client.images.get(name)
    except docker.errors.NotFound:
        return False
    return True


def _not_loaded(said: str, item: Bundled) -> EnginefarmError:
    if "no space left" in said:
        fix = "free some space there: enginefarm runners clean --images, or docker image prune"
        return EnginefarmError(errors.DISK, f"no space for {item.reference} on the engine", why=said[:300], fix=fix)
    return EnginefarmError(errors.IMAGE_DIGEST, f"the engine does not take {item.reference}", why=said[:300], fix=_DAMAGED)


def _refused(path: Path, what: str, why: str, fix: str) -> EnginefarmError:
    return EnginefarmError(errors.IMAGE_DIGEST, what, where=Where(file=str(path)), why=why, fix=fix)


@contextlib.contextmanager
def _tar_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, KeyError, ValueError, EOFError, RecursionError) as error:
        raise _refused(path, "a file of the bundle is not the tar of one image", str(error)[:300], _DAMAGED) from None


@contextlib.contextmanager
def _engine_errors(doing: str) -> Iterator[None]:
    import docker.errors
    import requests
    import urllib3

    try:
        yield
    except (docker.errors.DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        said = str(getattr(error, "explanation", None) or error)[:300]
        what = f"the engine could not {doing} an image"
        kind = errors.DISK if "no space left" in said else errors.ENGINE_UNREACHABLE
        raise EnginefarmError(kind, what, why=said, fix="check the engine: enginefarm runners") from None
