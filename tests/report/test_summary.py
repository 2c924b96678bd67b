from __future__ import annotations

import pytest

from orchestrator.report.summary import resume_command


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["enginefarm", "build", "my net.onnx", "-t", "rtx-*"], "enginefarm build 'my net.onnx' -t 'rtx-*'"),
        (["enginefarm", "build", "--force", "a.onnx", "-x"], "enginefarm build --force a.onnx -x --lf"),
        (["enginefarm", "build", "--force", "--", "--force"], "enginefarm build --force --lf -- --force"),
        (["enginefarm", "build", "--lf", "--force", "a.onnx"], "enginefarm build --lf --force a.onnx"),
    ],
)
def test_an_interrupted_run_is_resumed_by_its_own_command_which_begins_nothing_anew(words: list[str], line: str) -> None:
    assert resume_command(words) == line
