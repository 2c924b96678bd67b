"""How well builds are spread: 24 recorded durations on 8 slots of 3 engines, against the best schedule there can be.

Everything but the builds is real: targets, hosts with their GPUs, placement, turns, slots, threads; a build is a process that sleeps
for its recorded time. The best schedule is searched for by branch and bound between a lower bound and what the search finds.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import farm_lab as lab

from orchestrator.farm.images import ImageSource
from orchestrator.farm.local import Farm, Spot
from orchestrator.farm.order import Ask, Slots, Weight, pick, weigh
from orchestrator.images.lock import Entry, Lock
from orchestrator.images.policy import Policy
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.schema import Target
from orchestrator.runners.base import Cancel, Runner

MOST_RATIO = 1.15
SLOTS = {"rack-1": 3, "rack-2": 3, "rack-3": 2}
GPUS = {"rack-1": ("7.5", "8.0"), "rack-2": ("8.0", "8.9"), "rack-3": ("8.9",)}
TARGETS = {"7.5": "turing-cu118", "8.0": "ampere-cu122", "8.9": "ada-cu12"}
DRAWN = 200
_MOST_NODES = 400_000

Job = tuple[float, tuple[str, ...]]
"""Seconds, and the runners that can take it."""


@dataclass
class Sleeper:
    """A runner whose host is declared and whose steps are processes that sleep."""

    name: str
    slots: int
    described: Mapping[str, Any]
    kind: str = "docker"
    labels: tuple[str, ...] = ()

    def host(self) -> Mapping[str, Any]:
        return self.described

    def run(self, seconds: float) -> None:
        subprocess.run(["sleep", f"{seconds:.3f}"], check=True)


def _host(capabilities: Sequence[str]) -> dict[str, Any]:
    gpus = [
        {"index": index, "name": "declared", "uuid": f"GPU-{index}", "compute_capability": capability, "memory_bytes": 1 << 34}
        for index, capability in enumerate(capabilities)
    ]
    backends = {key: {"error": "comes with the image"} for key in ("tensorrt", "tensorrt-rtx", "onnxruntime")}
    driver = {"version": "580.65.06", "cuda": None}
    return {"platform": "linux/amd64", "gpus": gpus, "driver": driver, "jetson": None, "container": True, "backends": backends}


def _farm() -> tuple[Farm, dict[str, Target]]:
    """Three engines of 8 slots in all, and a target for each compute capability, its image as if locked."""
    matrix = load_matrix(None)
    targets = {capability: matrix.select((name,))[0].target for capability, name in TARGETS.items()}
    digests = ("sha256:" + "a" * 64, "sha256:" + "b" * 64)
    entries = [
        Entry(target.image or "", "linux/amd64", *digests, 1, "2026-01-31T08:00:00Z", target.tensorrt) for target in targets.values()
    ]
    images = ImageSource(Lock({entry.key: entry for entry in entries}), Policy(), locked=True, offline=True)
    sleepers = [cast("Runner", Sleeper(name, count, _host(GPUS[name]))) for name, count in SLOTS.items()]
    return Farm(sleepers, images), targets


def _in_plan_order(farm: Farm, builds: Sequence[tuple[tuple[Spot, ...], float]]) -> None:
    """As many threads as slots, fed in the order of the plan."""
    with ThreadPoolExecutor(sum(SLOTS.values())) as pool:
        list(pool.map(lambda build: _step(farm, *build), builds))


def _lined_up(farm: Farm, builds: Sequence[tuple[tuple[Spot, ...], float]], weights: Sequence[Weight]) -> None:
    """What pipeline/run.py does with turns."""
    turns = farm.line_up([(spots, weight) for (spots, _), weight in zip(builds, weights, strict=True)], sum(SLOTS.values()))
    cancel = Cancel()
    lined = sorted(zip(turns, builds, weights, strict=True), key=lambda item: item[2], reverse=True)
    with ThreadPoolExecutor(len(builds)) as pool:
        done = [pool.submit(turn.run, lambda build=build: _step(farm, *build), cancel) for turn, build, _ in lined]
    for future in done:
        future.result()


def _step(farm: Farm, spots: tuple[Spot, ...], seconds: float) -> None:
    with farm.slot(spots, Cancel()) as spot:
        spot.runner.run(seconds)  # type: ignore[call-arg,arg-type]


def lower_bound(jobs: Sequence[Job], slots: Mapping[str, int]) -> float:
    """No schedule is shorter: the longest job, and for every set of runners the work that fits nowhere else over their slots."""
    bound = max(seconds for seconds, _ in jobs)
    for count in range(1, len(slots) + 1):
        for chosen in itertools.combinations(slots, count):
            work = sum(seconds for seconds, runners in jobs if set(runners) <= set(chosen))
            bound = max(bound, work / sum(slots[name] for name in chosen))
    return bound


def best_schedule(jobs: Sequence[Job], slots: Mapping[str, int], start: float) -> tuple[float, bool]:
    """The shortest schedule found by branch and bound, and whether it is proven to be the shortest (within 0.1 %)."""
    bound, order = lower_bound(jobs, slots), sorted(jobs, key=lambda job: (-job[0], len(job[1])))
    best, nodes = start, 0
    loads = {name: [0.0] * count for name, count in slots.items()}

    def place(number: int, longest: float) -> bool:
        """Whether the search is over."""
        nonlocal best, nodes
        nodes += 1
        if number == len(order):
            best = longest
            return best <= bound * 1.001
        if nodes > _MOST_NODES:
            return True
        seconds, runners = order[number]
        choices = sorted({(load, name) for name in runners for load in loads[name]})
        for load, name in choices:  # slots of one runner with one load are the same choice
            if max(longest, load + seconds) >= best * 0.999:
                continue
            position = loads[name].index(load)
            loads[name][position] += seconds
            over = place(number + 1, max(longest, load + seconds))
            loads[name][position] = load
            if over:
                return True
        return False

    stopped = place(0, 0.0)
    return best, best <= bound * 1.001 or not stopped


def simulated(jobs: Sequence[Job], slots: Mapping[str, int]) -> float:
    """The makespan by orchestrator/farm/order.py, in simulated time, when durations are known."""
    waiting, now = list(jobs), 0.0
    running: list[tuple[float, int, str]] = []  # (end, count, runner)
    numbers = itertools.count()
    while waiting or running:
        asks = [Ask(Weight(False, seconds), runners) for seconds, runners in waiting]
        used = {name: sum(where == name for _, _, where in running) for name in slots}
        left = {name: sum(end - now for end, _, where in running if where == name) for name in slots}
        found = pick(asks, Slots(slots, used, left, {}))
        if found:
            heapq.heappush(running, (now + waiting.pop(found[0])[0], next(numbers), found[1]))
        else:
            now = heapq.heappop(running)[0]
    return now


def _drawn(by_gpu: bool) -> dict[str, Any]:
    """Ratios to the lower bound over drawn instances: 24 durations from 1 to 32, evenly on a log scale."""
    chance = random.Random(24)
    every = tuple(SLOTS)
    choices = [tuple(name for name in SLOTS if capability in GPUS[name]) for capability in TARGETS] if by_gpu else [every]
    ratios = []
    for _ in range(DRAWN):
        jobs = [(2 ** chance.uniform(0, 5), chance.choice(choices)) for _ in range(24)]
        ratios.append(simulated(jobs, SLOTS) / lower_bound(jobs, SLOTS))
    ratios.sort()
    return {"instances": DRAWN, "median": lab.median(ratios, 3), "p95": round(ratios[int(0.95 * DRAWN)], 3), "worst": round(ratios[-1], 3)}


def _case(name: str, rows: Sequence[Mapping[str, Any]], by_gpu: bool, rounds: int) -> dict[str, Any]:
    farm, targets = _farm()
    placed = {capability: farm.place(target).build for capability, target in targets.items()}
    every = tuple({spot.runner.name: spot for spots in placed.values() for spot in spots}.values())
    builds = [(placed[row["capability"]] if by_gpu else every, float(row["seconds"])) for row in rows]
    jobs = [(seconds, tuple(spot.runner.name for spot in spots)) for spots, seconds in builds]
    chosen = [targets[row["capability"]] for row in rows]
    known = [weigh(target, seconds) for target, (_, seconds) in zip(chosen, builds, strict=True)]
    unknown = [weigh(target, None) for target in chosen]
    ways: dict[str, Callable[[], None]] = {
        "plan order, 8 threads": lambda: _in_plan_order(farm, builds),
        "turns, durations unknown": lambda: _lined_up(farm, builds, unknown),
        "turns, durations known": lambda: _lined_up(farm, builds, known),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, call in ways.items():
            started = time.perf_counter()
            call()
            seconds[way].append(time.perf_counter() - started)
    bound = lower_bound(jobs, SLOTS)
    best, proven = best_schedule(jobs, SLOTS, simulated(jobs, SLOTS) * 1.01)
    reference = best if proven else bound
    return {
        "case": name,
        "builds": len(jobs),
        "slots": SLOTS,
        "can_run_on": {
            target: list(names) for target, names in {row["target"]: job[1] for row, job in zip(rows, jobs, strict=True)}.items()
        },
        "lower_bound_s": round(bound, 3),
        "best_found_s": round(best, 3),
        "best_is_proven": proven,
        "median_s": {way: lab.median(values, 3) for way, values in seconds.items()},
        "ratio": {way: round(statistics.median(values) / reference, 3) for way, values in seconds.items()},
        "seconds": {way: lab.rounded(values, 3) for way, values in seconds.items()},
        "drawn": _drawn(by_gpu),
    }


def measure(rounds: int) -> dict[str, Any]:
    """Builds that any engine takes, and builds that need an engine with their GPU."""
    rows = json.loads((Path(__file__).parent / "farm_durations.json").read_text())["builds"]
    before = lab.load()
    cases = [_case("any engine", rows, False, rounds), _case("by GPU", rows, True, rounds)]
    return {"load_before": before, "load_after": lab.load(), "cases": cases}
