"""``enginefarm.yaml``, the one config file: defaults for the options of ``enginefarm build``.

A value counts in this order: command line, ``ENGINEFARM_*`` environment variable, enginefarm.yaml, default.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from orchestrator.errors import EnginefarmError, Where
    from orchestrator.matrix.yaml_reader import Mapping

FILE_NAME = "enginefarm.yaml"


@dataclass(frozen=True)
class Setting:
    """One key of enginefarm.yaml; ``param`` is the parameter of the build command that it sets, ``default`` YAML text for people."""

    key: str
    param: str
    kind: Literal["texts", "paths", "path", "program", "flag", "count", "seconds", "bytes", "precision", "progress"]
    default: str
    help: str

    @property
    def env(self) -> str:
        return f"ENGINEFARM_{self.key.upper()}"


SETTINGS = (
    Setting("models", "models", "paths", "[]", "ONNX files, or folders that hold some"),
    Setting("targets", "target", "texts", '["*"]', "targets to build: names, globs or label:NAME; see them with: enginefarm targets list"),
    Setting("available", "available", "flag", "false", "build only what a runner here can take; implies allow_unvalidated"),
    Setting("allow_unvalidated", "allow_unvalidated", "flag", "false", "engines that nothing here could check do not fail the run"),
    Setting(
        "precision",
        "precision",
        "precision",
        "fp16  # an example: by default models and targets say",
        "fp32, fp16, bf16, int8 or fp8 on every target",
    ),
    Setting("shapes", "shape", "texts", "[]", 'input shapes of dynamic models: "INPUT:1x3x224x224", or "INPUT:MIN:OPT:MAX"'),
    Setting("jobs", "jobs", "count", "4  # an example: by default one per core, at most 4", "builds at a time"),
    Setting("output", "output", "path", "artifacts", "folder of the engines and manifests"),
    Setting("no_validate", "no_validate", "flag", "false", "skip the validate steps"),
    Setting("exitfirst", "exit_first", "flag", "false", "stop at the first failure"),
    Setting("maxfail", "maxfail", "count", "3  # an example: by default the run goes on", "stop after so many failures"),
    Setting("cache", "cache", "path", ".enginefarm/cache", "folder of the cache"),
    Setting("memory", "memory", "bytes", "8 GiB  # an example: by default targets say", "memory limit of each step"),
    Setting(
        "build_timeout", "build_timeout", "seconds", "7200  # an example: by default targets say", "seconds that a build step may take"
    ),
    Setting(
        "validate_timeout",
        "validate_timeout",
        "seconds",
        "1800  # an example: by default targets say",
        "seconds that a validate step may take",
    ),
    Setting(
        "runners", "runners", "path", "runners.yaml  # an example: by default this machine is the runner", "file that names the runners"
    ),
    Setting(
        "python", "python", "program", "python3  # an example: by default the one that runs enginefarm", "interpreter of the local runner"
    ),
    Setting("locked", "locked", "flag", "false", "only images whose digest is in targets/targets.lock"),
    Setting("offline", "offline", "flag", "false", "ask no registry; images must be on the engine"),
    Setting("allow", "allow", "texts", "[nvcr.io]", "registries, or registry and repository, that images may come from"),
    Setting("mirror", "mirror", "texts", "[]", 'fetch images from a mirror: "nvcr.io/=registry.example:5000/nvcr/"'),
    Setting("progress", "progress", "progress", "auto", "auto, tty, plain or json"),
)


@dataclass(frozen=True)
class Settings:
    """``project`` is the folder of the file, or the start folder when there is none; ``values`` and ``positions`` are by key."""

    project: Path
    path: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, Where] = field(default_factory=dict)

    @property
    def default_map(self) -> dict[str, Any]:
        """For a click context: defaults by command and parameter name. Environment and command line go before it."""
        values = {setting.param: self.values[setting.key] for setting in SETTINGS if setting.key in self.values}
        return {"build": values, "plan": values}


def find_settings(start: Path) -> Path | None:
    """The nearest enginefarm.yaml in ``start`` or above it, up to the folder that holds ``.git``; outside of git only in ``start``."""
    start = start.absolute()
    folders = [start, *start.parents]
    root = next((index for index, folder in enumerate(folders) if (folder / ".git").exists()), 0)
    return next((path for folder in folders[: root + 1] if os.path.lexists(path := folder / FILE_NAME)), None)


def load_settings(start: Path) -> Settings:
    """Read the settings that hold in ``start``; relative paths in the file become relative to its folder.

    Raises EnginefarmError with every problem of the file at its line and column.
    """
    path = find_settings(start)
    if path is None:
        return Settings(start.absolute())
    try:
        status = path.stat()
    except OSError:
        return _read.__wrapped__(path, ())  # says what is wrong with it
    return _read(path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))


@functools.lru_cache(maxsize=1)
def _read(path: Path, _state: tuple[int, ...]) -> Settings:
    """Asked for several times by one command: errors before the command, defaults of its options, the command itself."""
    from orchestrator.errors import raise_all
    from orchestrator.matrix.yaml_reader import read_file

    document = read_file(path)
    problems = list(document.problems)
    settings = Settings(path.parent, path)
    # a file of comments only, as `enginefarm init` writes it, sets nothing
    if document.empty:
        return settings
    if document.root is not None:
        settings = _bind(document.root, path, problems)
    raise_all(problems)
    return settings


def _bind(root: Mapping, path: Path, problems: list[EnginefarmError]) -> Settings:
    from pydantic import ValidationError, create_model

    from orchestrator.errors import CONFIG_VALUE, EnginefarmError
    from orchestrator.matrix.binder import Binder
    from orchestrator.matrix.layers import wrong_value

    hints = {setting.key: _type(setting.kind) for setting in SETTINGS}
    binder = Binder()
    bound = binder.fields(root, hints)
    problems += binder.problems
    model = create_model("EnginefarmYaml", **{key: (hints[key], ...) for key in bound})  # type: ignore[call-overload]
    try:
        model.model_validate({key: item.value for key, item in bound.items()})
    except ValidationError as error:
        for details in error.errors(include_url=False):
            key = str(details["loc"][0])
            problems.append(wrong_value(CONFIG_VALUE, key, dict(details), bound[key].where))
    if "targets" in bound and not bound["targets"].value:
        fix = 'write targets: ["*"] for all of them, or remove the line'
        problems.append(EnginefarmError(CONFIG_VALUE, "targets names none", where=bound["targets"].where, fix=fix))
    values = {setting.key: _value(setting, bound[setting.key].value, path.parent) for setting in SETTINGS if setting.key in bound}
    return Settings(path.parent, path, values, {key: item.where for key, item in bound.items()})


def _type(kind: str) -> Any:
    from typing import Annotated

    from pydantic import Field

    from orchestrator.cli.values import PROGRESS
    from orchestrator.matrix.schema import Bytes, Precision

    text = Annotated[str, Field(min_length=1)]
    types: dict[str, Any] = {
        "texts": tuple[text, ...],
        "paths": tuple[text, ...],
        "path": text,
        "program": text,
        "flag": bool,
        "count": Annotated[int, Field(ge=1, le=1024)],
        "seconds": Annotated[float, Field(gt=0)],
        "bytes": Bytes,
        "precision": Precision,
        "progress": Literal[PROGRESS],
    }
    return types[kind]


def _value(setting: Setting, value: Any, folder: Path) -> Any:
    """The value as the option would be written."""
    from orchestrator.matrix.yaml_reader import display

    if setting.kind == "paths":
        return [display(folder / item) for item in value if item is not None]
    if setting.kind == "texts":
        return list(value)
    if setting.kind == "path" or (setting.kind == "program" and "/" in value):
        return display(folder / value)
    return str(value) if setting.kind == "bytes" else value


def settings_text(chosen: dict[str, str] | None = None) -> str:
    """A commented enginefarm.yaml: every key with its default and its environment variable; ``chosen`` sets keys to YAML text."""
    lines = [
        "# Defaults of `enginefarm build` in this folder and below. A value counts in this order:",
        "# command line, environment variable, this file, default. Paths are relative to this file.",
    ]
    for setting in SETTINGS:
        lines += ["", f"# {setting.help} ({setting.env})"]
        lines.append(f"{setting.key}: {chosen[setting.key]}" if chosen and setting.key in chosen else f"# {setting.key}: {setting.default}")
    return "\n".join(lines) + "\n"
