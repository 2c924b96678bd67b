"""Frames between a caller and the remote end of an ssh runner, on the standard streams of one ssh session.

A frame is one byte of kind, four bytes of length (big-endian) and the data: ``J`` a JSON message, ``D`` a piece of a file, ``P`` a sign of
life, ``O`` and ``E`` what the worker printed.
"""

import json
import os
import queue
import select
import struct
import threading
import time
from typing import IO, Any, Dict, Optional, Tuple

MAGIC = "enginefarm-remote/1"
HEAD = struct.Struct(">cI")
JSON, DATA, PING, OUT, LOG = b"J", b"D", b"P", b"O", b"E"
CHUNK_BYTES = 1 << 18
FRAME_LIMIT = 16 << 20
PULSE_SECONDS = 2.0
SILENCE_SECONDS = 15.0  # a connection that gives no sign of life for so long is lost
QUEUED_FRAMES = 32

Message = Dict[str, Any]


class Refusal(Exception):  # noqa: N818  (what is refused may be nobody's error)
    """The answer is an error; ``kind`` is "disk-full", "folder", "changed" or "failed"."""

    def __init__(self, kind: str, message: str) -> None:
        super(Refusal, self).__init__(message)
        self.kind = kind


class Wire(object):
    """Both directions, from the remote end. Reading happens in a thread, so that a sign of life is seen whatever else goes on."""

    def __init__(self, source: IO[bytes], sink: int) -> None:
        self.heard = time.monotonic()
        self.full = False  # the reader waits for us, not for the caller
        self._frames: "queue.Queue[Tuple[bytes, bytearray]]" = queue.Queue(QUEUED_FRAMES)
        self._source = source
        self._sink = sink
        self._writing = threading.Lock()

    def read(self) -> None:
        """Read until the connection ends."""
        while True:
            head = self._exactly(HEAD.size)
            if head is None:
                return
            kind, size = HEAD.unpack(head)
            data = self._exactly(size) if size <= FRAME_LIMIT else None
            if data is None:
                return
            if kind != PING:
                self.full = True
                self._frames.put((kind, data))
                self.heard = time.monotonic()
                self.full = False

    def _exactly(self, size: int) -> Optional[bytearray]:
        found = bytearray(size)
        view, filled = memoryview(found), 0
        while filled < size:
            try:
                count = self._source.readinto1(view[filled:])  # type: ignore[attr-defined]
            except (OSError, ValueError):
                return None
            if not count:
                return None
            self.heard = time.monotonic()
            filled += count
        return found

    def next(self, kind: bytes) -> bytearray:
        """The data of the next frame, which must be of this kind."""
        found, data = self._frames.get()
        if found != kind:
            raise Refusal("failed", "a frame {!r} came where {!r} belongs".format(found, kind))
        return data

    def drain(self) -> None:
        """Take what comes until the connection ends."""
        while True:
            self._frames.get()

    def send(self, kind: bytes, data: bytes) -> None:
        with self._writing:
            self._write(HEAD.pack(kind, len(data)) + data)

    def message(self, value: Message) -> None:
        self.send(JSON, json.dumps(value, sort_keys=True).encode("ascii"))

    def line(self, text: str) -> None:
        with self._writing:
            self._write((text + "\n").encode("ascii"))

    def ping(self) -> None:
        """A sign of life, left out where other bytes are on their way or nobody takes them."""
        if self._writing.acquire(False):
            try:
                if select.select([], [self._sink], [], 0)[1]:
                    self._write(HEAD.pack(PING, 0))
            except OSError:
                pass  # the reader sees the end
            finally:
                self._writing.release()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._sink, view) :]
