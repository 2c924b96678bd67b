"""A project folder to write targets into, and the problems of loading it as plain text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from orchestrator.errors import EnginefarmError, flatten
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.select import Matrix

GOOD = """\
name: mine
tag: mine
backend: tensorrt
image: nvcr.io/nvidia/tensorrt:23.09-py3
tensorrt: "8.6.1"
cuda: "12.2"
compute_capability: "8.6"
platform: linux/amd64
"""


class Project:
    """``write`` adds a file to targets/; ``problems`` are those of loading the matrix."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "targets").mkdir()

    def write(self, text: str, name: str = "mine.yaml") -> Path:
        path = self.folder / "targets" / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    def good(self, *changes: str, without: str = "", name: str = "mine.yaml") -> Path:
        """The good target with lines replaced by those of the same key, appended, or left out."""
        lines = GOOD.splitlines()
        for change in changes:
            key = change.split(":")[0]
            lines = [line for line in lines if line.split(":")[0] != key] + change.splitlines()
        return self.write("\n".join(line for line in lines if line.split(":")[0] not in without.split()) + "\n", name)

    def load(self) -> Matrix:
        return load_matrix(self.folder)

    def problems(self) -> list[EnginefarmError]:
        try:
            self.load()
        except EnginefarmError as error:
            return list(flatten(error))
        return []

    def only_problem(self) -> EnginefarmError:
        problems = self.problems()
        assert len(problems) == 1, [problem.what for problem in problems]
        return problems[0]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


@pytest.fixture
def problems_of() -> Callable[[Callable[[], object]], list[EnginefarmError]]:
    def run(call: Callable[[], object]) -> list[EnginefarmError]:
        with pytest.raises(EnginefarmError) as caught:
            call()
        return list(flatten(caught.value))

    return run
