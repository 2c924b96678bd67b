"""``worker.pyz doctor [--json] [--save host.json]``: the probe's host description, more of it, and what is wrong with it.

Works with nothing present, on Python 3.6. Exit codes: 0 nothing is wrong (warnings too), 4 something does not work, 2 wrong usage.
"""

import json
import os
from typing import Any, Dict, List, Optional, Tuple

from .doctor_facts import collect
from .doctor_machine import Machine
from .doctor_rules import LEVELS, Finding, findings
from .errors import printable
from .files import write_json
from .probe import describe_host

DOCTOR_SCHEMA = "enginefarm.doctor/1"
EXIT_OK, EXIT_USAGE, EXIT_BROKEN = 0, 2, 4


def examine(machine: Optional[Machine] = None) -> Dict[str, Any]:
    """``{"schema", "host", "findings"}``; the host is the probe's description with ``details`` (doctor_facts.py)."""
    host = describe_host()
    host["details"] = collect(machine or Machine())
    return report(host)


def report(host: Dict[str, Any]) -> Dict[str, Any]:
    """The report on a host that is described already."""
    return {"schema": DOCTOR_SCHEMA, "host": host, "findings": findings(host)}


def exit_code(found: List[Finding]) -> int:
    """4 when there is an error, else 0."""
    return EXIT_BROKEN if any(finding["level"] == "error" for finding in found) else EXIT_OK


def lines(found: List[Finding]) -> List[Tuple[str, str]]:
    """The findings as a table: (line, level), the worst level last in the summary."""
    rows = []  # type: List[Tuple[str, str]]
    area = None
    for finding in found:
        if finding["area"] != area:
            area = finding["area"]
            rows.append((area, "header"))
        rows.append(("  {:<5} {:<8} {}".format(finding["code"], finding["level"], printable(finding["text"])), finding["level"]))
        if finding["fix"] and finding["level"] != "ok":
            rows.append(("                 fix: {}".format(printable(finding["fix"])), ""))
    counts = ["{} {}".format(sum(finding["level"] == level for finding in found), level) for level in LEVELS]
    return [*rows, ("", ""), (", ".join(counts), "title")]


def main(arguments: List[str], handle: int) -> int:
    """Print the report to the descriptor ``handle``; gives the exit code."""
    wanted = list(arguments)
    as_json = "--json" in wanted
    if as_json:
        wanted.remove("--json")
    if wanted and not (len(wanted) == 2 and wanted[0] == "--save" and wanted[1]):
        os.write(2, b"usage: python3 worker.pyz doctor [--json] [--save host.json]\n")
        return EXIT_USAGE
    answer = examine()
    if wanted:
        try:
            write_json(wanted[1], answer["host"])
        except OSError as error:
            os.write(2, "cannot write {}: {}\n".format(wanted[1], error.strerror).encode("utf-8", "backslashreplace"))
            return EXIT_BROKEN
    text = json.dumps(answer, indent=2, sort_keys=True) if as_json else "\n".join(line for line, _ in lines(answer["findings"]))
    data = (text + "\n").encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(handle, data) :]
    return exit_code(answer["findings"])
