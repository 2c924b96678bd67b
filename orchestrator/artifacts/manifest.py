"""The manifest ``<model>_v<N>.json``: every engine of one model version, where it runs and how it was checked.

The JSON Schema is exported to docs/manifest.schema.json; a test keeps it equal.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from orchestrator.artifacts.files import read_regular
from orchestrator.errors import MANIFEST_UNREADABLE, EnginefarmError, Where

MANIFEST_SCHEMA: Literal["enginefarm.manifest/1"] = "enginefarm.manifest/1"

MAX_MANIFEST_BYTES = 64 << 20  # a record is about 4 kB: room for thousands of targets, none for a bomb
FILE_PATTERN = r"^[^./\\][^/\\]*$"  # a file beside the manifest: no separator, not hidden, not ".."
DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"

Status = Literal["passed", "self-consistent", "unvalidated", "failed", "skipped"]
ReferenceKind = Literal["supplied", "onnx.reference", "onnxruntime-cpu", "same-runtime"]
INDEPENDENT = ("supplied", "onnx.reference", "onnxruntime-cpu")  # of the engine's runtime


class _Record(BaseModel):
    # made ready when it is first used, and what is inside another not by itself
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class TensorRecord(_Record):
    """``shape`` holds -1 for a dynamic dimension."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class OutputFigures(_Record):
    """One output against its reference, over all samples."""

    name: str
    max_abs: float | None = None
    max_rel: float | None = None
    cosine: float | None = None
    mismatched: int = 0
    elements: int = 0
    ok: bool = True
    note: str = ""


class Verdict(_Record):
    """What validation says. Only ``passed`` is green: an independent reference agreed on hardware the target names."""

    status: Status
    reason: str = Field(description="one sentence")
    reference: ReferenceKind | None = None
    samples: int = 0
    outputs: tuple[OutputFigures, ...] = ()
    tolerance: dict[str, float | None] = {}
    device: str | None = Field(default=None, description="where it ran")
    median_ms: float | None = None

    @model_validator(mode="after")
    def _passed_is_earned(self) -> Verdict:
        if self.status == "passed" and self.reference not in INDEPENDENT:
            raise ValueError(f"status passed needs an independent reference, not {self.reference}")
        return self


class EngineRecord(_Record):
    """One engine. ``file`` is relative to the manifest; ``None`` when the build failed or was skipped."""

    target: str
    tag: str
    file: str | None = Field(default=None, pattern=FILE_PATTERN)
    digest: str | None = Field(default=None, description="sha256:... of the file", pattern=DIGEST_PATTERN)
    size_bytes: int | None = None
    backend: str
    backend_version: str | None = None
    provider: str | None = None
    compute_capability: tuple[str, ...] = ()
    hardware_compatibility: str = "none"
    version_compatible: bool = False
    platform: str
    cuda: str | None = None
    minimum_driver: str | None = None
    precision: str
    profiles: dict[str, dict[str, tuple[int, ...]]] = {}
    inputs: tuple[TensorRecord, ...] = ()
    outputs: tuple[TensorRecord, ...] = ()
    plugins: dict[str, str] = Field(default={}, description="plugin file -> sha256 digest")
    image: str | None = None
    image_digest: str | None = None
    options: dict[str, Any] = {}
    worker: str | None = Field(default=None, description="version and digest of the worker that built it")
    built_on: dict[str, Any] | None = Field(default=None, description="host the build step ran on")
    built_at: str | None = None
    timings: dict[str, float] = {}
    build_key: str | None = None
    validate_key: str | None = None
    verdict: Verdict
    problem: dict[str, Any] | None = Field(default=None, description="error of a failed or skipped build")
    reproduce: str | None = Field(default=None, description="command that builds this engine again")

    @model_validator(mode="after")
    def _file_is_described(self) -> EngineRecord:
        if self.file is not None and (self.digest is None or self.size_bytes is None):
            raise ValueError(f"engine file {self.file} has no digest or no size")
        return self


class ModelRecord(_Record):
    name: str
    version: int = Field(ge=1)
    digest: str = Field(description="sha256 over the graph and all external data")
    source: str = Field(description="the model's file as given")
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]


class Manifest(_Record):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Literal["enginefarm.manifest/1"] = Field(default=MANIFEST_SCHEMA, alias="schema")
    model: ModelRecord
    revision: int = Field(ge=1)
    run: str
    created_at: str
    enginefarm: str
    engines: tuple[EngineRecord, ...]
    fallback: dict[str, str] | None = None

    @model_validator(mode="after")
    def _each_once(self) -> Manifest:
        for what, values in (("target", [record.target for record in self.engines]), ("file", [record.file for record in self.engines])):
            twice = [value for value, count in Counter(values).items() if value is not None and count > 1]
            if twice:
                raise ValueError(f"{what} {twice[0]} is named twice")
        return self

    def as_json(self) -> bytes:
        """The bytes of the manifest's file: the same for the same manifest."""
        text = json.dumps(self.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False, allow_nan=False)
        return text.encode() + b"\n"


def _unreadable(path: Path, why: str, fix: str | None = None) -> EnginefarmError:
    return EnginefarmError(MANIFEST_UNREADABLE, "manifest cannot be used", where=Where(file=str(path)), why=why, fix=fix)


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """A manifest out of its bytes; raises EnginefarmError(MANIFEST_UNREADABLE) naming ``path``."""
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise _explained(data, path, error) from error
    if "schema_" not in manifest.model_fields_set:
        raise _foreign(path, None)
    return manifest


def _explained(data: bytes, path: Path, wrong: ValidationError) -> EnginefarmError:
    """What stands in place of a manifest."""
    older = f"take an older one from {path.parent / 'manifests'}, or build again with another --model-version"
    if not data.strip():
        return _unreadable(path, "the file is empty", older)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        return _unreadable(path, f"it is not JSON: {error}", older)
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != MANIFEST_SCHEMA:
        return _foreign(path, schema)
    found = [f"{'.'.join(map(str, item['loc'])) or 'manifest'}: {item['msg']}" for item in wrong.errors(include_url=False)]
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return _unreadable(path, "; ".join(found[:3]) + more, older)


def _foreign(path: Path, schema: object) -> EnginefarmError:
    if isinstance(schema, str) and schema.startswith("enginefarm.manifest/"):
        why = f"it is {schema}; this enginefarm reads {MANIFEST_SCHEMA}"
        return _unreadable(path, why, "use the enginefarm that wrote it, or a newer one")
    if isinstance(schema, str) and schema.startswith("enginefarm.latest/"):
        why = "it is a latest.json that names no manifest below it"
        return _unreadable(path, why, "give the manifest itself, v<N>/<model>_v<N>.json")
    return _unreadable(path, "it is JSON, but no enginefarm manifest", "give <model>_v<N>.json from the artifacts folder")


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest; raises EnginefarmError(MANIFEST_UNREADABLE) when it is missing, damaged or foreign."""
    try:
        data = read_regular(path, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    if len(data) > MAX_MANIFEST_BYTES:
        raise _unreadable(path, f"it is larger than {MAX_MANIFEST_BYTES >> 20} MiB")
    return parse_manifest(data, path)


def export_schema() -> str:
    """The JSON Schema of the manifest, as docs/manifest.schema.json holds it."""
    schema = Manifest.model_json_schema(by_alias=True, mode="serialization")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "enginefarm.manifest/1", "title": "enginefarm manifest"}
    return json.dumps(head | {key: value for key, value in schema.items() if key != "title"}, indent=2) + "\n"
