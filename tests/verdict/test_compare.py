from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from orchestrator.matrix.schema import Tolerance
from orchestrator.verdict import compare as module
from orchestrator.verdict.compare import compare, compare_sample
from orchestrator.verdict.judge import judge
from orchestrator.verdict.tolerance import default_tolerance, effective_precision

TOLERANCE = Tolerance(rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def tensor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tensors")
    count = iter(range(10**6))

    def make(name, values, dtype=None, **changes):
        array = np.asarray(values, dtype=dtype)
        file = folder / f"{next(count)}.bin"
        file.write_bytes(array.astype(array.dtype.newbyteorder("<")).tobytes() if array.dtype.isbuiltin == 1 else array.tobytes())
        return {"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "file": file} | changes

    return make


def _one(reference, output, tolerance=TOLERANCE):
    (figure,) = compare_sample([reference], [output], tolerance)
    return figure


def test_equal_outputs_agree(tensor):
    figure = _one(tensor("y", [[1.0, 2.0]], "float32"), tensor("y", [[1.0, 2.0]], "float32"))
    assert (figure.ok, figure.mismatched, figure.elements, figure.max_abs, figure.max_rel, figure.note) == (True, 0, 2, 0.0, 0.0, "")
    assert figure.cosine == pytest.approx(1.0)


def test_differences_are_counted_and_measured(tensor):
    figure = _one(tensor("y", [1.0, 2.0, 4.0, 0.0], "float32"), tensor("y", [1.0, 2.5, 3.0, 0.00005], "float32"))
    assert (figure.ok, figure.mismatched, figure.max_abs, figure.max_rel) == (False, 2, 1.0, 0.25)


def test_the_limit_itself_is_allowed(tensor):
    figure = _one(tensor("y", [100.0], "float64"), tensor("y", [100.5], "float64"), Tolerance(rtol=0.0, atol=0.5))
    assert figure.ok


def test_outputs_are_matched_by_name_not_by_order(tensor):
    reference = [tensor("a", [1.0], "float32"), tensor("b", [2.0], "float32")]
    outputs = [tensor("b", [2.0], "float32"), tensor("a", [1.0], "float32")]
    assert [(figure.name, figure.ok) for figure in compare_sample(reference, outputs, TOLERANCE)] == [("a", True), ("b", True)]


def test_two_outputs_of_one_shape_that_were_swapped_are_found(tensor):
    reference = [tensor("a", [1.0], "float32"), tensor("b", [2.0], "float32")]
    outputs = [tensor("b", [1.0], "float32"), tensor("a", [2.0], "float32")]
    assert [figure.ok for figure in compare_sample(reference, outputs, TOLERANCE)] == [False, False]


def test_missing_and_additional_outputs_are_named(tensor):
    figures = compare_sample([tensor("a", [1.0]), tensor("b", [1.0])], [tensor("a", [1.0]), tensor("c", [1.0])], TOLERANCE)
    assert [(figure.name, figure.ok, figure.note) for figure in figures] == [
        ("a", True, ""),
        ("b", False, "the engine does not give this output"),
        ("c", False, "the reference has no such output"),
    ]


def test_data_dependent_shapes_are_compared_first(tensor):
    figure = _one(tensor("indices", [[0, 3, 5]], "int64"), tensor("indices", [[0, 3]], "int64"))
    assert (figure.ok, figure.note, figure.elements) == (False, "shape [1, 2], reference [1, 3]", 0)


def test_empty_outputs_of_one_shape_agree(tensor):
    figure = _one(tensor("indices", np.empty((0, 4), "int64")), tensor("indices", np.empty((0, 4), "int64")))
    assert (figure.ok, figure.elements, figure.max_abs) == (True, 0, None)


def test_scalars_have_one_element(tensor):
    assert _one(tensor("loss", 1.5, "float32"), tensor("loss", 1.5, "float32")).elements == 1


@pytest.mark.parametrize(
    ("reference", "output", "mismatched"),
    [
        ([np.nan, 1.0], [np.nan, 1.0], 0),
        ([np.inf, -np.inf], [np.inf, -np.inf], 0),
        ([np.inf, 1.0], [-np.inf, 1.0], 1),
        ([1.0, 1.0], [np.nan, 1.0], 1),
        ([np.nan, 1.0], [1.0, np.nan], 2),
        ([65504.0, 1.0], [np.inf, 1.0], 1),
    ],
)
def test_nan_and_infinity_have_to_be_at_the_same_places(tensor, reference, output, mismatched):
    figure = _one(tensor("y", reference, "float32"), tensor("y", output, "float32"))
    assert (figure.mismatched, figure.ok) == (mismatched, mismatched == 0)
    assert (f"NaN or infinity does not match at {mismatched} of 2 places" in figure.note) is (mismatched > 0)


def test_an_output_without_a_finite_value_is_no_evidence(tensor):
    figure = _one(tensor("y", [np.nan], "float32"), tensor("y", [np.nan], "float32"))
    assert (figure.ok, figure.max_abs, figure.cosine, figure.note) == (True, None, None, "no finite value in it")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_integers_and_booleans_are_exact_whatever_the_tolerance(tensor, dtype):
    wide = Tolerance(rtol=1.0, atol=100.0)
    assert _one(tensor("ids", [0, 1, 1], dtype), tensor("ids", [0, 1, 1], dtype), wide).ok
    figure = _one(tensor("ids", [0, 1, 1], dtype), tensor("ids", [0, 0, 1], dtype), wide)
    assert (figure.ok, figure.mismatched, figure.max_abs, figure.max_rel, figure.cosine) == (False, 1, 1.0, None, None)


def test_neighbours_that_float64_cannot_tell_apart_differ(tensor):
    figure = _one(tensor("ids", [2**62], "int64"), tensor("ids", [2**62 + 1], "int64"))
    assert (figure.mismatched, figure.max_abs) == (1, 1.0)


def test_widths_of_one_kind_are_compared(tensor):
    assert _one(tensor("ids", [1, 2], "int64"), tensor("ids", [1, 2], "int32")).ok
    assert _one(tensor("y", [1.0, 2.0], "float32"), tensor("y", [1.0, 2.0], "float16")).ok


def test_other_kinds_are_not(tensor):
    assert _one(tensor("y", [1.0], "float32"), tensor("y", [1], "int32")).note == "dtype int32, reference float32"
    assert _one(tensor("y", [True]), tensor("y", [1], "uint8")).note == "dtype uint8, reference bool"


def test_fp16_differences_are_taken_in_float64(tensor):
    figure = _one(tensor("y", [60000.0], "float16"), tensor("y", [-60000.0], "float16"))
    assert figure.max_abs == 120000.0 - 2 * (60000.0 - float(np.float16(60000)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_of_ml_dtypes_are_read(tensor, dtype):
    scalar = getattr(ml_dtypes, dtype)
    figure = _one(tensor("y", [1.0, -2.0, 0.5], "float32"), tensor("y", [1.0, -2.0, 0.75], scalar))
    assert (figure.mismatched, figure.max_abs) == (1, 0.25)


def test_complex_outputs_are_compared_by_part(tensor):
    figure = _one(tensor("y", [1 + 2j, 3j], "complex64"), tensor("y", [1 + 2j, 1 + 3j], "complex64"))
    assert (figure.mismatched, figure.max_abs, figure.elements) == (1, 1.0, 2)


@pytest.mark.parametrize("dtype", ["string", "object", "V", "V8", "i4,f4", "", "no such", "datetime64", "U3", "finfo"])
def test_types_that_cannot_be_compared_are_named(tensor, dtype):
    figure = _one(tensor("y", [1.0], "float32"), tensor("y", [1.0], "float32") | {"dtype": dtype})
    assert (figure.ok, figure.note) == (False, f"dtype {dtype} cannot be compared")


def test_a_file_of_another_size_is_named(tensor):
    figure = _one(tensor("y", [1.0, 2.0], "float32"), tensor("y", [1.0], "float32", shape=[2]))
    assert figure.note == "the output's file holds 4 bytes, [2] of float32 are 8"


def test_a_low_cosine_fails_although_every_value_is_close(tensor):
    figure = _one(tensor("y", [1e-3, 0.0], "float32"), tensor("y", [0.0, 1e-3], "float32"), Tolerance(atol=0.1, cosine=0.9))
    assert (figure.ok, figure.mismatched, figure.cosine) == (False, 0, 0.0)
    assert figure.note == "cosine similarity 0 is below 0.9"


def test_zero_is_like_zero_and_unlike_anything_else(tensor):
    zeros, ones = tensor("y", [0.0, 0.0], "float32"), tensor("y", [1.0, 1.0], "float32")
    assert _one(zeros, zeros).cosine == 1.0
    assert _one(zeros, ones).cosine == 0.0


def test_huge_values_give_finite_figures(tensor):
    figure = _one(tensor("y", [1e308, 1.0], "float64"), tensor("y", [-1e308, 1.0], "float64"))
    assert figure.mismatched == 1
    assert figure.max_abs == float(np.finfo(np.float64).max)
    assert figure.cosine is None


finite = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 40), elements=finite), st.data())
def test_chunks_do_not_change_the_figures(tensor, values, data):
    other = values + data.draw(hnp.arrays(np.float32, values.shape, elements=st.floats(-1, 1, width=32)))
    reference, output = tensor("y", values, "float32"), tensor("y", other, "float32")
    whole = _one(reference, output)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", 3)
        parts = _one(reference, output)
    assert (parts.mismatched, parts.max_abs, parts.max_rel, parts.ok) == (whole.mismatched, whole.max_abs, whole.max_rel, whole.ok)
    assert parts.cosine == pytest.approx(whole.cosine, abs=1e-9)
    expected = np.abs(other.astype(float) - values) > TOLERANCE.atol + TOLERANCE.rtol * np.abs(values.astype(float))
    assert whole.mismatched == int(expected.sum())


def test_memory_does_not_grow_with_the_tensor(tmp_path, monkeypatch):
    """Both files are sparse: 512 MiB each that need no disk and no time to write."""
    monkeypatch.setattr(module, "CHUNK", 1 << 18)
    count = 1 << 27
    tensors = []
    for name in ("reference", "output"):
        file = tmp_path / name
        with file.open("wb") as stream:
            stream.truncate(count)
        tensors.append({"name": "mask", "dtype": "bool", "shape": [count], "file": file})
    with tensors[1]["file"].open("r+b") as stream:
        stream.seek(count - 1)
        stream.write(b"\1")
    tracemalloc.start()
    figure = _one(*tensors)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (figure.mismatched, figure.elements) == (1, count)
    assert peak < 8 << 20


def test_figures_are_over_all_samples(tensor):
    reference = [("day", [tensor("y", [1.0, 1.0], "float32")]), ("night", [tensor("y", [1.0, 1.0], "float32")])]
    outputs = [("night", [tensor("y", [1.0, 3.0], "float32")]), ("day", [tensor("y", [1.5, 1.0], "float32")])]
    (figure,) = compare(reference, outputs, TOLERANCE)
    assert (figure.mismatched, figure.elements, figure.max_abs, figure.max_rel, figure.ok) == (2, 4, 2.0, 2.0, False)


def test_a_note_says_which_sample_it_is_from(tensor):
    reference = [(name, [tensor("y", [1.0], "float32")]) for name in ("day", "night", "rain")]
    outputs = [("day", [tensor("y", [1.0], "float32")]), *((name, [tensor("y", [1.0, 1.0], "float32")]) for name in ("night", "rain"))]
    (figure,) = compare(reference, outputs, TOLERANCE)
    assert figure.note == "sample night: shape [2], reference [1] (and 1 more samples)"
    assert not figure.ok


def test_other_samples_than_the_reference_has_are_a_bug(tensor):
    with pytest.raises(ValueError, match="not those of the reference"):
        compare([("day", [])], [("night", [])], TOLERANCE)


def test_every_precision_has_a_tolerance_and_lower_precision_a_wider_one():
    given_order = [default_tolerance("fp32"), default_tolerance("fp32", tf32=True)]
    given_order += [default_tolerance(name) for name in ("fp16", "bf16", "int8", "fp8")]
    assert [tolerance.rtol for tolerance in given_order] == sorted(tolerance.rtol for tolerance in given_order)
    assert default_tolerance("fp32") == Tolerance(rtol=1e-3, atol=1e-4)
    with pytest.raises(KeyError):
        default_tolerance("fp4")


@pytest.mark.parametrize(
    ("precision", "weights", "qdq", "expected"),
    [
        ("fp32", {"float32": 3, "int64": 9}, False, "fp32"),
        ("fp32", {}, False, "fp32"),
        ("fp32", {"float16": 3}, False, "fp16"),
        ("fp32", {"float16": 9, "float32": 1}, False, "fp16"),  # the scales of a Resize
        ("fp32", {"float16": 1, "float32": 9}, False, "fp32"),
        ("fp32", {"bfloat16": 3}, False, "bf16"),
        ("fp16", {"bfloat16": 3}, False, "bf16"),
        ("bf16", {"float16": 3}, False, "bf16"),
        ("fp16", {"float32": 3}, False, "fp16"),
        ("fp32", {"float32": 3, "int8": 2}, True, "int8"),
        ("fp16", {"float16": 3, "int8": 2}, True, "int8"),
        ("fp8", {"float32": 3}, True, "fp8"),
        ("fp32", {"float32": 3, "float8_e4m3fn": 2}, True, "fp8"),
    ],
)
def test_the_tolerance_follows_the_coarser_of_target_and_model(precision, weights, qdq, expected):
    assert effective_precision(precision, weight_dtypes=weights, has_qdq=qdq) == expected
    assert default_tolerance(expected).rtol >= default_tolerance(precision).rtol


def test_two_outputs_of_which_one_is_only_nan_do_not_pass(tensor):
    x, nan = np.ones(4, "float32"), np.full(4, np.nan, "float32")
    figures = compare(
        [("s", [tensor("y", nan), tensor("g", -x)])],
        [("s", [tensor("y", nan), tensor("g", -x)])],
        TOLERANCE,
    )
    verdict = judge(figures, reference="onnx.reference", device="CPU")
    assert (verdict.status, verdict.reason) == ("unvalidated", "output y was not compared: it has no finite value")
