"""From figures to a verdict. Only an independent reference on hardware that the target names gives ``passed``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.artifacts.manifest import INDEPENDENT, OutputFigures, ReferenceKind, Status, Verdict
from orchestrator.matrix.schema import Tolerance

JUDGE = "enginefarm.judge/2"
"""Name of the rules of this file and of compare.py; a change of what they say of the same outputs changes it."""

_CALLED = {
    "supplied": "the supplied outputs",
    "onnx.reference": "onnx.reference",
    "onnxruntime-cpu": "ONNX Runtime on the CPU",
    "same-runtime": "the same runtime",
}


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.3g}"


def describe(figure: OutputFigures, tolerance: Tolerance | None) -> str:
    """What is wrong with an output: ``output y: 12 of 4096 values differ, largest difference 0.31 (rtol 0.001, atol 0.0001)``."""
    parts = []
    if figure.mismatched:
        allowed = f" (rtol {tolerance.rtol:g}, atol {tolerance.atol:g})" if tolerance and figure.max_rel is not None else ""
        largest = f", largest difference {_number(figure.max_abs)}" if figure.max_abs is not None else ""
        parts.append(f"{figure.mismatched} of {figure.elements} values differ{largest}{allowed}")
    if figure.note:
        parts.append(figure.note)
    return f"output {figure.name}: {'; '.join(parts)}"


def _mismatch(figures: Sequence[OutputFigures], tolerance: Tolerance | None) -> str:
    wrong = [figure for figure in figures if not figure.ok]
    more = f" (and {len(wrong) - 1} more of {len(figures)} outputs)" if len(wrong) > 1 else ""
    return describe(wrong[0], tolerance) + more


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def judge(
    figures: Sequence[OutputFigures],
    *,
    reference: ReferenceKind | None,
    device: str | None,
    hardware_named: bool = True,
    reference_note: str = "",
    samples: int = 0,
    tolerance: Tolerance | None = None,
    timings: Mapping[str, Any] | None = None,
    soak: Mapping[str, Any] | None = None,
) -> Verdict:
    """The verdict on an engine that ran on ``device`` (None: on nothing).

    ``hardware_named``: the device has a compute capability (or is a CPU of a platform) that the target names. ``reference_note`` says why
    no better reference was had. ``timings`` and ``soak`` are those of a validate result (portable/worker/protocol.py): ``run_ms`` in
    milliseconds; a soak with ``stable: false`` gave other outputs on the way.
    """
    unstable = soak is not None and not soak.get("stable", False)
    status: Status
    if device is None:
        status, reason = "unvalidated", "nothing could run it"
    elif unstable:
        status, reason = "failed", "outputs changed from run to run while it was soaked"
    elif any(not figure.ok for figure in figures):
        status, reason = "failed", _mismatch(figures, tolerance)
    else:
        status, reason = _agreement(figures, reference, f" ({reference_note})" if reference_note else "", device, hardware_named)
    runs = (timings or {}).get("run_ms") or ()
    median_ms = None
    if runs:
        from statistics import median

        median_ms = round(median(runs), 4)
    return Verdict(
        status=status,
        reason=reason,
        reference=reference,
        samples=samples,
        outputs=tuple(figures),
        tolerance=tolerance.model_dump() if tolerance else {},
        device=device,
        median_ms=median_ms,
    )


def _agreement(
    figures: Sequence[OutputFigures], reference: ReferenceKind | None, note: str, device: str, hardware_named: bool
) -> tuple[Status, str]:
    """What it is worth that no figure is wrong."""
    if reference is None:
        return "unvalidated", f"there is no reference{note}"
    if not any(figure.max_abs is not None for figure in figures):
        return "unvalidated", "nothing was compared: no output has a finite value"
    blind = [figure for figure in figures if figure.max_abs is None]
    if blind:  # the other outputs say nothing about this one
        more = f" (and {len(blind) - 1} more of {len(figures)} outputs)" if len(blind) > 1 else ""
        lacks = "has no finite value" if blind[0].elements else "is empty"
        return "unvalidated", f"output {blind[0].name} was not compared: it {lacks}{more}"
    if not hardware_named:
        return "unvalidated", f"it ran on {device}, which the target does not name"
    agree = f"{_count(len(figures), 'output')} agree{'s' if len(figures) == 1 else ''} with {_CALLED[reference]}"
    if reference in INDEPENDENT:
        return "passed", f"{agree} on {device}"
    return "self-consistent", f"{agree}; no independent reference{note}"
