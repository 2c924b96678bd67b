from __future__ import annotations

import io
import json

from orchestrator import events
from orchestrator.report.jsonlines import JsonLines
from orchestrator.report.lines import Lines

NAMES = {"model": "lane", "target": "rtx-ada"}


def _lines(*happened: events.Event, verbosity: int = 0) -> list[str]:
    stream = io.StringIO()
    view = Lines(stream, verbosity)
    for event in happened:
        view(event)
    return stream.getvalue().splitlines()


FINISHED = events.BuildFinished(
    **NAMES, status="unvalidated", detail="no runner with compute capability 8.9", size_bytes=910_000, seconds=1.23
)
FAILED = events.BuildFinished(**NAMES, status="failed", detail="7.5 refuses fp32 matrix products", seconds=2.0)


def test_an_ended_build_is_one_past_tense_line() -> None:
    assert _lines(FINISHED) == ["~ lane rtx-ada built in 1.2s, 910.0 kB, unvalidated: no runner with compute capability 8.9"]


def test_quiet_keeps_only_failures() -> None:
    note = events.Note(text="batch is 1:1:8", model="lane")
    assert _lines(FINISHED, note, FAILED, verbosity=-1) == ["x lane rtx-ada failed after 2.0s: 7.5 refuses fp32 matrix products"]


def test_phases_and_backend_warnings_appear_when_asked_for() -> None:
    phase = events.StepPhase(**NAMES, step="build", phase="Optimizing graph")
    log = events.StepLog(**NAMES, step="build", level="warning", text="careful")
    chatter = events.StepLog(**NAMES, step="build", level="verbose", text="tactic 7")
    assert _lines(phase, log, chatter) == []
    assert _lines(phase, log, chatter, verbosity=1) == ["  lane rtx-ada: Optimizing graph", "  lane rtx-ada: [warning] careful"]
    assert _lines(phase, log, chatter, verbosity=2)[-1] == "  lane rtx-ada: [verbose] tactic 7"


def test_names_from_a_model_are_escaped() -> None:
    assert _lines(events.Note(text="node \x1b]0;owned\x07")) == ["note: node \\x1b]0;owned\\x07"]


def test_json_lines_hold_every_field_of_every_event() -> None:
    stream = io.StringIO()
    view = JsonLines(stream)
    view(FINISHED)
    view(FAILED)
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert first["event"] == second["event"] == "build-finished"
    assert first["size_bytes"] == 910_000
    assert second["status"] == "failed"
