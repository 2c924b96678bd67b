"""Log lines of the loader, in Python's ``logging``, which is imported with the first line that somebody may read.

It costs a third of what importing the loader costs. A process that has not imported it has asked for no line below WARNING.
"""

import sys
from typing import Any

NAME = "enginefarm.runtime"
DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40  # as in logging


def log(level: int, text: str, *values: Any, logger: str = NAME, exc_info: bool = False) -> None:
    """Log ``text % values``."""
    if level < WARNING and "logging" not in sys.modules:
        return
    import logging

    logging.getLogger(logger).log(level, text, *values, exc_info=exc_info)
