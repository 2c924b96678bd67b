"""``enginefarm version``: what runs here, for issue reports and for pinning."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import typer

from orchestrator import __version__
from orchestrator.runners import bundle

PACKAGES = ("onnx", "onnxruntime", "tensorrt-rtx-cu13-bindings", "tensorrt", "numpy", "pydantic", "typer")


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def show(as_json: bool) -> None:
    """Print the versions to standard output."""
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
