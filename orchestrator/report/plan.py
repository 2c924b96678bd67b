"""The plan as lines for people."""

from __future__ import annotations

from orchestrator.pipeline.plan import Plan, PlannedBuild
from orchestrator.report.text import columns, duration, hang, one_line, size

_WORDS = {
    "build": "to build",
    "validate": "to validate",
    "judge": "to judge",
    "restore": "from the cache",
    "reuse": "up to date",
    "skip": "skipped",
}


def plan_lines(plan: Plan, width: int | None) -> list[str]:
    """One aligned line per build, the reason last (on a line of its own where the terminal is too narrow), totals at the end."""
    rows = [("model", "target", "action", "runner", "time", "pull"), *(_row(line) for line in plan.builds)]
    texts = columns(rows, right=frozenset({4, 5}))
    indent = max(map(len, texts)) + 2
    beside = width is None or indent + 30 <= width
    lines = [f"{texts[0]:{indent}}why".rstrip() if beside else texts[0]]
    for text, line in zip(texts[1:], plan.builds, strict=True):
        if beside:
            lines += hang(f"{text:{indent}}", one_line(line.why), width, indent)
        else:
            lines += [text, *hang("  ", one_line(line.why), width, 2)]
    return [*lines, totals(plan)]


def _row(line: PlannedBuild) -> tuple[str, ...]:
    runner = line.runner or ""
    if line.validated_on is not None and line.validated_on != line.runner:
        runner = f"{runner}, {line.validated_on}".lstrip(", ")
    took = "" if line.action not in ("build", "validate") else "?" if line.seconds is None else duration(line.seconds)
    pull = size(line.pull_bytes) if line.pull_bytes else ""
    return (one_line(f"{line.model} v{line.version}"), line.target, line.action, one_line(runner), took, pull)


def totals(plan: Plan) -> str:
    """``2 to build, 5 up to date; about 1m 20s, 1 of unknown length; 8.4 GB to pull``."""
    counts = plan.counts()
    parts = [", ".join(f"{count} {_WORDS[action]}" for action, count in counts.items()) or "nothing to do"]
    running = counts.get("build", 0) + counts.get("validate", 0)
    if running:
        known = running - plan.unknown
        times = [f"about {duration(plan.seconds)} of work"] if known else []
        times += [f"{plan.unknown} of unknown length"] if plan.unknown else []
        parts.append(", ".join(times))
    if plan.pull_bytes:
        parts.append(f"{size(plan.pull_bytes)} to pull")
    return "; ".join(parts)
