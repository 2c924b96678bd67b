"""Names out of a stranger's file, made fit for a message."""

from __future__ import annotations

from collections.abc import Sequence


def shown(name: str, limit: int = 80) -> str:
    """``name`` in quotes, cut to ``limit`` characters, with nothing unprintable left."""
    text = name if len(name) <= limit else f"{name[: limit - 3]}..."
    return repr(text) if text.isprintable() else ascii(text)


def listed(names: Sequence[str], limit: int = 6) -> str:
    """``'a', 'b' and 3 more``."""
    parts = [shown(name) for name in names[:limit]]
    rest = len(names) - len(parts)
    return ", ".join(parts) + (f" and {rest:,} more" if rest else "")
