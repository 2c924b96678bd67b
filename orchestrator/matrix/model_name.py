"""The rule for a model's name, which becomes a folder and the first part of file names.

It is only ever passed as one argument or quoted with shlex, so spaces and ``$(x)`` are fine. Refused is what breaks elsewhere: a colon
splits a volume binding, slashes separate folders, a leading dash reads as an option, a leading dot hides the folder, and Windows takes
neither ``* ? " < > |`` nor names like ``CON`` nor a trailing dot or space.
"""

from __future__ import annotations

import re
import unicodedata

MAX_NAME_BYTES = 100  # leaves room for version, tag and suffix in the 255 bytes that file systems allow
_FORBIDDEN = {
    ":": "a colon splits container volume bindings and is not allowed on Windows",
    "/": "a slash separates folders",
    "\\": "a backslash separates folders on Windows",
    **dict.fromkeys('*?"<>|', "Windows allows no such file name"),
}
# control, format, surrogate, private use, unassigned, line and paragraph separators: nothing of them can be seen in a file name
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# learn.microsoft.com/windows/win32/fileio/naming-a-file: reserved with any suffix, superscript digits included
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³])(?:\..*)?", re.IGNORECASE)
_WINDOWS_PATH = re.compile(r"[A-Za-z]:[\\/]|\\\\")


def normal(name: str) -> str:
    """``name`` in NFC, so that one name is not two files."""
    return unicodedata.normalize("NFC", name)


def _bad_character(name: str) -> str | None:
    for character in name:
        if character in _FORBIDDEN:
            return f"it contains {character!r}: {_FORBIDDEN[character]}"
        category = unicodedata.category(character)
        if category in _INVISIBLE:
            return f"it contains the invisible character U+{ord(character):04X}"
        if category == "Zs" and character != " ":
            return f"it contains U+{ord(character):04X}, which looks like a space and is none"
    return None


def objection(name: str) -> str | None:
    """Why ``name`` (in NFC, see :func:`normal`) cannot be a model's name; None when it can."""
    if not name:
        return "it is empty"
    if _WINDOWS_PATH.match(name):
        return "it is a Windows path, not a name"
    bad = _bad_character(name)
    if bad is not None:
        return bad
    first = {"-": "a leading dash reads as an option", ".": "a leading dot hides the folder", " ": "it begins with a space"}
    if name[0] in first:
        return first[name[0]]
    if name[-1] in ". ":
        return "Windows drops a trailing dot or space"
    if _DEVICE.fullmatch(name):
        return "Windows reserves it for a device"
    length = len(name.encode())
    return f"it takes {length} bytes in UTF-8, at most {MAX_NAME_BYTES} fit" if length > MAX_NAME_BYTES else None


def suggest_name(name: str) -> str:
    """The nearest allowed name; ``model`` when nothing of ``name`` is left."""
    text = normal(name)
    if _WINDOWS_PATH.match(text):
        text = re.split(r"[\\/]", text.rstrip("\\/"))[-1]
        text = text.removesuffix(".onnx")
    kept = []
    for character in text:
        category = unicodedata.category(character)
        if character in _FORBIDDEN or category in ("Cc", "Zl", "Zp"):
            kept.append("_")
        elif category == "Zs":
            kept.append(" ")
        elif category not in _INVISIBLE:
            kept.append(character)
    text = "".join(kept)[:MAX_NAME_BYTES]
    while len(text.encode()) > MAX_NAME_BYTES:
        text = text[:-1]
    text = text.lstrip("-. ").rstrip(". ")
    if _DEVICE.fullmatch(text):
        text = f"model_{text}"
    return text if text and objection(text) is None else "model"
