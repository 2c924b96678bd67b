"""Long answers of a Docker Engine that can be stopped: the events of a pull and of a build, and archives.

The SDK's ``api.pull(stream=True)`` gives a generator that nothing can stop while it waits for the engine. Here a thread reads, and
closing the connection makes the engine drop what it is pulling.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.images.reference import Reference

if TYPE_CHECKING:
    import docker
    import requests

CONNECT_SECONDS = 10.0
STALL_SECONDS = 600.0  # checking and unpacking one layer of several GB gives no event meanwhile


def is_podman(version: Mapping[str, Any]) -> bool:
    """Whether what answers ``/version`` is Podman's compatible socket. Its ``/info`` has another ID each time it is asked."""
    return any(part.get("Name") == "Podman Engine" for part in version.get("Components") or ())


def pull_events(
    client: docker.DockerClient,
    source: Reference,
    platform: str,
    auth: dict[str, str] | None,
    check_cancel: Callable[[], None],
    poll_seconds: float,
) -> Iterator[dict[str, Any]]:
    """The events of ``POST /images/create``. ``check_cancel`` is called while waiting; what it raises ends the pull on the engine too.

    Raises what the SDK raises (docker.errors, requests, urllib3), and TimeoutError when the engine says nothing for 600 s.
    """
    import docker.auth
    import docker.errors
    import requests

    api = client.api
    query = {"fromImage": source.name, "tag": source.digest or source.tag or "latest", "platform": platform}
    headers = {"X-Registry-Auth": docker.auth.encode_header(auth).decode("ascii")} if auth else {}
    url = f"{api.base_url}/v{api.api_version}/images/create"
    response = api.post(url, params=query, headers=headers, stream=True, timeout=(CONNECT_SECONDS, STALL_SECONDS))
    try:
        response.raise_for_status()
    except requests.exceptions.HTTPError as error:
        raise docker.errors.create_api_error_from_http_exception(error) from error
    yield from _stoppable(response, check_cancel, poll_seconds)


def _stoppable(response: requests.Response, check_cancel: Callable[[], None], poll_seconds: float) -> Iterator[dict[str, Any]]:
    arrived: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue(maxsize=1000)
    stopped = threading.Event()

    def read() -> None:
        end: BaseException | None = None
        try:
            for event in json_events(response.iter_content(chunk_size=None)):
                if not _put(arrived, event, stopped):
                    return
        except Exception as error:  # noqa: BLE001  (handed to the thread that waits, which raises it)
            end = error
        _put(arrived, end, stopped)

    reader = threading.Thread(target=read, name="enginefarm-pull", daemon=True)
    reader.start()
    last = time.monotonic()
    try:
        while True:
            check_cancel()
            try:
                item = arrived.get(timeout=poll_seconds)
            except queue.Empty:
                if time.monotonic() - last > STALL_SECONDS:
                    raise TimeoutError(f"nothing came from the engine for {STALL_SECONDS:.0f} s") from None
                continue
            last = time.monotonic()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        # wakes the reader, which may sit in recv; not every transport can
        with contextlib.suppress(Exception):
            response.raw.shutdown()
        reader.join(timeout=1.0)
        with contextlib.suppress(Exception):
            response.close()


def _put(arrived: queue.Queue[Any], item: Any, stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            arrived.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False


def json_events(chunks: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream, one a line, however they are cut into chunks. Raises ConnectionError for a line that is none."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (event for line in lines if line.strip() for event in (_object(line),))
    if rest.strip():
        yield _object(rest)


def _object(line: bytes) -> dict[str, Any]:
    try:
        read = json.loads(line)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise ConnectionError(f"the engine sent {line[:80]!r} where an event was expected")
    return read
