"""Places steps on the configured runners: which runner builds a target, which validates it, and why the others cannot.

The rules are ``portable/facts/placement.py``; this module asks them for every runner, in the order of the configuration, before anything
is pulled. While a run lives it also knows how many steps each runner has, and which runner has failed too often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import EnginefarmError
from orchestrator.farm.order import Ask, Weight
from orchestrator.farm.turns import Queue, Turn
from orchestrator.matrix.schema import Target
from orchestrator.portable.facts import placement
from orchestrator.portable.facts.images import jetpack_facts
from orchestrator.runners.base import Cancel, Runner

if TYPE_CHECKING:
    from orchestrator.farm.images import ImageSource

FAILURES_ALLOWED = 2


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
        self._failures: Counter[str] = Counter()
        self._queue = Queue(self._slots, self._failures)

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

    def pull_bytes(self, spot: Spot) -> int | None:
        """Compressed bytes that the spot's runner still has to pull; None where no container runs, or when nobody knows."""
        engine = getattr(spot.runner, "engine", None)
        if spot.image is None or self.images is None or engine is None:
            return None
        try:
            return self.images.missing_bytes(engine().client, spot.image, spot.runner.host()["platform"])
        except EnginefarmError:
            return None

    def _slots(self, name: str) -> int:
        return next(runner.slots for runner in self.runners if runner.name == name)

    def line_up(self, builds: Sequence[tuple[Sequence[Spot], Weight]], at_once: int) -> list[Turn]:
        """A turn for each build, at most ``at_once`` of which work at a time; one that waits for a runner does not count.

        Told all at once, so that a runner that some builds cannot do without is left to them. Each goes by ``Turn.run`` in its own thread;
        start the threads of the heaviest first.
        """
        return self._queue.line_up([Ask(weight, _names(spots)) for spots, weight in builds], at_once)

    @contextmanager
    def slot(self, spots: Sequence[Spot], cancel: Cancel) -> Iterator[Spot]:
        """Take a slot on one of ``spots`` (order.py says which); waits for it. Raises Cancelled, and the last failure's reason never."""
        with self._queue.slot(lambda: _names(self.usable(spots)), cancel) as name:
            yield next(spot for spot in spots if spot.runner.name == name)

    def rest(self) -> None:
        """The build of this thread has no step ahead of it any more: it does not count as one that works."""
        self._queue.rest()

    def wake(self) -> None:
        """Have all that wait look again: the run is being stopped, or all is done."""
        with self._queue.changed:
            self._queue.changed.notify_all()

    def usable(self, spots: Sequence[Spot]) -> tuple[Spot, ...]:
        """Those of ``spots`` whose runner was not set aside; all of them when none is left, so that the error is the runner's own."""
        with self._queue.changed:
            left = tuple(spot for spot in spots if self._failures[spot.runner.name] < FAILURES_ALLOWED)
        return left or tuple(spots)

    def failed(self, runner: Runner) -> bool:
        """Count a failure of the runner itself; True when it is now set aside for the rest of the run."""
        with self._queue.changed:
            self._failures[runner.name] += 1
            self._queue.serve()
            return self._failures[runner.name] == FAILURES_ALLOWED


def _names(spots: Sequence[Spot]) -> tuple[str, ...]:
    return tuple(spot.runner.name for spot in spots)


def reason(refused: dict[str, str]) -> str:
    """One line out of the refusals: the common reason, or each runner with its own."""
    distinct = list(dict.fromkeys(refused.values()))
    if len(distinct) == 1:
        return distinct[0]
    return "; ".join(f"{name}: {why}" for name, why in refused.items()) or "no runner is configured"
