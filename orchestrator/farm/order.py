"""Which build goes next, and on which runner: the longest first, and no runner idle while something waits that it could do.

Longest processing time first is the classic rule for many machines: what is long must not start last. Where builds fit on some runners
only, a free runner is left to those that need it: a build counts as shorter there by as much as another of its runners would be free
earlier (measured against other rules by bench/farm.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.matrix.schema import Target

ExpectedSeconds = Callable[[str, Target], float | None]
"""``(model digest, target) -> seconds`` that such a build took before; None when nobody knows."""

# How builds of unknown length compare: TensorRT times kernels on the GPU, the others compile or only rewrite the graph (docs/bench.md).
_BACKENDS = {"tensorrt": 60.0, "tensorrt-rtx": 2.0, "onnxruntime": 1.0}
_DEFAULT_LEVEL = 3  # TensorRT's own default of builder_optimization_level; every level tries more tactics than the one below


@dataclass(frozen=True, order=True)
class Weight:
    """How early a build goes; heavier is earlier. ``seconds`` are expected, or, where ``unknown``, only a guess to compare by."""

    unknown: bool = False
    seconds: float = 0.0


NO_WEIGHT = Weight()


def weigh(target: Target, seconds: float | None) -> Weight:
    """The weight of a build: what it took before, else unknown, which goes first, since it may be the longest of all."""
    if seconds is not None and seconds >= 0:
        return Weight(False, seconds)
    level = _DEFAULT_LEVEL if target.optimization_level is None else target.optimization_level
    return Weight(True, _BACKENDS.get(target.backend, 1.0) * 2.0 ** (level - _DEFAULT_LEVEL))


@dataclass(frozen=True)
class Ask:
    """A step that waits for a slot. ``runners``: names of those that can take it, best first; ``begun``: its build had a slot before."""

    weight: Weight
    runners: tuple[str, ...]
    begun: bool = False


@dataclass(frozen=True)
class Slots:
    """The runners as they are now, by name: slots in all, slots in use, seconds of work that these still have, failures so far."""

    total: Mapping[str, int]
    running: Mapping[str, int]
    left: Mapping[str, float]
    failures: Mapping[str, int]

    def free(self, name: str) -> bool:
        return self.running.get(name, 0) < self.total[name]


def pick(asks: Sequence[Ask], slots: Slots, later: Iterable[Ask] = ()) -> tuple[int, str] | None:
    """Which of ``asks`` goes now (its position) and on which runner; None when no free runner can take any.

    A runner that failed comes after those that did not: its engine may well be gone. A build that has begun goes before one that has not:
    its verdict is near. ``later``: builds that have not asked yet.
    """
    loads = _loads((*asks, *later), slots)

    def key(number: int, name: str) -> tuple[bool, int, bool, float, float, float, int]:
        ask = asks[number]
        lead = min(loads[other] for other in ask.runners) - loads[name]
        return (
            ask.begun,
            -slots.failures.get(name, 0),
            ask.weight.unknown,
            round(ask.weight.seconds + lead, 6),
            -round(loads[name], 6),
            -slots.running.get(name, 0) / slots.total[name],
            -number,
        )

    pairs = [(number, name) for number, ask in enumerate(asks) for name in ask.runners if slots.free(name)]
    return max(pairs, key=lambda pair: key(*pair), default=None)


def _loads(asks: Iterable[Ask], slots: Slots) -> dict[str, float]:
    """Seconds until each runner would be done, if the work of a build were spread evenly over the runners that can take it."""
    found = {name: slots.left.get(name, 0.0) for name in slots.total}
    for ask in asks:
        for name in ask.runners:
            found[name] += ask.weight.seconds / len(ask.runners)
    return {name: seconds / slots.total[name] for name, seconds in found.items()}
