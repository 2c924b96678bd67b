"""Console entry point: answers ``--version`` without importing anything heavy, hands everything else to :mod:`orchestrator.cli.main`."""

from __future__ import annotations

import sys


def run() -> None:
    """Entry point of the ``enginefarm`` command."""
    if sys.argv[1:] == ["--version"]:
        from orchestrator import __version__

        sys.stdout.write(f"enginefarm {__version__}\n")
        return
    from orchestrator.cli.main import run as run_command

    run_command()
