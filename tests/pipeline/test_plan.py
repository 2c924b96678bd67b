"""What ``plan`` says, against what a build then does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from orchestrator.pipeline.changes import changes

from .conftest import Answer, Project

Net = Callable[..., Path]


def _plan(project: Project, *words: str) -> Answer:
    return project.run("plan", "net.onnx", *words, "--json")


def _rows(answer: Answer) -> dict[str, dict[str, Any]]:
    return {row["target"]: row for row in answer.json["builds"]}


@pytest.fixture
def built(project: Project, net: Net) -> Project:
    net()
    assert project.build("net.onnx", "--target", "cpu").code == 0
    return project


def test_a_new_build_is_planned_with_its_runner_and_nothing_is_written(project: Project, net: Net) -> None:
    net()
    answer = _plan(project, "--target", "cpu", "--exit-code")
    assert answer.code == 10
    row = _rows(answer)["cpu"]
    assert (row["action"], row["why"], row["runner"], row["seconds"]) == ("build", "new", "local", None)
    assert answer.json["totals"]["actions"] == {"build": 1}
    assert not (project.folder / "artifacts").exists()


def test_nothing_to_do_is_exit_0_and_work_to_do_exit_10_only_when_asked(built: Project) -> None:
    assert _plan(built, "--target", "cpu", "--exit-code").code == 0
    assert _rows(_plan(built, "--target", "cpu"))["cpu"]["why"] == "up to date"
    assert _plan(built, "--target", "cpu", "--force").code == 0
    assert _plan(built, "--target", "cpu", "--force", "--exit-code").code == 10


def test_the_changed_input_is_named_from_what_to_what_and_the_time_comes_from_history(built: Project) -> None:
    row = _rows(_plan(built, "--target", "cpu", "--shape", "x:1x3x8x8:2x3x8x8:4x3x8x8"))["cpu"]
    assert row["action"] == "build"
    assert "shapes.x.opt 1x3x8x8 -> 2x3x8x8; shapes.x.max 8x3x8x8 -> 4x3x8x8" in row["why"]
    assert row["seconds"] > 0


def test_a_changed_graph_and_changed_external_data_are_told_apart(project: Project, net: Net) -> None:
    model = onnx.load(net())
    external: dict[str, Any] = {"save_as_external_data": True, "location": "net.bin", "size_threshold": 0}
    onnx.save(model, project.folder / "net.onnx", **external)
    project.build("net.onnx", "--target", "cpu")
    data = bytearray((project.folder / "net.bin").read_bytes())
    data[2] ^= 1
    (project.folder / "net.bin").write_bytes(data)
    row = _rows(_plan(project, "--target", "cpu"))["cpu"]
    assert row["version"] == 2
    assert row["why"].startswith("external data.net.bin ")
    assert "graph" not in row["why"]


def test_what_a_check_rests_on_is_named_too(built: Project) -> None:
    (built.folder / "net.yaml").write_text("tolerance: {rtol: 0.01}\n", encoding="utf-8")
    row = _rows(_plan(built, "--target", "cpu"))["cpu"]
    assert row["action"] == "judge"
    assert "tolerance.rtol 0.001 -> 0.01" in row["why"]
    np.savez(built.folder / "one.npz", x=np.zeros((1, 3, 8, 8), np.float32))
    (built.folder / "net.yaml").write_text("samples: [one.npz]\n", encoding="utf-8")
    row = _rows(_plan(built, "--target", "cpu"))["cpu"]
    assert (row["action"], row["runner"], row["validated_on"]) == ("validate", None, "local")
    assert row["why"].startswith("samples ")


def test_a_lost_engine_comes_from_the_cache_and_without_it_is_built(built: Project) -> None:
    engine = built.folder / "artifacts/net/v1/net_v1_cpu.onnx"
    engine.unlink()
    assert _rows(_plan(built, "--target", "cpu"))["cpu"]["action"] == "restore"
    shutil.rmtree(built.folder / ".enginefarm/cache")
    row = _rows(_plan(built, "--target", "cpu"))["cpu"]
    assert (row["action"], row["why"]) == ("build", "its engine is gone or was changed")


def test_dry_run_is_the_plan(built: Project) -> None:
    plan = _plan(built, "--target", "cpu,rtx-ada")
    dry = built.run("build", "net.onnx", "--target", "cpu,rtx-ada", "--dry-run", "--json")
    assert dry.json == plan.json


def test_lines_are_aligned_and_totals_come_last(built: Project) -> None:
    lines = built.run("plan", "net.onnx", "--target", "cpu,ampere-cu122").out.splitlines()
    assert lines[0].split() == ["model", "target", "action", "runner", "time", "pull", "why"]
    assert lines[1].index("no NVIDIA GPU") == lines[2].index("up to date") == lines[0].index("why")
    assert lines[-1] == "1 up to date, 1 skipped"


def test_excluded_cells_say_why_and_are_no_failure(project: Project, net: Net) -> None:
    net()
    (project.folder / "targets").mkdir()
    text = "name: duo\ntag: duo\nbackend: onnxruntime\nprovider: cpu\nplatform: any\naxes:\n  precision: [fp32, fp16, fp8]\n"
    (project.folder / "targets/duo.yaml").write_text(f"{text}exclude:\n  - {{precision: fp16, why: not needed}}\n", encoding="utf-8")
    rows = _rows(_plan(project, "--target", "duo"))
    assert {name: row["action"] for name, row in rows.items()} == {"duo-fp16": "skip", "duo-fp32": "build", "duo-fp8": "skip"}
    assert rows["duo-fp16"]["why"] == "duo-fp16 is excluded: not needed"
    answer = project.build("net.onnx", "--target", "duo")
    assert answer.code == 0
    assert {name: build["status"] for name, build in answer.builds.items()} == {
        "duo-fp32": "passed",
        "duo-fp16": "skipped",
        "duo-fp8": "skipped",
    }
    assert project.run("plan", "net.onnx", "--target", "duo-fp8").code == 2
    assert list(_rows(_plan(project, "--target", "duo", "--precision", "fp32"))) == ["duo-fp32"]


def test_a_shape_that_does_not_fit_is_told_where_it_is_written_once_per_place(project: Project, net: Net) -> None:
    net()
    (project.folder / "targets").mkdir()
    for name in ("one", "two"):
        (project.folder / f"targets/{name}.yaml").write_text(
            f"name: {name}\ntag: {name}\nextends: cpu\nshapes:\n  x: 64x16\n", encoding="utf-8"
        )
    answer = project.run("plan", "net.onnx", "--target", "one,two", "--json")
    assert answer.code == 2
    places = [problem["where"] for problem in answer.json["problems"]]
    assert [(place["file"], place["line"], place["target"]) for place in places] == [
        ("targets/one.yaml", 5, "one"),
        ("targets/two.yaml", 5, "two"),
    ]


def test_a_quiet_plan_leaves_out_the_notes(project: Project, net: Net) -> None:
    net()
    assert "taken as" in project.run("plan", "net.onnx", "--target", "cpu").err
    assert project.run("plan", "net.onnx", "--target", "cpu", "-q").err == ""


def test_the_plan_has_a_schema_of_its_own(built: Project) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parents[2] / "docs/plan.schema.json").read_bytes())
    value = _plan(built).json
    jsonschema.validate(value, schema)
    assert value["schema"] == schema["properties"]["schema"]["const"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**value, "builds": [{**value["builds"][0], "action": "perhaps"}]}, schema)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"precision": "fp32"}, {"precision": "fp16"}, ["precision fp32 -> fp16"]),
        ({}, {"plugins": ["sha256:" + "a" * 64]}, ["plugins none -> aaaaaaaaaaaa"]),
        ({"tf32": True}, {"tf32": False}, ["tf32 true -> false"]),
        ({"shapes": {"x": {"min": [1, 3]}}}, {"shapes": {}}, ["shapes.x.min 1x3 -> none"]),
        ({"model": "sha256:" + "a" * 64, "model graph": "b"}, {"model": "sha256:" + "c" * 64, "model graph": "d"}, ["model graph b -> d"]),
    ],
)
def test_changes_are_said_by_name(before: dict[str, Any], after: dict[str, Any], said: list[str]) -> None:
    assert changes(before, after) == said
