"""The manifest ``<model>_v<N>.json``: every engine of one model version, where it runs and how it was checked.

The JSON Schema is exported to docs/manifest.schema.json; a test keeps it equal.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MANIFEST_SCHEMA: Literal["enginefarm.manifest/1"] = "enginefarm.manifest/1"

Status = Literal["passed", "self-consistent", "unvalidated", "failed", "skipped"]
ReferenceKind = Literal["supplied", "onnx.reference", "same-runtime"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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


class EngineRecord(_Record):
    """One engine. ``file`` is relative to the manifest; ``None`` when the build failed or was skipped."""

    target: str
    tag: str
    file: str | None = None
    digest: str | None = Field(default=None, description="sha256:... of the file")
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
