"""``python -m orchestrator`` is the command ``enginefarm``."""

from orchestrator.cli.entry import run

if __name__ == "__main__":
    run()
