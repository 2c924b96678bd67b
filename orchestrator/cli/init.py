"""``enginefarm init``: a commented enginefarm.yaml, the targets chosen, and a Makefile fragment."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.settings import FILE_NAME, settings_text

MAKEFILE = "enginefarm.mk"

_MAKEFILE_TEXT = """\
# Engines for this project. In your Makefile:  include enginefarm.mk
# make engines MODEL=lane.onnx [TARGETS="rtx-ada cpu"] [JOBS=2] [MODEL_VERSION=3] [ARGS="--shape x:1x3x224x224"]
# Builds what a runner here can take; without --available a target that none can take is an error. MODEL may be left out
# where enginefarm.yaml names the models. TARGETS is split at spaces and commas, ARGS like shell words; neither is expanded.
ENGINEFARM ?= enginefarm

# Values travel through the environment, so that any file name is safe. What a caller gives is data; what a Makefile says is
# expanded as ever. Unexport: make would expand a variable of its command line once more while exporting it.
ef_text = $(if $(filter file,$(origin $1)),$($1),$(value $1))
unexport MODEL TARGETS JOBS MODEL_VERSION ARGS
export EF_MODEL = $(call ef_text,MODEL)
export EF_TARGETS = $(call ef_text,TARGETS)
export EF_JOBS = $(call ef_text,JOBS)
export EF_MODEL_VERSION = $(call ef_text,MODEL_VERSION)
export EF_ARGS = $(call ef_text,ARGS)

.PHONY: engines
engines:
\t@set -f; set -- build --available; IFS=' ,'; \\
\tfor target in $$EF_TARGETS; do set -- "$$@" --target "$$target"; done; \\
\tif [ -n "$$EF_JOBS" ]; then set -- "$$@" --jobs "$$EF_JOBS"; fi; \\
\tif [ -n "$$EF_MODEL_VERSION" ]; then set -- "$$@" --model-version "$$EF_MODEL_VERSION"; fi; \\
\twords=`printf '%s\\n' "$$EF_ARGS" | xargs printf '%s\\n'` || exit 2; IFS=`printf '\\n.'`; IFS=$${IFS%.}; \\
\tfor word in $$words; do set -- "$$@" "$$word"; done; unset IFS; \\
\tif [ -n "$$EF_MODEL" ]; then set -- "$$@" -- "$$EF_MODEL"; fi; \\
\t$(ENGINEFARM) "$$@"
"""


def init_command(
    folder: Annotated[Path, typer.Argument(help="Project folder; made when it does not exist.")] = Path(),
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target", "-t", help="Built-in target to copy into targets/: name, glob or label:NAME; repeatable.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
) -> None:
    """Write a commented enginefarm.yaml, the chosen targets and a Makefile fragment; all of them or none."""
    from orchestrator.errors import FILE_EXISTS, EnginefarmError, Where, raise_all
    from orchestrator.matrix.yaml_reader import display

    files = _files(target or [])
    if not force:
        raise_all(
            EnginefarmError(
                FILE_EXISTS,
                f"{display(folder / name)} exists",
                where=Where(file=display(folder / name)),
                fix="remove it, or give --force to overwrite",
            )
            for name in files
            if os.path.lexists(folder / name)
        )
    write_all(folder, files)
    for name in files:
        typer.echo(f"wrote {display(folder / name)}")
    typer.echo(f"add this line to your Makefile: include {MAKEFILE}")


def _files(selectors: list[str]) -> dict[str, bytes]:
    """Path below the project folder -> content."""
    from orchestrator.matrix.load import load_matrix
    from orchestrator.resources import builtin_targets

    names = [effective.target.name for effective in load_matrix().select(selectors)] if selectors else []
    chosen = {"targets": json.dumps(names)} if names else None
    files = {FILE_NAME: settings_text(chosen).encode(), MAKEFILE: _MAKEFILE_TEXT.encode()}
    if names:
        # the copies name it in their first line, for editors
        files["targets/schema.json"] = (builtin_targets() / "schema.json").read_bytes()
    for name in names:
        files[f"targets/{name}.yaml"] = (builtin_targets() / f"{name}.yaml").read_bytes()
    return files


def write_all(folder: Path, files: dict[str, bytes]) -> None:
    """Write all files or none: every one goes to a temporary file on the disk first, then they are renamed.

    When a rename fails, those done before are undone. Raises EnginefarmError (DISK).
    """
    from orchestrator.errors import DISK, EnginefarmError, Where
    from orchestrator.matrix.yaml_reader import display

    staged: list[tuple[Path, Path]] = []
    undo: list[tuple[Path, bytes | None]] = []
    made: list[Path] = []
    path = folder
    try:
        for name, content in files.items():
            path = folder / name
            made += _make_folders(path.parent)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            staged.append((temporary, path))
            with temporary.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        for temporary, path in staged:
            before = path.read_bytes() if path.is_file() else None
            temporary.replace(path)
            undo.append((path, before))
    except OSError as error:
        _roll_back(staged, undo, made)
        what = f"{display(path)} cannot be written: {error.strerror}"
        raise EnginefarmError(DISK, what, where=Where(file=display(path)), why="nothing was changed") from error


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and its parents; those that were new, outermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()][::-1]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _roll_back(staged: list[tuple[Path, Path]], undo: list[tuple[Path, bytes | None]], made: list[Path]) -> None:
    # best effort: the first error is the one that is told
    with contextlib.suppress(OSError):
        for path, before in undo:
            if before is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(before)
    for temporary, _ in staged:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            folder.rmdir()
