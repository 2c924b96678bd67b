"""Images for the farm: which digest a target's image is, and how it gets onto an engine.

The lock file says the digest. An image that is not in it is looked up in its registry once per run, unless that is forbidden
(``--locked``, ``--offline``); the manifest records what was used either way.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from orchestrator.errors import IMAGE_NOT_LOCKED, IMAGE_OFFLINE, EnginefarmError, Where
from orchestrator.images.lock import Entry, Lock, entry_for, unlocked
from orchestrator.images.policy import Policy
from orchestrator.images.reference import parse
from orchestrator.matrix.schema import Target
from orchestrator.runners.base import Cancel, Cancelled, WorkerEvent

if TYPE_CHECKING:
    from orchestrator.images.credentials import Credentials

_LOCK_THEM = "lock them: enginefarm targets lock"


class ImageSource:
    """The images of one run; safe to use from several threads."""

    def __init__(self, lock: Lock, policy: Policy, *, locked: bool = False, offline: bool = False) -> None:
        self._lock = lock
        self._policy = policy
        self._locked = locked
        self._offline = offline
        self._credentials: Credentials | None = None
        self._looked_up: dict[tuple[str, str], Entry] = {}
        self._by_pinned: dict[str, Entry] = {entry.pinned: entry for entry in lock.entries.values()}
        self._guard = threading.Lock()

    def check_locked(self, targets: Iterable[Target]) -> list[EnginefarmError]:
        """With ``--locked``: a problem for each image of ``targets`` that the lock does not hold."""
        if not self._locked:
            return []
        return [
            EnginefarmError(IMAGE_NOT_LOCKED, f"{reference} for {platform} is not locked", where=Where(target=name), fix=_LOCK_THEM)
            for name, reference, platform in unlocked(self._lock, targets)
        ]

    def known(self, target: Target, platform: str) -> Entry | None:
        """The entry of a target's image, without asking a registry."""
        if target.image is None:
            return None
        return entry_for(self._lock, target, platform) or self._looked_up.get((target.image, platform))

    def pin(self, target: Target, platform: str) -> Entry:
        """The entry of a target's image. Raises EnginefarmError: not allowed, not to be had offline, or what the registry says."""
        found = self.known(target, platform)
        if found is not None:
            return found
        reference = parse(target.image or "", Where(target=target.name))
        self._policy.check(reference, Where(target=target.name))
        if self._offline:
            fix = "lock it where there is a network: enginefarm targets lock"
            raise EnginefarmError(IMAGE_OFFLINE, f"{reference} is not locked, and --offline forbids to look it up", fix=fix)
        with self._guard:
            found = self.known(target, platform)
            if found is None:
                found = self._look_up(target, platform)
                self._looked_up[target.image or "", platform] = found
                self._by_pinned[found.pinned] = found
        return found

    def _look_up(self, target: Target, platform: str) -> Entry:
        from orchestrator.images.registry import Registry

        reference = parse(target.image or "")
        resolved = Registry(self._policy, self._logins()).resolve(reference, platform, Where(target=target.name))
        return Entry(
            reference=str(reference),
            platform=platform,
            digest=resolved.digest,
            image_id=resolved.image_id,
            size_bytes=resolved.size_bytes,
            locked_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            tensorrt=resolved.contents.tensorrt,
            cuda=resolved.contents.cuda,
        )

    def _logins(self) -> Credentials:
        """Made when first needed: the libraries that talk to registries are heavy."""
        from orchestrator.images.credentials import Credentials

        if self._credentials is None:
            self._credentials = Credentials()
        return self._credentials

    def missing_bytes(self, client: Any, image: str, platform: str) -> int | None:
        """Compressed bytes that an engine still has to pull for ``image``; None when nobody knows. Raises what the engine says."""
        from orchestrator.images.pull import is_present

        if "@sha256:" not in image:
            return 0
        entry = self._by_pinned.get(image)
        if is_present(client, image, platform, policy=self._policy, image_id=entry.image_id if entry else None):
            return 0
        return entry.size_bytes if entry else None

    def ensure(self, client: Any, image: str, platform: str, on_event: Callable[[WorkerEvent], None], cancel: Cancel) -> str:
        """Id of ``image`` on an engine, pulled by its digest when it is not there (runners/docker.py: EnsureImage)."""
        from orchestrator.images.pull import PullCancelled, PullProgress, ensure
        from orchestrator.runners.docker import image_on_engine

        if "@sha256:" not in image:
            # the runner's own probe image: whoever configured it put it there
            return image_on_engine(client, image, platform, on_event, cancel)
        entry = self._by_pinned.get(image)

        def progress(pulled: PullProgress) -> None:
            on_event({"event": "phase", "phase": f"pulling {pulled.downloaded / 1e6:.0f} of {pulled.total / 1e6:.0f} MB"})

        try:
            return ensure(
                client,
                image,
                platform,
                policy=self._policy,
                credentials=self._logins(),
                offline=self._offline,
                on_progress=progress,
                cancel=cancel,
                free_bytes=_free_bytes(client),
                size_bytes=entry.size_bytes if entry else None,
                image_id=entry.image_id if entry else None,
            )
        except PullCancelled:
            raise Cancelled from None


def _free_bytes(client: Any) -> int | None:
    """Free bytes where an engine on this machine keeps its images; None for an engine elsewhere."""
    if not str(client.api.base_url).startswith("http+docker://"):
        return None
    try:
        return shutil.disk_usage(str(client.info().get("DockerRootDir"))).free
    except OSError:
        return None
