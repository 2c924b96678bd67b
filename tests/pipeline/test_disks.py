"""Disks that are full and clocks that are wrong: what was built is kept, nothing is half written, nothing old is taken for new."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from .conftest import Answer, Project, save_net
from .crash import COUNTING, ForkedProject
from .forked import Fate
from .whole import broken_artifacts, broken_cache, left_over

FULL = "no space at all"
BUILD = ("build", "net.onnx", "-t", "cpu", "--progress", "plain")


def save_heavy_net(path: Path) -> None:
    """A product with 256 kB of weights, which the engine holds too."""
    weight = numpy_helper.from_array(np.random.default_rng(3).standard_normal((256, 256)).astype(np.float32) * 0.1, "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 256])],
        [weight],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path)


class SmallDisk:
    """Runs of the command in a project in which one folder is a disk of its own; nobody else sees it, and it goes with the last run."""

    def __init__(self, project: Project, place: str) -> None:
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("mounting needs root, and unshare")
        self.project = project
        self.place = place
        (project.folder / place).mkdir(parents=True)
        counting = project.folder / "python3"
        counting.write_text(COUNTING.format(python=sys.executable), encoding="utf-8")
        counting.chmod(0o755)
        self._words = [sys.executable, "-m", "orchestrator", *BUILD, "--python", str(counting)]

    def runs(self, *sizes: str) -> list[Answer]:
        """A run on a disk of each size, one after the other; what the first ones wrote is there for the later ones."""
        script = ['mount -t tmpfs none "$0" || exit 77']
        for number, asked in enumerate(sizes):
            size = "4k" if asked == FULL else asked
            if asked == FULL:
                script.append('head -c 4096 /dev/zero >"$0/filler"')
            script.append(f'mount -o remount,size={size} "$0" && ("$@" >out-{number} 2>err-{number}; echo $? >code-{number})')
            script.append(f'cp -a "$0" disk-{number}')
        words = ["unshare", "-m", "sh", "-c", "\n".join(script), self.place, *self._words]
        done = subprocess.run(words, cwd=self.project.folder, capture_output=True, text=True, check=False)
        if done.returncode == 77:
            pytest.skip("this machine does not let root mount")
        assert done.returncode == 0, done.stderr
        return [self._answer(number) for number in range(len(sizes))]

    def _answer(self, number: int) -> Answer:
        folder = self.project.folder
        texts = [(folder / f"{name}-{number}").read_text(encoding="utf-8") for name in ("code", "out", "err")]
        assert "Traceback" not in texts[2], texts[2]
        return Answer(int(texts[0]), texts[1], texts[2])

    def after(self, number: int) -> Path:
        """What was on the disk after a run."""
        return self.project.folder / f"disk-{number}"

    def steps(self) -> list[str]:
        lines = (self.project.folder / "steps.log").read_text(encoding="utf-8").splitlines()
        return [line.split()[0] for line in lines if "/work/steps/net/" in line]


@pytest.mark.parametrize("size", ["8k", "120k"])
def test_a_full_disk_of_the_cache_costs_the_cache_and_a_warning(project: Project, size: str) -> None:
    save_heavy_net(project.folder / "net.onnx")
    disk = SmallDisk(project, ".enginefarm/cache")
    full, roomy = disk.runs(size, "10m")
    assert (full.code, roomy.code) == (0, 0), (full.err, roomy.err)
    assert full.err.count("the cache cannot be written") == 1
    assert "No space left on device" in full.err
    assert "1 passed in" in full.out
    assert "the cache cannot be written" not in roomy.err
    assert disk.steps() == ["build", "validate"], "the engine is in artifacts all the same"
    assert broken_artifacts(project.folder / "artifacts") == []
    assert broken_cache(disk.after(0)) == broken_cache(disk.after(1)) == []
    assert left_over(project.folder, disk.after(0)) == []


@pytest.mark.parametrize("size", ["120k", "268k"])
def test_a_full_disk_of_the_engines_ends_with_4_and_the_next_run_needs_no_step(project: Project, size: str) -> None:
    save_heavy_net(project.folder / "net.onnx")
    disk = SmallDisk(project, "artifacts")
    full, roomy = disk.runs(size, "10m")
    assert full.code == 4, full.err
    assert full.err.count("error[EF400]: cannot write") == full.err.count("No space left on device") == 1
    kept = re.search(r"the engines are kept in (\S+)", full.err)
    assert kept is not None
    (engine,) = (project.folder / kept[1]).iterdir()
    assert [path.name for path in disk.after(0).rglob("*") if path.is_file()] == [".lock"]
    assert roomy.code == 0, roomy.err
    assert disk.steps() == ["build", "validate"], "both were in the cache"
    assert broken_artifacts(disk.after(1)) == []
    assert (disk.after(1) / "net/v1/net_v1_cpu.onnx").read_bytes() == engine.read_bytes()
    assert (disk.after(1) / "net/latest.json").exists()


def test_without_any_space_for_engines_nothing_is_built(project: Project) -> None:
    save_heavy_net(project.folder / "net.onnx")
    disk = SmallDisk(project, "artifacts")
    (full,) = disk.runs(FULL)
    assert full.code == 4, full.err
    assert full.err.count("error[EF400]: cannot write to artifacts/net") == full.err.count("No space left on device") == 1
    assert not (project.folder / "steps.log").exists()
    assert [path.name for path in disk.after(0).rglob("*")] == ["filler"]


@pytest.mark.parametrize("shift", [-86400.0, -0.05, 86400.0])
def test_a_clock_that_was_set_makes_nothing_old_new(tmp_path: Path, shift: float) -> None:
    project = ForkedProject(tmp_path)
    model = save_net(project.folder / "net.onnx")

    def run_at(shift: float, *words: str) -> Answer:
        return project.run(*words, fate=Fate(clock=shift))

    build = (*BUILD, "--json", "--model-version", "1")
    first = run_at(0, *build)
    assert (first.code, first.builds["cpu"]["cached"]) == (0, False), first.err
    same = run_at(shift, *build)
    assert (same.code, same.builds["cpu"]["cached"]) == (0, True), same.err

    # other weights under the same name, size and time of change
    before, digest = model.stat(), project.record("cpu")["digest"]
    save_net(model, seed=1)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model.stat().st_size == before.st_size
    changed = run_at(shift, *BUILD, "--json", "--model-version", "2")
    assert (changed.code, changed.builds["cpu"]["cached"]) == (0, False), changed.err
    assert project.record("cpu", version=2)["digest"] != digest

    for now in (shift, 0.0):
        again = run_at(now, *BUILD, "--json", "--model-version", "2")
        assert (again.code, again.builds["cpu"]["cached"]) == (0, True), again.err
        assert run_at(now, "plan", "net.onnx", "-t", "cpu", "--model-version", "2", "--exit-code").code == 0
    # the engine of the first model, overwritten in place
    engine = project.folder / "artifacts/net/v2/net_v2_cpu.onnx"
    status, right = engine.stat(), engine.read_bytes()
    engine.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    os.utime(engine, ns=(status.st_atime_ns, status.st_mtime_ns))
    restored = run_at(shift, *BUILD, "--json", "--model-version", "2")
    assert restored.code == 0, restored.err
    assert engine.read_bytes() == right
    assert broken_artifacts(project.folder / "artifacts") == []
    assert run_at(shift, "runs", "--json").code == run_at(shift, "cache", "verify").code == 0
