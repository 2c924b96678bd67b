"""What the documents say that a program can check."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.errors import Exit

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
NUMBERS = {"Eighteen": 18, "Nineteen": 19, "Twenty": 20}


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), f"{document.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{document.name}: {link}"


def test_the_readme_lists_exactly_the_exit_codes_of_the_program() -> None:
    section = (ROOT / "README.md").read_text().split("## Exit codes")[1].split("\n## ")[0]
    listed = {int(code) for cells in re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE) for code in cells.split(",")}
    later = {Exit.WORK_TO_DO}  # of a command that does not exist yet
    assert listed == {int(code) for code in Exit} - later


def test_the_readme_counts_the_built_in_targets() -> None:
    (word,) = re.findall(r"(\w+) are built in", (ROOT / "README.md").read_text())
    assert NUMBERS[word] == len(list((ROOT / "targets").glob("*.yaml")))


def test_the_example_in_the_readme_is_the_example() -> None:
    shown = (ROOT / "README.md").read_text().split("```yaml\n# examples/lane.yaml\n")[1].split("```")[0]
    lines = [line.split("#")[0].rstrip() for line in (ROOT / "examples/lane.yaml").read_text().splitlines()]
    assert shown.splitlines() == [line for line in lines if line]


def test_the_bench_page_is_of_the_committed_results(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["generate_bench_docs.py", "--check"])
    assert load_script("tools/generate_bench_docs.py").main() == 0
