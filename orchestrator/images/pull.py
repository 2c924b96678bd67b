"""Brings a locked image onto a Docker Engine: once per digest and engine, with progress in bytes, every fault told apart.

The pull is streamed, because the SDK's ``images.pull`` loses the causes (docs/images.md): errors come as events.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator import errors
from orchestrator.errors import DISK, IMAGE_OFFLINE, EnginefarmError
from orchestrator.images import faults
from orchestrator.images.credentials import Credentials
from orchestrator.images.engine import is_podman, pull_events
from orchestrator.images.faults import Fault, Fetch
from orchestrator.images.policy import Policy
from orchestrator.images.reference import parse

if TYPE_CHECKING:
    import docker

POLL_SECONDS = 0.1  # how soon a cancel is seen
# An estimate: the download and what it unpacks to lie on the disk together, and CUDA's libraries unpack to about twice their size.
SPACE_FACTOR = 3.0
_CHECK = "check the engine: enginefarm runners"


class Cancel(Protocol):
    """Set when the caller wants to stop."""

    def is_set(self) -> bool: ...


class PullCancelled(Exception):  # noqa: N818  (not an error: the user asked for it)
    """``cancel`` was set; the engine was told to stop pulling."""


@dataclass(frozen=True)
class PullProgress:
    """Bytes over all layers that are not on the engine yet. ``total``: compressed bytes of the layers that the engine has announced
    so far, so it may grow; ``layers`` counts all, ``layers_done`` those that are unpacked or were there."""

    downloaded: int
    total: int
    layers: int
    layers_done: int


OnProgress = Callable[[PullProgress], None]


@dataclass
class _Layer:
    current: int = 0
    total: int = 0
    done: bool = False


@dataclass
class LayerCounts:
    """Adds up the events of one pull."""

    layers: dict[str, _Layer] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> PullProgress | None:
        """Count one event; the new sums when it changed them."""
        name, status = event.get("id"), str(event.get("status", ""))
        if not isinstance(name, str) or status.startswith("Pulling from"):
            return None
        before = self._sums()
        layer = self.layers.setdefault(name, _Layer())
        detail = event.get("progressDetail") or {}
        if status == "Downloading":
            layer.current, layer.total = int(detail.get("current") or 0), int(detail.get("total") or layer.total)
        elif status in ("Download complete", "Verifying Checksum"):
            layer.current = layer.total
        elif status in ("Pull complete", "Already exists"):
            layer.done, layer.current = True, layer.total
        after = self._sums()
        return after if after != before else None

    def _sums(self) -> PullProgress:
        layers = self.layers.values()
        done = sum(layer.done for layer in layers)
        return PullProgress(sum(layer.current for layer in layers), sum(layer.total for layer in layers), len(self.layers), done)


@dataclass(frozen=True)
class _Job:
    """One request to :func:`ensure`."""

    client: docker.DockerClient
    fetch: Fetch
    image_id: str | None
    size_bytes: int | None
    free_bytes: int | None
    on_progress: OnProgress | None
    on_retry: Callable[[Fault], None] | None
    cancel: Cancel | None

    def check_cancel(self) -> None:
        if self.cancel is not None and self.cancel.is_set():
            raise PullCancelled

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check_cancel()
            time.sleep(min(POLL_SECONDS, left))
        self.check_cancel()


def ensure(
    client: docker.DockerClient,
    pinned_reference: str,
    platform: str,
    *,
    policy: Policy,
    credentials: Credentials,
    offline: bool = False,
    on_progress: OnProgress | None = None,
    cancel: Cancel | None = None,
    free_bytes: int | None = None,
    size_bytes: int | None = None,
    image_id: str | None = None,
    engine: str = "the engine",
    on_retry: Callable[[Fault], None] | None = None,
) -> str:
    """The id of the image on the engine, pulled when it is not there. Start containers by this id.

    ``pinned_reference``: ``repository@sha256:...``. ``image_id`` and ``size_bytes`` (compressed) come from the lock: by the first an
    image that was loaded from a bundle is recognised, the second is held against ``free_bytes`` of the engine's disk (None: not known).
    ``engine`` names the engine in errors. Several threads that want the same digest on the same engine share one pull; its progress goes
    to the first. Raises PullCancelled; EnginefarmError: IMAGE_NOT_ALLOWED, IMAGE_OFFLINE, DISK, ENGINE_UNREACHABLE, ENGINE_REFUSED,
    and a Fault of its own kind for each fault of the registry.
    """
    reference = parse(pinned_reference)
    if reference.digest is None:
        raise EnginefarmError(errors.IMAGE_NOT_LOCKED, f"{reference} is not locked", fix="lock it: enginefarm targets lock")
    policy.check(reference)
    fetch = Fetch(reference.pinned(reference.digest), policy.fetched_from(reference.pinned(reference.digest)), platform, engine=engine)
    job = _Job(client, fetch, image_id, size_bytes, free_bytes, on_progress, on_retry, cancel)
    with _engine_errors(fetch):
        present = _present(job)
        if present is not None:
            return present
        if offline:
            fix = "bring it: enginefarm images save on a machine with network, enginefarm images load here; or leave out --offline"
            raise EnginefarmError(IMAGE_OFFLINE, f"{fetch.shown} is not on {engine}", why="--offline forbids to pull it", fix=fix)
        engine_id = str(client.api.base_url if is_podman(client.version()) else client.info().get("ID") or client.api.base_url)
    return _FLIGHTS.run((engine_id, reference.digest), job, lambda: _pull(job, credentials))


def is_present(client: docker.DockerClient, pinned_reference: str, platform: str, *, policy: Policy, image_id: str | None = None) -> bool:
    """Whether :func:`ensure` would find the image on the engine. Raises as it does."""
    reference = parse(pinned_reference)
    pinned = reference.pinned(reference.digest or "")
    fetch = Fetch(pinned, policy.fetched_from(pinned), platform)
    with _engine_errors(fetch):
        return _present(_Job(client, fetch, image_id, None, None, None, None, None)) is not None


def _pull(job: _Job, credentials: Credentials) -> str:
    with _engine_errors(job.fetch):
        present = _present(job)
    if present is not None:
        return present
    _check_disk(job)
    login = credentials.lookup(job.fetch.registry)
    fetch = replace(job.fetch, login=login)
    faults.retrying(lambda: _pull_once(job, fetch), pause=job.pause, on_retry=job.on_retry)
    with _engine_errors(fetch):
        try:
            found = _present(job)
        except Fault:
            # of another platform, and it was not here before
            job.client.images.remove(str(fetch.source))
            raise
    if found is None:
        raise faults.wrong_digest(fetch, f"after the pull the engine has no image with the digest {fetch.reference.digest}")
    return found


def _pull_once(job: _Job, fetch: Fetch) -> None:
    counts = LayerCounts()
    auth = fetch.login.as_engine_auth(fetch.registry) if fetch.login else None
    with _engine_errors(fetch, pulling=True):
        for event in pull_events(job.client, fetch.source, fetch.platform, auth, job.check_cancel, POLL_SECONDS):
            if "error" in event:
                detail = event.get("errorDetail")
                text = str(event["error"]) if not isinstance(detail, dict) else str(detail.get("message") or event["error"])
                raise faults.from_text(fetch, text)
            progress = counts.take(event)
            if progress is not None and job.on_progress is not None:
                job.on_progress(progress)


def _present(job: _Job) -> str | None:
    """The id of the image if the engine has it under its name, the mirror's, or (from a bundle) its id alone.

    Raises Fault(IMAGE_PLATFORM) when it is for another platform: an engine takes a single manifest of another platform without a word.
    """
    import docker.errors

    fetch = job.fetch
    digest = fetch.reference.digest or ""
    # the digest itself is the id where the engine keeps images in containerd
    for name in dict.fromkeys(filter(None, (str(fetch.reference), str(fetch.source), job.image_id, digest))):
        try:
            image = job.client.images.get(name)
        except docker.errors.NotFound:
            continue
        digests = {str(item).rpartition("@")[2] for item in image.attrs.get("RepoDigests") or ()}
        if digest in digests or image.id in (job.image_id, digest):
            _check_platform(fetch, image.attrs)
            return str(image.id)
    return None


def _check_platform(fetch: Fetch, attrs: dict[str, Any]) -> None:
    has = f"{attrs.get('Os')}/{attrs.get('Architecture')}"
    if has != "/".join(fetch.platform.split("/")[:2]):
        raise faults.no_platform(fetch, has)


def _check_disk(job: _Job) -> None:
    if job.free_bytes is None or job.size_bytes is None:
        return
    needed = int(job.size_bytes * SPACE_FACTOR)
    if job.free_bytes < needed:
        free, size = f"{job.free_bytes / 1e9:.1f} GB", f"{job.size_bytes / 1e9:.1f} GB"
        why = f"{free} are free; it is {size} compressed and takes about {needed / 1e9:.1f} GB"
        fix = "free some space there: enginefarm runners clean --images, or docker image prune"
        raise EnginefarmError(DISK, f"no space for {job.fetch.shown} on {job.fetch.engine}", why=why, fix=fix)


@contextlib.contextmanager
def _engine_errors(fetch: Fetch, pulling: bool = False) -> Iterator[None]:
    """What the SDK raises -> the engine's own failure; while ``pulling`` what the engine says is the registry's Fault."""
    import docker.errors
    import requests
    import urllib3

    try:
        yield
    except docker.errors.APIError as error:
        said = fetch.text(str(error.explanation or error))
        if pulling:
            raise faults.from_text(fetch, said) from None
        raise EnginefarmError(errors.ENGINE_REFUSED, f"{fetch.engine} does not show its images", why=said, fix=_CHECK) from None
    except (docker.errors.DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        why = fetch.text(str(error) or type(error).__name__)
        raise EnginefarmError(errors.ENGINE_UNREACHABLE, f"{fetch.engine} does not answer", why=why, fix=_CHECK) from None


class _Flights:
    """One pull at a time for each key; who comes meanwhile waits for its end and shares it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], Future[str]] = {}

    def run(self, key: tuple[str, str], job: _Job, pull: Callable[[], str]) -> str:
        while True:
            job.check_cancel()
            with self._lock:
                flight = self._running.get(key)
                mine = self._running.setdefault(key, Future()) if flight is None else None
            if flight is None and mine is not None:
                return self._lead(key, mine, pull)
            if flight is not None:
                with contextlib.suppress(PullCancelled):  # the leader's caller gave up, ours did not
                    return self._follow(flight, job)

    def _lead(self, key: tuple[str, str], mine: Future[str], pull: Callable[[], str]) -> str:
        try:
            image = pull()
        except BaseException as error:
            self._end(key)
            mine.set_exception(error if isinstance(error, EnginefarmError) else PullCancelled())
            raise
        self._end(key)
        mine.set_result(image)
        return image

    def _end(self, key: tuple[str, str]) -> None:
        with self._lock:
            del self._running[key]

    def _follow(self, flight: Future[str], job: _Job) -> str:
        while not flight.done():
            wait_for([flight], timeout=POLL_SECONDS)
            job.check_cancel()
        return flight.result()


_FLIGHTS = _Flights()
