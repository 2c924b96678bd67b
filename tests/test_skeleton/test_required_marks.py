"""ENGINEFARM_REQUIRE of conftest.py, tried on small test files of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
INI = "[pytest]\nmarkers =\n  rtx: x\n  engine: x\n"


def run(folder: Path, body: str, **env: str) -> tuple[int, str]:
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "pytest.ini").write_text(INI)
    (folder / "test_it.py").write_text(f"import pytest\n{body}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


SKIPPED = "@pytest.mark.engine\ndef test_a():\n    pytest.skip('no engine here')\n"


def test_a_skip_is_a_skip_without_the_variable(tmp_path: Path) -> None:
    assert run(tmp_path, SKIPPED)[0] == 0


def test_a_skip_of_a_required_mark_fails_with_its_reason(tmp_path: Path) -> None:
    code, said = run(tmp_path, SKIPPED, ENGINEFARM_REQUIRE="rtx,engine")
    assert code == 1
    assert "ENGINEFARM_REQUIRE=engine does not allow a skip" in said
    assert "no engine here" in said


def test_a_mark_that_skips_before_the_test_starts_fails_too(tmp_path: Path) -> None:
    body = "@pytest.mark.engine\n@pytest.mark.skipif(True, reason='never')\ndef test_a():\n    pass\n"
    assert run(tmp_path, body, ENGINEFARM_REQUIRE="engine")[0] == 1


def test_other_skips_stay_skips(tmp_path: Path) -> None:
    assert run(tmp_path, SKIPPED, ENGINEFARM_REQUIRE="rtx")[0] == 0


def test_a_whole_file_may_not_be_skipped(tmp_path: Path) -> None:
    code, said = run(tmp_path, "pytest.importorskip('no_such_module_at_all')\ndef test_a():\n    pass\n", ENGINEFARM_REQUIRE="rtx")
    assert code == 2
    assert "a whole file may not be skipped" in said


def test_a_misspelt_mark_is_refused(tmp_path: Path) -> None:
    code, said = run(tmp_path, SKIPPED, ENGINEFARM_REQUIRE="rtz")
    assert code == 4
    assert "names no mark of this project: rtz" in said


@pytest.mark.parametrize(("address", "allowed"), [("127.0.0.1", True), ("192.0.2.1", False)])
def test_connections_stay_on_this_machine(tmp_path: Path, address: str, allowed: bool) -> None:
    body = (
        f"import socket\ndef test_a():\n    with pytest.raises(OSError):\n        socket.create_connection(('{address}', 9), timeout=0.2)\n"
    )
    code, said = run(tmp_path, body)
    assert (code == 0) is allowed
    assert ("a test opened a connection to 192.0.2.1" in said) is not allowed
