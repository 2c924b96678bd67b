"""Names: of a model, and of the files that carry it.

A model's name becomes a folder and the first part of file names, on this machine, in containers and on the machines that load the engines.
It is only ever passed as one argument or quoted with shlex, so spaces and ``$(x)`` are fine. Refused is what breaks elsewhere: a colon
splits a volume binding, slashes separate folders, a leading dash reads as an option, a leading dot hides the folder, and Windows takes
neither ``* ? " < > |`` nor names like ``CON`` nor a trailing dot or space.
"""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import NAME_INVALID, EnginefarmError

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
_ENGINE = re.compile(
    r"(?P<model>.+)_v(?P<version>[1-9][0-9]*)_(?P<tag>[a-z0-9][a-z0-9._-]*?)(?P<unvalidated>\.unvalidated)?\.(?P<suffix>engine|onnx)"
)


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


def _objection(name: str) -> str | None:
    """Why ``name`` (in NFC) cannot be a model's name; None when it can."""
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
    text = unicodedata.normalize("NFC", name)
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
    return text if text and _objection(text) is None else "model"


def check_model_name(name: str) -> str:
    """``name`` in NFC, when files can be named so everywhere; raises EnginefarmError(NAME_INVALID) with a ready ``--name`` otherwise."""
    normal = unicodedata.normalize("NFC", name)
    objection = _objection(normal)
    if objection is None:
        return normal
    raise EnginefarmError(
        NAME_INVALID,
        f"model name {normal!r} cannot be used",
        why=objection,
        fix=f"--name {shlex.quote(suggest_name(normal))}",
    )


def model_name(path: Path, *, root: Path | None, config_name: str | None, option: str | None) -> str:
    """The name of the model at ``path``: ``--name``, else the name in its YAML, else its path under the models folder, else its stem.

    ``root`` is the models folder, when one was given: ``models/seg/lane.onnx`` under ``models`` is ``seg__lane``, so that two models of one
    file name in different folders do not meet. The result still has to pass :func:`check_model_name`.
    """
    if option is not None:
        return option
    if config_name is not None:
        return config_name
    if root is None:
        return path.stem
    below = os.path.relpath(path, root)
    parts = Path(below).with_suffix("").parts
    return path.stem if ".." in parts else "__".join(parts)


@dataclass(frozen=True)
class EngineName:
    """What an engine's file name says."""

    model: str
    version: int
    tag: str
    suffix: str
    validated: bool

    @property
    def claims(self) -> tuple[str, ...]:
        """One phrase per part, in a fixed order."""
        status = "checked" if self.validated else "unvalidated"
        return (f"model {self.model}", f"version {self.version}", f"tag {self.tag}", status, f"suffix .{self.suffix}")


def engine_file(model: str, version: int, tag: str, backend: str, *, validated: bool) -> str:
    """``lane_v3_ampere.engine``; ``.onnx`` for onnxruntime; ``.unvalidated.`` before the suffix unless ``validated``."""
    if re.search(r"_v[0-9]+_", f"_{tag}_") or tag.endswith(".unvalidated"):
        raise EnginefarmError(NAME_INVALID, f"tag {tag!r} cannot be told from a version in a file name", fix="give the target another tag")
    suffix = "onnx" if backend == "onnxruntime" else "engine"
    return f"{model}_v{version}_{tag}{'' if validated else '.unvalidated'}.{suffix}"


def manifest_file(model: str, version: int) -> str:
    """``lane_v3.json``."""
    return f"{model}_v{version}.json"


def parse_engine_file(name: str) -> EngineName | None:
    """The parts of a file name that :func:`engine_file` made; None for any other name. Versions are numbers: v10 is after v9."""
    found = _ENGINE.fullmatch(name)
    if found is None:
        return None
    validated = found["unvalidated"] is None
    return EngineName(found["model"], int(found["version"]), found["tag"], found["suffix"], validated)
