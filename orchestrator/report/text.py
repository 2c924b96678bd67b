"""Words and figures as people read them: sizes, durations, aligned tables, safe text."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

# names of tensors and lines of logs come from strangers: nothing of them may drive the terminal
_MARKS = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"  # surrogates are bytes of file names that are not UTF-8
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f{_MARKS}]")
_CONTROL_OR_LINE = re.compile(rf"[\x00-\x1f{_MARKS}]")
_IN_JSON = re.compile(rf"[{_MARKS}]")


def _escaped(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode("ascii")


def safe(text: str) -> str:
    """Text with control characters and direction marks shown as escapes; it may have several lines."""
    return _CONTROL.sub(_escaped, text)


def one_line(text: str) -> str:
    """As ``safe``, with line breaks and tabs as escapes too: for names and other parts of a line, which must not forge another line."""
    return _CONTROL_OR_LINE.sub(_escaped, text)


def json_text(content: Any) -> str:
    """Indented JSON; characters that drive a terminal, or that UTF-8 cannot hold, as escapes."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return _IN_JSON.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def command_line(words: Sequence[str]) -> str:
    """Words as one line to paste into a shell; those with control characters in the form ``$'...'`` of bash, zsh and POSIX 2024."""
    return " ".join(_dollar_quoted(word) if _CONTROL_OR_LINE.search(word) else shlex.quote(word) for word in words)


def _dollar_quoted(word: str) -> str:
    quoted = []
    for character in word:
        code = ord(character)
        if _CONTROL_OR_LINE.match(character):
            # octal, always three digits: the bytes of the name, whatever character follows
            quoted += [f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape" if 0xDC80 <= code <= 0xDCFF else "replace")]
        else:
            quoted.append(f"\\{character}" if character in "\\'" else character)
    return f"$'{''.join(quoted)}'"


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
