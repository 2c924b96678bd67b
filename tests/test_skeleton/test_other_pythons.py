"""Which interpreters the tests of the portable parts take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def conftest(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("tests/conftest.py")


def script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_shim_of_a_version_that_is_switched_off_is_no_interpreter(
    conftest: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "shims/python3.6", "echo 'pyenv: python3.6: command not found' >&2; exit 127")
    kept = script(tmp_path / "pyenv/versions/3.6.15/bin/python3", "printf 3.6")
    script(tmp_path / "pyenv/versions/3.8.18/bin/python3", "printf 3.7")
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))

    assert conftest.other_pythons() == [kept]


def test_named_interpreters_are_taken_as_they_are(conftest: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEFARM_PYTHONS", "/gone/python3:/gone/python4")

    assert conftest.other_pythons() == ["/gone/python3", "/gone/python4"]


def test_a_real_interpreter_is_one(conftest: ModuleType) -> None:
    version = ".".join(map(str, sys.version_info[:2]))

    assert conftest.is_python(sys.executable, version)
    assert not conftest.is_python(sys.executable, "3.6")
    assert not conftest.is_python("/nonexistent", version)
