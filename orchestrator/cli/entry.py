"""Console entry point: answers ``--version`` without importing anything heavy, hands everything else to :mod:`orchestrator.cli.main`."""

from __future__ import annotations

import gc
import os
import sys


def run() -> None:
    """Entry point of the ``enginefarm`` command."""
    # imports and short commands make hardly any cycles: to look for them as often as by default takes a tenth of the time
    gc.set_threshold(200_000, 20, 50)
    # nothing foreign has a say in our schemas, and to look for it reads the metadata of every installed package
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
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
