"""What a run takes out of the store and puts into it. No trouble with the store ever fails a build: it is said once, and the work is done.

Results by kind::

    build      build key      the engine's record, the inputs it was built from, its blob
    validate   run key        outputs of one engine on one device, with timings; their blobs
    reference  reference key  expected outputs; their blobs
    checks     verdict key    what the verdict rests on, by name

Failures are no results: a step that failed is run again. Outputs that were judged wrong are kept with the verdict's key, so that the same
verdict is never read from them again but another tolerance can be.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator import events
from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Cancel, Cancelled
from orchestrator.store import BlobLost, Store, StoreCancelled, StoreUnwritable

Tensors = Sequence[Mapping[str, Any]]


class Cached:
    """The store of one run. ``work`` is a folder for what is taken out; safe to use from several threads."""

    def __init__(self, store: Store, work: Path, bus: events.Bus, cancel: Cancel) -> None:
        self.store = store
        self._work = work
        self._bus = bus
        self._cancel = cancel
        self._count = itertools.count()
        self._told = threading.Event()
        self._broken: set[tuple[str, str]] = set()

    def has_engine(self, key: str) -> bool:
        """Whether a build step need not run: its result is there, with an engine of the right size."""
        return self.store.has("build", key) and self.build(key) is not None

    def build(self, key: str) -> dict[str, Any] | None:
        """The result of a build step: ``{"record", "inputs", "engine"}``."""
        return self._get("build", key)

    def validated(self, key: str) -> dict[str, Any] | None:
        """The result of a validate step, on whatever engine."""
        return self._get("validate", key)

    def outputs(self, key: str, engine: str) -> dict[str, Any] | None:
        """The result of a validate step on the engine with the digest ``engine``; another engine's outputs say nothing about it."""
        found = self.validated(key)
        return found if found is not None and found["engine"] == engine else None

    def reference(self, key: str) -> dict[str, Any] | None:
        return self._get("reference", key)

    def _get(self, kind: str, key: str) -> dict[str, Any] | None:
        found = self.store.get(kind, key)
        if found is None and (kind, key) not in self._broken and self.store.is_broken(kind, key):
            self._broken.add((kind, key))
            self._say(f"the {kind} result {key[:19]}... in the cache is damaged or not whole; it is made again", "warning")
        return found

    def check_inputs(self, verdict_key: str) -> dict[str, Any] | None:
        """What a verdict rested on, by name."""
        found = self.store.get("checks", verdict_key)
        return None if found is None else dict(found["inputs"])

    def keep_check_inputs(self, verdict_key: str, what: str, inputs: Mapping[str, Any]) -> None:
        with self._forgiving():
            self.store.put_result("checks", verdict_key, {"what": what, "inputs": dict(inputs)}, {})

    def fetch(self, digest: str, name: str) -> Path | None:
        """A copy of a blob under ``name``, hashed as it leaves; None, said to the user, when the store lost or damaged it."""
        folder = self._folder()
        try:
            self.store.take(digest, folder / name)
        except BlobLost as lost:
            self._say(str(lost) + "; it is made again", "warning")
            return None
        return folder / name

    def fetch_outputs(self, samples: Sequence[Any]) -> tuple[list[dict[str, Any]] | None, ...] | None:
        """Copies of stored tensors, sample by sample; None when one was lost."""
        found: list[list[dict[str, Any]] | None] = []
        for tensors in samples:
            if tensors is None:
                found.append(None)
                continue
            mine = []
            for tensor in tensors:
                file = self.fetch(tensor["blob"], f"{tensor['blob'][7:23]}.bin")
                if file is None:
                    return None
                mine.append({"name": tensor["name"], "dtype": tensor["dtype"], "shape": tensor["shape"], "file": file})
            found.append(mine)
        return tuple(found)

    def keep(self, kind: str, key: str, value: Mapping[str, Any], files: Mapping[str, Path]) -> None:
        """Put a result with its files (digest -> file)."""
        with self._forgiving():
            sizes = {}
            for digest, path in files.items():
                self.store.put(path, digest=digest)
                sizes[digest] = path.stat().st_size
            self.store.put_result(kind, key, value, sizes)

    def keep_outputs(self, kind: str, key: str, value: Mapping[str, Any], samples: Sequence[Tensors | None]) -> None:
        """Put a result whose ``outputs`` are these tensors."""
        with self._forgiving():
            sizes: dict[str, int] = {}
            stored = [None if tensors is None else [self._tensor(tensor, sizes) for tensor in tensors] for tensors in samples]
            self.store.put_result(kind, key, {**value, "outputs": stored}, sizes)

    def _tensor(self, tensor: Mapping[str, Any], sizes: dict[str, int]) -> dict[str, Any]:
        path = Path(tensor["file"])
        digest = self.store.put(path)
        sizes[digest] = path.stat().st_size
        shape = list(tensor["shape"])
        return {"name": tensor["name"], "dtype": tensor["dtype"], "shape": shape, "blob": digest, "bytes": sizes[digest]}

    def judged(self, key: str, value: Mapping[str, Any], verdict_key: str | None, verdict: Mapping[str, Any], *, failed: bool) -> None:
        """Note on stored outputs how they were judged."""
        stored = self.store.get("validate", key)
        if stored is None or stored["engine"] != value["engine"]:
            return
        tensors = [tensor for sample in stored["outputs"] for tensor in sample or ()]
        now = {"verdict_key": None if failed else verdict_key, "verdict": verdict, "failed": verdict_key if failed else None}
        with self._forgiving():
            self.store.put_result("validate", key, {**stored, **now}, {tensor["blob"]: tensor["bytes"] for tensor in tensors})

    @contextmanager
    def alone(self, kind: str, key: str, say: Callable[[str], None]) -> Iterator[None]:
        """One maker per key, over all processes that share the store; raises Cancelled when the run is stopped while it waits."""
        try:
            with self._locked(kind, key, say):
                yield
        except StoreCancelled:
            raise Cancelled from None

    @contextmanager
    def _locked(self, kind: str, key: str, say: Callable[[str], None]) -> Iterator[None]:
        lock = self.store.exclusive(kind, key, cancel=self._cancel.is_set, on_wait=say)
        try:
            lock.__enter__()
        except StoreUnwritable as error:
            # without a lock two runs may build the same: slower, never wrong
            self._unwritable(error)
            yield
            return
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except (EnginefarmError, OSError) as error:
            self._unwritable(error)

    def _unwritable(self, error: EnginefarmError | OSError) -> None:
        if not self._told.is_set():
            self._told.set()
            what = f"{error.what}: {error.why}" if isinstance(error, EnginefarmError) and error.why else str(error)
            self._say(f"the cache cannot be written, so what is built now will be built again: {what}", "warning")

    def _say(self, text: str, level: str) -> None:
        self._bus(events.Note(text=text, level=level))

    def _folder(self) -> Path:
        folder = self._work / "taken" / str(next(self._count))
        folder.mkdir(parents=True)
        return folder
