"""Writes docs/troubleshooting.md from docs/facts/failures.yaml; `--check` writes nothing and exits 5 when it is stale."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "docs" / "facts" / "failures.yaml"
DOCUMENT = ROOT / "docs" / "troubleshooting.md"
STALE = 5
LISTED = ("cause", "warning", "harmless")

HEAD = """# Troubleshooting

Generated from `docs/facts/failures.yaml` by `python tools/generate_troubleshooting.py`; do not edit.

    enginefarm explain build.log          # or: ... 2>&1 | enginefarm explain
    enginefarm explain EF801              # what a code means; also codes of enginefarm's own errors
    enginefarm explain wrong-file-type    # what a kind means

`explain` reads logs of TensorRT, TensorRT-RTX, ONNX Runtime, CUDA, Docker, registries and CI, of any size and encoding, and answers with
kinds and codes of this page, best first; `--json` gives them as `{"causes": [{"kind", "code", "figures", "sentence", "fix", "evidence",
"confidence", "consequences"}]}`. Two figures always have these names: `built_with` is what the engine was built with or for, `runs_on` is
this runtime or GPU. TensorRT's "expecting X got Y" means: this runtime or GPU is X, the engine is Y.

A warning is blamed only when nothing else is found and nothing in the log says that all went well.
"""


def cell(text: str) -> str:
    return re.sub(r"\{(\w+)\}", r"*\1*", text).replace("|", "\\|").replace("<", "&lt;")


def section(kind: str, means: dict[str, str], entries: dict[str, dict[str, Any]]) -> list[str]:
    """One kind: what it means, what to do, its codes."""
    lines = ["", f"## {kind}", "", means["means"], "", f"**What to do:** {means['fix']}", ""]
    listed = {code: entry for code, entry in entries.items() if entry.get("role", "cause") in LISTED}
    if listed:
        lines += ["| code | says | what to do, when different | since |", "| --- | --- | --- | --- |"]
    for code, entry in listed.items():
        role = "" if entry.get("role", "cause") == "cause" else f" ({entry['role']})"
        others = "".join(f" Or *{other}*, when {when}." for other, when in entry.get("or", {}).items())
        row = (code, cell(entry["says"][0]) + role, cell(entry.get("fix", "")) + others, str(entry.get("since", "")))
        lines.append("| " + " | ".join(text.strip() for text in row) + " |")
    return lines


def render(table: dict[str, Any]) -> str:
    """The whole page."""
    lines = [HEAD.rstrip()]
    for kind, means in table["kinds"].items():
        lines += section(kind, means, {code: entry for code, entry in sorted(table["entries"].items()) if entry.get("kind") == kind})
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 5 when the page is stale")
    check = parser.parse_args().check
    text = render(yaml.safe_load(FACTS.read_text(encoding="utf-8")))
    if check:
        fresh = DOCUMENT.is_file() and DOCUMENT.read_text(encoding="utf-8") == text
        if not fresh:
            print(f"stale: {DOCUMENT.relative_to(ROOT)}; run: python tools/generate_troubleshooting.py", file=sys.stderr)
        return 0 if fresh else STALE
    DOCUMENT.write_text(text, encoding="utf-8")
    print(DOCUMENT.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
