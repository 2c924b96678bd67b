"""The terminal: which view shows progress, colour, and what a signal does."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from orchestrator.events import Event
from orchestrator.runners.base import Cancel

if TYPE_CHECKING:
    from orchestrator.report.live import LiveTable

COLOURS = {"passed": "32", "self-consistent": "33", "unvalidated": "33", "failed": "1;31", "skipped": "2", "header": "1", "title": "1"}


def wants_colour(stream: TextIO) -> bool:
    """NO_COLOR and FORCE_COLOR as their conventions say, then the terminal itself."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def emit(text: str) -> None:
    """Write the result to standard output; a reader that went away (``| head``) is no failure of the build."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_lines(lines: Sequence[tuple[str, str]]) -> None:
    """Print (line, status) pairs to standard output."""
    colour = wants_colour(sys.stdout)
    coloured = [(COLOURS.get(status) if colour and line else None, line) for line, status in lines]
    emit("".join(f"\x1b[{code}m{line}\x1b[0m\n" if code else line + "\n" for code, line in coloured))


def width() -> int | None:
    """Columns of the terminal that standard output is; None when it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@contextmanager
def progress_view(progress: str, verbosity: int) -> Iterator[Callable[[Event], None]]:
    """The subscriber for ``--progress``; ``auto`` is a live table on a terminal and plain lines elsewhere."""
    from orchestrator.report.jsonlines import JsonLines
    from orchestrator.report.lines import Lines

    stream = sys.stderr
    dumb = os.environ.get("TERM", "dumb") == "dumb"
    if progress == "json":
        yield JsonLines(stream)
    elif progress == "tty" or (progress == "auto" and stream.isatty() and not dumb and not os.environ.get("CI")):
        from rich.console import Console

        from orchestrator.report.live import LiveTable

        console = Console(file=stream, no_color=not wants_colour(stream), force_terminal=True, highlight=False, markup=False)
        with LiveTable(console, verbosity) as live:
            _tables.append(live)
            try:
                yield live
            finally:
                _tables.remove(live)
    else:
        yield Lines(stream, verbosity)


_tables: list[LiveTable] = []  # on the screen now: it is drawn anew all the time, and whatever else is written there tears it
STOPPING = "stopping: running steps are ended, finished builds are kept (Ctrl-C again: stop at once)"


@contextmanager
def stop_on_signals(cancel: Cancel, *, quiet: bool) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP stop the run; a second one ends the process at once, and its workers with it (they watch their parent)."""

    def stop(number: int, _frame: FrameType | None) -> None:
        if cancel.stopped_by is not None:
            # the live table hides the cursor, and does not get to show it again
            _say_now("\x1b[?25h" if sys.stderr.isatty() else "")
            os._exit(128 + number)
        number = signal.SIGTERM if number == signal.SIGHUP else number
        cancel.stopped_by = number
        if not cancel.watched:
            _say_now("" if quiet else "\nstopped before anything was built\n")
            raise SystemExit(128 + number)
        cancel.set()
        for table in _tables:
            table.stopping = STOPPING
        if not quiet and not _tables:
            _say_now(f"\n{STOPPING}\n")

    # a terminal that goes away ends its programs with SIGHUP, but for those that nohup made deaf to it
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else [])]
    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _say_now(text: str) -> None:
    """Past Python's buffers: a signal may come in the middle of a write to them, and they refuse a second one."""
    with suppress(OSError):
        os.write(2, text.encode())
