"""A store that was damaged between two runs: what is missing is made again, nothing else is, and the run says so."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .chain import engines
from .conftest import save_net
from .crash import Crashed
from .whole import broken_artifacts, broken_cache

BOTH = ("-t", "first", "-t", "second")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    project = Crashed(tmp_path_factory.mktemp("damaged") / "built")
    project.make("first", "second")
    save_net(project.folder.parent / "net.onnx")
    assert project.do(*BOTH) == 0, project.said()
    return project


@pytest.fixture
def damaged(built: Crashed, request: pytest.FixtureRequest) -> Iterator[Crashed]:
    project = built.copy(f"damaged-{abs(hash(request.node.name))}")
    yield project
    shutil.rmtree(project.folder)


def cache(project: Crashed) -> Path:
    return project.folder / ".enginefarm/cache"


def result(project: Crashed, kind: str, target: str) -> Path:
    """The file of a target's result."""
    (found,) = [path for path in cache(project).glob(f"results/{kind}/*/*") if f"net {target}".encode() in path.read_bytes()]
    return found


def blob(project: Crashed, kind: str, target: str) -> Path:
    """The one blob that it names."""
    text = result(project, kind, target).read_text(encoding="utf-8")
    (name,) = {path for path in cache(project).glob("blobs/*/*") if f'"sha256:{path.name}":' in text}
    return name


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, path.stat().st_size - 1)


BROKEN = r"the {} result sha256:[0-9a-f]{{12}}\.\.\. in the cache is damaged or not whole; it is made again"
# what is done to the store, what then has to run for `first`, what is said about it
DAMAGES: list[tuple[str, Callable[[Crashed], object], list[str], str]] = [
    ("nothing", lambda _: None, [], ""),
    (
        "a byte of an engine",
        lambda project: flip(blob(project, "build", "first")),
        ["build"],
        "was damaged and is removed; it is made again",
    ),
    ("half an engine", lambda project: truncate(blob(project, "build", "first")), ["build"], BROKEN.format("build")),
    ("an engine", lambda project: blob(project, "build", "first").unlink(), ["build"], BROKEN.format("build")),
    ("a build result", lambda project: result(project, "build", "first").unlink(), ["build"], ""),
    ("a byte of a build result", lambda project: flip(result(project, "build", "first")), ["build"], BROKEN.format("build")),
    ("half an output", lambda project: truncate(blob(project, "validate", "first")), ["validate"], BROKEN.format("validate")),
    ("a validate result", lambda project: result(project, "validate", "first").unlink(), ["validate"], ""),
    ("a byte of a validate result", lambda project: flip(result(project, "validate", "first")), ["validate"], BROKEN.format("validate")),
    ("the memo", lambda project: flip(cache(project) / "memo.db"), [], ""),
    ("the locks", lambda project: (cache(project) / "locks/0.lock").write_bytes(b"{"), [], ""),
    ("everything", lambda project: shutil.rmtree(cache(project)), ["build", "validate"], ""),
]


@pytest.mark.parametrize(("damage", "steps", "said"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_a_run_that_needs_the_store_makes_just_what_is_missing(
    damaged: Crashed, built: Crashed, damage: Callable[[Crashed], object], steps: list[str], said: str
) -> None:
    shutil.rmtree(damaged.folder / "artifacts")
    damage(damaged)
    assert damaged.do("-t", "first") == 0, damaged.said()
    assert [step.step for step in damaged.steps()] == steps
    notes = [line for line in damaged.said().splitlines() if "in the cache" in line]
    assert len(notes) == (1 if said else 0), notes
    assert re.search(said, damaged.said())
    mine = engines(damaged)["first"]
    assert mine == engines(built)["first"]
    assert broken_artifacts(damaged.folder / "artifacts") == []
    assert broken_cache(cache(damaged)) == []


def test_outputs_that_are_judged_again_and_were_damaged_are_made_again(damaged: Crashed) -> None:
    flip(blob(damaged, "validate", "first"))
    target = damaged.folder / "targets/first.yaml"
    target.write_text(target.read_text() + "tolerance: {rtol: 0.002, atol: 0.002}\n")
    assert damaged.do(*BOTH) == 0, damaged.said()
    assert "was damaged and is removed; it is made again" in damaged.said()
    assert [(step.step, step.target) for step in damaged.steps()] == [("validate", "first")]
    assert broken_cache(cache(damaged)) == []


def test_a_pure_hit_reads_no_blob_and_verify_finds_what_it_did_not_see(damaged: Crashed) -> None:
    engine = blob(damaged, "build", "first")
    flip(engine)
    assert damaged.do(*BOTH) == 0, damaged.said()
    assert damaged.steps() == []
    assert broken_cache(cache(damaged)) == [f"{engine} is not what its name says"]
    assert damaged.do("-t", "first", "--force") == 0, damaged.said()
    assert [step.step for step in damaged.steps()] == ["build", "validate"]


def test_a_changed_engine_in_artifacts_is_restored_from_the_store(damaged: Crashed, built: Crashed) -> None:
    flip(damaged.folder / "artifacts/net/v1/net_v1_first.onnx")
    (damaged.folder / "artifacts/net/v1/net_v1_second.onnx").unlink()
    assert damaged.do(*BOTH) == 0, damaged.said()
    assert damaged.steps() == []
    assert engines(damaged) == engines(built)
    assert broken_artifacts(damaged.folder / "artifacts") == []
