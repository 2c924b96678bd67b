from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from orchestrator.errors import SAMPLES_BAD, EnginefarmError, flatten
from orchestrator.matrix.schema import Profile
from orchestrator.models import samples as samples_module
from orchestrator.models.arrays import read_raw
from orchestrator.models.load import load_model
from orchestrator.models.model import Model
from orchestrator.models.samples import load_samples, make_samples

PROFILES = {"x": Profile(min=(1, 3), opt=(2, 3), max=(4, 3))}


@pytest.fixture
def model(make: Any) -> Model:
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Identity", ["k"], ["z"])]
    inputs = [make.value("x", ["n", 3]), make.value("k", [2], TensorProto.INT64)]
    outputs = [make.value("y", ["n", 3]), make.value("z", [2], TensorProto.INT64)]
    return load_model(make.save(make.model(nodes, inputs, outputs)), deep=False)


def arrays(sample: dict[str, Any], part: str = "inputs") -> dict[str, np.ndarray]:
    return {tensor["name"]: read_raw(tensor) for tensor in sample[part]}


def refused(model: Model, path: Path, dest: Path) -> list[EnginefarmError]:
    with pytest.raises(EnginefarmError) as caught:
        load_samples(model, [path], dest, PROFILES)
    assert {problem.kind for problem in flatten(caught.value)} == {SAMPLES_BAD}
    return list(flatten(caught.value))


def test_made_samples_have_the_usual_and_the_smallest_shape(model: Model, tmp_path: Path) -> None:
    usual, smallest = make_samples(model, PROFILES, tmp_path)
    assert [usual["name"], smallest["name"]] == ["opt", "min"]
    assert arrays(usual)["x"].shape == (2, 3)
    assert arrays(smallest)["x"].shape == (1, 3)
    assert usual["inputs"][0]["dtype"] == "float32"
    assert usual["expected"] is None
    x, k = arrays(usual)["x"], arrays(usual)["k"]
    assert 0 <= x.min() < x.max() < 1
    assert k.dtype == np.int64
    assert ((k >= 0) & (k < 2)).all()  # an index of the smallest table


def test_one_sample_is_enough_when_all_shapes_are_the_same(model: Model, tmp_path: Path) -> None:
    same = {"x": Profile(min=(2, 3), opt=(2, 3), max=(2, 3))}
    assert [sample["name"] for sample in make_samples(model, same, tmp_path)] == ["opt"]


def test_made_samples_are_the_same_every_time(model: Model, tmp_path: Path) -> None:
    first, again = make_samples(model, PROFILES, tmp_path / "a"), make_samples(model, PROFILES, tmp_path / "b")
    assert [arrays(s)["x"].tobytes() for s in first] == [arrays(s)["x"].tobytes() for s in again]
    other = make_samples(model, PROFILES, tmp_path / "c", seed=1)
    assert arrays(other[0])["x"].tobytes() != arrays(first[0])["x"].tobytes()
    # pinned: the stream is part of what a digest of samples means
    assert arrays(first[0])["x"][0].tolist() == pytest.approx(PINNED)


PINNED = [0.9217813014984131, 0.037441957741975784, 0.26253843307495117]


@pytest.mark.parametrize(
    ("code", "dtype", "size"),
    [
        (TensorProto.BOOL, "bool", 1),
        (TensorProto.UINT8, "uint8", 1),
        (TensorProto.INT8, "int8", 1),
        (TensorProto.FLOAT16, "float16", 2),
        (TensorProto.BFLOAT16, "bfloat16", 2),
        (TensorProto.DOUBLE, "float64", 8),
        (TensorProto.FLOAT8E4M3FN, "float8_e4m3fn", 1),
        (TensorProto.INT4, "int4", 1),
    ],
)
def test_every_numeric_dtype_can_be_made(make: Any, tmp_path: Path, code: int, dtype: str, size: int) -> None:
    identity = make.model([helper.make_node("Identity", ["x"], ["y"])], [make.value("x", [64], code)], [make.value("y", [64], code)])
    (sample,) = make_samples(load_model(make.save(identity), deep=False), {}, tmp_path)
    tensor = sample["inputs"][0]
    assert tensor["dtype"] == dtype
    assert tensor["file"].stat().st_size == 64 * size
    assert len(np.unique(read_raw(tensor).astype(np.float64))) > 1


def test_strings_cannot_be_made_up(make: Any, tmp_path: Path) -> None:
    code = TensorProto.STRING
    identity = make.model([helper.make_node("Identity", ["x"], ["y"])], [make.value("x", [2], code)], [make.value("y", [2], code)])
    with pytest.raises(EnginefarmError, match="string"):
        make_samples(load_model(make.save(identity), deep=False), {}, tmp_path)


def test_a_scalar_input_has_one_value(make: Any, tmp_path: Path) -> None:
    neg = make.neg(inputs=[make.value("x", [])], outputs=[make.value("y", [])])
    (sample,) = make_samples(load_model(make.save(neg), deep=False), {}, tmp_path)
    assert sample["inputs"][0]["shape"] == []
    assert sample["inputs"][0]["file"].stat().st_size == 4


def test_given_samples_keep_values_and_expected_outputs(model: Model, tmp_path: Path) -> None:
    x, k = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([5, 6])
    np.savez(tmp_path / "s.npz", x=x, k=k, y=-x, z=k)
    np.savez(tmp_path / "only-inputs.npz", x=np.asfortranarray(x), k=k.astype(">i8"))
    first, second = load_samples(model, [tmp_path / "s.npz", tmp_path / "only-inputs.npz"], tmp_path / "out", PROFILES)
    assert (first["name"], second["name"]) == ("s", "only-inputs")
    assert (arrays(first, "expected")["y"] == -x).all()
    assert second["expected"] is None
    assert (arrays(second)["x"] == x).all()
    assert (arrays(second)["k"] == k).all()


def test_samples_of_the_same_file_name_get_two_names(model: Model, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "s.npz", x=np.ones((1, 3), np.float32), k=np.zeros(2, np.int64))
    samples = load_samples(model, [tmp_path / "a" / "s.npz", tmp_path / "b" / "s.npz"], tmp_path / "out", PROFILES)
    assert [sample["name"] for sample in samples] == ["s", "s-2"]


GOOD = {"x": np.ones((2, 3), np.float32), "k": np.zeros(2, np.int64)}
BAD: list[tuple[dict[str, Any], str, str | None]] = [
    ({"k": None}, "input 'k' is missing", None),
    ({"images": np.ones(1)}, "no input or output 'images'", None),
    ({"x": np.ones((2, 3))}, "float64 in the file and float32 in the model", 'array.astype("float32")'),
    ({"x": np.ones((2, 3, 1), np.float32)}, "3 dimensions in the file and 2", None),
    ({"x": np.ones((2, 4), np.float32)}, "the model wants [n, 3]", None),
    ({"x": np.ones((5, 3), np.float32)}, "outside its profile", None),
    ({"y": np.ones((2, 3), np.float32)}, "expected output 'z' is missing", None),
    ({"x": np.array([{}], dtype=object)}, "pickle", None),
]


@pytest.mark.parametrize(("change", "text", "fix"), BAD, ids=[case[1] for case in BAD])
def test_bad_samples_are_refused(model: Model, tmp_path: Path, change: dict[str, Any], text: str, fix: str | None) -> None:
    kept = {name: value for name, value in (GOOD | change).items() if value is not None}
    np.savez(tmp_path / "s.npz", **kept)
    (error,) = refused(model, tmp_path / "s.npz", tmp_path / "out")
    assert text in error.what
    assert fix is None or fix in str(error.fix)


def test_a_misspelt_name_is_met_with_the_one_that_was_meant(model: Model, tmp_path: Path, make: Any) -> None:
    images = make.model([helper.make_node("Neg", ["images"], ["y"])], [make.value("images", [2])], [make.value("y", [2])])
    np.savez(tmp_path / "s.npz", image=np.ones(2, np.float32))
    unknown, missing = refused(load_model(make.save(images), deep=False), tmp_path / "s.npz", tmp_path / "out")
    assert unknown.fix == "did you mean 'images'?"
    assert "'images' is missing" in missing.what


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"\x93NUMPY\x01\x00", b"text"])
def test_what_is_no_npz_is_refused(model: Model, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.npz").write_bytes(content)
    assert "not a readable .npz" in refused(model, tmp_path / "s.npz", tmp_path / "out")[0].what


def test_a_zip_of_something_else_and_a_damaged_npz_are_refused(model: Model, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert refused(model, tmp_path / "other.npz", tmp_path / "out")
    np.savez_compressed(tmp_path / "s.npz", **GOOD)
    data = bytearray((tmp_path / "s.npz").read_bytes())
    data[60:90] = bytes(30)
    (tmp_path / "s.npz").write_bytes(data)
    assert refused(model, tmp_path / "s.npz", tmp_path / "out")


def test_a_missing_file_is_said(model: Model, tmp_path: Path) -> None:
    assert "no such file" in refused(model, tmp_path / "nowhere.npz", tmp_path / "out")[0].what


def test_named_dims_must_agree_between_inputs(make: Any, tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    two = make.model(nodes, [make.value("a", ["n", 3]), make.value("b", ["n", 3])], [make.value("y", ["n", 3])])
    model = load_model(make.save(two), deep=False)
    np.savez(tmp_path / "s.npz", a=np.ones((1, 3), np.float32), b=np.ones((2, 3), np.float32))
    profiles = dict.fromkeys("ab", PROFILES["x"])
    with pytest.raises(EnginefarmError, match="the model calls both 'n'"):
        load_samples(model, [tmp_path / "s.npz"], tmp_path / "out", profiles)


def test_made_up_and_given_samples_say_which_they_are(model: Model, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", **GOOD)
    assert [sample["made_up"] for sample in make_samples(model, PROFILES, tmp_path / "a")] == [True, True]
    assert [sample["made_up"] for sample in load_samples(model, [tmp_path / "s.npz"], tmp_path / "b", PROFILES)] == [False]


def test_a_sample_is_the_same_in_chunks_and_in_one_piece(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    neg = make.neg(inputs=[make.value("x", ["n"])], outputs=[make.value("y", ["n"])])
    dynamic, profiles = load_model(make.save(neg), deep=False), {"x": Profile(min=(999,), opt=(1001,), max=(1001,))}
    whole = make_samples(dynamic, profiles, tmp_path / "a")
    monkeypatch.setattr(samples_module, "_CHUNK", 100)
    parts = make_samples(dynamic, profiles, tmp_path / "b")
    assert [arrays(s)["x"].tobytes() for s in whole] == [arrays(s)["x"].tobytes() for s in parts]
    assert [arrays(s)["x"].shape for s in parts] == [(1001,), (999,)]


def test_memory_does_not_grow_with_a_made_up_tensor(make: Any, tmp_path: Path) -> None:
    large = load_model(make.save(make.neg(inputs=[make.value("x", [8 << 20])], outputs=[make.value("y", None)])), deep=False)
    tracemalloc.start()
    try:
        (sample,) = make_samples(large, {}, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sample["inputs"][0]["file"].stat().st_size == 32 << 20
    assert peak < 40 << 20  # a chunk of 2^20 elements, a few times over


def test_a_tensor_beyond_the_limit_is_refused_before_anything_is_made(make: Any, tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["a"], ["y"]), helper.make_node("Identity", ["x"], ["z"])]
    huge = make.model(nodes, [make.value("a", [2]), make.value("x", [1 << 20, 257])], [make.value("y", [2]), make.value("z", None)])
    with pytest.raises(EnginefarmError, match="input 'x' has 269,484,032 elements: no sample is made up beyond 268,435,456") as caught:
        make_samples(load_model(make.save(huge), deep=False), {}, tmp_path / "out")
    assert caught.value.kind == SAMPLES_BAD
    assert "samples:" in str(caught.value.fix)
    assert not (tmp_path / "out").exists()
