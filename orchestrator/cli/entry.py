"""Console entry point: answers ``--version`` without importing anything heavy, hands everything else to :mod:`orchestrator.cli.main`."""

from __future__ import annotations

import sys


def run() -> None:
    """Entry point of the ``enginefarm`` command."""
    from orchestrator.cli.streams import install

    install()
    if sys.argv[1:] == ["--version"]:
        from orchestrator import __version__

        try:
            sys.stdout.write(f"enginefarm {__version__}\n")
            sys.stdout.flush()
        except OSError as error:
            sys.exit(f"enginefarm: cannot write: {error.strerror}")
        return
    from orchestrator.cli.main import run as run_command

    run_command()
