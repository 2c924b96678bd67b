"""Words and figures as people read them: sizes, durations, aligned tables, safe text."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

# names of tensors and lines of logs come from strangers: nothing of them may drive the terminal
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """Text with control characters and direction marks shown as escapes."""
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), text)


def size(count: int | None) -> str:
    """Bytes with a decimal unit: ``4.7 MB``."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """``0.4s``, ``12s``, ``3m05s``, ``2h10m``."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def columns(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: int = 0) -> list[str]:
    """Rows with their cells aligned; the last column is not padded."""
    if not rows:
        return []
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width) for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(" " * indent + "  ".join(cells).rstrip())
    return lines


def hang(label: str, text: str, width: int | None, indent: int) -> list[str]:
    """``label`` padded to ``indent``, then ``text`` wrapped beside it; ``width`` None means no wrapping."""
    first = label.ljust(indent)
    if width is None or width <= indent + 20:
        return [first + text]
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ) or [first.rstrip()]
