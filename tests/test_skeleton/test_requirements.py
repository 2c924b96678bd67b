from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[0-9][^ ;\\]*)(?: ; (?P<marker>.+?))? \\$")


@pytest.fixture(scope="module")
def lock(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("tools/lock.py")


@pytest.fixture
def project(lock: ModuleType) -> dict[str, Any]:
    found: dict[str, Any] = lock.tomllib.loads((ROOT / "pyproject.toml").read_text())
    return found


def pins(path: Path) -> dict[tuple[str, str], str]:
    """(name, marker) -> version"""
    found = {}
    for line in path.read_text().splitlines():
        if match := PIN.match(line):
            found[match["name"], match["marker"] or ""] = match["version"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_pins_names_no_index_and_no_place_of_a_machine(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"[a-z]+://|--(?:extra-)?index|find-links|(?:^|\s)/\w+", text) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_line_is_a_pin_or_one_of_its_hashes(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines
    hashed = True
    for line in lines:
        if PIN.match(line):
            assert hashed, f"a pin without a hash before: {line}"
            hashed = False
        else:
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?", line), line
            hashed = True
    assert hashed


def test_files_that_share_a_venv_agree_on_every_version() -> None:
    everything = pins(ROOT / "requirements/lint.txt")
    for name in ("run", "test", "build"):
        for (package, marker), version in pins(ROOT / f"requirements/{name}.txt").items():
            versions = {v for (other, _), v in everything.items() if other == package}
            assert version in versions or package in ("editables", "hatchling", "tomlkit", "trove-classifiers"), (package, marker)


def test_the_pins_are_of_this_pyproject(lock: ModuleType, project: dict[str, Any]) -> None:
    assert lock.check(project) == 0


@pytest.mark.parametrize("table", ["dependencies", "test"])
def test_a_new_dependency_makes_the_pins_stale(
    table: str, lock: ModuleType, project: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    tables = project["project"] if table == "dependencies" else project["dependency-groups"]
    tables[table].append("six>=1")
    assert lock.check(project) == 5
    said = capsys.readouterr().err
    assert "requirements/test.txt is stale" in said
    assert "make lock" in said
    assert ("requirements/run.txt" in said) is (table == "dependencies")


def test_one_version_of_tensorrt_rtx_everywhere(load_script: Callable[[str], ModuleType]) -> None:
    rtx = pins(ROOT / "requirements/rtx.txt")
    assert {name for name, _ in rtx} == {"tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs"}
    (version,) = set(rtx.values())
    assert f"TensorRT-RTX {version}:" in load_script("tools/bootstrap.py").RTX_NOTICE
