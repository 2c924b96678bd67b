"""Every event as one JSON line."""

from __future__ import annotations

import json
from typing import TextIO

from orchestrator import events


class JsonLines:
    """Subscriber that writes each event, in order, as one line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, event: events.Event) -> None:
        self._stream.write(json.dumps(event.as_dict(), ensure_ascii=False) + "\n")
        self._stream.flush()
