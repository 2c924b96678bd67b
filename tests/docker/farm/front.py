"""A front before an engine that says it runs on arm64: all else goes through as it is. No test here has a Jetson."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
from pathlib import Path
from typing import Any

_ASKED = re.compile(rb"GET (?:/v[\d.]+)?/(info|version) ")


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = _connect(self._path)


def _connect(path: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.connect(path)
    return found


class ArmFront:
    """``url`` leads to the engine behind ``behind`` (a unix:// address)."""

    def __init__(self, behind: str, folder: Path) -> None:
        self._behind = behind.removeprefix("unix://")
        self.url = f"unix://{folder}/arm"
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(f"{folder}/arm")
        self._server.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(client,), daemon=True).start()

    def _one(self, client: socket.socket) -> None:
        """One request per connection."""
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(1 << 16)
                if not piece:
                    return
                head += piece
            asked = _ASKED.match(head)
            if asked:
                client.sendall(self._changed(head.split(b" ")[1].decode(), asked[1] == b"info"))
                return
            lines, _, body = head.partition(b"\r\n\r\n")
            kept = [line for line in lines.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            with _connect(self._behind) as engine:
                engine.sendall(b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n" + body)
                threading.Thread(target=_pump, args=(client, engine), daemon=True).start()
                _pump(engine, client)

    def _changed(self, path: str, info: bool) -> bytes:
        connection = _Unix(self._behind)
        connection.request("GET", path)
        content: dict[str, Any] = json.loads(connection.getresponse().read())
        connection.close()
        content |= {"Architecture": "aarch64"} if info else {"Arch": "arm64"}
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
