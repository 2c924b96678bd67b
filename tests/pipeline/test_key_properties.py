"""Keys over any input: whatever a build is made from changes its key, and how a file is written down does not."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from orchestrator.errors import EnginefarmError
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.schema import Profile, Target
from orchestrator.models.load import load_model
from orchestrator.pipeline import identity, keys
from orchestrator.store.memo import Memo

from .conftest import save_net

DIGESTS = st.binary(min_size=1, max_size=2).map(lambda data: f"sha256:{data.hex():0>64}")
PROFILES = st.integers(1, 4).map(lambda most: {"x": Profile(min=(1, 3, 8, 8), opt=(1, 3, 8, 8), max=(most, 3, 8, 8))})
BASE: dict[str, Any] = {"name": "mine", "tag": "mine", "backend": "tensorrt-rtx", "tensorrt_rtx": "1.4", "platform": "linux/amd64"}
# fields that go into a build, each with values of which any two are another build
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "compute_capability": st.sampled_from([["8.9"], ["8.6"], ["8.6", "8.9"]]),
    "precision": st.sampled_from(["fp32", "fp16"]),
    "tf32": st.booleans(),
    "workspace": st.sampled_from([None, 1 << 28, 1 << 30]),
    "optimization_level": st.sampled_from([None, 0, 5]),
    "tensorrt_rtx": st.sampled_from(["1.4", "1.7"]),
}
# what is said of a target that no build depends on
BESIDE: dict[str, st.SearchStrategy[Any]] = {
    "description": st.text("abc :#", max_size=8),
    "labels": st.lists(st.sampled_from(["one", "two"]), unique=True),
    "tolerance": st.sampled_from([{"rtol": 0.5, "atol": 0.5}, {"rtol": 0.1, "atol": 0.2}]),
    "samples": st.sampled_from([["a.npz"], ["b.npz"]]),
    "validation": st.fixed_dictionaries(
        {}, optional={"warmup": st.integers(0, 9), "runs": st.integers(1, 9), "reference_budget": st.just(1)}
    ),
    "limits": st.sampled_from([{"build_timeout": 100}, {"build_timeout": 200}]),
}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Everything that a build key is over."""

    model: str
    fields: dict[str, Any]
    profiles: dict[str, Profile]
    backend_version: str
    converter: str | None
    plugins: list[str]
    image: str | None
    worker: str

    def key(self, **beside: Any) -> str:
        target = Target.model_validate({**BASE, **self.fields, **beside})
        inputs = keys.build_inputs(
            target,
            profiles=self.profiles,
            backend_version=self.backend_version,
            converter=self.converter,
            plugins={f"{number}.so": digest for number, digest in enumerate(self.plugins)},
            image=None if self.image is None else f"nvcr.io/nvidia/tensorrt:23.09-py3@{self.image}",
            worker=self.worker,
        )
        return keys.build_key(self.model, keys.digest_of(inputs))

    def means(self) -> dict[str, Any]:
        """The same for two builds that are the same: plugins have no order."""
        return {**dataclasses.asdict(self), "plugins": sorted(self.plugins)}


INPUTS = st.builds(
    Inputs,
    model=DIGESTS,
    fields=st.fixed_dictionaries(FIELDS),
    profiles=PROFILES,
    backend_version=st.sampled_from(["1.2.0", "1.2.1"]),
    converter=st.sampled_from([None, "onnx 1, rules a", "onnx 2, rules a"]),
    plugins=st.lists(DIGESTS, max_size=3, unique=True),
    image=st.none() | DIGESTS,
    worker=DIGESTS,
)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Inputs)])
@settings(max_examples=40)
@given(before=INPUTS, other=INPUTS)
def test_any_change_of_any_input_of_a_build_is_another_key(name: str, before: Inputs, other: Inputs) -> None:
    after = dataclasses.replace(before, **{name: getattr(other, name)})
    assert (after.key() == before.key()) == (after.means() == before.means())


@given(st.data(), INPUTS)
def test_what_is_beside_a_build_is_not_in_its_key(data: st.DataObject, inputs: Inputs) -> None:
    assert inputs.key(**data.draw(st.fixed_dictionaries({}, optional=BESIDE))) == inputs.key()


@given(INPUTS, st.randoms())
def test_plugins_count_without_their_order(inputs: Inputs, chance: Any) -> None:
    mixed = list(inputs.plugins)
    chance.shuffle(mixed)
    assert dataclasses.replace(inputs, plugins=mixed).key() == inputs.key()


# each reads the whole matrix: a failure is shown as it was found
WITH_FILES = settings(max_examples=12, deadline=None, phases=[Phase.generate])


def written(values: dict[str, Any], data: st.DataObject) -> str:
    """The same values in YAML, in any order, style and company of comments."""
    names = data.draw(st.permutations(sorted(values)), label="order")
    comment = st.sampled_from(["", "# a comment\n", "\n", "#\n\n"])
    style = data.draw(st.sampled_from([None, True, False]), label="flow style")
    text = data.draw(comment)
    for name in names:
        value = values[name]
        if isinstance(value, dict):
            value = {key: value[key] for key in data.draw(st.permutations(sorted(value)))}
        lines = yaml.safe_dump({name: value}, default_flow_style=False if not isinstance(value, dict | list) else style, sort_keys=False)
        text += (lines if lines[0] != "{" else lines.strip().removeprefix("{").removesuffix("}") + "\n") + data.draw(comment)
    return text


def key_of(text: str) -> str:
    """The build inputs of the target that a project writes down like this."""
    project = Path(tempfile.mkdtemp())
    try:
        (project / "targets").mkdir()
        (project / "targets/mine.yaml").write_text(text, encoding="utf-8")
        target = load_matrix(project).select(["mine"])[0].target
    finally:
        shutil.rmtree(project)
    inputs = keys.build_inputs(target, profiles={}, backend_version="1", converter=None, plugins={}, image=None, worker="w")
    return keys.digest_of(inputs)


@WITH_FILES
@given(st.data(), st.fixed_dictionaries(FIELDS), st.fixed_dictionaries({}, optional=BESIDE))
def test_order_comments_and_formatting_of_yaml_are_not_in_the_key(
    data: st.DataObject, fields: dict[str, Any], beside: dict[str, Any]
) -> None:
    values = {**BASE, **{name: value for name, value in fields.items() if value is not None}}
    assert key_of(written({**values, **beside}, data)) == key_of(yaml.safe_dump(values))


@WITH_FILES
@given(st.fixed_dictionaries(FIELDS), st.fixed_dictionaries(FIELDS))
def test_two_files_that_say_different_things_have_different_keys(one: dict[str, Any], other: dict[str, Any]) -> None:
    def key(fields: dict[str, Any]) -> str:
        return key_of(yaml.safe_dump({**BASE, **{name: value for name, value in fields.items() if value is not None}}))

    assert (key(one) == key(other)) == (one == other)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save_net(tmp_path_factory.mktemp("model") / "net.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="net.bin", size_threshold=0)
    return path


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", ["net.onnx", "net.bin"])
def test_any_bit_of_a_model_or_its_weights_is_in_its_digest(model: Path, name: str, data: st.DataObject) -> None:
    path = model.with_name(name)
    right, before = path.read_bytes(), load_model(model, deep=False).digest
    at, bit = data.draw(st.integers(0, len(right) - 1)), data.draw(st.integers(0, 7))
    try:
        path.write_bytes(right[:at] + bytes([right[at] ^ 1 << bit]) + right[at + 1 :])
        assert digest_or_none(lambda: load_model(model, deep=False).digest) != before
    finally:
        path.write_bytes(right)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_bit_of_a_plugin_is_in_the_build_key_and_of_a_sample_in_the_key_of_its_check_alone(model: Path, data: st.DataObject) -> None:
    loaded = load_model(model, deep=False)
    plugin, sample = model.with_name("plugin.so"), model.with_name("sample.npz")
    plugin.write_bytes(bytes(range(64)))
    np.savez(sample, x=np.zeros((1, 3, 8, 8), np.float32))
    inputs = Inputs(loaded.digest, {}, {}, "1", None, [], None, "w")

    def found() -> tuple[str, str]:
        """Build key and run key."""
        memo = Memo(model.with_name("memo.db"))
        build = dataclasses.replace(inputs, plugins=[memo.digest(plugin)]).key(samples=[str(sample)])
        run = keys.run_key(build, identity.samples(memo, loaded, [str(sample)], {}), "how")
        memo.close()
        return build, run

    before = found()
    path = data.draw(st.sampled_from([plugin, sample]))
    bytes_before, at = bytearray(path.read_bytes()), data.draw(st.integers(0, path.stat().st_size - 1))
    bytes_before[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes_before)
    after = found()
    assert after[1] != before[1]
    assert (after[0] != before[0]) == (path == plugin)


def digest_or_none(load: Callable[[], str]) -> str | None:
    """None for a model that is refused."""
    try:
        return load()
    except EnginefarmError:
        return None
