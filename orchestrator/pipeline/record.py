"""Manifest records out of what a build did, and the options that a build step gets."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.artifacts.manifest import EngineRecord, TensorRecord, Verdict
from orchestrator.errors import EnginefarmError
from orchestrator.farm.local import Spot
from orchestrator.matrix.schema import Profile, Target
from orchestrator.matrix.shapes import format_profile
from orchestrator.models.model import TensorInfo
from orchestrator.pipeline.prepare import PreparedBuild
from orchestrator.portable.facts import support
from orchestrator.runners import bundle
from orchestrator.runners.base import StepResult

NOT_YET = Verdict(status="unvalidated", reason="not validated yet")

# what of a host is worth keeping beside an engine: enough to tell two machines' builds apart, no addresses or user names
HOST_FIELDS = ("platform", "os", "kernel", "libc", "python", "cpu", "gpus", "driver", "jetson", "declared")


def worker_options(target: Target, profiles: Mapping[str, Profile], strong: bool) -> dict[str, Any]:
    """``options`` of a build request (portable/worker/protocol.py)."""
    profile = {name: {"min": list(shape.min), "opt": list(shape.opt), "max": list(shape.max)} for name, shape in profiles.items()}
    return {
        "provider": target.provider,
        "compute_capability": list(target.compute_capability),
        "precision": target.precision,
        "strongly_typed": strong,
        "tf32": target.tf32,
        "workspace": target.workspace,
        "optimization_level": target.optimization_level,
        "hardware_compatibility": target.hardware_compatibility,
        "version_compatible": target.version_compatible,
        "plugins": [f"plugins/{number}.so" for number in range(len(target.plugins))],
        "profiles": [profile] if profile else [],
    }


def tensor_record(tensor: TensorInfo) -> TensorRecord:
    shape = tuple(dim if isinstance(dim, int) else -1 for dim in tensor.shape or ())
    return TensorRecord(name=tensor.name, dtype=tensor.dtype, shape=shape)


def reproduce(build: PreparedBuild, output: Path) -> str:
    """The command that builds this engine again, quoted for a POSIX shell."""
    target = build.effective.target
    path = str(build.model.model.path)
    words = ["enginefarm", "build", f"./{path}" if path.startswith("-") else path, "--target", target.name, "--name", build.model.name]
    words += ["--model-version", str(build.model.version.version), "--precision", target.precision]
    for name, shape in build.profiles.items():
        words += ["--shape", f"{name}:{format_profile(shape)}"]
    if output != Path("artifacts"):
        words += ["--output", str(output)]
    return shlex.join([*words, "--force", "--allow-unvalidated"])


def _common(build: PreparedBuild) -> dict[str, Any]:
    target = build.effective.target
    driver = support.minimum_driver(target.cuda) if target.cuda else None
    return {
        "target": target.name,
        "tag": target.tag,
        "backend": target.backend,
        "provider": target.provider,
        "compute_capability": target.compute_capability,
        "hardware_compatibility": target.hardware_compatibility,
        "version_compatible": target.version_compatible,
        "platform": target.platform,
        "cuda": target.cuda,
        "minimum_driver": (driver.get("minor") or driver.get("full")) if driver else None,
        "precision": target.precision,
        "image": target.image,
    }


def renamed(record: EngineRecord, build: PreparedBuild) -> EngineRecord:
    """The record of an engine that is still right, with the names that the target has now."""
    return record.model_copy(update={name: value for name, value in _common(build).items() if name in ("target", "tag", "image")})


def portable(record: EngineRecord) -> dict[str, Any]:
    """What of a record holds wherever the same engine is used again: no file name, no verdict, no command of one run."""
    return record.model_dump(mode="json", exclude={"file", "verdict", "validate_key", "problem", "reproduce"})


def unbuilt(build: PreparedBuild, verdict: Verdict, problem: EnginefarmError) -> EngineRecord:
    """Record of a skipped or failed build."""
    return EngineRecord(**_common(build), verdict=verdict, problem=problem.as_dict())


def built(
    build: PreparedBuild,
    answer: StepResult,
    spot: Spot,
    *,
    output: Path,
    key: str,
    plugins: Mapping[str, str],
    converter: str | None,
) -> EngineRecord:
    """Record of a new engine, before its verdict; ``file`` is set when it is committed."""
    target = build.effective.target
    host = spot.runner.host()
    model = build.model.model
    engine = answer.result["engine"]
    options = worker_options(target, build.profiles, False)
    kept = ("tf32", "workspace", "optimization_level")
    return EngineRecord(
        **_common(build),
        digest="sha256:" + engine["sha256"].removeprefix("sha256:"),
        size_bytes=engine["size_bytes"],
        backend_version=answer.result["backend_version"],
        profiles={name: shape.model_dump() for name, shape in build.profiles.items()},
        inputs=tuple(tensor_record(tensor) for tensor in model.inputs),
        outputs=tuple(tensor_record(tensor) for tensor in model.outputs),
        plugins={Path(name).name: digest for name, digest in plugins.items()},
        options={name: options[name] for name in kept if options[name] is not None} | ({"converter": converter} if converter else {}),
        image_digest=spot.image.rpartition("@")[2] if spot.image and "@" in spot.image else None,
        worker=bundle.worker_version(),
        built_on={name: host[name] for name in HOST_FIELDS if host.get(name)},
        built_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        timings={"build_seconds": round(answer.result["build_seconds"], 3), "step_seconds": round(answer.seconds, 3)},
        build_key=key,
        verdict=NOT_YET,
        reproduce=reproduce(build, output),
    )
