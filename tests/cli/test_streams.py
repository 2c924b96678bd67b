from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# a run that talks on both streams, and then says how it went in a file
TALK = """
import sys
from pathlib import Path
from orchestrator.cli.streams import install
install()
for number in range(3):
    sys.stderr.write(f"progress {number}\\n")
    sys.stdout.write(f"line {number}\\n")
    sys.stdout.flush()
Path("done").write_text(str(open("other", "w").fileno()))
"""


def talk(folder: Path, redirections: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CODE": TALK, "PY": sys.executable}
    command = f'"$PY" -c "$CODE" {redirections}'
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stderr=subprocess.DEVNULL, check=False).returncode


@pytest.mark.parametrize(
    "redirections",
    ["2>&1 | true; exit ${PIPESTATUS[0]}", "2>&1 | head -1; exit ${PIPESTATUS[0]}", "2>&-", ">&-", ">&- 2>&- <&-", "2>/dev/full"],
)
def test_a_run_goes_on_without_anyone_who_reads(redirections: str, tmp_path: Path) -> None:
    assert talk(tmp_path, redirections) == 0
    assert int((tmp_path / "done").read_text()) > 2, "no file of the run may take the place of a standard stream"


def test_a_result_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    assert talk(tmp_path, ">/dev/full") != 0
    assert not (tmp_path / "done").exists()


def test_what_the_encoding_lacks_is_escaped_and_json_stays_json(tmp_path: Path) -> None:
    code = (
        "import json, sys\n"
        "from orchestrator.cli.streams import install\n"
        "install()\n"
        "sys.stdout.write(json.dumps({'name': 'l\\u00e4ne \\U0001f600 \\udc80'}, ensure_ascii=False))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout.decode("ascii"))["name"] == "l\u00e4ne \U0001f600 \udc80"
