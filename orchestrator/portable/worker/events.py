"""Events of a step: JSON lines between marker lines on the process's real standard output."""

import json
import os
import sys
import threading
from typing import Any, Dict, Optional

from .errors import printable
from .protocol import BEGIN_MARKER, END_MARKER

TEXT_LIMIT = 4000


def take_stdout() -> int:
    """Keep the real standard output for events and point descriptor 1 at standard error.

    Libraries print banners to descriptor 1 from C; after this they cannot get between event lines.
    """
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    return real


class Events:
    """Writes events to ``handle``; safe from several threads; silent once the reader is gone."""

    def __init__(self, handle: int, nonce: str) -> None:
        self._handle = handle
        self._nonce = nonce
        self._lock = threading.Lock()
        self._last_phase: Optional[str] = None

    def __enter__(self) -> "Events":
        self._write("\n" + BEGIN_MARKER.format(nonce=self._nonce))
        return self

    def __exit__(self, *_: Any) -> None:
        self._write(END_MARKER.format(nonce=self._nonce))

    def phase(self, name: str) -> None:
        """The backend entered a phase; repeats of the same phase are one."""
        if name != self._last_phase:
            self._last_phase = name
            self._emit({"event": "phase", "phase": printable(name, 200)})

    def log(self, level: str, text: str) -> None:
        """One line that the backend logged; ``level`` is verbose, info, warning or error."""
        self._emit({"event": "log", "level": level, "text": printable(text, TEXT_LIMIT)})

    def _emit(self, event: Dict[str, Any]) -> None:
        self._write(json.dumps(event, sort_keys=True))

    def _write(self, line: str) -> None:
        data = (line + "\n").encode("utf-8", "backslashreplace")
        with self._lock:
            try:
                while data:
                    data = data[os.write(self._handle, data) :]
            except OSError:  # nobody reads any more: the step goes on, its result counts
                pass
