"""Names: of a model (its rule is in matrix/model_name.py), and of the files that carry it."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import NAME_INVALID, EnginefarmError
from orchestrator.matrix.model_name import normal, objection, suggest_name

_ENGINE = re.compile(
    r"(?P<model>.+)_v(?P<version>[1-9][0-9]*)_(?P<tag>[a-z0-9][a-z0-9._-]*?)(?P<unvalidated>\.unvalidated)?\.(?P<suffix>engine|onnx)"
)


def check_model_name(name: str) -> str:
    """``name`` in NFC, when files can be named so everywhere; raises EnginefarmError(NAME_INVALID) with a ready ``--name`` otherwise."""
    text = normal(name)
    why = objection(text)
    if why is None:
        return text
    raise EnginefarmError(NAME_INVALID, f"model name {text!r} cannot be used", why=why, fix=f"--name {shlex.quote(suggest_name(text))}")


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
