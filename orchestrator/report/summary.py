"""The result of a run: a table for people, one JSON value for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.pipeline.outcome import Outcome
from orchestrator.pipeline.run import RunOutcome
from orchestrator.report.text import columns, command_line, duration, hang, safe, size

SUMMARY_SCHEMA = "enginefarm.build/1"
ORDER = ("passed", "self-consistent", "unvalidated", "failed", "skipped", "interrupted")


def table(result: RunOutcome, width: int | None, command: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(line, status) of the result table; ``width`` in columns, None when the output is no terminal; ``command`` is how the run was
    started, told again when it was interrupted."""
    lines: list[tuple[str, str]] = []
    by_model = _by_model(result)
    for entry in result.committed:
        lines += _model_table(entry.model, entry.version, entry.files, by_model[entry.model], width)
        if entry.manifest is not None:
            lines += [("", ""), (f"manifest: {safe(str(entry.manifest))} (revision {entry.revision})", "")]
        lines += [(safe(note), "") for note in entry.notes]
    if result.interrupted:
        names = ", ".join(f"{build.model.name} {build.effective.target.name}" for build in result.interrupted)
        lines += [("", ""), *((line, "unvalidated") for line in hang("interrupted: ", safe(names), width, 0))]
        if command:
            lines.append((f"resume: {resume_command(command)}", ""))
    return [*lines, (totals(result), "")]


def _by_model(result: RunOutcome) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in result.outcomes:
        found.setdefault(outcome.build.model.name, []).append(outcome)
    return found


def resume_command(command: Sequence[str]) -> str:
    """The same command to paste into a shell; --force would begin from the start but for --lf, which leaves what is done already."""
    words = list(command)
    end = words.index("--") if "--" in words else len(words)
    if "--force" in words[:end] and not {"--lf", "--last-failed"} & {*words[:end]}:
        words.insert(end, "--lf")
    return command_line(words)


def _model_table(model: str, version: int, files: Any, outcomes: Sequence[Outcome], width: int | None) -> list[tuple[str, str]]:
    built = [outcome for outcome in outcomes if outcome.status not in ("failed", "skipped")]
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    skipped = [outcome for outcome in outcomes if outcome.status == "skipped"]
    lines = [(f"{safe(model)} v{version}", "title")]
    if built:
        lines += _built_table(built, files, width)
    excluded = any(outcome.build.excluded for outcome in skipped)
    for title, group in (("failed", failed), ("skipped" if excluded else "skipped: no runner here can take these", skipped)):
        if group:
            lines += [("", ""), (title, "header")]
            indent = max(len(outcome.record.target) for outcome in group) + 2
            for outcome in group:
                why = safe(outcome.record.verdict.reason)
                lines += [(line, outcome.status) for line in hang(outcome.record.target, why, width, indent)]
    unproven = {outcome.record.verdict.reason: None for outcome in built if outcome.status != "passed"}
    if unproven:
        lines += [("", ""), ("not validated", "header")]
        for reason in unproven:
            targets = ", ".join(o.record.target for o in built if o.status != "passed" and o.record.verdict.reason == reason)
            lines += [(line, "unvalidated") for line in hang(f"{targets}: ", safe(reason), width, 0)]
    return lines


def _built_table(built: Sequence[Outcome], files: Any, width: int | None) -> list[tuple[str, str]]:
    """One line per engine; on a terminal too narrow for it the file name goes on a line of its own."""
    rows = [("target", "status", "engine", "size", "precision", "time"), *(_row(outcome, files) for outcome in built)]
    text = columns(rows, right=frozenset({3, 5}))
    narrow = width is not None and max(map(len, text)) > width
    if narrow:
        text = columns([(*row[:2], *row[3:]) for row in rows], right=frozenset({2, 4}))
    lines = [(text[0], "header")]
    for line, row, outcome in zip(text[1:], rows[1:], built, strict=True):
        lines.append((line, outcome.status))
        if narrow and row[2]:
            lines.append((f"  {row[2]}", outcome.status))
    return lines


def _row(outcome: Outcome, files: Any) -> tuple[str, ...]:
    record = outcome.record
    file = files.get(record.target)
    took = "reused" if outcome.cached else duration(outcome.seconds)
    return (record.target, outcome.status, safe(file.name) if file else "", size(record.size_bytes), record.precision, took)


def totals(result: RunOutcome) -> str:
    """``5 passed, 4 unvalidated, 11 skipped in 12s``: green is ``passed`` and nothing else."""
    counts = result.counts()
    words = ", ".join(f"{counts[status]} {status}" for status in ORDER if status in counts) or "nothing done"
    return f"{words} in {duration(result.seconds)}"


def as_json(result: RunOutcome) -> dict[str, Any]:
    """What ``build --json`` prints."""
    by_model = _by_model(result)
    return {
        "schema": SUMMARY_SCHEMA,
        "run": result.run,
        "folder": str(result.folder),
        "exit_code": int(result.exit),
        "exit_codes": sorted({int(code) for code in result.exit_codes}),
        "counts": result.counts(),
        "problems": [problem.as_dict() for problem in result.problems],
        "interrupted": [{"model": build.model.name, "target": build.effective.target.name} for build in result.interrupted],
        "seconds": round(result.seconds, 3),
        "models": [
            {
                "name": entry.model,
                "version": entry.version,
                "revision": entry.revision,
                "manifest": str(entry.manifest) if entry.manifest else None,
                "builds": [_build_json(outcome, entry.files) for outcome in by_model[entry.model]],
            }
            for entry in result.committed
        ],
    }


def _build_json(outcome: Outcome, files: Any) -> dict[str, Any]:
    record = outcome.record
    file = files.get(record.target)
    return {
        "target": record.target,
        "tag": record.tag,
        "status": outcome.status,
        "reason": record.verdict.reason,
        "cached": outcome.cached,
        "file": str(file) if file else None,
        "digest": record.digest,
        "size_bytes": record.size_bytes,
        "precision": record.precision,
        "seconds": round(outcome.seconds, 3),
        "problem": outcome.problem.as_dict() if outcome.problem else None,
    }
