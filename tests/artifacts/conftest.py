"""Records, manifests and commits for the tests of this folder, as the fixture ``make``; and what lies in an output folder then."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, TensorRecord, Verdict
from orchestrator.artifacts.names import engine_file
from orchestrator.artifacts.store import Release

IMAGE = TensorRecord(name="image", dtype="float32", shape=(-1, 3, 64, 64))
MASK = TensorRecord(name="mask", dtype="float32", shape=(-1, 1, 64, 64))


def digest(text: str | bytes) -> str:
    return "sha256:" + hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def model(name: str = "lane", version: int = 1, content: str = "lane 1", **changes: Any) -> ModelRecord:
    fields: dict[str, Any] = {"source": f"{name}.onnx", "inputs": (IMAGE,), "outputs": (MASK,)}
    return ModelRecord(name=name, version=version, digest=digest(content), **(fields | changes))


def record(
    target: str, status: str = "passed", content: bytes | None = None, *, name: str = "lane", version: int = 1, **changes: Any
) -> EngineRecord:
    """A record of an engine that holds ``content``; without content it has no file."""
    fields: dict[str, Any] = {"tag": target, "backend": "tensorrt", "platform": "linux/amd64", "precision": "fp32"}
    fields |= changes
    verdict = Verdict(status=status, reason=f"it is {status}", reference="onnx.reference" if status == "passed" else None)
    if content is not None:
        file = engine_file(name, version, fields["tag"], fields["backend"], validated=status == "passed")
        fields |= {"file": file, "digest": digest(content), "size_bytes": len(content)}
    return EngineRecord(target=target, verdict=verdict, **fields)


def manifest(*engines: EngineRecord, **changes: Any) -> Manifest:
    fields: dict[str, Any] = {"model": model(), "revision": 1, "run": "r1", "created_at": "2026-01-01T00:00:00Z", "enginefarm": "0.1.0"}
    return Manifest(engines=engines, **(fields | changes))


def commit(
    output: Path, *engines: tuple[EngineRecord, bytes | None], model_record: ModelRecord | None = None, move_latest: bool = True
) -> Release:
    """Place and commit engines the way a run does; the bytes go through a file beside ``output``."""
    described = model_record or model()
    source = output.parent / "built"
    with Release(output, described.name, described.version) as release:
        for engine, content in engines:
            if content is not None and engine.file is not None:
                source.write_bytes(content)
                release.place(source, engine.file)
        release.commit(manifest(*(engine for engine, _ in engines), model=described), move_latest=move_latest)
    return release


def files_below(folder: Path) -> list[str]:
    """Every file but locks, by its path from ``folder``."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def latest_of(output: Path) -> Any:
    """What latest.json of the model lane says."""
    return json.loads((output / "lane" / "latest.json").read_bytes())


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def make() -> SimpleNamespace:
    return SimpleNamespace(digest=digest, model=model, record=record, manifest=manifest, commit=commit, image=IMAGE, mask=MASK)
