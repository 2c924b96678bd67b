"""What the shell offers: targets, cells, and what was built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import completion
from orchestrator.matrix.load import load_matrix

from .conftest import Past


def test_the_shell_is_offered_the_targets_of_the_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "mine.yaml").write_text("name: mine\ntag: mine\nextends: cpu\n")
    assert completion.complete_targets("") == sorted(load_matrix(tmp_path).targets)
    assert completion.complete_targets("mi") == ["mine"]
    assert completion.complete_targets("rtx-a") == ["rtx-ada", "rtx-ampere"]
    assert completion.complete_targets("cpu,mi") == ["cpu,mine"]
    assert completion.complete_hosts("")[:2] == ["all", "this"]
    assert completion.complete_hosts("mi") == ["mine"]
    assert completion.complete_precisions("fp") == ["fp32", "fp16", "fp8"]
    assert completion.complete_progress("p") == ["plain"]


def test_the_shell_is_offered_cells_and_without_them_at_least_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "mine.yaml").write_text("name: mine\ntag: mine\nextends: cpu\naxes:\n  precision: [fp32, fp16]\n")
    assert completion.complete_targets("mi") == ["mine", "mine-fp16", "mine-fp32"]
    (tmp_path / "targets" / "wrong.yaml").write_text("nonsense: [\n")
    assert completion.complete_targets("mi") == ["mine"]


def test_the_shell_is_offered_what_was_built(four_runs: Past, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completion.complete_history("") == ["cpu", "rtx-ada", "lane", "sign"]
    assert completion.complete_runs("20260102") == ["20260102-000000-bbbbbb"]
    assert completion.complete_logs("lane/") == ["lane/cpu", "lane/rtx-ada"]
    assert completion.complete_logs("r") == ["rtx-ada"]


@pytest.mark.parametrize("content", [b"", b"nothing of the kind" * 100])
def test_a_completion_that_cannot_be_had_is_none_and_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".enginefarm").mkdir()
    (tmp_path / ".enginefarm" / "history.db").write_bytes(content)
    assert completion.complete_history("") == []
    assert completion.complete_runs("") == []


COMPLETE = """
eval "$(enginefarm --show-completion)"
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_enginefarm_completion enginefarm
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("enginefarm hist", ["history"]),
        ("enginefarm history l", ["lane"]),
        ("enginefarm logs sign/", ["sign/cpu"]),
        ("enginefarm logs x --run 20260101", ["20260101-000000-aaaaaa"]),
    ],
)
def test_bash_completes(four_runs: Past, tmp_path: Path, words: str, offered: list[str]) -> None:
    program = tmp_path / "bin" / "enginefarm"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom orchestrator.cli.entry import run\nrun()\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    script = COMPLETE.format(words=words)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == (offered, "")
