from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.images import bundle
from orchestrator.images.lock import Entry, Lock
from orchestrator.images.pull import ensure
from orchestrator.images.reference import parse
from orchestrator.images.registry import Registry

from .conftest import RegistryServer, digest_of, mirrored, nobody

IMAGES = {"nvcr.io/nvidia/tensorrt:23.09-py3": b"one", "nvcr.io/nvidia/tensorrt:22.12-py3": b"two" * 300_000}


@dataclass
class Saved:
    folder: Path
    lock: Lock

    def index(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads((self.folder / "index.json").read_text())
        return read

    def rewrite(self, **changed: Any) -> None:
        """Change the first image of the index."""
        index = self.index()
        index["images"][0] |= changed
        (self.folder / "index.json").write_text(json.dumps(index))


def locked(registry: RegistryServer) -> Lock:
    entries = []
    for reference, data in IMAGES.items():
        registry.put_image("nvcr/nvidia/tensorrt", reference.rpartition(":")[2], files={"data": data})
        found = Registry(mirrored(registry), nobody()).resolve(parse(reference), "linux/amd64")
        entries.append(Entry(reference, "linux/amd64", found.digest, found.image_id, found.size_bytes, "2026-01-31T08:00:00Z"))
    return Lock({entry.key: entry for entry in entries})


def bring(engine: Any, registry: RegistryServer, entry: Entry, **options: Any) -> str:
    return ensure(engine, entry.pinned, entry.platform, policy=mirrored(registry), credentials=nobody(), image_id=entry.image_id, **options)


@pytest.fixture
def saved(engine: Any, registry: RegistryServer, tmp_path: Path) -> Saved:
    lock = locked(registry)
    images = [(entry, bring(engine, registry, entry)) for entry in lock.entries.values()]
    bundle.save(engine, images, tmp_path / "bundle")
    for _, image in images:
        engine.images.remove(image, force=True)
    return Saved(tmp_path / "bundle", lock)


pytestmark = pytest.mark.engine


def test_images_go_from_engine_to_engine_without_a_network(engine: Any, registry: RegistryServer, saved: Saved) -> None:
    entries = list(saved.lock.entries.values())
    for entry in entries:
        with pytest.raises(EnginefarmError) as caught:
            bring(engine, registry, entry, offline=True)
        assert caught.value.kind is errors.IMAGE_OFFLINE
    told: list[bundle.Bundled] = []
    items = bundle.load(engine, saved.folder, saved.lock, told.append)
    assert told == items
    assert {item.reference for item in items} == set(IMAGES)
    for entry in entries:
        assert bring(engine, registry, entry, offline=True) == entry.image_id
    assert sorted(path.name for path in saved.folder.iterdir()) == sorted(["index.json", *(item.file for item in items)])


def test_the_folder_must_be_new(engine: Any, saved: Saved) -> None:
    before = (saved.folder / "index.json").read_bytes()
    with pytest.raises(EnginefarmError) as caught:
        bundle.save(engine, [], saved.folder)
    assert caught.value.kind is errors.FILE_EXISTS
    assert (saved.folder / "index.json").read_bytes() == before


def test_a_save_that_fails_leaves_nothing(engine: Any, saved: Saved, tmp_path: Path) -> None:
    entry = next(iter(saved.lock.entries.values()))
    with pytest.raises(EnginefarmError) as caught:
        bundle.save(engine, [(entry, "sha256:" + "ab" * 32)], tmp_path / "new" / "bundle")
    assert caught.value.kind is errors.ENGINE_UNREACHABLE
    assert list((tmp_path / "new").iterdir()) == []


def tar_of(files: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def put_tar(saved: Saved, data: bytes) -> None:
    """Put another tar in the place of the first image's, with an index that agrees."""
    (saved.folder / saved.index()["images"][0]["file"]).write_bytes(data)
    saved.rewrite(sha256=digest_of(data), size=len(data))


def flip(saved: Saved) -> None:
    path = saved.folder / saved.index()["images"][0]["file"]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(saved: Saved) -> None:
    path = saved.folder / saved.index()["images"][0]["file"]
    path.write_bytes(path.read_bytes()[:1000])


def named(saved: Saved) -> None:
    manifest = [{"Config": "c", "RepoTags": ["nvcr.io/nvidia/tensorrt:25.06-py3"], "Layers": []}]
    put_tar(saved, tar_of({"manifest.json": json.dumps(manifest).encode(), "c": b"{}"}))


def other(saved: Saved) -> None:
    put_tar(saved, tar_of({"manifest.json": b'[{"Config": "c", "RepoTags": null, "Layers": []}]', "c": b"{}"}))


def swapped(saved: Saved) -> None:
    second = saved.index()["images"][1]
    saved.rewrite(**{name: second[name] for name in ("file", "sha256", "size")})


SPOILT: dict[str, tuple[Callable[[Saved], None], str]] = {
    "flipped": (flip, "damaged"),
    "cut": (cut, "damaged"),
    "absent": (lambda saved: (saved.folder / saved.index()["images"][0]["file"]).unlink(), "damaged"),
    "named": (named, "not the tar of one image"),
    "other image": (other, "holds another image"),
    "swapped": (swapped, "holds another image"),
    "two images": (lambda saved: put_tar(saved, tar_of({"manifest.json": b"[{}, {}]"})), "not the tar"),
    "no tar": (lambda saved: put_tar(saved, b"x" * 4096), "not the tar"),
    "no manifest": (lambda saved: put_tar(saved, tar_of({"a": b""})), "not the tar"),
    "path": (lambda saved: saved.rewrite(file="../../etc/passwd"), "index"),
    "digest": (lambda saved: saved.rewrite(digest="sha256:" + "ab" * 32), "not the locked image"),
    "field": (lambda saved: saved.rewrite(extra=1), "index"),
    "type": (lambda saved: saved.rewrite(size="1"), "index"),
    "schema": (lambda saved: (saved.folder / "index.json").write_text("{}") and None, "index"),  # type: ignore[func-returns-value]
    "junk": (lambda saved: (saved.folder / "index.json").write_text("[") and None, "index"),  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_bundle_that_is_not_what_was_locked_never_reaches_the_engine(engine: Any, saved: Saved, name: str) -> None:
    spoil, says = SPOILT[name]
    spoil(saved)
    before = {image.id for image in engine.images.list(all=True)}
    with pytest.raises(EnginefarmError) as caught:
        bundle.load(engine, saved.folder, saved.lock)
    assert (caught.value.kind, caught.value.exit) == (errors.IMAGE_DIGEST, 6)
    assert says in caught.value.what
    assert caught.value.fix
    assert {image.id for image in engine.images.list(all=True)} == before


def test_an_image_that_is_not_locked_is_not_loaded(engine: Any, saved: Saved) -> None:
    with pytest.raises(EnginefarmError) as caught:
        bundle.load(engine, saved.folder, Lock())
    assert (caught.value.kind, caught.value.exit) == (errors.IMAGE_NOT_LOCKED, 5)


def test_a_lock_with_another_configuration_refuses_the_tar(engine: Any, saved: Saved) -> None:
    entries = {key: replace(entry, image_id="sha256:" + "ab" * 32) for key, entry in saved.lock.entries.items()}
    with pytest.raises(EnginefarmError, match="holds another image"):
        bundle.load(engine, saved.folder, Lock(entries))


def test_layers_are_checked_by_the_engine(engine: Any, saved: Saved) -> None:
    path = saved.folder / saved.index()["images"][0]["file"]
    with tarfile.open(path) as tar:
        members = {member.name: tar.extractfile(member) for member in tar.getmembers() if member.isfile()}
        files = {name: file.read() for name, file in members.items() if file is not None}
    bad = {name: data.replace(b"one", b"0ne") if name.endswith("layer.tar") else data for name, data in files.items()}
    assert bad != files
    put_tar(saved, tar_of(bad))
    with pytest.raises(EnginefarmError) as caught:
        bundle.load(engine, saved.folder, saved.lock)
    assert caught.value.kind is errors.IMAGE_DIGEST
    assert "invalid diffID" in (caught.value.why or "")
