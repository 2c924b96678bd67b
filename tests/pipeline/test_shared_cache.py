"""Twenty runs on one cache: each engine is made once, all get the same, and one that is killed holds up nobody."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

from orchestrator.artifacts.manifest import read_manifest

from .chain import stored
from .conftest import save_net
from .crash import TARGETS, Crashed, Started
from .whole import broken_artifacts, broken_cache, left_over

RUNS = 20
MODELS = ("lane", "seg", "sign")
Matrix = tuple[tuple[str, ...], tuple[str, ...]]


def matrices() -> list[Matrix]:
    """Models and targets for each run; the last one asks for everything."""
    chance = random.Random(11)
    found = [(tuple(chance.sample(MODELS, 2)), tuple(chance.sample(sorted(TARGETS), 2))) for _ in range(RUNS - 1)]
    return [*found, (MODELS, tuple(TARGETS))]


def wait_for_a_build(projects: list[Crashed]) -> tuple[int, Started]:
    """The number of a run that has just started to build something."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for number, project in enumerate(projects):
            steps = project.steps()
            if steps and steps[-1].step == "build":
                return number, steps[-1]
        time.sleep(0.01)
    raise AssertionError("nothing is built")


def test_twenty_runs_build_each_engine_once_and_a_killed_one_is_taken_over_from(tmp_path: Path) -> None:
    for seed, name in enumerate(MODELS):
        save_net(tmp_path / f"{name}.onnx", seed=seed)
    seed_project = Crashed(tmp_path / "run")
    seed_project.make(*TARGETS)
    cache = tmp_path / "cache"
    wanted = matrices()
    projects = [seed_project.copy(f"run-{number}") for number in range(RUNS)]
    runs = [
        project.start_build("--cache", "../cache", *(word for name in targets for word in ("-t", name)), models=models)
        for project, (models, targets) in zip(projects, wanted, strict=True)
    ]
    # not the one that asks for everything: another has to build it
    victim, _ = wait_for_a_build(projects[:-1])
    runs[victim].kill()
    codes = [project.end(run).code for project, run in zip(projects, runs, strict=True)]
    assert codes == [-signal.SIGKILL if number == victim else 0 for number in range(RUNS)], [project.said() for project in projects]

    lost = set(projects[victim].steps())
    count = Counter(step for number, project in enumerate(projects) if number != victim for step in project.steps())
    everything = {Started("build", model, target) for model in MODELS for target in TARGETS}
    assert {step for step in {*count, *lost} if step.step == "build"} == everything
    assert {step: times for step, times in count.items() if times > 1} == {}
    built_by_victim = everything - set(count)
    assert built_by_victim < lost, "the store had those before it was killed"
    assert everything <= stored(cache)
    assert lost & set(count), "another run builds what the killed one was building"

    assert broken_cache(cache) == []
    digests: dict[tuple[str, str], set[str | None]] = {}
    for number, (project, (models, targets)) in enumerate(zip(projects, wanted, strict=True)):
        output = project.folder / "artifacts"
        assert broken_artifacts(output) == []
        if number == victim:
            continue
        assert left_over(project.folder, cache) == []
        for model in models:
            records = read_manifest(output / model / "v1" / f"{model}_v1.json").engines
            assert {record.target: record.verdict.status for record in records} == dict.fromkeys(targets, "passed")
            for record in records:
                digests.setdefault((model, record.target), set()).add(record.digest)
    assert all(len(found) == 1 for found in digests.values())
    assert "waiting for process" in "".join(project.said() for project in projects)
