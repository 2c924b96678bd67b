"""``enginefarm policy`` as it is called."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner, Result

from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, Verdict
from orchestrator.cli.policy import app

DIGEST = "sha256:" + "0" * 64


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enginefarm.yaml").write_text("# a project\n")
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "mine.yaml").write_text(
        "name: mine\ntag: mine\nextends: ampere-cu122\nimage: ghcr.io/acme/trt:1\nprecision: int8\n"
    )
    (tmp_path / "policy.yaml").write_text('registries: [nvcr.io]\nverdict: [passed]\nforbidden_precisions: [int8]\nminimum_driver: "535"\n')
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_a_target_that_breaks_the_policy_is_named_at_its_lines(project: Path) -> None:
    done = call("check", "--target", "mine,ampere-cu122")

    assert done.exit_code == 6
    assert "targets/mine.yaml:4:8: P103 target mine: ghcr.io/acme/trt:1 comes from ghcr.io" in done.output
    assert "targets/mine.yaml:5:12: P107 target mine: precision int8 is forbidden" in done.output
    assert done.output.splitlines()[-1] == "2 checked against policy.yaml, 1 break it, 2 findings"


def test_a_target_within_the_policy_exits_0(project: Path) -> None:
    assert call("check", "--target", "ampere-cu122").exit_code == 0


def test_engines_are_checked_through_their_manifest(project: Path) -> None:
    unchecked = Verdict(status="unvalidated", reason="no GPU")
    record = EngineRecord(
        target="ada-cu12", tag="ada", file="lane_v1_ada.unvalidated.engine", digest=DIGEST, size_bytes=1, backend="tensorrt",
        platform="linux/amd64", precision="fp16", verdict=unchecked,
    )  # fmt: skip
    model = ModelRecord(name="lane", version=1, digest=DIGEST, source="lane.onnx", inputs=(), outputs=())
    manifest = Manifest(model=model, revision=1, run="r", created_at="2026-01-01T00:00:00Z", enginefarm="0.1.0", engines=(record,))
    (project / "lane_v1.json").write_bytes(manifest.as_json())

    done = call("check", "--target", "ampere-cu122", "--manifest", "lane_v1.json", "--sarif", "p.sarif", "--junit", "p.xml", "--json")
    answer = json.loads(done.output)

    assert done.exit_code == 6
    assert [finding["code"] for finding in answer["findings"]] == ["P105"]
    line = answer["findings"][0]["where"]["line"]
    assert '"verdict"' in (project / "lane_v1.json").read_text().splitlines()[line - 1]
    assert json.loads((project / "p.sarif").read_text())["runs"][0]["results"][0]["ruleId"] == "P105"
    assert ET.fromstring((project / "p.xml").read_bytes()).get("failures") == "1"


def test_runners_are_checked_by_what_they_find(project: Path) -> None:
    (project / "runners.yaml").write_text("runners:\n  here: {type: process}\n")

    done = call("check", "--target", "ampere-cu122", "--runners", "--runners-file", "runners.yaml", "--json")

    assert {"kind": "runner", "name": "here"} in json.loads(done.output)["checked"]


def test_cases_test_the_policy(project: Path) -> None:
    (project / "cases.yaml").write_text(
        "cases:\n  - name: int8 is out\n    target: {backend: tensorrt, precision: int8}\n    expect: [P107]\n"
        "  - name: wrong\n    target: {backend: tensorrt, precision: fp16}\n    expect: [P107]\n"
    )

    done = call("test", "cases.yaml")

    assert done.exit_code == 1
    assert done.output.splitlines()[0].startswith("ok     cases.yaml:2")
    assert "expected P107, found nothing" in done.output
    assert done.output.splitlines()[-1] == "2 cases of policy.yaml, 1 failed"


def test_show_prints_the_policy_that_holds(project: Path) -> None:
    assert call("show").output == (project / "policy.yaml").read_text()
    (project / "policy.yaml").unlink()
    assert "minimum_driver" in call("show").output
