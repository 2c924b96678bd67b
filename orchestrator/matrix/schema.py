"""The target matrix as data: what one row says, and which rows can exist at all.

Every field is declared as one of four classes (``x-enginefarm-class`` in the JSON Schema):

* ``build``: changes the bytes of the engine; a change means a new build step
* ``validate``: changes what is checked; a change means a new validate step
* ``place``: changes only where or under which limits a step runs
* ``name``: changes only how things are called or selected
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

FieldClass = Literal["build", "validate", "place", "name"]
Backend = Literal["tensorrt", "tensorrt-rtx", "onnxruntime"]
Precision = Literal["fp32", "fp16", "bf16", "int8", "fp8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Platform = Literal["linux/amd64", "linux/arm64", "any"]
HardwareCompatibility = Literal["none", "ampere_plus", "same_compute_capability"]

NAME_PATTERN = r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$"


@dataclass(frozen=True)
class Spelled:
    """How a value is spelled in YAML, where that differs from its type: read by ``matrix/binder.py``."""

    kind: Literal["name", "version", "capability", "bytes", "path"]


Dim = Annotated[int, Field(ge=0, le=2**31 - 1)]
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=64), Spelled("name")]
Label = Annotated[str, Field(pattern=r"^[^\s,{}*?\[\]]+$", max_length=64), Spelled("name")]
Version = Annotated[str, Field(pattern=r"^[0-9]{1,5}(?:\.[0-9]{1,5}){0,3}$"), Spelled("version")]
VersionRange = Annotated[
    str,
    Field(pattern=r"^(?:(?:>=|<=|==|!=|>|<) ?)?[0-9]+(?:\.[0-9]+)*(?:, ?(?:>=|<=|==|!=|>|<) ?[0-9]+(?:\.[0-9]+)*)*$"),
    Spelled("version"),
]
FilePath = Annotated[str, Field(min_length=1), Spelled("path")]
Capability = Annotated[
    str,
    Spelled("capability"),
    WithJsonSchema({"type": "string", "examples": ["8.6"]}),
]
Bytes = Annotated[
    int,
    Field(gt=0, lt=2**63),
    Spelled("bytes"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^[0-9]+(?:\.[0-9]+)? ?(?:[kKMGT]i?)?B?$"},
            ]
        }
    ),
]


def _classed(field_class: FieldClass, description: str, **options: Any) -> Any:
    return Field(description=description, json_schema_extra={"x-enginefarm-class": field_class}, **options)


class _Frozen(BaseModel):
    # most commands need one or two of these: each is made ready when it is first used
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class Profile(_Frozen):
    """One input's optimization profile: dimensions of the smallest, usual and largest tensor.

    YAML also takes ``[1, 3, 224, 224]`` and the text of ``--shape``: ``1x3x224x224`` or ``"1x3x8x8:2x3x8x8:4x3x8x8"``.
    """

    min: tuple[Dim, ...]
    opt: tuple[Dim, ...]
    max: tuple[Dim, ...]


class Tolerance(_Frozen):
    """How far outputs may be from the reference: ``|out - ref| <= atol + rtol * |ref|`` and cosine similarity."""

    rtol: float = Field(default=1e-3, ge=0)
    atol: float = Field(default=1e-4, ge=0)
    cosine: float | None = Field(default=None, ge=-1, le=1)


class Validation(_Frozen):
    """How a built engine is exercised; times in seconds."""

    warmup: int = Field(default=3, ge=0, description="runs before timing starts")
    runs: int = Field(default=10, ge=1, description="timed runs")
    soak: float = Field(default=0.0, ge=0, description="seconds of continuous running after the timed runs")
    reference_budget: float = Field(default=120.0, gt=0, description="seconds onnx.reference may take")


class Limits(_Frozen):
    """Limits of one step; memory in bytes, times in seconds."""

    memory: Bytes | None = Field(default=None, description='bytes; YAML also takes "8 GiB"')
    build_timeout: float = Field(default=7200.0, gt=0)
    validate_timeout: float = Field(default=1800.0, gt=0)


class Target(_Frozen):
    """One row of the matrix."""

    name: Name = _classed("name", "the row's name; equals the file's name")
    tag: Name = _classed("name", "arch part of the engine's file name; no two targets share one")
    description: str = _classed("name", "one line for people", default="")
    labels: tuple[Label, ...] = _classed("name", "select with label:NAME", default=())
    extends: Name | None = _classed("name", "target whose values this one starts from", default=None)

    backend: Backend = _classed("build", "what compiles and runs the model")
    provider: Literal["cpu", "cuda"] | None = _classed("build", "execution provider (onnxruntime only)", default=None)
    image: str | None = _classed("build", "container image the build runs in; none = no container", default=None)
    tensorrt: Version | None = _classed("build", "TensorRT version, compared to its given precision", default=None)
    tensorrt_rtx: Version | None = _classed("build", "TensorRT-RTX version (tensorrt-rtx only)", default=None)
    tensorrt_from: Literal["image", "host"] = _classed(
        "build", "where TensorRT comes from: JetPack 4 mounts it from the host", default="image"
    )
    cuda: Version | None = _classed("build", "CUDA version of the image", default=None)
    compute_capability: tuple[Capability, ...] = _classed("build", "compute capabilities the engine is for", default=())
    platform: Platform = _classed("build", "OS and CPU of the engine", default="any")
    gpu: str | None = _classed("build", "GPU model, when the engine must be bound to one", default=None)
    precision: Precision = _classed("build", "numeric precision of the engine", default="fp32")
    tf32: bool = _classed("build", "allow TF32 in fp32 products (Ampere and newer)", default=True)
    shapes: dict[str, Profile] = _classed("build", "optimization profile per input", default={})
    workspace: Bytes | None = _classed("build", 'builder workspace in bytes; YAML also takes "4 GiB"', default=None)
    optimization_level: int | None = _classed("build", "builder optimization level 0..5", default=None, ge=0, le=5)
    hardware_compatibility: HardwareCompatibility = _classed(
        "build", "hardware compatibility level (TensorRT 8.6 and newer)", default="none"
    )
    version_compatible: bool = _classed("build", "version compatible plan (TensorRT 8.6 and newer)", default=False)
    plugins: tuple[FilePath, ...] = _classed("build", "plugin libraries (.so) loaded before parsing", default=())

    tolerance: Tolerance | None = _classed("validate", "by default chosen by precision", default=None)
    samples: tuple[FilePath, ...] = _classed("validate", ".npz files: inputs and optional expected outputs", default=())
    validation: Validation = _classed("validate", "how the engine is exercised", default=Validation())

    jetpack: VersionRange | None = _classed("place", 'JetPack of the device, e.g. ">=4.6.1"', default=None)
    limits: Limits = _classed("place", "limits of a step", default=Limits())
    runs_on: tuple[str, ...] = _classed("place", "labels of the CI runner that has this target's GPU", default=())


class Axes(_Frozen):
    """What forks a target into cells, one for each combination; a cell is called ``NAME-PRECISION-SHAPES``."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    precision: tuple[Precision, ...] | None = Field(default=None, description="the precisions to build", min_length=1)
    shapes: dict[Name, Annotated[dict[str, Profile], Field(min_length=1)]] | None = Field(
        default=None, description="the optimization profiles to build: sets with a name, each a profile per input", min_length=1
    )


class Exclusion(_Frozen):
    """Cells that are not built: all that have the values named here."""

    precision: Precision | None = Field(default=None)
    shapes: Name | None = Field(default=None, description="name of a set of axes.shapes")
    why: str = Field(description="said wherever the cell would stand", min_length=1)


class TargetFile(Target):
    """One row of the matrix, or the several rows that its axes expand to."""

    axes: Axes | None = _classed("name", "forks the target into cells", default=None)
    exclude: tuple[Exclusion, ...] | None = _classed("name", "cells that are not built, and why", default=None)


ModelName = Annotated[str, Spelled("name")]
"""What it may hold is said by ``matrix/model_name.py``, for ``--name`` and file stems too."""


class ModelConfig(_Frozen):
    """``lane.yaml`` beside ``lane.onnx``: what is true of the model on every target."""

    name: ModelName | None = Field(default=None, description="name in file names; default: the file's stem")
    targets: tuple[str, ...] = Field(default=(), description="names, globs or label:NAME; default: all")
    shapes: dict[str, Profile] = Field(default={}, description="optimization profile per input")
    precision: Precision | None = Field(default=None)
    samples: tuple[FilePath, ...] = Field(default=(), description=".npz files, relative to this file; globs allowed")
    tolerance: Tolerance | None = Field(default=None)
    fallback: FilePath | None = Field(default=None, description="TorchScript file a service may fall back to")


def field_classes(schema: type[Target] = Target) -> dict[str, FieldClass]:
    """Field name of :class:`Target` (or TargetFile) -> its class, as declared; an undeclared field raises KeyError."""
    return {name: info.json_schema_extra["x-enginefarm-class"] for name, info in schema.model_fields.items()}  # type: ignore[index,misc]
