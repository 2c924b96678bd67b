"""Keys of steps: digests over everything that goes into a step, never over what comes out (builds are not reproducible).

A build key takes the model's digest, the resolved values of the target's build fields, the backend's own version, the worker modules that
the step imports, the plugin files and, where the ONNX is converted first, the converter. A validate key adds the validate fields and the
samples.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from orchestrator.matrix.schema import Profile, Target, field_classes
from orchestrator.models import convert, half, operators
from orchestrator.runners import bundle


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
def converter_version() -> str:
    """Versions of the libraries that rewrite an ONNX, and a digest over our own rules of how."""
    rules = hashlib.sha256(b"".join(Path(module.__file__ or "").read_bytes() for module in (convert, half, operators))).hexdigest()[:12]
    return f"onnx {metadata.version('onnx')}, onnxruntime {metadata.version('onnxruntime')}, rules {rules}"


def build_key(
    target: Target,
    *,
    model_digest: str,
    profiles: Mapping[str, Profile],
    backend_version: str | None,
    converter: str | None,
    plugins: Mapping[str, str],
    image: str | None,
) -> str:
    """Key of the build step; ``plugins`` maps a plugin file to its digest, ``image`` is pinned, None where no container runs."""
    fields = _fields(target, "build")
    # what the step gets: resolved profiles, plugin bytes, the image by its digest (a tag that moves changes nothing)
    fields["shapes"] = {name: profile.model_dump(mode="json") for name, profile in profiles.items()}
    fields["plugins"] = sorted(plugins.values())
    fields["image"] = image.rpartition("@")[2] if image else None
    return digest_of(
        {
            "step": "build",
            "model": model_digest,
            "fields": fields,
            "backend_version": backend_version,
            "converter": converter,
            "worker": bundle.step_modules_digest("build", target.backend),
        }
    )


def validate_key(target: Target, *, build: str, samples: str, judge: str) -> str:
    """Key of the validate step; ``samples`` is a digest over the inputs and expected outputs, ``judge`` names the verdict's rules."""
    return digest_of(
        {
            "step": "validate",
            "build": build,
            "fields": _fields(target, "validate"),
            "samples": samples,
            "judge": judge,
            "worker": bundle.step_modules_digest("validate", target.backend),
        }
    )
