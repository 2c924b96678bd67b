"""Every error of enginefarm, declared once: a stable code, the exit code of the process, and a title.

An error for a person says what happened, where, why, and what to do next. Code raises
:class:`EnginefarmError` (one problem) or :class:`Problems` (all problems of one input at once);
only ``cli/`` catches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes of the command; when several apply the lowest non-zero one is returned."""

    OK = 0
    FAILED = 1  # a build or a validation failed
    USAGE = 2  # usage, configuration, empty selection, bad model
    NO_RUNNER = 3  # a required target has no runner, or stayed unvalidated
    INFRASTRUCTURE = 4  # engine, registry, disk, network
    STALE = 5  # a generated file is stale
    REFUSED = 6  # refused by verification or policy
    WORK_TO_DO = 10  # only `plan --exit-code`
    INTERNAL = 70
    INTERRUPTED = 130
    TERMINATED = 143


@dataclass(frozen=True)
class Kind:
    """One kind of error: ``code`` is stable and may be quoted in issues and searched for."""

    code: str
    exit: Exit
    title: str


@dataclass(frozen=True)
class Where:
    """A place: ``line`` and ``column`` count from 1; ``target`` names a row of the matrix."""

    file: str | None = None
    line: int | None = None
    column: int | None = None
    target: str | None = None

    def __str__(self) -> str:
        place = self.file or ""
        if self.file and self.line is not None:
            place += f":{self.line}" + (f":{self.column}" if self.column is not None else "")
        if self.target:
            place += f" (target {self.target})" if place else f"target {self.target}"
        return place


class EnginefarmError(Exception):
    """One problem: ``what`` happened, ``where``, ``why``, and how to ``fix`` it."""

    def __init__(
        self,
        kind: Kind,
        what: str,
        *,
        where: Where | None = None,
        why: str | None = None,
        fix: str | None = None,
        log: str | None = None,
    ) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
        self.log = log

    @property
    def exit(self) -> Exit:
        return self.kind.exit

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form, used by ``--json`` outputs, events and manifests."""
        where = None if self.where is None else {k: v for k, v in vars(self.where).items() if v is not None}
        fields: dict[str, Any] = {"code": self.kind.code, "title": self.kind.title, "what": self.what}
        fields |= {"where": where, "why": self.why, "fix": self.fix, "log": self.log}
        return {key: value for key, value in fields.items() if value is not None}


class Problems(EnginefarmError):  # noqa: N818  (a plural reads better than ProblemsError)
    """Several problems found in one pass over an input; never empty."""

    def __init__(self, problems: Sequence[EnginefarmError]) -> None:
        first = problems[0]
        super().__init__(first.kind, first.what, where=first.where, why=first.why, fix=first.fix)
        self.problems = tuple(problems)

    @property
    def exit(self) -> Exit:
        return min(problem.exit for problem in self.problems)


def raise_all(problems: Iterable[EnginefarmError]) -> None:
    """Raise nothing, the one problem, or all of them together."""
    found = list(problems)
    if len(found) == 1:
        raise found[0]
    if found:
        raise Problems(found)


def flatten(error: EnginefarmError) -> tuple[EnginefarmError, ...]:
    """The single problems of an error."""
    return error.problems if isinstance(error, Problems) else (error,)


# EF1xx: how the command was called, configuration, matrix
USAGE = Kind("EF100", Exit.USAGE, "usage")
CONFIG_SYNTAX = Kind("EF101", Exit.USAGE, "not readable as YAML")
CONFIG_FIELD = Kind("EF102", Exit.USAGE, "unknown field")
CONFIG_VALUE = Kind("EF103", Exit.USAGE, "value not accepted")
CONFIG_TRAP = Kind("EF104", Exit.USAGE, "YAML reads this as something else")
TARGET_CONFLICT = Kind("EF105", Exit.USAGE, "targets contradict each other")
TARGET_IMPOSSIBLE = Kind("EF106", Exit.USAGE, "no such build can exist")
TARGET_UNKNOWN = Kind("EF107", Exit.USAGE, "no such target")
EMPTY_SELECTION = Kind("EF108", Exit.USAGE, "nothing selected")
VERSION_UNKNOWN = Kind("EF109", Exit.USAGE, "the model version is not settled")
NAME_INVALID = Kind("EF110", Exit.USAGE, "name cannot be used in a file name")
FILE_EXISTS = Kind("EF111", Exit.USAGE, "file exists")
IMAGE_REFERENCE = Kind("EF112", Exit.USAGE, "not an image reference")

# EF2xx: models
MODEL_MISSING = Kind("EF200", Exit.USAGE, "model not found")
MODEL_NOT_ONNX = Kind("EF201", Exit.USAGE, "not an ONNX model")
MODEL_DAMAGED = Kind("EF202", Exit.USAGE, "ONNX file is damaged")
MODEL_HOSTILE = Kind("EF203", Exit.USAGE, "model exceeds the reader's limits")
MODEL_EXTERNAL_UNSAFE = Kind("EF204", Exit.USAGE, "external data leaves the model's folder")
MODEL_EXTERNAL_MISSING = Kind("EF205", Exit.USAGE, "external data is missing or short")
MODEL_INVALID = Kind("EF206", Exit.USAGE, "model contradicts itself")
SHAPES_NEEDED = Kind("EF207", Exit.USAGE, "dynamic model needs shapes")
SHAPES_BAD = Kind("EF208", Exit.USAGE, "optimization profile contradicts the model")
PRECISION_IMPOSSIBLE = Kind("EF209", Exit.USAGE, "precision cannot be had")
SAMPLES_BAD = Kind("EF210", Exit.USAGE, "samples do not fit the model")
NAME_TAKEN = Kind("EF211", Exit.USAGE, "model name is taken by another model")

# EF3xx: build and validation
BUILD_FAILED = Kind("EF300", Exit.FAILED, "the builder failed")
BUILD_CAPABILITY = Kind("EF301", Exit.FAILED, "a compute capability refuses the model")
BUILD_UNSUPPORTED_OP = Kind("EF302", Exit.FAILED, "the parser does not take this operator")
STEP_TIMEOUT = Kind("EF303", Exit.FAILED, "a step ran past its time limit")
STEP_MEMORY = Kind("EF304", Exit.FAILED, "a step ran out of memory")
STEP_CRASHED = Kind("EF305", Exit.FAILED, "the worker process died")
PLAN_HEADER_MISMATCH = Kind("EF306", Exit.FAILED, "the engine is not what the target asks for")
OUTPUT_MISMATCH = Kind("EF307", Exit.FAILED, "outputs differ from the reference")
VALIDATION_FAILED = Kind("EF308", Exit.FAILED, "validation could not finish")
BUILD_BUG = Kind("EF399", Exit.INTERNAL, "internal bug in a build")
NO_RUNNER = Kind("EF310", Exit.NO_RUNNER, "no runner can take this target")
UNVALIDATED = Kind("EF311", Exit.NO_RUNNER, "engine is unvalidated")
IMAGE_BUILD_FAILED = Kind("EF312", Exit.FAILED, "a derived image did not build")
NO_ENGINE = Kind("EF313", Exit.NO_RUNNER, "no engine of the manifest can be taken")

# EF4xx: infrastructure
DISK = Kind("EF400", Exit.INFRASTRUCTURE, "disk")
RUNNER_BROKEN = Kind("EF401", Exit.INFRASTRUCTURE, "runner does not work")
LOCKED = Kind("EF402", Exit.INFRASTRUCTURE, "another run holds a lock")
HISTORY = Kind("EF403", Exit.INFRASTRUCTURE, "the history cannot be read")

# EF41x: registries and images
IMAGE_MISSING = Kind("EF410", Exit.USAGE, "the registry has no such image")
IMAGE_PLATFORM = Kind("EF411", Exit.USAGE, "the image is not for this platform")
REGISTRY_UNAUTHORIZED = Kind("EF412", Exit.INFRASTRUCTURE, "the registry wants other credentials")
REGISTRY_DENIED = Kind("EF413", Exit.INFRASTRUCTURE, "the registry denies access")
REGISTRY_RATE_LIMIT = Kind("EF414", Exit.INFRASTRUCTURE, "the registry limits the rate of pulls")
REGISTRY_UNREACHABLE = Kind("EF415", Exit.INFRASTRUCTURE, "the registry does not answer")
REGISTRY_NAME = Kind("EF416", Exit.INFRASTRUCTURE, "the registry's name is not known here")
REGISTRY_CERTIFICATE = Kind("EF417", Exit.INFRASTRUCTURE, "the registry's certificate is not trusted")
REGISTRY_ANSWER = Kind("EF418", Exit.INFRASTRUCTURE, "the registry's answer cannot be used")
IMAGE_OFFLINE = Kind("EF419", Exit.INFRASTRUCTURE, "the image is not on the engine")

# EF42x: Docker engines
ENGINE_UNREACHABLE = Kind("EF420", Exit.INFRASTRUCTURE, "the Docker engine does not answer")
ENGINE_TLS = Kind("EF421", Exit.INFRASTRUCTURE, "the Docker engine's certificates do not fit")
ENGINE_LOST = Kind("EF422", Exit.INFRASTRUCTURE, "the Docker engine went away during a step")
ENGINE_REFUSED = Kind("EF423", Exit.INFRASTRUCTURE, "the Docker engine refused")
GPU_ACCESS = Kind("EF424", Exit.INFRASTRUCTURE, "the engine cannot give containers a GPU")
GPU_DEVICE = Kind("EF425", Exit.INFRASTRUCTURE, "a GPU's device node is missing")
GPU_TAKEN = Kind("EF426", Exit.INFRASTRUCTURE, "another run took over the GPU")
IMAGE_UNFIT = Kind("EF427", Exit.FAILED, "the image cannot run the worker")

# EF43x: hosts that are reached over ssh
SSH_UNREACHABLE = Kind("EF430", Exit.INFRASTRUCTURE, "the host does not answer over ssh")
SSH_LOGIN = Kind("EF431", Exit.INFRASTRUCTURE, "the host refuses the login")
SSH_HOST_KEY = Kind("EF432", Exit.INFRASTRUCTURE, "the host's key is not the one that is known")
SSH_LOST = Kind("EF433", Exit.INFRASTRUCTURE, "the connection to the host broke")
SSH_PYTHON = Kind("EF434", Exit.INFRASTRUCTURE, "the host has no Python that can run the worker")

# EF5xx, EF6xx: generated files, verification
GENERATED_STALE = Kind("EF500", Exit.STALE, "generated file is stale")
IMAGE_NOT_LOCKED = Kind("EF501", Exit.STALE, "image is not locked")
ENGINE_UNREADABLE = Kind("EF600", Exit.REFUSED, "file is not a usable engine")
DIGEST_MISMATCH = Kind("EF601", Exit.REFUSED, "file changed after it was checked")
MANIFEST_UNREADABLE = Kind("EF602", Exit.REFUSED, "manifest cannot be used")
IMAGE_NOT_ALLOWED = Kind("EF603", Exit.REFUSED, "registry is not on the allow-list")
IMAGE_DIGEST = Kind("EF604", Exit.REFUSED, "image is not what its digest says")
ENGINE_MISNAMED = Kind("EF605", Exit.REFUSED, "engine is not what its name says")
SIGNATURE_REFUSED = Kind("EF606", Exit.REFUSED, "manifest is not signed by a trusted key")
