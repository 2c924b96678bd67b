"""``enginefarm runtime``: the loader for machines without pip, and engines laid out for other servers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestrator.portable.runtime.exports import Exported

app = typer.Typer(no_args_is_help=True, help="The loader that services use, and exports for other servers.")

Manifest = Annotated[Path, typer.Argument(help="<model>_v<N>.json, latest.json, or the model's folder.", show_default=False)]
Targets = Annotated[
    list[str] | None, typer.Option("--target", metavar="NAME", help="Only these targets; globs allowed. Repeatable.", show_default=False)
]
Unvalidated = Annotated[bool, typer.Option("--allow-unvalidated", help="Also engines that did not pass.")]


@app.command("export")
def export_package(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write enginefarm_runtime/ into.", show_default=False)],
) -> None:
    """Copy the loader as a package folder, for machines without pip: put DIR on PYTHONPATH. An older copy is replaced."""
    from orchestrator import __version__
    from orchestrator.errors import FILE_EXISTS, EnginefarmError, Where
    from orchestrator.portable.runtime.package import write_package

    try:
        path = write_package(str(folder), __version__)
    except FileExistsError as error:
        why = "it is no copy of the loader"
        raise EnginefarmError(
            FILE_EXISTS, "something else has that name", where=Where(file=str(error)), why=why, fix="choose another folder"
        ) from error
    typer.echo(f"{path}: enginefarm_runtime {__version__}")


@app.command("triton")
def triton(
    manifest: Manifest,
    repository: Annotated[Path, typer.Argument(metavar="DIR", help="Triton model repository to add the model to.", show_default=False)],
    target: Targets = None,
    backend: Annotated[str, typer.Option("--backend", metavar="NAME", help="tensorrt or onnxruntime. Default: tensorrt if any.")] = "",
    allow_unvalidated: Unvalidated = False,
) -> None:
    """Write a Triton model: config.pbtxt and one file for each compute capability."""
    from orchestrator.errors import USAGE, EnginefarmError
    from orchestrator.portable.runtime.manifest import open_manifest
    from orchestrator.portable.runtime.triton import export_triton

    if backend not in ("", "tensorrt", "onnxruntime"):
        raise EnginefarmError(USAGE, f"--backend {backend} is none of tensorrt, onnxruntime")
    with _problems(manifest):
        opened = open_manifest(str(manifest))
        _show(export_triton(opened, str(repository), targets=target or (), allow_unvalidated=allow_unvalidated, backend=backend))


@app.command("ort-package")
def ort_package(
    manifest: Manifest,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the package to; it must not exist.", show_default=False)],
    target: Targets = None,
    allow_unvalidated: Unvalidated = False,
) -> None:
    """Write an ONNX Runtime model package: a variant for each ONNX engine."""
    from orchestrator.portable.runtime.manifest import open_manifest
    from orchestrator.portable.runtime.ort_package import export_ort_package

    with _problems(manifest):
        opened = open_manifest(str(manifest))
        _show(export_ort_package(opened, str(folder), targets=target or (), allow_unvalidated=allow_unvalidated))


@contextlib.contextmanager
def _problems(manifest: Path) -> Iterator[None]:
    from orchestrator.errors import FILE_EXISTS, EnginefarmError, Where
    from orchestrator.portable.runtime.errors import LoadError

    try:
        yield
    except LoadError as error:
        from orchestrator.publish.loader_errors import as_problem

        raise as_problem(error, manifest) from error
    except FileExistsError as error:
        raise EnginefarmError(
            FILE_EXISTS, "the folder exists", where=Where(file=str(error)), fix="choose another one, or remove it"
        ) from error


def _show(exported: Exported) -> None:
    from orchestrator.report.text import safe

    typer.echo(f"{safe(exported.folder)}: {', '.join(safe(target) for target in exported.targets)}")
    for left in exported.left:
        typer.echo(f"left out {safe(left.target)}: {safe(left.why)}")
    for note in exported.notes:
        typer.echo(f"note: {safe(note)}")
