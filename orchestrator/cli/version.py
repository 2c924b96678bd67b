"""``enginefarm version``: what runs here, for issue reports and for pinning."""

from __future__ import annotations

from typing import Annotated

import typer

PACKAGES = ("onnx", "onnxruntime", "tensorrt-rtx-cu13-bindings", "tensorrt", "numpy", "pydantic", "typer")


def _installed(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def version_command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the versions of enginefarm, the worker and the backends present here."""
    import json
    import platform

    from orchestrator import __version__
    from orchestrator.runners import bundle

    found = {
        "enginefarm": __version__,
        "worker": bundle.worker_version(),
        "python": platform.python_version(),
        **{package: _installed(package) for package in PACKAGES},
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for name, version in found.items():
        typer.echo(f"{name:<28}{version or 'not installed'}")
