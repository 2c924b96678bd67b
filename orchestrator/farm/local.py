"""Places steps on the configured runners: which runner builds a target, which validates it, and why the others cannot.

The rules are ``portable/facts/placement.py``; this module asks them for every runner, in the order of the configuration, before anything
is pulled. While a run lives it also knows how many steps each runner has, and which runner has failed too often.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import EnginefarmError
from orchestrator.matrix.schema import Target
from orchestrator.portable.facts import placement
from orchestrator.portable.facts.images import jetpack_facts
from orchestrator.runners.base import Cancel, Cancelled, Runner

if TYPE_CHECKING:
    from orchestrator.farm.images import ImageSource

FAILURES_ALLOWED = 2
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Spot:
    """Where a step can run. ``image`` is pinned by digest; None on a runner without containers. ``backend_version`` as known before."""

    runner: Runner
    image: str | None = None
    backend_version: str | None = None


@dataclass(frozen=True)
class Placement:
    """Where a build can be made and where it can be validated, best first; ``*_refused`` says why not, one reason per runner."""

    build: tuple[Spot, ...]
    validate: tuple[Spot, ...]
    build_refused: dict[str, str]
    validate_refused: dict[str, str]


NOWHERE = Placement((), (), {}, {})


class Farm:
    """All runners of a run. Safe to use from several threads."""

    def __init__(self, runners: Sequence[Runner], images: ImageSource | None = None) -> None:
        self.runners = tuple(runners)
        self.images = images
        self._running: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._changed = threading.Condition()

    def place(self, target: Target) -> Placement:
        """Every runner that can build and every runner that can validate ``target``."""
        build, build_refused = self._spots("build", target)
        validate, validate_refused = self._spots("validate", target)
        return Placement(build, validate, build_refused, validate_refused)

    def _spots(self, step: str, target: Target) -> tuple[tuple[Spot, ...], dict[str, str]]:
        rule = placement.can_build if step == "build" else placement.can_validate
        row = target.model_dump(mode="json")
        yes: list[Spot] = []
        maybe: list[Spot] = []
        refused: dict[str, str] = {}
        for runner in self.runners:
            try:
                host = self._view(runner, target)
            except EnginefarmError as error:
                refused[runner.name] = error.what
                continue
            if isinstance(host, str):
                refused[runner.name] = host
                continue
            decision = rule(row, host)
            if decision.verdict == "no":
                refused[runner.name] = decision.reasons[0]
                continue
            spot = self._spot(runner, target, host)
            # facts that are silent do not refuse: the build itself will tell
            (yes if decision.verdict == "yes" else maybe).append(spot)
        found = (*yes, *maybe)
        return found, {} if found else refused

    def _view(self, runner: Runner, target: Target) -> dict[str, Any] | str:
        """The host as a step of ``target`` would find it, or why it cannot run there. In a container the image brings the backend."""
        host = dict(runner.host())
        if runner.kind != "docker":
            return host
        if target.image is None:
            if getattr(runner, "probe_image", None) and "version" in host["backends"][target.backend]:
                return host
            return "it runs steps in containers, and the target names no image"
        if self.images is None:
            return "no images can be had here"
        return {**host, "backends": {**host["backends"], target.backend: self._in_image(target, host)}}

    def _in_image(self, target: Target, host: dict[str, Any]) -> dict[str, Any]:
        """What the image is said to hold, before it is pulled: its lock entry, else the target."""
        entry = self.images.known(target, host["platform"]) if self.images else None
        if target.backend == "onnxruntime":
            return {"version": "of the image", "providers": ["cpu", *(["cuda"] if target.provider == "cuda" else [])]}
        if target.tensorrt_from == "host":
            jetpack = (host.get("jetson") or {}).get("jetpack")
            facts = jetpack_facts(jetpack) if jetpack else None
            return {"version": facts["tensorrt"]} if facts and facts.get("tensorrt") else {"error": "the device's JetPack is not known"}
        return {"version": (entry.tensorrt if entry else None) or target.tensorrt or target.tensorrt_rtx or "of the image"}

    def _spot(self, runner: Runner, target: Target, host: dict[str, Any]) -> Spot:
        version = host["backends"][target.backend].get("version")
        if runner.kind != "docker":
            return Spot(runner, None, version)
        if target.image is None or self.images is None:
            return Spot(runner, getattr(runner, "probe_image", None), version)
        return Spot(runner, self.images.pin(target, host["platform"]).pinned, version)

    @contextmanager
    def slot(self, spots: Sequence[Spot], cancel: Cancel) -> Iterator[Spot]:
        """Take a slot on the least busy of ``spots`` that has one; waits for it. Raises Cancelled, and the last failure's reason never."""
        spot = self._take(spots, cancel)
        try:
            yield spot
        finally:
            with self._changed:
                self._running[spot.runner.name] -= 1
                self._changed.notify_all()

    def _take(self, spots: Sequence[Spot], cancel: Cancel) -> Spot:
        with self._changed:
            while True:
                if cancel.is_set():
                    raise Cancelled
                usable = self.usable(spots)
                free = [spot for spot in usable if self._running[spot.runner.name] < spot.runner.slots]
                if free:
                    # one that failed is tried after those that did not: its engine may well be gone
                    spot = min(
                        free, key=lambda spot: (self._failures[spot.runner.name], self._running[spot.runner.name] / spot.runner.slots)
                    )
                    self._running[spot.runner.name] += 1
                    return spot
                self._changed.wait(_POLL_SECONDS)

    def usable(self, spots: Sequence[Spot]) -> tuple[Spot, ...]:
        """Those of ``spots`` whose runner was not set aside; all of them when none is left, so that the error is the runner's own."""
        with self._changed:
            left = tuple(spot for spot in spots if self._failures[spot.runner.name] < FAILURES_ALLOWED)
        return left or tuple(spots)

    def failed(self, runner: Runner) -> bool:
        """Count a failure of the runner itself; True when it is now set aside for the rest of the run."""
        with self._changed:
            self._failures[runner.name] += 1
            self._changed.notify_all()
            return self._failures[runner.name] == FAILURES_ALLOWED


def reason(refused: dict[str, str]) -> str:
    """One line out of the refusals: the common reason, or each runner with its own."""
    distinct = list(dict.fromkeys(refused.values()))
    if len(distinct) == 1:
        return distinct[0]
    return "; ".join(f"{name}: {why}" for name, why in refused.items()) or "no runner is configured"
