"""What is asked for, and what is refused before anything is built: models by their names, samples, selections, what failed last."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from orchestrator.store.memo import Memo

from .conftest import Net, Project

ROOT = Path(__file__).resolve().parents[2]


def places(project: Project, *words: str) -> list[tuple[str, int | None]]:
    answer = project.run(*words, "--json")
    assert answer.code == 2, answer.err
    return [(problem["where"]["file"], problem["where"].get("line")) for problem in answer.json["problems"]]


@pytest.fixture
def failing(project: Project, net: Net) -> Project:
    """``one`` failed last; enginefarm.yaml asks for ``cpu`` alone."""
    net()
    (project.folder / "targets").mkdir()
    target = "name: one\ntag: one\nextends: cpu\nlimits:\n  build_timeout: {}\n"
    (project.folder / "targets/one.yaml").write_text(target.format(0.01), encoding="utf-8")
    assert project.build("net.onnx", "--target", "one").code == 1
    (project.folder / "targets/one.yaml").write_text(target.format(600), encoding="utf-8")
    (project.folder / "enginefarm.yaml").write_text("targets: [cpu]\n", encoding="utf-8")
    return project


def test_what_failed_last_is_built_whatever_the_settings_select(failing: Project) -> None:
    assert [row["target"] for row in failing.run("plan", "net.onnx", "--lf", "--json").json["builds"]] == ["one"]
    answer = failing.build("net.onnx", "--lf")
    assert {name: build["status"] for name, build in answer.builds.items()} == {"one": "passed"}


def test_the_command_line_leaves_out_of_it_what_it_does_not_name(failing: Project) -> None:
    answer = failing.run("plan", "net.onnx", "--lf", "--target", "cpu")
    assert answer.code == 2
    assert "nothing of this failed last time" in answer.err


def test_a_plan_refuses_the_samples_that_the_build_would_refuse(project: Project, net: Net) -> None:
    net()
    (project.folder / "net.yaml").write_text("samples: [wide.npz]\n", encoding="utf-8")
    np.savez(project.folder / "wide.npz", x=np.zeros((64, 3, 8, 8), np.float32))
    planned, built = project.run("plan", "net.onnx", "-t", "cpu"), project.run("build", "net.onnx", "-t", "cpu")
    assert (planned.code, built.code) == (2, 2)
    assert planned.err.split("error[")[1] == built.err.split("error[")[1]
    assert not (project.folder / "artifacts").exists()


def test_what_a_models_yaml_selects_in_vain_is_told_at_its_line(project: Project, net: Net) -> None:
    net()
    (project.folder / "net.yaml").write_text("name: net\ntargets: ['*-nope']\n", encoding="utf-8")
    assert places(project, "plan", "net.onnx") == [("net.yaml", 2)]
    (project.folder / "net.yaml").write_text("samples:\n  - nope*.npz\n", encoding="utf-8")
    assert [file for file, line in places(project, "plan", "net.onnx", "-t", "cpu") if line] == ["net.yaml"]


def test_settings_that_select_nothing_or_cannot_be_read_are_refused(project: Project, net: Net) -> None:
    net()
    settings = project.folder / "enginefarm.yaml"
    settings.write_text("targets: []\n", encoding="utf-8")
    assert places(project, "plan", "net.onnx") == [("enginefarm.yaml", 1)]
    settings.unlink()
    for make in (lambda: settings.symlink_to("/nowhere"), settings.mkdir, lambda: os.mkfifo(settings)):
        make()
        assert places(project, "plan", "net.onnx") == [("enginefarm.yaml", None)]
        settings.rmdir() if settings.is_dir() else settings.unlink()


def test_links_that_lead_to_each_other_are_no_model_and_an_empty_name_is_not_the_current_folder(project: Project, net: Net) -> None:
    net()
    (project.folder / "loop.onnx").symlink_to("loop.onnx")
    answer = project.run("build", "loop.onnx")
    assert (answer.code, "EF200" in answer.err) == (2, True)
    assert project.run("plan", "").code == 2
    assert project.run("plan", "net.onnx", "", "-t", "cpu").code == 2


def test_a_link_is_a_model_of_its_own_and_the_same_name_twice_is_one(project: Project, net: Net) -> None:
    net()
    (project.folder / "alias.onnx").symlink_to("net.onnx")
    answer = project.run("plan", "net.onnx", "alias.onnx", "./net.onnx", "-t", "cpu", "--json")
    assert [row["model"] for row in answer.json["builds"]] == ["net", "alias"]


def test_a_request_that_is_refused_is_no_run(project: Project, net: Net) -> None:
    net()
    assert project.run("build", "missing.onnx").code == 2
    assert list((project.folder / ".enginefarm/runs").iterdir()) == []


def test_a_run_lasts_from_its_start_to_its_end(project: Project, net: Net) -> None:
    net()
    assert project.build("net.onnx", "-t", "cpu").code == 0
    (run,) = project.run("runs", "--json").json["runs"]
    assert run["finished_at"] - run["started_at"] == pytest.approx(run["seconds"], abs=0.1)


def test_the_run_after_a_build_reads_no_engine_and_no_model(project: Project, net: Net) -> None:
    model = net()
    assert project.build("net.onnx", "-t", "cpu").code == 0
    memo = Memo(project.folder / ".enginefarm/cache/memo.db")
    for file in (project.folder / "artifacts/net/v1/net_v1_cpu.onnx", model):
        memo.digest(file)
    # the model's digest is over its graph and all external data: that of the file itself nobody needed
    assert memo.hashed_bytes == model.stat().st_size


def test_a_better_verdict_of_before_stays_and_is_named(project: Project, net: Net) -> None:
    net()
    assert project.build("net.onnx", "-t", "cpu").code == 0
    np.savez(project.folder / "nan.npz", x=np.full((1, 3, 8, 8), np.nan, np.float32))
    (project.folder / "net.yaml").write_text("samples: [nan.npz]\n", encoding="utf-8")
    answer = project.run("build", "net.onnx", "-t", "cpu")
    assert answer.code == 3
    assert "cpu: the earlier verdict on this engine stays, passed, as net_v1_cpu.onnx" in answer.out
    assert project.record("cpu")["verdict"]["status"] == "passed"


def test_a_plan_leaves_a_damaged_history_where_it_is(project: Project, net: Net) -> None:
    net()
    (project.folder / ".enginefarm").mkdir()
    history = project.folder / ".enginefarm/history.db"
    history.write_bytes(b"nothing of the kind" * 100)
    answer = project.run("plan", "net.onnx", "-t", "cpu")
    assert (answer.code, "history.db cannot be used" in answer.err) == (0, True)
    assert [path.name for path in history.parent.glob("history.d*")] == ["history.db"]


def test_a_folder_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    code = "import os; os.rmdir(os.getcwd()); from orchestrator.cli.main import run; run(['runs'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 4
    assert "the current folder is gone" in done.stderr


def test_an_engine_that_is_a_link_is_put_back_as_a_file(project: Project, net: Net) -> None:
    net()
    assert project.build("net.onnx", "-t", "cpu").code == 0
    engine = project.folder / "artifacts/net/v1/net_v1_cpu.onnx"
    engine.rename(project.folder / "elsewhere.onnx")
    engine.symlink_to(project.folder / "elsewhere.onnx")
    assert project.run("plan", "net.onnx", "-t", "cpu", "--json").json["builds"][0]["action"] == "restore"
    assert project.build("net.onnx", "-t", "cpu").code == 0
    assert not engine.is_symlink()


def test_a_plan_knows_that_an_engine_is_gone_from_the_cache(project: Project, net: Net) -> None:
    net()
    assert project.build("net.onnx", "-t", "cpu").code == 0
    shutil.rmtree(project.folder / "artifacts")
    for blob in (project.folder / ".enginefarm/cache/blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    assert project.run("plan", "net.onnx", "-t", "cpu", "--json").json["builds"][0]["action"] == "build"


def test_the_exit_code_of_a_plan_is_that_of_a_dry_run_and_no_build_has_it(project: Project, net: Net) -> None:
    net()
    assert project.run("build", "net.onnx", "-t", "cpu", "--dry-run", "--exit-code").code == 10
    assert project.run("build", "net.onnx", "-t", "cpu", "--exit-code").code == 2
    assert not (project.folder / "artifacts").exists()
