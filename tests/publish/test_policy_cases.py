"""Cases that test a policy: read with every problem at its line, run as what they are."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from orchestrator.errors import EnginefarmError, flatten
from orchestrator.publish.policy import DEFAULT, load_policy
from orchestrator.publish.policy_cases import load_cases, run_case

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.timezone.utc)
CASES = """cases:
  - name: CUDA 13 is too new
    target: {backend: tensorrt, image: "nvcr.io/nvidia/tensorrt:26.05-py3", cuda: 13.2, precision: fp16}
    locked: true
    expect: [P102]
  - name: an old driver
    runner: {gpus: [{name: NVIDIA A100}], driver: {version: 470.82.01}}
    expect: [P101]
  - name: young enough then
    engine: {file: lane_v3_ada.engine, cuda: "12.2", verdict: {status: passed}, built_at: "2026-01-01T00:00:00Z"}
    today: 2026-02-01
    expect: []
  - name: a wrong expectation
    target: {backend: tensorrt, cuda: "12.2", image: ~}
    expect: [P104]
"""


def test_cases_are_run_as_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(CASES)

    results = [run_case(load_policy(DEFAULT), case, NOW) for case in load_cases(path)]

    assert [result.ok for result in results] == [True, True, True, False]
    assert [result.found for result in results] == [("P102",), ("P101",), (), ()]
    assert [result.case.where.line for result in results] == [2, 6, 9, 13]


def test_a_case_says_whether_its_engine_is_signed(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("signature: true\ntrusted_keys: [release.key.pub]\n")
    engine = "  - engine: {file: lane_v3_ada.engine}\n"
    (tmp_path / "cases.yaml").write_text(f"cases:\n{engine}    signed: true\n    expect: []\n{engine}    expect: [P108]\n")

    results = [run_case(load_policy(tmp_path / "policy.yaml"), case, NOW) for case in load_cases(tmp_path / "cases.yaml")]
    assert [result.ok for result in results] == [True, True]


def test_a_version_that_yaml_would_round_stays_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text("cases:\n  - target: {backend: tensorrt, cuda: 12.10}\n    expect: [P102]\n")

    case = load_cases(path)[0]

    assert case.subject["cuda"] == "12.10"
    assert case.name == "case at line 2"


def test_every_problem_of_a_case_is_named_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(
        "cases:\n  - target: {}\n    expct: []\n  - expect: [P999]\n  - text\n  - runner: {}\n    expect: []\n    today: soon\n"
    )

    with pytest.raises(EnginefarmError) as caught:
        load_cases(path)

    problems = flatten(caught.value)
    assert [problem.where.line for problem in problems if problem.where] == [3, 2, 4, 4, 5, 8]
    assert "did you mean expect?" in str(problems[0].fix)


@pytest.mark.parametrize("text", ["", "cases: []\n", "cases: 3\n", "other: 1\n"])
def test_a_file_without_cases_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cases.yaml"
    path.write_text(text)

    with pytest.raises(EnginefarmError):
        load_cases(path)
