"""Where files that ship with the package lie: inside an installed wheel, or in the project's own checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def builtin_targets() -> Path:
    """Folder of the built-in targets (``_data/targets`` in a wheel, ``targets/`` in a checkout)."""
    shipped = _PACKAGE / "_data" / "targets"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "targets"
