from __future__ import annotations

import pytest

from orchestrator.artifacts.manifest import OutputFigures
from orchestrator.matrix.schema import Tolerance
from orchestrator.verdict.judge import describe, judge

GOOD = OutputFigures(name="y", max_abs=1e-5, max_rel=1e-4, cosine=1.0, elements=4096)
WRONG = OutputFigures(name="y", max_abs=0.3125, max_rel=2.0, cosine=0.9, mismatched=12, elements=4096, ok=False)
TOLERANCE = Tolerance(rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("reference", "called"),
    [("supplied", "the supplied outputs"), ("onnx.reference", "onnx.reference"), ("onnxruntime-cpu", "ONNX Runtime on the CPU")],
)
def test_an_independent_reference_on_named_hardware_passes(reference, called):
    verdict = judge([GOOD, GOOD.model_copy(update={"name": "z"})], reference=reference, device="NVIDIA L4", samples=2, tolerance=TOLERANCE)
    assert verdict.status == "passed"
    assert verdict.reason == f"2 outputs agree with {called} on NVIDIA L4"
    assert (verdict.reference, verdict.samples, verdict.device) == (reference, 2, "NVIDIA L4")
    assert verdict.tolerance == {"rtol": 1e-3, "atol": 1e-4, "cosine": None}
    assert [figure.name for figure in verdict.outputs] == ["y", "z"]


def test_the_same_runtime_is_self_consistent_and_says_why_there_is_nothing_better():
    verdict = judge([GOOD], reference="same-runtime", reference_note="onnx.reference took more than 120 s", device="CPU")
    assert verdict.status == "self-consistent"
    assert verdict.reason == "1 output agrees with the same runtime; no independent reference (onnx.reference took more than 120 s)"


@pytest.mark.parametrize("reference", ["supplied", "onnx.reference", "onnxruntime-cpu", "same-runtime", None])
@pytest.mark.parametrize("named", [True, False])
def test_a_mismatch_fails_with_its_figures_whatever_the_reference(reference, named):
    verdict = judge([GOOD, WRONG], reference=reference, device="NVIDIA L4", hardware_named=named, tolerance=TOLERANCE)
    assert verdict.status == "failed"
    assert verdict.reason == "output y: 12 of 4096 values differ, largest difference 0.312 (rtol 0.001, atol 0.0001)"


def test_several_wrong_outputs_are_counted():
    verdict = judge([WRONG, GOOD, WRONG], reference="supplied", device="CPU")
    assert verdict.reason == "output y: 12 of 4096 values differ, largest difference 0.312 (and 1 more of 3 outputs)"


def test_other_hardware_than_the_target_names_does_not_pass():
    verdict = judge([GOOD], reference="onnx.reference", device="NVIDIA H200", hardware_named=False)
    assert (verdict.status, verdict.reason) == ("unvalidated", "it ran on NVIDIA H200, which the target does not name")


def test_nothing_that_ran_nothing_to_compare_with_and_nothing_compared_are_unvalidated():
    assert judge([], reference=None, device=None).reason == "nothing could run it"
    assert judge([GOOD], reference=None, device="CPU", reference_note="too slow").reason == "there is no reference (too slow)"
    nothing = OutputFigures(name="y", elements=4)
    for figures in ([], [nothing]):
        verdict = judge(figures, reference="supplied", device="CPU")
        assert (verdict.status, verdict.reason) == ("unvalidated", "nothing was compared: no output has a finite value")


def test_an_unstable_soak_fails_although_the_first_outputs_agree():
    soak = {"seconds": 5.0, "runs": 100, "stable": False}
    assert judge([GOOD], reference="supplied", device="CPU", soak=soak).status == "failed"
    assert judge([GOOD], reference="supplied", device="CPU", soak={**soak, "stable": True}).status == "passed"


def test_the_median_of_the_timed_runs_is_kept():
    assert judge([GOOD], reference="supplied", device="CPU", timings={"run_ms": [3.0, 1.0, 200.0]}).median_ms == 3.0
    assert judge([GOOD], reference="supplied", device="CPU", timings={"run_ms": []}).median_ms is None


def test_exact_outputs_are_described_without_a_tolerance():
    ids = OutputFigures(name="ids", max_abs=3.0, mismatched=1, elements=8, ok=False)
    assert describe(ids, TOLERANCE) == "output ids: 1 of 8 values differ, largest difference 3"


def test_notes_are_part_of_the_description():
    shape = OutputFigures(name="boxes", ok=False, note="shape [3, 4], reference [2, 4]")
    assert describe(shape, TOLERANCE) == "output boxes: shape [3, 4], reference [2, 4]"


@pytest.mark.parametrize(("elements", "why"), [(4, "it has no finite value"), (0, "it is empty")])
def test_every_output_must_have_been_compared_on_something(elements, why):
    blind = OutputFigures(name="z", elements=elements)
    verdict = judge([GOOD, blind], reference="supplied", device="CPU")
    assert (verdict.status, verdict.reason) == ("unvalidated", f"output z was not compared: {why}")
    two = judge([blind, GOOD, blind.model_copy(update={"name": "v"})], reference="same-runtime", device="CPU")
    assert (two.status, two.reason) == ("unvalidated", f"output z was not compared: {why} (and 1 more of 3 outputs)")
