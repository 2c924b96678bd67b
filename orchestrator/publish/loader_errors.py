"""What the loader raises, as errors of the command."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import MANIFEST_UNREADABLE, NO_ENGINE, SIGNATURE_REFUSED, USAGE, EnginefarmError, Where
from orchestrator.portable.runtime.errors import LoadError

_KINDS = {"manifest": MANIFEST_UNREADABLE, "signature": SIGNATURE_REFUSED, "engine": NO_ENGINE, "usage": USAGE}


def as_problem(error: LoadError, path: Path) -> EnginefarmError:
    """``error`` about the manifest ``path``, whose place is named once."""
    why = error.why.removeprefix(f"{path}: ") if error.why else None
    where = None if error.kind == "usage" else Where(file=str(path))
    return EnginefarmError(_KINDS[error.kind], error.what, where=where, why=why, fix=error.fix)
