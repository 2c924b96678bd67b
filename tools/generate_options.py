"""Writes docs/options.md from the command line itself; `--check` writes nothing and exits 5 when it is stale."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from orchestrator.cli.main import make_app
from orchestrator.cli.settings import SETTINGS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "options.md"
STALE = 5
DEFAULT = re.compile(r" Default: (.+?)\.?$")

HEAD = """# Options

Generated from the commands by `python tools/generate_options.py`; do not edit.

A value counts in this order: command line, environment variable, `enginefarm.yaml`, default. Of targets, shapes and precision the model's
own YAML ([models.md](models.md)) goes before `enginefarm.yaml`, and `enginefarm.yaml` before the target's ([targets.md](targets.md)).

## enginefarm.yaml

The one configuration file: defaults for `enginefarm build`. `enginefarm init` writes it with every key in a comment.

- It is looked for in the current folder, then in each folder above it up to the one that holds `.git`. Only the nearest counts.
- Outside of a git repository only the current folder is looked at.
- The project's `targets/` is the one beside it; without an `enginefarm.yaml`, the one in the current folder.
- Paths in it are relative to it. Comments alone set nothing. An unknown key is an error.

## Environment variables

A flag is set by `1` or `true` and unset by `0` or `false`. Several values are separated by spaces; those of `ENGINEFARM_MODELS` by `:`, as
in `PATH`. An empty variable counts as not set.

`make` reads two more when it sets up `.venv`: `ENGINEFARM_RTX=0` leaves TensorRT-RTX out, `ENGINEFARM_UV=0` uses pip though uv is there.

## enginefarm build

Whatever has a variable below can be set by it; what says of one call only (`--dry-run`, `--exit-code`, `--quiet`, `--verbose`, `--json`)
has none.

"""
OTHERS = """
## Variables of the other commands

Everything else of these commands is in `enginefarm COMMAND --help`.
"""


def commands(command: Any, name: str = "enginefarm") -> Iterator[tuple[str, Any]]:
    """Every command below ``command`` with its full name; groups too, since they have options of their own."""
    yield name, command
    for part, below in getattr(command, "commands", {}).items():
        if below.hidden:
            continue
        yield from commands(below, f"{name} {part}")


def spelled(parameter: Any) -> str:
    """``--jobs``, ``-j``; an argument in capitals."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}...`"
    return " / ".join(", ".join(f"`{name}`" for name in names) for names in (parameter.opts, parameter.secondary_opts) if names)


def default(parameter: Any, setting: Any) -> str:
    """What holds when nothing is said, for people: as the help or enginefarm.yaml says it, else the value."""
    if said := DEFAULT.search(parameter.help or ""):
        return said[1]
    if setting is not None and "by default " in setting.default:
        return str(setting.default.split("by default ")[1])
    if getattr(parameter, "is_flag", False):
        return "off"
    return f"`{parameter.default}`" if isinstance(parameter.default, (str, Path)) else ""


def text(words: str | None) -> str:
    return DEFAULT.sub("", words or "").replace("|", "\\|").replace("<", "&lt;")


def table(rows: list[tuple[str, ...]]) -> list[str]:
    head, *body = rows
    return [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *body)]


def render() -> str:
    """The whole page."""
    found = dict(commands(typer.main.get_command(make_app())))
    build = found.pop("enginefarm build")
    settings = {setting.param: setting for setting in SETTINGS}
    rows: list[tuple[str, ...]] = [("option", "variable", "enginefarm.yaml", "default", "what")]
    for parameter in build.params:
        setting = settings.get(parameter.name)
        key = f"`{setting.key}`" if setting else ""
        variable = f"`{parameter.envvar}`" if parameter.envvar else ""
        rows.append((spelled(parameter), variable, key, text(default(parameter, setting)), text(parameter.help)))
    others: dict[tuple[str, str, str], list[str]] = {}
    for name, command in found.items():
        for parameter in command.params:
            if parameter.envvar:
                others.setdefault((f"`{parameter.envvar}`", spelled(parameter), text(parameter.help)), []).append(f"`{name}`")
    named = [(variable, option, ", ".join(names), what) for (variable, option, what), names in sorted(others.items())]
    lines = [*HEAD.splitlines(), *table(rows), *OTHERS.splitlines(), "", *table([("variable", "option", "of", "what"), *named])]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 5 when the page is stale")
    check = parser.parse_args().check
    page = render()
    if check:
        fresh = DOCUMENT.is_file() and DOCUMENT.read_text(encoding="utf-8") == page
        if not fresh:
            print(f"stale: {DOCUMENT.relative_to(ROOT)}; run: python tools/generate_options.py", file=sys.stderr)
        return 0 if fresh else STALE
    DOCUMENT.write_text(page, encoding="utf-8")
    print(DOCUMENT.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
