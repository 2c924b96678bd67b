"""The whole way of a build, as a user runs it, with the real backends."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from .conftest import Net, Project


def test_cpu_engine_passes_against_an_independent_reference(project: Project, net: Net) -> None:
    net()
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 0, answer.err
    assert answer.builds["cpu"]["status"] == "passed"
    record = project.record("cpu")
    assert record["file"] == "net_v1_cpu.onnx"
    engine = project.folder / "artifacts/net/v1" / record["file"]
    assert record["digest"] == "sha256:" + hashlib.sha256(engine.read_bytes()).hexdigest()
    assert record["size_bytes"] == engine.stat().st_size
    verdict = record["verdict"]
    assert verdict["reference"] == "onnx.reference"
    assert verdict["outputs"][0]["name"] == "y"
    assert verdict["outputs"][0]["max_abs"] < 1e-4
    assert record["profiles"]["x"] == {"min": [1, 3, 8, 8], "opt": [1, 3, 8, 8], "max": [8, 3, 8, 8]}
    assert record["built_on"]["platform"]
    latest = json.loads((project.folder / "artifacts/net/latest.json").read_bytes())
    assert latest["version"] == 1
    assert latest["targets"] == {"cpu": "passed"}


def test_the_default_profile_of_a_batch_dimension_is_printed(project: Project, net: Net) -> None:
    net()
    answer = project.build("net.onnx", "--target", "cpu")
    assert "note: net: " in answer.err
    assert "batch" in answer.err or "1x3x8x8" in answer.err


def test_nothing_is_built_twice_and_force_builds_again(project: Project, net: Net) -> None:
    net()
    project.build("net.onnx", "--target", "cpu")
    again = project.build("net.onnx", "--target", "cpu")
    assert again.builds["cpu"]["cached"] is True
    assert project.manifest()["revision"] == 1
    forced = project.build("net.onnx", "--target", "cpu", "--force")
    assert forced.builds["cpu"]["cached"] is False
    assert project.manifest()["revision"] == 2
    archived = list((project.folder / "artifacts/net/v1/manifests").iterdir())
    assert len(archived) == 1


def test_renaming_the_file_changes_nothing_but_the_name(project: Project, net: Net) -> None:
    path = net()
    project.build("net.onnx", "--target", "cpu")
    path.rename(project.folder / "other.onnx")
    answer = project.build("other.onnx", "--target", "cpu", "--name", "net")
    assert answer.builds["cpu"]["cached"] is True


def test_an_engine_changed_on_disk_is_put_right_from_the_cache(project: Project, net: Net) -> None:
    net()
    project.build("net.onnx", "--target", "cpu")
    engine = project.folder / "artifacts/net/v1/net_v1_cpu.onnx"
    good = engine.read_bytes()
    engine.write_bytes(good + b"\0")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 0
    assert answer.builds["cpu"]["cached"] is True
    assert engine.read_bytes() == good


def test_an_engine_changed_on_disk_is_built_again_when_the_cache_lost_it(project: Project, net: Net) -> None:
    net()
    project.build("net.onnx", "--target", "cpu")
    engine = project.folder / "artifacts/net/v1/net_v1_cpu.onnx"
    engine.write_bytes(engine.read_bytes() + b"\0")
    shutil.rmtree(project.folder / ".enginefarm/cache")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.builds["cpu"]["cached"] is False
    assert project.record("cpu")["digest"] == "sha256:" + hashlib.sha256(engine.read_bytes()).hexdigest()


def test_new_weights_are_a_new_version_and_v10_follows_v9(project: Project, net: Net) -> None:
    net()
    project.build("net.onnx", "--target", "cpu", "--model-version", "9")
    net(seed=1)
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.json["models"][0]["version"] == 10
    net(seed=2)
    assert project.build("net.onnx", "--target", "cpu").json["models"][0]["version"] == 11


def test_in_ci_the_version_is_not_guessed(project: Project, net: Net) -> None:
    net()
    answer = project.build("net.onnx", "--target", "cpu", env={"CI": "true"})
    assert answer.code == 2
    assert "--model-version" in answer.err
    assert project.build("net.onnx", "--target", "cpu", "--model-version", "1", env={"CI": "true"}).code == 0
    assert project.build("net.onnx", "--target", "cpu", env={"CI": "true"}).code == 0


def test_a_name_taken_by_an_unrelated_model_is_an_error(project: Project, net: Net) -> None:
    net()
    project.build("net.onnx", "--target", "cpu")
    net(seed=1, output="other")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 2
    assert "EF211" in answer.err


def test_a_target_without_runner_is_exit_3_and_is_skipped_with_available(project: Project, net: Net) -> None:
    net()
    required = project.build("net.onnx", "--target", "jetson-cu102", "--target", "cpu")
    assert required.code == 3
    assert required.builds["jetson-cu102"]["status"] == "skipped"
    assert "linux/arm64" in required.builds["jetson-cu102"]["reason"]
    assert required.builds["cpu"]["status"] == "passed"
    assert project.build("net.onnx", "--target", "jetson-cu102", "--available").code == 0


def test_a_failed_rebuild_keeps_the_good_engine(project: Project, net: Net) -> None:
    net(dims=(1, 3, 8, 8))
    project.build("net.onnx", "--target", "cpu")
    digest = project.record("cpu")["digest"]
    answer = project.build("net.onnx", "--target", "cpu", "--force", "--build-timeout", "0.1")
    assert answer.code == 1
    assert answer.builds["cpu"]["problem"]["code"] == "EF303"
    assert project.record("cpu")["digest"] == digest
    assert project.engines() == ["net_v1_cpu.onnx"]


def test_a_dynamic_model_without_shapes_shows_what_to_paste(project: Project, net: Net) -> None:
    net(dims=("batch", 3, "h", "w"))
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 2
    assert "shapes:" in answer.err
    assert "--shape" in answer.err
    given = project.build("net.onnx", "--target", "cpu", "--shape", "x:1x3x8x8:1x3x8x16:2x3x16x16")
    assert given.code == 0, given.err
    assert project.record("cpu")["profiles"]["x"]["opt"] == [1, 3, 8, 16]


def test_two_models_and_a_folder_are_built_in_one_run(project: Project, net: Net) -> None:
    (project.folder / "models/seg").mkdir(parents=True)
    net("models/a.onnx")
    net("models/seg/b.onnx", seed=3)
    answer = project.build("models", "--target", "cpu")
    assert answer.code == 0, answer.err
    assert [model["name"] for model in answer.json["models"]] == ["a", "seg__b"]


def test_json_is_the_only_thing_on_standard_output_and_events_are_json_lines(project: Project, net: Net) -> None:
    net()
    answer = project.run("build", "net.onnx", "--target", "cpu", "--json", "--progress", "json")
    assert answer.json["exit_code"] == 0
    events = [json.loads(line) for line in answer.err.splitlines()]
    names = [event["event"] for event in events]
    assert names[0] == "run-started"
    assert names[-1] == "run-finished"
    assert {"step-started", "step-phase", "step-finished", "build-finished", "note"} <= set(names)


def test_a_misspelt_target_gets_a_suggestion_before_anything_is_read(project: Project) -> None:
    answer = project.build("missing.onnx", "--target", "cup")
    assert answer.code == 2
    assert "cpu" in answer.err


def test_a_name_with_spaces_and_shell_words_stays_text(project: Project, net: Net) -> None:
    net("lane $(touch x) net.onnx")
    answer = project.build("lane $(touch x) net.onnx", "--target", "cpu")
    assert answer.code == 0, answer.err
    assert not (project.folder / "x").exists()
    record = project.record("cpu", "lane $(touch x) net")
    assert "'lane $(touch x) net.onnx'" in record["reproduce"]


def test_a_name_with_a_colon_is_refused_with_a_way_out(project: Project, net: Net) -> None:
    net("lane:v2.onnx")
    answer = project.build("lane:v2.onnx", "--target", "cpu")
    assert answer.code == 2
    assert "EF110" in answer.err
    assert "--name" in answer.err


def test_dry_run_says_what_would_happen_and_builds_nothing(project: Project, net: Net) -> None:
    net()
    answer = project.run("build", "net.onnx", "--available", "--dry-run", "--json")
    assert answer.code == 0
    actions = {line["target"]: line["action"] for line in answer.json["builds"]}
    assert actions["cpu"] == "build"
    assert actions["jetson-cu102"] == "skip"
    assert not (project.folder / "artifacts").exists()


def test_enginefarm_yaml_gives_way_to_the_model_and_the_command_line(project: Project, net: Net) -> None:
    net()
    (project.folder / "enginefarm.yaml").write_text("targets: [cpu, ort-cuda]\navailable: true\n")
    assert set(project.build("net.onnx").builds) == {"cpu", "ort-cuda"}
    (project.folder / "net.yaml").write_text("targets: [cpu]\n")
    assert set(project.build("net.onnx").builds) == {"cpu"}
    assert set(project.build("net.onnx", "-t", "ort-cuda").builds) == {"ort-cuda"}


def test_the_table_names_each_engine_and_counts_only_passed_as_passed(project: Project, net: Net) -> None:
    net()
    answer = project.run("build", "net.onnx", "--target", "cpu", "--target", "volta-cu118", "--available")
    lines = answer.out.splitlines()
    assert lines[0] == "net v1"
    assert any("net_v1_cpu.onnx" in line and "passed" in line for line in lines)
    assert any(line.startswith("volta-cu118") and "7.0" in line for line in lines)
    assert lines[-1].startswith("1 passed, 1 skipped in ")


def test_the_fallback_lies_beside_the_manifest_with_its_digest(project: Project, net: Net) -> None:
    net()
    (project.folder / "net.pt").write_bytes(b"torchscript")
    (project.folder / "net.yaml").write_text("fallback: net.pt\n")
    assert project.build("net.onnx", "--target", "cpu").code == 0
    assert project.manifest()["fallback"] == {"file": "net.pt", "digest": "sha256:" + hashlib.sha256(b"torchscript").hexdigest()}
    assert (project.folder / "artifacts/net/v1/net.pt").read_bytes() == b"torchscript"


def test_a_fallback_that_is_not_there_is_said_at_its_line(project: Project, net: Net) -> None:
    net()
    (project.folder / "net.yaml").write_text("name: net\nfallback: nosuch.pt\n")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 2
    assert "net.yaml:2:11" in answer.err


def test_a_model_with_external_data_is_built_and_converted(project: Project, net: Net) -> None:
    import onnx

    path = net()
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    answer = project.build("net.onnx", "--target", "cpu", "--precision", "fp16")
    assert answer.code == 0, answer.err
    assert project.build("net.onnx", "--target", "cpu").code == 0


def test_a_failure_keeps_its_log(project: Project, net: Net) -> None:
    net()
    answer = project.build("net.onnx", "--target", "cpu", "--build-timeout", "0.1")
    problem = answer.builds["cpu"]["problem"]
    assert problem["where"] == {"file": "net.onnx", "target": "cpu"}
    assert "log" not in problem or Path(project.folder / problem["log"]).is_file()


def test_an_output_folder_that_cannot_be_written_shows_before_building(project: Project, net: Net) -> None:
    net()
    (project.folder / "artifacts").mkdir()
    (project.folder / "artifacts/net").write_text("a file")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 4
    assert "EF400" in answer.err
    assert "build on" not in answer.err


def test_a_new_tag_renames_a_reused_engine(project: Project, net: Net) -> None:
    net()
    (project.folder / "targets").mkdir()
    target = project.folder / "targets/mine.yaml"
    target.write_text("name: mine\ntag: old\nextends: cpu\n")
    assert project.build("net.onnx", "--target", "mine").code == 0
    assert project.engines() == ["net_v1_old.onnx"]
    target.write_text("name: mine\ntag: new\nextends: cpu\n")
    assert project.build("net.onnx", "--target", "mine").code == 0
    assert project.engines() == ["net_v1_new.onnx"]
    assert project.record("mine")["tag"] == "new"
