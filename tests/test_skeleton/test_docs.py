"""What the documents say that a program can check."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.errors import Exit
from orchestrator.matrix.load import load_matrix, load_model_config
from orchestrator.matrix.schema import ModelConfig
from orchestrator.models.profiles import BATCH
from orchestrator.verdict.tolerance import default_tolerance

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


def test_the_output_in_the_readme_is_of_these_targets_in_this_order() -> None:
    shown = (ROOT / "README.md").read_text().split("```console\n")[1].split("```")[0]
    skipped = shown.split("skipped: no runner here can take these\n")[1].split("\n\n")[0].splitlines()
    built = shown.split("target ")[1].split("\n\n")[0].splitlines()[1:]
    names = [[line.split()[0] for line in lines] for lines in (built, skipped)]
    order = list(load_matrix().targets)
    assert [sorted(part, key=order.index) for part in names] == names
    assert sorted(names[0] + names[1], key=order.index) == order


def test_every_field_of_a_model_is_explained() -> None:
    page = (ROOT / "docs/models.md").read_text()
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert headings == list(ModelConfig.model_fields)
    assert re.findall(r"^\| `(\w+)` \| .+ \| .+ \|$", page, re.MULTILINE) == headings


def test_the_example_of_a_model_s_yaml_sets_every_field_and_loads(tmp_path: Path) -> None:
    example = (ROOT / "docs/models.md").read_text().split("```yaml\n")[1].split("```")[0]
    (tmp_path / "lane.yaml").write_text(example)
    assert load_model_config(tmp_path / "lane.yaml").config.model_fields_set == set(ModelConfig.model_fields)


def test_the_spellings_of_a_profile_are_read(tmp_path: Path) -> None:
    example = (ROOT / "docs/models.md").read_text().split("## shapes")[1].split("```yaml\n")[1].split("```")[0]
    (tmp_path / "lane.yaml").write_text(example)
    shapes = load_model_config(tmp_path / "lane.yaml").config.shapes
    assert [len(profile.opt) for profile in shapes.values()] == [4, 4, 2, 2, 0]
    assert shapes["scale"] == shapes["gain"]


def test_the_tolerances_are_those_of_the_program() -> None:
    section = (ROOT / "docs/models.md").read_text().split("## tolerance")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+).* \| ([\d.]+) \| ([\d.]+) \| ([\d.]*) ?\|$", section, re.MULTILINE)
    shown = [(float(rtol), float(atol), float(cosine) if cosine else None) for _, rtol, atol, cosine in rows]
    names = [("fp32", False), ("fp32", True), ("fp16", False), ("bf16", False), ("int8", False), ("fp8", False)]
    assert [name for name, *_ in rows] == [name for name, _ in names]
    known = [default_tolerance(name, tf32=tf32) for name, tf32 in names]
    assert shown == [(tolerance.rtol, tolerance.atol, tolerance.cosine) for tolerance in known]


def test_the_default_batch_is_that_of_the_program() -> None:
    batch = ":".join(map(str, BATCH))
    assert f"gets `{batch}`" in (ROOT / "docs/models.md").read_text()
    assert f"(`{batch}`)" in (ROOT / "README.md").read_text()


def test_the_example_in_the_readme_is_the_example() -> None:
    shown = (ROOT / "README.md").read_text().split("```yaml\n# examples/lane.yaml\n")[1].split("```")[0]
    lines = [line.split("#")[0].rstrip() for line in (ROOT / "examples/lane.yaml").read_text().splitlines()]
    assert shown.splitlines() == [line for line in lines if line]


def test_the_bench_page_is_of_the_committed_results(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["generate_bench_docs.py", "--check"])
    assert load_script("tools/generate_bench_docs.py").main() == 0
