"""Keys of steps: digests over everything that goes into a step, never over what comes out (builds are not reproducible).

Three keys lie over each other::

    build     model, build fields, resolved profiles, backend version, converter, plugins, image, the build step's modules
    run       the build key, inputs of the samples, how the engine is exercised, the validate step's modules
    verdict   the run key, tolerance, what the reference may cost, the verdict's rules

so that a new tolerance is a new verdict over outputs that are there already, and only what changes an engine's bytes builds one.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.matrix.schema import Profile, Target, Validation, field_classes

_MODELS = Path(__file__).resolve().parent.parent / "models"
JUDGED = ("reference_budget",)
"""Fields of ``validation`` that change what outputs are compared with, not what runs."""


def digest_of(value: Any) -> str:
    """sha256 over canonical JSON: key order and formatting do not count."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return "sha256:" + digest.hexdigest()


def _fields(target: Target, field_class: str) -> dict[str, Any]:
    classes = field_classes()
    values = target.model_dump(mode="json")
    return {name: values[name] for name, declared in classes.items() if declared == field_class}


@functools.cache
def version_of(library: str) -> str:
    """Version of an installed library, whatever distribution it came in (``onnxruntime-gpu`` is onnxruntime too); ``none`` without it."""
    from importlib import metadata

    for name in (library, f"{library}-gpu"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            # by itself: a parser for mail would read the whole README in it for the same line
            head = (metadata.distribution(name).read_text("METADATA") or "").partition("\n\n")[0]
            found = re.search(r"^Version: *(\S+)", head, re.MULTILINE)
            return found[1] if found else metadata.version(name)
    return "none"


@functools.cache
def converter_version() -> str:
    """Versions of the libraries that rewrite an ONNX, and a digest over our own rules of how."""
    return f"onnx {version_of('onnx')}, onnxruntime {version_of('onnxruntime')}, rules {model_rules('convert', 'half', 'operators')[:12]}"


@functools.cache
def model_rules(*modules: str) -> str:
    """Digest over modules of ``models/`` by name, in hex, without importing them."""
    return hashlib.sha256(b"".join((_MODELS / f"{name}.py").read_bytes() for name in modules)).hexdigest()


def build_inputs(
    target: Target,
    *,
    profiles: Mapping[str, Profile],
    backend_version: str | None,
    converter: str | None,
    plugins: Mapping[str, str],
    image: str | None,
    worker: str,
) -> dict[str, Any]:
    """Everything but the model that goes into a build step, by the name that ``plan`` calls it when it changed.

    ``plugins`` maps a plugin file to its digest, ``image`` is pinned, None where no container runs, ``worker`` is the digest of the modules
    that the step imports (runners/bundle.py).
    """
    fields = _fields(target, "build")
    # what the step gets: resolved profiles, plugin bytes, the image by its digest (a tag that moves changes nothing)
    fields["shapes"] = {name: profile.model_dump(mode="json") for name, profile in profiles.items()}
    fields["plugins"] = sorted(plugins.values())
    fields["image"] = image.rpartition("@")[2] if image else None
    return {**fields, "backend version": backend_version, "converter": converter, "worker": worker}


def build_key(model_digest: str, inputs_digest: str) -> str:
    """Key of the build step; ``inputs_digest`` is :func:`digest_of` over :func:`build_inputs`."""
    return _chained("build", model_digest, inputs_digest)


def exercise_digest(target: Target, worker: str) -> str:
    """Digest over how a target's engines are exercised, by the modules of ``worker``."""
    how = {name: value for name, value in target.validation.model_dump(mode="json").items() if name not in JUDGED}
    return digest_of({"how": how, "worker": worker})


def run_key(build: str, samples: str, exercise: str) -> str:
    """Key of the validate step: ``samples`` is the identity of its inputs."""
    return _chained("validate", build, samples, exercise)


def judging_digest(tolerance: Mapping[str, Any], validation: Validation, expected: str, judge: str) -> str:
    """Digest over how outputs are judged; ``expected`` is the identity of the reference, ``judge`` names the verdict's rules."""
    budget = {name: getattr(validation, name) for name in JUDGED}
    return digest_of({"tolerance": dict(tolerance), "budget": budget, "expected": expected, "judge": judge})


def verdict_key(run: str, judging: str) -> str:
    """Key of the verdict."""
    return _chained("verdict", run, judging)


def _chained(step: str, *digests: str) -> str:
    return "sha256:" + hashlib.sha256("\n".join((f"enginefarm.{step}/2", *digests)).encode()).hexdigest()
