"""What starts when one thing changes: real worker processes, counted by an interpreter that notes what it is started for.

Two targets take part: ``plain`` gets the model as given, ``half`` gets it converted to fp16. Inputs that no run here can change (images,
plugins, versions of a backend) are held against the key itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.schema import Profile, Target, field_classes
from orchestrator.models.load import load_model
from orchestrator.pipeline import identity, keys
from orchestrator.runners import bundle
from orchestrator.store.memo import Memo

from .conftest import save_net

ROOT = Path(__file__).resolve().parent.parent.parent
CPU = "backend: onnxruntime\nprovider: cpu\nplatform: any\n"
PLAIN = f"name: plain\ntag: plain\n{CPU}# a comment\ntolerance:\n  rtol: 0.001\n  atol: 0.001\n"
HALF = f"name: half\ntag: half\n{CPU}precision: fp16\ntolerance:\n  rtol: 0.05\n  atol: 0.05\n"
RUNNERS = "runners:\n  here:\n    python: bin/python3\n    slots: 2\n"
COUNTING = """#!/bin/sh
if [ -f request.json ]; then echo "$(sed -n 's/.*"step": "\\([a-z]*\\)".*/\\1/p' request.json)" >> "{log}"; fi
exec "{python}" "$@"
"""
NOTHING = (0, 0)


class Bench:
    """A project of two targets on a counting interpreter, with its own copy of the package, so that sources can change too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "steps.log"
        self.words: list[str] = []

    def make(self) -> None:
        (self.folder / "targets").mkdir(parents=True)
        (self.folder / "bin").mkdir()
        (self.folder / "package").mkdir()
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "orchestrator", self.folder / "package/orchestrator", ignore=ignore)
        shutil.copytree(ROOT / "targets", self.folder / "package/targets")
        self.write("targets/plain.yaml", PLAIN)
        self.write("targets/half.yaml", HALF)
        self.write("runners.yaml", RUNNERS)
        np.savez(self.folder / "one.npz", x=np.full((1, 3, 8, 8), 0.5, np.float32))
        self.write("net.yaml", "samples: [one.npz]\n")
        model = onnx.load(save_net(self.folder / "net.onnx"))
        external = {"save_as_external_data": True, "location": "net.bin", "size_threshold": 0}
        onnx.save(model, self.folder / "net.onnx", **external)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")

    def edit(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))

    def run(self) -> tuple[int, int]:
        """(build steps, validate steps) that one run starts."""
        interpreter = self.folder / "bin/python3"
        interpreter.write_text(COUNTING.format(log=self.log, python=sys.executable), encoding="utf-8")
        interpreter.chmod(0o755)
        self.log.write_text("", encoding="utf-8")
        targets = [path.stem for path in sorted((self.folder / "targets").glob("*.yaml"))]
        model = next(path.name for path in self.folder.glob("*.onnx"))
        words = ["build", model, "--runners", "runners.yaml", *(word for name in targets for word in ("-t", name)), *self.words]
        mine = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("ENGINEFARM_")}
        environment = {**mine, "PYTHONPATH": str(self.folder / "package"), "XDG_CACHE_HOME": str(self.folder / "worker")}
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *words], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        steps = self.log.read_text(encoding="utf-8").split()
        return steps.count("build"), steps.count("validate")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bench = Bench(tmp_path_factory.mktemp("truth") / "project")
    bench.make()
    assert bench.run() == (2, 2)
    return bench.folder


@pytest.fixture
def bench(built: Path, tmp_path: Path) -> Bench:
    """A copy of the built project: what a test changes is its own."""
    shutil.copytree(built, tmp_path / "project", symlinks=True)
    return Bench(tmp_path / "project")


def _touch(bench: Bench) -> None:
    os.utime(bench.folder / "net.onnx")
    os.utime(bench.folder / "net.bin")


def _rename(bench: Bench) -> None:
    (bench.folder / "net.onnx").rename(bench.folder / "other.onnx")
    (bench.folder / "net.yaml").rename(bench.folder / "other.yaml")


def _weights(bench: Bench) -> None:
    data = bytearray((bench.folder / "net.bin").read_bytes())
    data[2] ^= 1
    (bench.folder / "net.bin").write_bytes(data)


def _graph(bench: Bench) -> None:
    model = onnx.load(bench.folder / "net.onnx", load_external_data=False)
    model.graph.doc_string = "another byte of the graph"
    (bench.folder / "net.onnx").write_bytes(model.SerializeToString())


def _embedded(bench: Bench) -> None:
    model = onnx.load(bench.folder / "net.onnx")
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, weight.name))
    (bench.folder / "net.bin").unlink()
    onnx.save(model, bench.folder / "net.onnx")


def _input(bench: Bench) -> None:
    np.savez(bench.folder / "one.npz", x=np.full((1, 3, 8, 8), 0.25, np.float32))


def _retarget(bench: Bench) -> None:
    (bench.folder / "targets/plain.yaml").unlink()
    bench.write("targets/simple.yaml", PLAIN.replace("name: plain", "name: simple"))


def _shared_precision(bench: Bench) -> None:
    bench.write("targets/plain.yaml", HALF.replace("half", "plain"))


def _precision(bench: Bench) -> None:
    """Without the other target, whose engine would be the very one that is asked for."""
    _shared_precision(bench)
    (bench.folder / "targets/half.yaml").unlink()
    shutil.rmtree(bench.folder / ".enginefarm/cache")


def _key_order(bench: Bench) -> None:
    lines = PLAIN.split("tolerance:")[0].splitlines()
    bench.write("targets/plain.yaml", "tolerance:\n  atol: 0.001\n  rtol: 0.001\n" + "\n".join(reversed(lines)) + "\n")


def _only(step: str, other: str) -> str:
    """A module that one step imports and the other does not, relative to the package."""
    files: dict[str, set[Path]] = {}
    for name in (step, other):
        found: set[Path] = set()
        module, _ = bundle.STEPS[(name, "onnxruntime")]
        for start in ("worker/main.py", module.replace(".", "/") + ".py"):
            bundle._follow(bundle.PORTABLE / start, found)
        files[name] = found
    own = sorted(files[step] - files[other])
    assert own
    return own[0].relative_to(ROOT).as_posix()


def _module(step: str, other: str) -> Callable[[Bench], None]:
    return lambda bench: bench.write(f"package/{_only(step, other)}", _source(bench, _only(step, other)) + "\n# another byte\n")


def _source(bench: Bench, name: str) -> str:
    return (bench.folder / "package" / name).read_text(encoding="utf-8")


def _converter(bench: Bench) -> None:
    name = "orchestrator/models/half.py"
    bench.write(f"package/{name}", _source(bench, name) + "\n# another rule\n")


def _library(name: str) -> Callable[[Bench], None]:
    """Another version of a library beside the orchestrator, as its metadata says; the runner's own stays."""

    def change(bench: Bench) -> None:
        folder = bench.folder / "package" / f"{name}-99.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n", encoding="utf-8")

    return change


CHANGES: list[tuple[str, Callable[[Bench], object], tuple[int, int]]] = [
    ("nothing", lambda bench: None, NOTHING),
    ("the file is touched", _touch, NOTHING),
    ("the model is renamed", _rename, NOTHING),
    ("weights in external data", _weights, (2, 2)),
    ("the graph", _graph, (2, 2)),
    ("weights in the graph", _embedded, (2, 2)),
    ("precision", _precision, (1, 1)),
    ("precision, to what another target has", _shared_precision, NOTHING),
    ("profile", lambda bench: bench.words.extend(("--shape", "x:1x3x8x8:2x3x8x8:4x3x8x8")), (2, 2)),
    ("one validation input", _input, (0, 2)),
    ("timed runs", lambda bench: bench.edit("targets/plain.yaml", "platform: any", "platform: any\nvalidation: {runs: 3}"), (0, 1)),
    ("tolerance", lambda bench: bench.edit("targets/plain.yaml", "rtol: 0.001", "rtol: 0.002"), NOTHING),
    ("budget of the reference", lambda b: b.edit("targets/plain.yaml", "# a", "validation: {reference_budget: 60}\n# a"), NOTHING),
    ("a comment in YAML", lambda bench: bench.edit("targets/plain.yaml", "# a comment", "# another one"), NOTHING),
    ("key order in YAML", _key_order, NOTHING),
    ("the target is renamed", _retarget, NOTHING),
    ("the tag is renamed", lambda bench: bench.edit("targets/plain.yaml", "tag: plain", "tag: simple"), NOTHING),
    ("a module that only build imports", _module("build", "validate"), (2, 2)),
    ("a module that only validate imports", _module("validate", "build"), (0, 2)),
    ("the converter", _converter, (1, 1)),
    ("onnx beside the orchestrator", _library("onnx"), (1, 1)),
    ("onnxruntime beside the orchestrator", _library("onnxruntime"), (1, 1)),
    ("a label of the runner", lambda bench: bench.edit("runners.yaml", "slots: 2", "slots: 2\n    labels: [fast]"), NOTHING),
    ("slots and jobs", lambda bench: bench.words.extend(("--jobs", "1")), NOTHING),
    ("limits of a step", lambda bench: bench.words.extend(("--memory", "8 GiB", "--build-timeout", "900")), NOTHING),
]


@pytest.mark.parametrize(("change", "steps"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_exactly_these_steps_start(bench: Bench, change: Callable[[Bench], object], steps: tuple[int, int]) -> None:
    change(bench)
    assert bench.run() == steps
    bench.words = [word for word in bench.words if word]
    assert bench.run() == NOTHING, "the second run after a change has nothing to do"


def test_a_tolerance_that_outputs_do_not_meet_fails_without_running_and_a_wider_one_passes_again(bench: Bench) -> None:
    bench.edit("targets/half.yaml", "rtol: 0.05\n  atol: 0.05", "rtol: 0.0000001\n  atol: 0.0000001")
    with pytest.raises(AssertionError, match="output y"):
        bench.run()
    assert not {"build", "validate"} & set(bench.log.read_text(encoding="utf-8").split())
    bench.edit("targets/half.yaml", "rtol: 0.0000001\n  atol: 0.0000001", "rtol: 0.06\n  atol: 0.06")
    assert bench.run() == NOTHING


# --- what only the keys can show ---


def _target() -> Target:
    return load_matrix(None).select(["ampere-cu122"])[0].target


PINNED = "nvcr.io/nvidia/tensorrt:23.09-py3@sha256:" + "a" * 64


def _key(target: Target, **changed: object) -> str:
    values: dict[str, Any] = {"profiles": {}, "backend_version": "8.6.1", "converter": None, "plugins": {"p.so": "sha256:1"}}
    return keys.digest_of(keys.build_inputs(target, **{**values, "image": PINNED, "worker": "w", **changed}))


def test_an_image_counts_by_its_digest_not_by_its_tag() -> None:
    assert _key(_target(), image=PINNED.replace("23.09-py3", "latest")) == _key(_target())
    assert _key(_target(), image=PINNED.replace("a" * 64, "b" * 64)) != _key(_target())


def test_plugins_count_by_their_bytes_not_by_their_names() -> None:
    assert _key(_target(), plugins={"renamed.so": "sha256:1"}) == _key(_target())
    assert _key(_target(), plugins={"p.so": "sha256:2"}) != _key(_target())


def test_the_backends_own_version_counts() -> None:
    assert _key(_target(), backend_version="8.6.3") != _key(_target())


OTHER: dict[str, object] = {
    "name": "other",
    "tag": "other",
    "description": "another",
    "labels": ("another",),
    "extends": "cpu",
    "backend": "onnxruntime",
    "provider": "cuda",
    "tensorrt": "10.3.0",
    "tensorrt_rtx": "1.2",
    "tensorrt_from": "host",
    "cuda": "12.4",
    "compute_capability": ("8.9",),
    "platform": "linux/arm64",
    "gpu": "NVIDIA A100",
    "precision": "fp16",
    "tf32": False,
    "workspace": 1 << 30,
    "optimization_level": 5,
    "hardware_compatibility": "ampere_plus",
    "version_compatible": True,
    "tolerance": {"rtol": 0.5, "atol": 0.5, "cosine": None},
    "samples": ("other.npz",),
    "validation": {"warmup": 1, "runs": 1, "soak": 1.0, "reference_budget": 1.0},
    "jetpack": ">=6",
    "limits": {"memory": 1, "build_timeout": 1.0, "validate_timeout": 1.0},
    "runs_on": ("another",),
}
RESOLVED = ("shapes", "plugins", "image")
"""Build fields that a key takes as what they were resolved to; each has a test of its own here."""


@pytest.mark.parametrize("name", sorted(set(field_classes()) - set(RESOLVED)))
def test_every_field_acts_as_its_declared_class(name: str) -> None:
    assert name in OTHER, f"say here what another value of {name} is"
    target = _target()
    changed = Target.model_construct(**{name: getattr(target, name) for name in Target.model_fields})
    assert _key(changed) == _key(target)
    values = {**target.model_dump(mode="json"), name: OTHER[name]}
    other = Target.model_validate(values)
    assert getattr(other, name) != getattr(target, name)
    assert (_key(other) != _key(target)) == (field_classes()[name] == "build")


def test_profiles_count_as_resolved() -> None:
    profile = Profile(min=(1, 3, 8, 8), opt=(1, 3, 8, 8), max=(2, 3, 8, 8))
    assert _key(_target(), profiles={"x": profile}) != _key(_target())


def test_samples_count_by_name_and_bytes_and_made_up_ones_by_what_they_are_made_from(tmp_path: Path) -> None:
    model = load_model(save_net(tmp_path / "net.onnx"))
    memo = Memo(tmp_path / "memo.db")
    file = tmp_path / "one.npz"
    np.savez(file, x=np.zeros((1, 3, 8, 8), np.float32))
    first = identity.samples(memo, model, [str(file)], {})
    assert identity.samples(memo, model, [str(file)], {}) == first
    np.savez(file, x=np.ones((1, 3, 8, 8), np.float32))
    assert identity.samples(memo, model, [str(file)], {}) != first
    profile = Profile(min=(1, 3, 8, 8), opt=(1, 3, 8, 8), max=(2, 3, 8, 8))
    assert identity.samples(memo, model, [], {}) != identity.samples(memo, model, [], {"x": profile})


def test_the_reference_key_takes_the_library_that_computes_it() -> None:
    mine = identity.reference("onnx.reference", metadata.version("onnx"), "sha256:1", "sha256:2")
    assert identity.reference("onnx.reference", "99", "sha256:1", "sha256:2") != mine
    assert identity.reference("onnxruntime-cpu", metadata.version("onnx"), "sha256:1", "sha256:2") != mine
