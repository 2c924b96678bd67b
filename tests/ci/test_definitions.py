"""The CI files of ci/: valid for their services, complete over the targets, and calling a command line that exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
GITHUB = ROOT / "ci/github/engines.yml"
GITLAB = ROOT / "ci/gitlab/.gitlab-ci.yml"


@pytest.fixture(scope="module")
def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(GITHUB.read_text(), yaml.BaseLoader)
    return loaded


@pytest.fixture(scope="module")
def pipeline() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(GITLAB.read_text())
    return loaded


@pytest.fixture(scope="module")
def labels() -> dict[str, list[str]]:
    """target -> runs_on, as the targets say"""
    return {path.stem: yaml.safe_load(path.read_text())["runs_on"] for path in (ROOT / "targets").glob("*.yaml")}


def tool(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, timeout=120)


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def gitlab_jobs(pipeline: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Jobs that run, with what `extends` gives them."""

    def resolved(name: str) -> dict[str, Any]:
        job = pipeline[name]
        return {**(resolved(job["extends"]) if "extends" in job else {}), **job}

    return {name: resolved(name) for name, job in pipeline.items() if isinstance(job, dict) and "TARGET" in job.get("variables", {})}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--builtin-schema", "vendor.github-workflows", str(GITHUB)],
        ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", str(GITLAB)],
    ],
    ids=["github", "gitlab"],
)
def test_the_definition_fits_the_service_schema(arguments: list[str]) -> None:
    done = tool("check-jsonschema", *arguments)
    assert done.returncode == 0, done.stdout


def test_zizmor_finds_nothing() -> None:
    done = tool("zizmor", "--offline", "--no-progress", str(GITHUB))
    assert done.returncode == 0, done.stdout
    assert "No findings to report" in done.stdout


def test_github_has_one_job_per_target_on_its_labels(workflow: dict[str, Any], labels: dict[str, list[str]]) -> None:
    rows = [row for job in workflow["jobs"].values() for row in job["strategy"]["matrix"]["include"]]
    assert {row["target"]: row["runs_on"] for row in rows} == labels
    assert len(rows) == len(labels)
    assert all(job["strategy"]["fail-fast"] == "false" for job in workflow["jobs"].values())


def test_gitlab_has_one_job_per_target_on_its_tags(pipeline: dict[str, Any], labels: dict[str, list[str]]) -> None:
    jobs = gitlab_jobs(pipeline)
    with_gpu = {job["variables"]["TARGET"]: job["tags"] for job in jobs.values() if "tags" in job}
    assert with_gpu == {name: runs_on[1:] for name, runs_on in labels.items() if runs_on[0] == "self-hosted"}
    hosted = sorted(job["variables"]["TARGET"] for job in jobs.values() if "tags" not in job)
    assert hosted == sorted(["cpu", *(name for name in labels if name.startswith("rtx-"))])


def test_actions_are_pinned_by_commit_with_their_version_beside_it() -> None:
    uses = re.findall(r"uses: .*", GITHUB.read_text())
    assert len(uses) >= 4
    for line in uses:
        assert re.fullmatch(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_permissions_are_minimal(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {}
    assert [job["permissions"] for job in workflow["jobs"].values()] == [{"contents": "read"}] * len(workflow["jobs"])
    assert all(step["with"]["persist-credentials"] == "false" for step in steps(workflow) if "checkout" in step.get("uses", ""))


def test_artefacts_are_named_per_target_and_kept_when_a_build_failed(workflow: dict[str, Any], pipeline: dict[str, Any]) -> None:
    uploads = [step for step in steps(workflow) if "upload-artifact" in step.get("uses", "")]
    assert len(uploads) == len(workflow["jobs"])
    for step in uploads:
        assert (step["if"], step["with"]["name"], step["with"]["path"]) == ("always()", "engine-${{ matrix.target }}", "artifacts/")
    for job in gitlab_jobs(pipeline).values():
        assert (job["artifacts"]["name"], job["artifacts"]["when"]) == ("engine-$CI_JOB_NAME_SLUG", "always")


def test_the_nightly_run_is_off_the_hour_and_never_cancelled(workflow: dict[str, Any]) -> None:
    (schedule,) = workflow["on"]["schedule"]
    assert int(schedule["cron"].split()[0]) % 15 != 0
    assert workflow["concurrency"]["cancel-in-progress"] == "false"


def test_pull_requests_never_reach_self_hosted_runners(workflow: dict[str, Any], pipeline: dict[str, Any]) -> None:
    assert set(workflow["on"]) == {"workflow_dispatch", "push", "schedule"}
    assert "merge_request" not in json.dumps(pipeline)


def commands(workflow: dict[str, Any], pipeline: dict[str, Any]) -> list[str]:
    """Every script line that calls the command line, each once."""
    lines = [step["run"] for step in steps(workflow) if "run" in step]
    lines += [line for job in gitlab_jobs(pipeline).values() for line in job["script"]]
    return sorted({line for line in lines if "enginefarm build" in line})


def test_nothing_is_pasted_into_a_script_by_the_service(workflow: dict[str, Any], pipeline: dict[str, Any]) -> None:
    assert len(commands(workflow, pipeline)) == 4
    assert not [line for line in commands(workflow, pipeline) if "${{" in line or "$[[" in line]


@pytest.mark.parametrize(
    ("version", "force", "expected"),
    [
        ("", "", ["--allow-unvalidated"]),
        ("12", "", ["--model-version", "12", "--allow-unvalidated"]),
        ("12", "--force", ["--model-version", "12", "--allow-unvalidated", "--force"]),
    ],
)
def test_scripts_call_build_with_these_words(
    version: str, force: str, expected: list[str], workflow: dict[str, Any], pipeline: dict[str, Any], tmp_path: Path
) -> None:
    program = tmp_path / ".venv/bin/enginefarm"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    model = "models/a b $(x).onnx"
    env = {"MODEL": model, "ENGINEFARM_MODEL": model, "TARGET": "rtx-ada", "FORCE": force, "UNVALIDATED": "--allow-unvalidated"}
    env |= {"MODEL_VERSION": version, "ENGINEFARM_MODEL_VERSION": version}
    for command in commands(workflow, pipeline):
        done = subprocess.run(
            ["bash", "-euc", command], cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        strict = "UNVALIDATED" not in command and "--allow-unvalidated" not in command
        words = [word for word in expected if not (strict and word == "--allow-unvalidated")]
        assert json.loads(done.stdout) == ["build", model, "--target", "rtx-ada", *words]


def test_every_option_of_the_scripts_exists(workflow: dict[str, Any], pipeline: dict[str, Any]) -> None:
    options = set(re.findall(r"--[a-z-]+", " ".join(commands(workflow, pipeline)))) | {"--force"}
    done = subprocess.run([sys.executable, "-m", "orchestrator", "build", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert options == {"--target", "--model-version", "--allow-unvalidated", "--force"}
    for option in sorted(options):
        assert option in done.stdout, option


def test_ci_run_is_a_valid_script_and_executable() -> None:
    path = ROOT / ".ci/run"
    assert os.access(path, os.X_OK)
    assert subprocess.run(["bash", "-n", str(path)], timeout=60).returncode == 0
