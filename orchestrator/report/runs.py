"""Runs and builds of the past as tables: what happened, when, how long it took, what became slower."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.pipeline.history_rows import WORKED, BuildRow, RunRow
from orchestrator.report.text import columns, command_line, duration, hang, one_line, size

Line = tuple[str, str]
"""(text, status for its colour)"""

COLOUR = {"failed": "failed", "interrupted": "unvalidated", "killed": "unvalidated", "running": "title", "done": ""}
ORDER = ("passed", "self-consistent", "unvalidated", "failed", "skipped", "interrupted")
RUN_HEAD = ("RUN", "STATE", "STARTED", "TOOK", "RESULT", "COMMAND")
BUILD_HEAD = ("ENDED", "MODEL", "TARGET", "STATUS", "BUILD", "VALIDATE", "SIZE", "NOTE")

# slower is said of a build step that took this much more than the median of the ones before it: less is noise of a busy machine
SLOWER = 1.5
SLOWER_SECONDS = 2.0
COMPARED = 5
FEWEST = 3


def runs_table(runs: Sequence[RunRow], width: int | None) -> list[Line]:
    """One line per run; ``width`` in columns, None when the output is no terminal."""
    states = [run.state for run in runs]
    rows = [RUN_HEAD, *(_run_cells(run, state) for run, state in zip(runs, states, strict=True))]
    lines, hint = _fitted(rows, width, ("STARTED", "TOOK", "RESULT"))
    return [(lines[0], "header"), *((line, COLOUR[state]) for line, state in zip(lines[1:], states, strict=True)), *hint]


def _run_cells(run: RunRow, state: str) -> tuple[str, ...]:
    took = "" if run.seconds is None else duration(run.seconds)
    shown = f"{state} (exit {run.exit_code})" if run.exit_code else state
    command = command_line(["enginefarm", *run.command])
    return run.id, shown, moment(run.started_at), took, _result(run, state), command


def _result(run: RunRow, state: str) -> str:
    words = [f"{run.counts[status]} {status}" for status in ORDER if run.counts.get(status)]
    if state in ("running", "killed") and run.pending:
        words.append(f"{len(run.pending)} {'to do' if state == 'running' else 'not ended'}")
    return ", ".join(words) or "nothing done"


def moment(at: float) -> str:
    """Local time, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def slower(rows: Iterable[BuildRow]) -> dict[int, float]:
    """Position of a build in ``rows`` (newest first) -> how many times the median of the builds before it its build step took."""
    before: dict[tuple[str, str], list[float]] = {}
    found: dict[int, float] = {}
    for position, row in reversed(list(enumerate(rows))):
        if row.cached or row.build_seconds is None or row.status not in WORKED:
            continue
        known = before.setdefault((row.model, row.target), [])
        if len(known) >= FEWEST:
            usual = statistics.median(known[-COMPARED:])
            if row.build_seconds >= SLOWER * usual and row.build_seconds - usual >= SLOWER_SECONDS:
                found[position] = row.build_seconds / usual
        known.append(row.build_seconds)
    return found


def builds_table(rows: Sequence[BuildRow], limit: int, width: int | None, *, idle: bool = True) -> list[Line]:
    """The newest ``limit`` of ``rows`` (newest first), then when each pair last passed and what it usually takes. Without ``idle`` those
    that did nothing are counted, not listed."""
    slow = slower(rows)
    listed = [(position, row) for position, row in enumerate(rows) if idle or not row.idle]
    table = [BUILD_HEAD, *(_build_cells(row, slow.get(position)) for position, row in listed[:limit])]
    table = _without_sameness(table)
    lines, hint = _fitted(table, width, ("SIZE", "VALIDATE", "BUILD", "ENDED"))
    shown = [(lines[0], "header"), *((line, row.status) for line, (_, row) in zip(lines[1:], listed, strict=False))] if listed else []
    if len(listed) > limit:
        shown.append((f"{len(listed) - limit} older not shown: -n {len(listed)}", "skipped"))
    if len(rows) > len(listed):
        shown.append((f"{len(rows) - len(listed)} reused or skipped not shown: --all", "skipped"))
    return [*shown, *hint, ("", ""), *_pairs(rows, width)]


def _build_cells(row: BuildRow, slow: float | None) -> tuple[str, ...]:
    note = row.detail if row.status == "skipped" else row.problem or ""
    if slow is not None:
        note = f"build {slow:.1f}x slower than before"
    status = f"{row.status}, reused" if row.cached else row.status
    model = one_line(row.model) + (f" v{row.model_version}" if row.model_version else "")
    steps = ["" if seconds is None else duration(seconds) for seconds in (row.build_seconds, row.validate_seconds)]
    return moment(row.ended_at), model, one_line(row.target), status, *steps, size(row.size_bytes), note


def _without_sameness(table: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Without the columns that are empty everywhere."""
    kept = [index for index in range(len(table[0])) if any(row[index] for row in table[1:])]
    return [tuple(row[index] for index in kept) for row in table]


def _pairs(rows: Sequence[BuildRow], width: int | None) -> list[Line]:
    passed: dict[tuple[str, str], BuildRow | None] = {}
    times: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        pair = row.model, row.target
        passed.setdefault(pair, None)
        if row.status == "passed" and passed[pair] is None:
            passed[pair] = row
        if row.build_seconds is not None and not row.cached and row.status in WORKED:
            times.setdefault(pair, []).append(row.build_seconds)
    cells = [("MODEL", "TARGET", "LAST PASS", "BUILD TAKES"), *(_pair_cells(pair, last, times) for pair, last in sorted(passed.items()))]
    lines, _ = _fitted(cells, width, ("BUILD TAKES",))
    return [(lines[0], "header"), *((line, "") for line in lines[1:])]


def _pair_cells(pair: tuple[str, str], last: BuildRow | None, times: Mapping[tuple[str, str], Sequence[float]]) -> tuple[str, ...]:
    taken = times.get(pair, ())
    usual = duration(statistics.median(taken[:COMPARED])) if taken else ""
    return one_line(pair[0]), one_line(pair[1]), moment(last.ended_at) if last else "never", usual


def _fitted(rows: Sequence[tuple[str, ...]], width: int | None, leave_out: Sequence[str]) -> tuple[list[str], list[Line]]:
    """The lines of a table, the head first, and a hint where columns had to go."""
    kept = fit(rows, width, leave_out)
    hidden = [name for name in rows[0] if name not in kept[0]]
    hint = hang("", f"too narrow for {', '.join(hidden)}: widen the terminal, or give --json", width, 0)
    return columns(kept), [(line, "skipped") for line in hint] if hidden else []


def fit(rows: Sequence[tuple[str, ...]], width: int | None, leave_out: Sequence[str]) -> Sequence[tuple[str, ...]]:
    """Rows, of which the first names the columns, for a terminal of ``width``: the last column is cut, or left out, and then
    ``leave_out`` in their order; what tells rows apart stays."""
    if width is None or _wide(rows) <= width:
        return rows
    last = rows[0][-1]
    room = width - _wide([(*row[:-1], "") for row in rows]) - 2
    if room >= len(last) + 10:
        return [(*row[:-1], row[-1] if len(row[-1]) <= room else row[-1][: room - 1].rstrip() + "…") for row in rows]
    for name in (last, *leave_out):
        if name in rows[0]:
            column = rows[0].index(name)
            rows = [(*row[:column], *row[column + 1 :]) for row in rows]
        if _wide(rows) <= width:
            break
    return rows


def _wide(rows: Sequence[Sequence[str]]) -> int:
    return max(map(len, columns(rows)))
