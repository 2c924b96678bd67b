"""Standard output and error that never end a run: readers that went away, closed descriptors, characters that the encoding lacks."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from typing import Any, TextIO

_ESCAPE = "enginefarm-escape"


def install() -> None:
    """Replace the process's own ``sys.stdout`` and ``sys.stderr``; streams that something else put there stay."""
    _open_closed()
    codecs.register_error(_ESCAPE, _escape)
    if sys.stdout is None or sys.stdout is sys.__stdout__:
        sys.stdout = _stream(sys.stdout, 1)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = _stream(sys.stderr, 2)


class _Output(io.FileIO):
    """A descriptor whose reader may go away (``| head``): from then on what is written goes nowhere.

    Any other failed write is an error once, and then goes nowhere too; on standard error, where messages go, it is none: a log
    on a full disk is no reason to stop building.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if not isinstance(error, BrokenPipeError) and self.fileno() != 2:
                raise
            return len(memoryview(data).cast("B"))


def _stream(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is not None:
        stream.flush()
    output = io.BufferedWriter(_Output(descriptor, "wb", closefd=False))
    direct = stream is None or descriptor == 2 or getattr(stream, "line_buffering", True) or getattr(stream, "write_through", False)
    return io.TextIOWrapper(output, encoding=stream.encoding if stream else "utf-8", errors=_ESCAPE, line_buffering=direct)


def _open_closed() -> None:
    """A descriptor that was closed by the caller (``2>&-``) would be taken by the next file that is opened, and written into."""
    for descriptor in (0, 1, 2):
        if not _is_open(descriptor):
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            os.set_inheritable(descriptor, True)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _escape(error: UnicodeError) -> tuple[str, int]:
    """``\\uXXXX`` for what the encoding lacks: readable in text, and still the same text to a reader of JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
