"""What samples and references are made from, as digests that are known before anything is made."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import SAMPLES_BAD, EnginefarmError
from orchestrator.matrix.schema import Profile
from orchestrator.models.model import Model
from orchestrator.pipeline.keys import digest_of, model_rules, version_of
from orchestrator.store.memo import Memo

_FIX = "make the samples, or correct the path in the model's YAML"


def _rules(*modules: str) -> str:
    return model_rules(*modules)[:16]


def samples(memo: Memo, model: Model, names: Sequence[str], profiles: Mapping[str, Profile]) -> str:
    """Identity of a model's samples: bytes and order of the files, or what they are made up from.

    The files' names count, as verdicts name samples by them. Raises EnginefarmError(SAMPLES_BAD) for files that are not there.
    """
    shapes = {name: [list(profile.min), list(profile.opt), list(profile.max)] for name, profile in profiles.items()}
    if names:
        files = [[path.name, memo.digest(path)] for path in expand(names)]
        return digest_of({"files": files, "shapes": shapes, "rules": _rules("samples", "npz", "arrays")})
    inputs = [[tensor.name, tensor.dtype, list(tensor.shape or ())] for tensor in model.inputs]
    return digest_of({"inputs": inputs, "shapes": shapes, "rules": _rules("samples", "arrays")})


@functools.cache
def expected(judge: str) -> str:
    """What decides which outputs are expected and what they are compared by, beside the samples: libraries and our own rules."""
    rules = _rules("reference", "reference_ops", "child")
    return f"onnx {version_of('onnx')}, onnxruntime {version_of('onnxruntime')}, rules {rules}, judge {judge}"


def reference(kind: str, version: str, model_digest: str, samples_identity: str) -> str:
    """Key of outputs computed by ``version`` of what ``kind`` names."""
    made_by = [kind, version, _rules("reference", "reference_ops")]
    return digest_of({"model": model_digest, "samples": samples_identity, "by": made_by})


def expand(names: Sequence[str]) -> list[Path]:
    """Sample files, globs expanded in sorted order; raises EnginefarmError(SAMPLES_BAD) for a glob that matches nothing."""
    files: list[Path] = []
    for name in names:
        path = Path(name)
        found = [path]
        if not os.path.lexists(path) and any(mark in name for mark in "*?["):
            try:
                found = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
            except (OSError, ValueError) as error:
                raise EnginefarmError(SAMPLES_BAD, f"samples: {name} is no pattern for files: {error}", fix=_FIX) from None
        if not found:
            raise EnginefarmError(SAMPLES_BAD, f"no file matches samples: {name}", fix=_FIX)
        files += found
    for path in files:
        _check_regular(path)
    return files


def _check_regular(path: Path) -> None:
    """A pipe or a device would never end."""
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise EnginefarmError(SAMPLES_BAD, f"samples: {path} cannot be read: {error.strerror}", fix=_FIX) from None
    if not regular:
        raise EnginefarmError(SAMPLES_BAD, f"samples: {path} is not a regular file", fix=_FIX)
