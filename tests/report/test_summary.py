from __future__ import annotations

import pytest

from orchestrator.report.summary import resume_command


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["enginefarm", "build", "my net.onnx", "-t", "rtx-*"], "enginefarm build 'my net.onnx' -t 'rtx-*'"),
        (["enginefarm", "build", "--force", "a.onnx", "-x"], "enginefarm build a.onnx -x"),
        (["enginefarm", "build", "--force", "--", "--force"], "enginefarm build -- --force"),
    ],
)
def test_an_interrupted_run_is_resumed_by_its_own_command_which_builds_nothing_again(words: list[str], line: str) -> None:
    assert resume_command(words) == line
