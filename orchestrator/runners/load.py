"""The configured runners: from ``runners.yaml``, or the Docker engine of this machine and a local runner on the current interpreter.

::

    runners:
      here:
        type: process
        python: ${env:HOME}/venvs/trt/bin/python    # default: the interpreter that runs enginefarm
        slots: 2                                    # steps at a time; default: one per CPU, at most 8
        labels: [fast]
      xavier:
        type: process
        ssh: nvidia@xavier-1                        # on another machine; its fields: runners/ssh_config.py
      lab:
        type: docker                                # its fields: runners/docker_config.py
        engine: ssh://ci@lab-3
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.errors import CONFIG_FIELD, CONFIG_TRAP, CONFIG_VALUE, USAGE, EnginefarmError, Where, raise_all
from orchestrator.matrix.binder import Binder, yaml_reads
from orchestrator.matrix.schema import NAME_PATTERN, Label
from orchestrator.matrix.yaml_reader import Mapping, Node, Scalar, read_file
from orchestrator.matrix.yaml_syntax import short
from orchestrator.runners.base import Runner
from orchestrator.runners.process import ProcessRunner

_VARIABLE = re.compile(r"\$\{env:([^}]*)\}")
_MOST_SLOTS = 256


class RunnerConfig(BaseModel):
    """One entry of ``runners:``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["process", "docker"] = "process"
    python: Annotated[str, Field(min_length=1)] | None = None
    slots: int | None = None
    labels: tuple[Label, ...] = ()


def load_runners(path: Path | None = None, python: str | None = None) -> list[Runner]:
    """The runners of ``path`` in their order; without it ``docker``, when an engine answers here, and ``local`` on this interpreter.

    With ``python`` there is only ``local``, on that interpreter. Raises EnginefarmError with every problem of the file, each with its
    line and column.
    """
    if path is None:
        if python is not None:
            return [ProcessRunner("local", _find_python(python, Path.cwd()))]
        return [*_default_engine(), ProcessRunner("local", sys.executable)]
    if python is not None:
        raise EnginefarmError(USAGE, "--python and --runners contradict each other", fix=f"write `python:` into {path}")
    document = read_file(path)
    problems = list(document.problems)
    runners: list[Runner] = []
    if document.root is not None:
        for name, key, node in _entries(document.root, problems):
            runner = _runner(name, key, node, path, problems)
            if runner is not None:
                runners.append(runner)
        if not runners and not problems:
            problems.append(EnginefarmError(CONFIG_VALUE, "the file lists no runner", where=document.root.where))
    raise_all(problems)
    return runners


def _default_engine() -> list[Runner]:
    """The engine that the docker command would use, when there is one and it answers."""
    from orchestrator.runners.docker_engine import default_is_configured

    if not default_is_configured():
        return []
    from orchestrator.runners.docker import DockerRunner

    runner = DockerRunner("docker")
    try:
        runner.engine()
    except EnginefarmError:
        return []
    return [runner]


def _entries(root: Mapping, problems: list[EnginefarmError]) -> list[tuple[str, Scalar, Mapping]]:
    """Name, its key and its mapping for every entry of ``runners:``."""
    for name, key in root.keys.items():
        if name != "runners":
            close = difflib.get_close_matches(name, ["runners"])
            fix = "did you mean runners?" if close else "the file holds `runners:` and nothing else"
            problems.append(EnginefarmError(CONFIG_FIELD, f'"{short(name)}" is not a field', where=key.where, fix=fix))
    node = root.entries.get("runners")
    if node is None:
        return []
    if not isinstance(node, Mapping):
        problems.append(_not_lines("runners", node))
        return []
    found = []
    for name, child in node.entries.items():
        key = node.keys[name]
        read = yaml_reads(key)
        if read is not None:
            why, fix = "the name of a runner is text", f'put it in quotes: "{short(name)}"'
            problems.append(EnginefarmError(CONFIG_TRAP, f"YAML reads {short(name)} as {read}", where=key.where, why=why, fix=fix))
        elif not re.match(NAME_PATTERN, name):
            fix = "use lower-case letters, digits, and . _ - between them"
            problems.append(EnginefarmError(CONFIG_VALUE, f'"{short(name)}" cannot be the name of a runner', where=key.where, fix=fix))
        elif not isinstance(child, Mapping):
            problems.append(_not_lines(f"runners.{name}", child))
        else:
            found.append((name, key, child))
    return found


def _runner(name: str, key: Scalar, node: Mapping, path: Path, problems: list[EnginefarmError]) -> Runner | None:
    kind = node.entries.get("type")
    if isinstance(kind, Scalar) and kind.text == "docker":
        from orchestrator.runners.docker_config import docker_runner

        return docker_runner(name, key.where, node, path.parent, _expand, _MOST_SLOTS, problems)
    if "ssh" in node.entries:
        from orchestrator.runners.ssh_config import ssh_runner

        return ssh_runner(name, key.where, node, path.parent, _expand, _MOST_SLOTS, problems)
    if kind is None and "engine" in node.entries:
        what = f"runners.{name} has an engine and no type"
        problems.append(EnginefarmError(CONFIG_VALUE, what, where=key.where, fix="write type: docker"))
        return None
    binder = Binder()
    bound = binder.fields(node, RunnerConfig, f"runners.{name}.")
    problems += binder.problems
    # a null is as good as no line
    values = {field.rsplit(".", 1)[-1]: item for field, item in bound.items() if item.value is not None}
    slots = values.get("slots")
    if slots is not None and not 1 <= slots.value <= _MOST_SLOTS:
        problems.append(EnginefarmError(CONFIG_VALUE, f"slots is between 1 and {_MOST_SLOTS}, not {slots.value}", where=slots.where))
        return None
    python = values.get("python")
    place = python.where if python else key.where
    try:
        found = _find_python(_expand(python.value, place), path.parent, place) if python else sys.executable
    except EnginefarmError as error:
        problems.append(error)
        return None
    if binder.problems:
        return None
    labels = values["labels"].value if "labels" in values else ()
    return ProcessRunner(name, found, slots.value if slots else None, labels)


def _not_lines(name: str, node: Node) -> EnginefarmError:
    return EnginefarmError(CONFIG_VALUE, f"{name} needs lines of the form name: value", where=node.where)


def _expand(text: str, where: Where) -> str:
    """Replace ``${env:NAME}``. Raises EnginefarmError for a variable that is not set."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise EnginefarmError(CONFIG_VALUE, f"environment variable {match[1]} is not set", where=where, fix=f"export {match[1]}=...")
        return os.environ[match[1]]

    return _VARIABLE.sub(value, text)


def _find_python(text: str, folder: Path, where: Where | None = None) -> str:
    """An interpreter by path (relative to ``folder``) or by name on PATH. Raises EnginefarmError when there is none."""
    if os.sep not in text:
        found = shutil.which(text)
    else:
        # not resolved: a virtual environment's python is a link, and its place says which packages belong to it
        candidate = folder / Path(text).expanduser()
        found = str(candidate.absolute()) if candidate.is_file() and os.access(candidate, os.X_OK) else None
    if found is None:
        kind = CONFIG_VALUE if where else USAGE
        raise EnginefarmError(kind, f"{short(text)} is not a program", where=where, fix="name a Python interpreter, 3.6 or newer")
    return found
