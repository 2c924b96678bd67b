"""Reading a policy, holding things against it, and what the findings look like to other programs."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from orchestrator.errors import EnginefarmError, Where, flatten
from orchestrator.publish import policy_output
from orchestrator.publish.policy import DEFAULT, RULES, Policy, find_policy, load_policy
from orchestrator.publish.policy_check import Checker, record_places

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.timezone.utc)
GPU = [{"name": "NVIDIA A100"}]
ENGINE = {
    "target": "ampere-cu122",
    "file": "lane_v3_ampere.engine",
    "backend": "tensorrt",
    "cuda": "12.2",
    "precision": "fp16",
    "image": "nvcr.io/nvidia/tensorrt:23.09-py3",
    "image_digest": "sha256:" + "0" * 64,
    "verdict": {"status": "passed"},
    "built_at": "2026-05-01T00:00:00Z",
    "built_on": {"gpus": GPU, "driver": {"version": "535.104.05"}},
}
TARGET = {"backend": "tensorrt", "image": "nvcr.io/nvidia/tensorrt:23.09-py3", "cuda": "12.2", "precision": "fp32"}


def policy(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return load_policy(path)


def place(field: str) -> Where:
    return Where(file="f.yaml", line=3)


def engine_codes(chosen: Policy, **changes: Any) -> list[str]:
    checker = Checker(chosen, NOW)
    checker.engine("ampere-cu122 of lane v3", ENGINE | changes, None, place)
    return [finding.code for finding in checker.findings]


def target_codes(chosen: Policy, name: str = "ampere-cu122", locked: bool = True, **changes: Any) -> list[str]:
    checker = Checker(chosen, NOW)
    checker.target(name, TARGET | changes, place, locked=locked)
    return [finding.code for finding in checker.findings]


def runner_codes(chosen: Policy, host: dict[str, Any]) -> list[str]:
    checker = Checker(chosen, NOW)
    checker.runner("lab", host, Where())
    return [finding.code for finding in checker.findings]


SHIPPED = load_policy(DEFAULT)


# --- reading ---


def test_the_shipped_policy_holds_the_promised_numbers() -> None:
    rules = SHIPPED.rules

    assert (rules.minimum_driver, rules.cuda, rules.registries) == ("535", ">=11.8,<=12.4", ("nvcr.io",))
    assert rules.locked_images
    assert rules.verdict == ("passed",)
    assert rules.signature is False


def test_the_projects_own_policy_goes_before_the_shipped_one(tmp_path: Path) -> None:
    assert find_policy(tmp_path) == DEFAULT
    (tmp_path / "policy.yaml").write_text('cuda: ">=12"\n')
    assert find_policy(tmp_path) == tmp_path / "policy.yaml"


def test_every_problem_of_a_policy_is_named_at_its_line(tmp_path: Path) -> None:
    text = """minimum_drivr: "535"
cuda: "twelve"
maximum_age_days: 0
verdict: [green]
except:
  - targets: [a]
    rules: [cudda]
    because: x
  - targets: [a]
    rules: [cuda]
    because: x
    until: soon
  - just text
"""
    with pytest.raises(EnginefarmError) as caught:
        policy(tmp_path, text)

    problems = flatten(caught.value)
    assert [problem.where.line for problem in problems if problem.where] == [1, 4, 2, 3, 7, 12, 13]
    told = " ".join(f"{problem.what} {problem.fix}" for problem in problems)
    assert "minimum_driver" in told
    assert "did you mean cuda?" in told


def test_an_empty_policy_checks_nothing(tmp_path: Path) -> None:
    empty = policy(tmp_path, "locked_images: false\n")

    assert engine_codes(empty, cuda="9.0", image="evil.example/x:1", image_digest=None, verdict={"status": "failed"}) == []


# --- the rules ---


def test_what_the_policy_asks_for_has_no_finding() -> None:
    assert engine_codes(SHIPPED) == []
    assert target_codes(SHIPPED) == []
    assert runner_codes(SHIPPED, {"gpus": GPU, "driver": {"version": "535.104.05"}}) == []


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"cuda": "11.6"}, ["P102"]),
        ({"cuda": "12.4.1"}, []),
        ({"cuda": "12.5"}, ["P102"]),
        ({"cuda": "13.0"}, ["P102"]),
        ({"cuda": None}, ["P102"]),
        ({"cuda": None, "backend": "onnxruntime"}, []),
        ({"cuda": "none"}, ["P102"]),
        ({"image": "docker.io/nvidia/tensorrt:1"}, ["P103"]),
        ({"image": "tensorrt:1"}, ["P103"]),
        ({"image": "nvcr.io.evil.example/x:1"}, ["P103"]),
        ({"image": "nvcr.io/x:1"}, []),
        ({"image_digest": None}, ["P104"]),
        ({"image_digest": None, "image": "nvcr.io/x@sha256:" + "1" * 64}, []),
        ({"image": None, "image_digest": None}, []),
        ({"verdict": {"status": "self-consistent"}}, ["P105"]),
        ({"verdict": {"status": "unvalidated"}}, ["P105"]),
        ({"built_at": "2025-06-01T00:00:00Z"}, ["P106"]),
        ({"built_at": "2026-01-01T00:00:00"}, []),
        ({"built_at": "yesterday"}, ["P106"]),
        ({"built_on": {"gpus": GPU, "driver": {"version": "470.82.01"}}}, ["P101"]),
        ({"built_on": {"gpus": GPU, "driver": None}}, ["P101"]),
        ({"built_on": {"gpus": [], "driver": None}}, []),
        ({"built_on": None}, []),
        ({"file": None, "cuda": "9.0", "verdict": {"status": "skipped"}}, []),
    ],
)
def test_each_rule_on_engines(changes: dict[str, Any], codes: list[str]) -> None:
    assert engine_codes(SHIPPED, **changes) == codes


def test_targets_are_held_to_cuda_registry_lock_and_precision(tmp_path: Path) -> None:
    strict = policy(tmp_path, 'cuda: ">=12"\nregistries: [nvcr.io/nvidia]\nlocked_images: true\nforbidden_precisions: [int8, fp8]\n')

    assert target_codes(strict, cuda="11.8", image="nvcr.io/other/x:1", precision="int8", locked=False) == ["P102", "P103", "P104", "P107"]
    assert target_codes(strict) == []


@pytest.mark.parametrize(
    ("host", "codes"),
    [
        ({"gpus": GPU, "driver": {"version": "525.60.13"}}, ["P101"]),
        ({"gpus": GPU, "driver": {"version": "535"}}, []),
        ({"gpus": GPU, "driver": {"version": None}}, ["P101"]),
        ({"gpus": GPU, "driver": None, "jetson": {"l4t": "32.7.1"}}, []),
        ({"gpus": [], "driver": None}, []),
    ],
)
def test_runners_are_held_to_the_driver(host: dict[str, Any], codes: list[str]) -> None:
    assert runner_codes(SHIPPED, host) == codes


def test_a_required_signature_fails_closed(tmp_path: Path) -> None:
    strict = policy(tmp_path, "signature: true\ntrusted_keys: [keys/release.pub]\n")
    checker = Checker(strict, NOW)
    checker.engine("nobody looked", ENGINE, None, place)
    checker.engine("foreign", ENGINE, None, place, unsigned="it is signed with another key")
    checker.engine("fine", ENGINE, None, place, unsigned=None)

    assert strict.keys == [strict.path.parent / "keys" / "release.pub"]
    assert [(finding.code, finding.subject.name) for finding in checker.findings] == [("P108", "nobody looked"), ("P108", "foreign")]
    assert checker.findings[1].why == "it is signed with another key"


def test_a_required_signature_needs_a_key_that_is_trusted(tmp_path: Path) -> None:
    with pytest.raises(EnginefarmError, match="no key is trusted") as caught:
        policy(tmp_path, "# ours\nsignature: true\n")
    assert caught.value.where is not None
    assert caught.value.where.line == 2


def test_an_exception_holds_for_its_targets_and_rules_until_its_day(tmp_path: Path) -> None:
    text = 'cuda: ">=12"\nlocked_images: true\nexcept:\n  - {{targets: ["jet*"], rules: [cuda], because: old, until: "{}"}}\n'
    open_still = policy(tmp_path, text.format("2026-06-01"))

    assert target_codes(open_still, "jetson-cu102", locked=False, cuda="10.2") == ["P104"]
    assert target_codes(open_still, "ampere", cuda="10.2") == ["P102"]
    closed = policy(tmp_path, text.format("2026-05-31"))
    assert target_codes(closed, "jetson-cu102", cuda="10.2") == ["P102"]
    checker = Checker(closed, NOW)
    checker.exceptions()
    assert [(finding.code, finding.where.line) for finding in checker.findings] == [("P109", 4)]


def test_the_shipped_policy_lets_jetsons_keep_their_cuda() -> None:
    assert target_codes(SHIPPED, "jetson-cu102", cuda="10.2") == []


# --- where ---


def test_a_field_of_a_record_is_found_by_its_line() -> None:
    engines = [
        {"target": "a", "cuda": "11.8", "verdict": {"status": "passed"}},
        {"target": "b", "cuda": "12.2", "verdict": {"status": "failed"}},
    ]
    text = json.dumps({"engines": engines}, indent=2)
    lines = text.splitlines()

    cuda = record_places(text, "m.json", "b")("cuda")
    assert cuda.file == "m.json"
    assert cuda.line is not None
    assert '"12.2"' in lines[cuda.line - 1]
    assert record_places(text, "m.json", "b")("nothing").line == record_places(text, "m.json", "b")("target").line
    assert record_places(text, "m.json", "c")("cuda").file == "m.json"


# --- output ---


def broken() -> Checker:
    checker = Checker(SHIPPED, NOW)
    checker.engine("ampere-cu122 of lane v3", ENGINE | {"cuda": "13.0", "verdict": {"status": "failed"}}, None, place)
    checker.runner("lab\x1b", {"gpus": GPU, "driver": {"version": "470.82.01"}}, Where())
    checker.target("fine", TARGET, place, locked=True)
    return checker


def test_sarif_declares_every_rule_and_places_every_finding() -> None:
    log = policy_output.sarif(broken().findings)
    run = log["runs"][0]

    assert log["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [code for code, _ in RULES.values()]
    assert [result["ruleId"] for result in run["results"]] == ["P102", "P105", "P101"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    location = run["results"][0]["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "f.yaml"}, "region": {"startLine": 3}}
    assert "locations" not in run["results"][2]  # a runner of no file has no place


def test_sarif_places_are_uris() -> None:
    checker = Checker(SHIPPED, NOW)
    checker.runner("lab", {"gpus": GPU, "driver": {"version": "470.82.01"}}, Where(file="our targets/a#b é.yaml", line=1))

    (result,) = policy_output.sarif(checker.findings)["runs"][0]["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "our%20targets/a%23b%20%C3%A9.yaml"


def test_junit_has_a_case_for_everything_that_was_checked() -> None:
    checker = broken()
    suite = ET.fromstring(policy_output.junit(checker.subjects, checker.findings))

    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    assert [case.get("classname") for case in suite] == ["policy.engine", "policy.runner", "policy.target"]
    assert len(suite[0].findall("failure")) == 1
    assert suite[2].find("failure") is None


def test_text_and_json_name_place_code_and_fix() -> None:
    checker = broken()

    first = policy_output.lines(checker.findings)[:3]
    assert first[0] == "f.yaml:3: P102 engine ampere-cu122 of lane v3: CUDA 13.0 is not allowed"
    assert first[1].startswith("  why: ")
    assert first[2].startswith("  fix: ")
    answer = policy_output.as_json(SHIPPED, checker.subjects, checker.findings)
    assert answer["schema"] == "enginefarm.policy/1"
    assert answer["findings"][0]["where"] == {"file": "f.yaml", "line": 3}
    assert len(answer["checked"]) == 3
    assert json.loads(json.dumps(answer)) == answer


def test_every_rule_is_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "policy.md").read_text()

    for rule, (code, _) in RULES.items():
        assert code in text
        assert rule == "except" or f"`{rule}` | {code}" in text
