"""The compatibility grid as people read it: one pair in full, several as a table, and as one HTML file."""

from __future__ import annotations

import functools
import textwrap
from pathlib import Path
from typing import Any

from orchestrator.report.text import columns, hang, safe
from orchestrator.verdict.compat import VERDICTS, Grid, Pair, Trial

SHORT = {"loads": "loads", "loads-with-warning": "warning", "unknown": "unknown", "does-not-load": "no"}
STATUS = {"loads": "passed", "loads-with-warning": "self-consistent", "unknown": "unvalidated", "does-not-load": "failed"}
Lines = list[tuple[str, str]]
"""Text and a status that cli/screen.py colours."""

_MOST_REASONS = 40


def compat_lines(found: Grid, width: int | None) -> Lines:
    """The grid as lines; ``width`` in characters, None for no limit."""
    if len(found.pairs) == 1:
        return pair_lines(found.pairs[0], width)
    lines = _disagreements(found)
    lines += _table(found, width) or _lists(found, width)
    reasons = [pair for pair in found.pairs if pair.verdict != "loads"]
    if reasons and len(reasons) <= _MOST_REASONS:
        lines.append(("", ""))
        for pair in reasons:
            lines += _hung(f"{pair.engine} on {pair.host}: {SHORT[pair.verdict]}, ", pair.found["reason"], width)
    lines += [*_trials(found, width), ("", ""), (summary(found), "title")]
    return lines


def summary(found: Grid) -> str:
    """``6 pairs: 2 load, 1 with a warning, 1 unknown, 2 do not load``."""
    counts = {verdict: sum(pair.verdict == verdict for pair in found.pairs) for verdict in VERDICTS}
    loads, warning, unknown, refused = (counts[verdict] for verdict in VERDICTS)
    text = f"{len(found.pairs)} pairs: {loads} load, {warning} with a warning, {unknown} unknown, {refused} do not load"
    wrong = sum(pair.disagrees for pair in found.pairs)
    return text + (f"; {wrong} prediction{' was' if wrong == 1 else 's were'} wrong" if wrong else "")


def pair_lines(pair: Pair, width: int | None) -> Lines:
    """One pair with every rule that spoke."""
    lines: Lines = _wrong(pair, width) if pair.disagrees else []
    lines.append((f"{safe(pair.engine)} on {safe(pair.host)}: {pair.verdict}", STATUS[pair.verdict]))
    lines += _hung("  ", pair.found["reason"], width)
    if pair.found["gpu"]:
        lines.append((f"  judged for {safe(pair.found['gpu'])}", ""))
    lines.append(("", ""))
    indent = max(len(rule["rule"]) for rule in pair.found["rules"]) + 12
    for rule in pair.found["rules"]:
        label = f"  {rule['rule'].ljust(indent - 12)}  {SHORT[rule['verdict']]}"
        lines += [
            (line, STATUS[rule["verdict"]] if not number else "")
            for number, line in enumerate(hang(label, safe(rule["text"]), width, indent))
        ]
        detail = "; ".join(part for part in (rule["evidence"], f"{rule['confidence']}, {rule['source']}") if part)
        lines += [(line, "skipped") for line in hang("", safe(detail), width, indent)]
        if rule["fix"] and rule["verdict"] != "loads":
            lines += [(line, "") for line in hang("", f"fix: {safe(rule['fix'])}", width, indent)]
    if pair.trial is not None:
        lines += [("", ""), *_hung("  tried: ", f"{pair.trial.outcome}; {pair.trial.text}", width)]
        lines += _explained(pair.trial, "    ", width)
    return lines


def _explained(trial: Trial, indent: str, width: int | None) -> Lines:
    """What the failure catalogue makes of a trial's log, and where the log is."""
    cause = trial.cause or {}
    told = [("cause", f"{cause['sentence']} ({cause['code']})" if cause else ""), ("fix", cause.get("fix")), ("log", trial.log)]
    return [line for label, text in told if text for line in _hung(f"{indent}{label}: ", str(text), width)]


def _hung(label: str, text: str, width: int | None) -> Lines:
    """Text behind a label, further lines four characters in (names of engines and hosts are too long to hang from)."""
    whole = safe(label + text)
    return [(line, "") for line in (textwrap.wrap(whole, width, subsequent_indent="    ") if width else [whole])]


def _wrong(pair: Pair, width: int | None) -> Lines:
    assert pair.trial is not None  # noqa: S101  (a pair disagrees only with a trial)
    text = f"predicted {pair.verdict} ({pair.found['reason']}), but it {_did(pair.trial.outcome)}: {pair.trial.text}"
    return [(line, "failed") for line in hang("WRONG  ", safe(f"{pair.engine} on {pair.host}: {text}"), width, 7)]


def _did(outcome: str) -> str:
    return "is refused" if outcome == "refused" else outcome


def _disagreements(found: Grid) -> Lines:
    wrong = [line for pair in found.pairs if pair.disagrees for line in _wrong(pair, None)]
    if not wrong:
        return []
    return [("The rules were wrong about these: please report them with --json", "failed"), *wrong, ("", "")]


def _table(found: Grid, width: int | None) -> Lines:
    """Rows engines, columns hosts; nothing when that is wider than the screen."""
    rows = [["ENGINE", *(safe(host.name) for host in found.hosts)]]
    rows += [[safe(engine.name), *(_cell(pair) for pair in found.row(engine.name))] for engine in found.engines]
    lines = columns(rows)
    if width is not None and max(map(len, lines)) > width:
        return []
    return [(line, "header" if not number else "") for number, line in enumerate(lines)]


def _cell(pair: Pair) -> str:
    if pair.trial is None or pair.trial.outcome == "not tried":
        return SHORT[pair.verdict]
    return f"{SHORT[pair.verdict]} / {pair.trial.outcome}"


def _lists(found: Grid, width: int | None) -> Lines:
    lines: Lines = []
    for engine in found.engines:
        lines.append((safe(engine.name), "header"))
        for verdict in VERDICTS:
            hosts = [pair.host for pair in found.row(engine.name) if pair.verdict == verdict]
            lines += [(line, "") for line in hang(f"  {SHORT[verdict]}", safe(", ".join(hosts)), width, 11)] if hosts else []
    return lines


def _trials(found: Grid, width: int | None) -> Lines:
    tried = sorted((pair for pair in found.pairs if pair.trial is not None), key=lambda pair: not pair.disagrees)
    lines: Lines = [("", ""), ("TRIED", "header")] if tried else []
    for pair in tried:
        assert pair.trial is not None  # noqa: S101
        lines += _hung(f"{pair.engine} on {pair.host}: ", f"{pair.trial.outcome}; {pair.trial.text}", width)
        lines += _explained(pair.trial, "  ", width)
    return lines


# --- HTML ---


@functools.cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("compat.html.j2")


def compat_html(found: Grid) -> str:
    """One HTML file without scripts or foreign resources; everything from outside is escaped."""
    rows = [(engine, found.row(engine.name)) for engine in found.engines]
    wrong = [pair for pair in found.pairs if pair.disagrees]
    text: str = _template().render(grid=found, rows=rows, wrong=wrong, short=SHORT, summary=summary(found), safe=safe)
    return text
