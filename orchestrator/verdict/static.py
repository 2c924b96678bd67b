"""The check that needs no GPU: is the file what the target asks for? Reads a few kilobytes of the engine (docs/facts/plan_header.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import DISK, PLAN_HEADER_MISMATCH, EnginefarmError, Where
from orchestrator.matrix.schema import Target
from orchestrator.portable.facts import plan_header, version

_KINDS = {"tensorrt": "a TensorRT engine", "tensorrt-7": "a TensorRT 7 (or older) engine", "tensorrt-rtx": "a TensorRT-RTX engine"}


def check_plan(path: Path, target: Target) -> list[EnginefarmError]:
    """Everything about the engine at ``path`` that is not as ``target`` says; empty when all is well. Raises DISK when it cannot be read.

    Compared are the backend, the version (to the precision the target gives it in), the compute capabilities of a TensorRT-RTX engine, and
    what the header says of the file itself: size, sections, end mark. The capability of a TensorRT engine is not in its header.
    """
    where = Where(file=str(path), target=target.name)
    try:
        header = plan_header.read(str(path))
    except OSError as error:
        raise EnginefarmError(DISK, "the engine cannot be read", where=where, why=error.strerror) from error

    def mismatch(what: str, why: str | None = None, fix: str | None = None) -> EnginefarmError:
        return EnginefarmError(PLAN_HEADER_MISMATCH, what, where=where, why=why, fix=fix)

    if target.backend == "onnxruntime":
        found = (header["file_kind"] or {}).get("kind")
        return [] if found == "onnx-like" else [mismatch(f"no ONNX file: {_what(header)}")]
    if header["kind"] == "not-a-plan":
        return [mismatch(problem["text"], fix=problem["fix"]) for problem in header["problems"]]
    problems = [mismatch(problem["text"], fix=problem["fix"]) for problem in header["problems"]]
    if _backend(header, target) != target.backend:
        problems.append(mismatch(f"this is {_KINDS[header['kind']]}, the target's backend is {target.backend}"))
        return problems
    wanted = target.tensorrt_rtx if target.backend == "tensorrt-rtx" else target.tensorrt
    if wanted is not None and header["version"] is not None and not version.matches(header["version"], wanted):
        why = "an engine loads only in the version that built it"
        problems.append(mismatch(f"built by {target.backend} {header['version']}, the target names {wanted}", why))
    if header["capabilities"] is not None and set(header["capabilities"]) != set(target.compute_capability):
        found = ", ".join(header["capabilities"]) or "none"
        problems.append(mismatch(f"built for compute capability {found}, the target names {', '.join(target.compute_capability)}"))
    return problems


def _backend(header: Mapping[str, Any], target: Target) -> str:
    """The backend that the plan is of; a TensorRT 7 plan says nothing but that it is one."""
    if header["kind"] != "tensorrt-7":
        return str(header["kind"])
    old = target.tensorrt is not None and version.compare(target.tensorrt, "8") < 0
    return "tensorrt" if old else "tensorrt-7"


def _what(header: Mapping[str, Any]) -> str:
    known = _KINDS.get(header["kind"])
    return f"this is {known}" if known else str(header["problems"][0]["text"])
