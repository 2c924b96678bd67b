from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from types import SimpleNamespace

import pytest
import typer
from onnx import TensorProto, helper
from typer.testing import CliRunner

from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, TensorRecord, Verdict
from orchestrator.artifacts.store import Release
from orchestrator.cli.inspect import inspect_command
from orchestrator.errors import EnginefarmError, flatten

app = typer.Typer()
app.command()(inspect_command)


def _inspect(*arguments):
    """Text on standard output, problems and exit code of one call."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is None:
        return SimpleNamespace(out=result.stdout, problems=(), codes=(), exit=0)
    assert isinstance(result.exception, EnginefarmError), result.exception
    problems = flatten(result.exception)
    return SimpleNamespace(
        out=result.stdout, problems=problems, codes=tuple(problem.kind.code for problem in problems), exit=result.exception.exit
    )


def _rtx_plan(*bits, body=b"layers\n" * 60):
    sections = struct.pack("<4sIQQ4sIQQ", b"NGNE", 0, 112, len(body), b"THGW", 0, 112 + len(body), 0)
    head = struct.pack("<4sIQQ4B4sI", b"vtrt", 0, 2, 64 + len(sections) + len(body) + 4, 1, 7, 1, 116, b"vtrt", sum(bits))
    return head.ljust(64, b"\0") + sections + body + bytes.fromhex("998b8d8b")


def _tensorrt_plan():
    return struct.pack("<4sIQQ4BI", b"ftrt", 0, 237, 0, 8, 6, 1, 6, 0) + bytes(range(200))


def _model(*, outputs=("y",)):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    nodes = [helper.make_node("Relu", ["x"], [output]) for output in outputs]
    values = [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 3]) for output in outputs]
    graph = helper.make_graph(nodes, "g", [x], values)
    return helper.make_model(graph, producer_name="tests", opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


@pytest.fixture
def write(tmp_path):
    def make(name, data):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return make


def _digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def release(tmp_path):
    """Commit engines of lane v3; returns the version folder."""

    def make(**engines):
        image = TensorRecord(name="x", dtype="float32", shape=(-1, 3))
        model = ModelRecord(
            name="lane",
            version=3,
            digest=_digest(b"lane"),
            source="models/lane.onnx",
            inputs=(image,),
            outputs=(image.model_copy(update={"name": "y"}),),
        )
        records = [
            EngineRecord(
                target=target,
                tag=target,
                file=file,
                digest=_digest(data) if file else None,
                size_bytes=len(data) if file else None,
                backend="onnxruntime" if target == "cpu" else "tensorrt",
                backend_version="8.6.1.6",
                compute_capability=("8.0",),
                platform="linux/amd64",
                minimum_driver="525.60.13",
                precision="fp32",
                problem=None if file else {"what": "no runner with compute capability 8.7"},
                verdict=Verdict(status="passed" if file else "skipped", reason="1 output agrees", reference="supplied" if file else None),
            )
            for target, (file, data) in engines.items()
        ]
        with Release(tmp_path / "artifacts", "lane", 3) as writer:
            for file, data in engines.values():
                if file:
                    (tmp_path / "built").write_bytes(data)
                    writer.place(tmp_path / "built", file)
            manifest = Manifest(
                model=model, revision=1, run="r7", created_at="2026-01-01T00:00:00Z", enginefarm="0.1.0", engines=tuple(records)
            )
            return writer.commit(manifest, move_latest=True).parent

    return make


# models


def test_a_model_is_described(write):
    found = _inspect(write("lane.onnx", _model()))
    assert found.exit == 0
    lines = [line.split() for line in found.out.splitlines()]
    assert lines[0][-2:] == ["ONNX", "model"]
    assert ["inputs", "x", "float32", "batch", "x", "3"] in lines
    assert ["outputs", "y", "float32", "batch", "x", "3"] in lines
    assert ["opset", "ai.onnx", "17", "(IR", "8)"] in lines
    assert ["nodes", "1:", "Relu", "1"] in lines


def test_a_model_as_json(write):
    path = write("lane.onnx", _model(outputs=("y", "z")))
    (found,) = json.loads(_inspect(path, "--json").out)
    assert (found["file"], found["kind"], found["ok"], found["problems"]) == (str(path), "model", True, [])
    assert found["digest"].startswith("sha256:")
    assert [tensor["name"] for tensor in found["outputs"]] == ["y", "z"]
    assert list(found["opsets"].values()) == [17]


def test_a_model_without_outputs_is_refused(write):
    found = _inspect(write("lane.onnx", _model(outputs=())))
    assert found.exit == 2
    assert "output" in found.problems[0].what


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("model.onnx", b"<!DOCTYPE html><html><body>404</body></html>", "web page"),
        ("model.onnx", b"", "empty"),
        ("model.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS"),
    ],
)
def test_what_is_not_a_model_is_named(write, name, data, said):
    found = _inspect(write(name, data))
    assert (found.exit, found.out) == (2, "")
    assert said in found.problems[0].what


@pytest.mark.parametrize("path", ["C:\\work\\m.onnx", "models\\"])
def test_a_windows_path_is_named_as_such(path):
    found = _inspect(path)
    assert found.exit == 2
    assert "Windows path" in found.problems[0].what


def test_a_missing_file_and_a_folder_are_usage_errors(tmp_path):
    assert _inspect(tmp_path / "missing.onnx").codes == ("EF200",)
    assert _inspect(tmp_path).exit == 2


# engines


def test_a_tensorrt_rtx_engine_is_described(write):
    found = _inspect(write("lane_v3_rtx-ampere.unvalidated.engine", _rtx_plan(2, 4)))
    assert found.exit == 0
    lines = [line.split() for line in found.out.splitlines()]
    assert lines[0][-2:] == ["TensorRT-RTX", "engine"]
    assert ["version", "1.7.1.116"] in lines
    assert ["capabilities", "8.0,", "8.6"] in lines
    assert "name says     model lane, version 3, tag rtx-ampere, unvalidated" in found.out
    assert "none beside it names this engine" in found.out


def test_an_engine_as_json(write):
    data = _rtx_plan(8)
    (found,) = json.loads(_inspect(write("lane_v10_rtx-ada.engine", data), "--json").out)
    assert (found["kind"], found["backend"], found["version"], found["capabilities"]) == ("engine", "tensorrt-rtx", "1.7.1.116", ["8.9"])
    assert (found["digest"], found["size_bytes"], found["declared_size"]) == (_digest(data), len(data), len(data))
    assert found["name"] == {"model": "lane", "version": 10, "tag": "rtx-ada", "suffix": "engine", "validated": True}
    assert found["manifest"] is None


@pytest.mark.rtx
def test_an_engine_that_the_real_builder_made_is_read(write):
    import tensorrt_rtx_bindings as trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    relu = network.add_activation(network.add_input("x", trt.float32, (1, 8)), trt.ActivationType.RELU)
    network.mark_output(relu.get_output(0))
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    data = bytes(builder.build_serialized_network(network, config))
    (found,) = json.loads(_inspect(write("relu.engine", data), "--json").out)
    assert (found["kind"], found["backend"], found["capabilities"], found["ok"]) == ("engine", "tensorrt-rtx", ["8.6"], True)
    assert found["declared_size"] == len(data)


def test_the_manifest_beside_an_engine_says_the_rest(release):
    folder = release(ampere=("lane_v3_ampere.engine", _tensorrt_plan()))
    found = _inspect(folder / "lane_v3_ampere.engine")
    assert found.exit == 0
    assert "lane_v3.json, revision 1, target ampere; the digest matches\n" in found.out
    assert "passed: 1 output agrees" in found.out
    assert "compute capability 8.0, linux/amd64, driver 525.60.13 or newer" in found.out


def test_an_engine_that_changed_after_it_was_checked_is_refused(release):
    folder = release(ampere=("lane_v3_ampere.engine", _tensorrt_plan()))
    engine = folder / "lane_v3_ampere.engine"
    engine.write_bytes(_tensorrt_plan()[:-1] + b"!")
    found = _inspect(engine)
    assert (found.exit, found.codes) == (6, ("EF601",))
    assert found.problems[0].what == "lane_v3_ampere.engine changed after it was checked"
    assert "the digest does NOT match" in found.out
    assert "enginefarm repro" in found.problems[0].fix


def test_a_renamed_engine_is_found_by_its_digest(release):
    folder = release(ampere=("lane_v3_ampere.engine", _tensorrt_plan()))
    found = _inspect((folder / "lane_v3_ampere.engine").rename(folder / "newest.engine"))
    assert found.exit == 0
    assert "target ampere; the digest matches, there named lane_v3_ampere.engine" in found.out


def test_other_json_files_beside_an_engine_do_not_disturb(release):
    folder = release(ampere=("lane_v3_ampere.engine", _tensorrt_plan()))
    (folder / "config.json").write_text("{}")
    (folder / "broken.json").write_bytes(b"\xff{")
    assert "the digest matches" in _inspect(folder / "lane_v3_ampere.engine").out


def test_an_onnxruntime_engine_is_a_model_with_a_manifest_entry(release):
    folder = release(cpu=("lane_v3_cpu.onnx", _model()))
    found = _inspect(folder / "lane_v3_cpu.onnx")
    assert found.exit == 0
    assert "ONNX Runtime engine (an ONNX file)" in found.out
    assert "target cpu; the digest matches" in found.out
    (folder / "lane_v3_cpu.onnx").write_bytes(_model(outputs=("y", "z")))
    assert _inspect(folder / "lane_v3_cpu.onnx").codes == ("EF601",)


def _torch_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", b"x")
    return path.read_bytes()


def _ultralytics():
    metadata = json.dumps({"names": {"0": "person"}}).encode()
    return struct.pack("<I", len(metadata)) + metadata + _tensorrt_plan()


@pytest.mark.parametrize(
    ("name", "data", "exit_code", "said"),
    [
        ("model_v1_sm86.engine", b"", 6, "the file is empty (0 bytes)"),
        ("a.engine", _rtx_plan(2).replace(b"\n", b"\r\n"), 6, "text-mode transfer"),
        ("engine.onnx", _rtx_plan(2), 2, "this is a TensorRT-RTX engine with the name of an ONNX model"),
        ("engine.onnx", _tensorrt_plan(), 2, "this is a TensorRT engine with the name of an ONNX model"),
        ("model.engine", _model(), 6, "this is an ONNX model with the name of an engine"),
        ("model.engine", b"<html><body>404</body></html>", 6, "web page"),
        ("model.plan", b"\x00\x01\x02\x03" * 20, 6, "it starts with 00 01 02 03, not with ftrt or vtrt"),
        ("yolo.engine", _ultralytics(), 6, "bytes of metadata come before the plan, as Ultralytics exports it"),
        ("a.engine", _rtx_plan(2)[:-9], 6, "the plan is cut"),
        ("a.engine", _rtx_plan(2)[:-4] + bytes(4), 6, "end mark is missing"),
        ("a.engine", b"ftrt", 6, "the plan is cut: 4 bytes"),
    ],
)
def test_damaged_and_foreign_files_are_recognised(write, name, data, exit_code, said):
    found = _inspect(write(name, data))
    assert found.exit == exit_code
    assert said in found.problems[0].what
    assert found.problems[0].fix


def test_a_torch_zip_named_as_an_engine_is_no_raw_plan(tmp_path):
    path = tmp_path / "model.trt"
    _torch_zip(path)
    found = _inspect(path)
    assert found.exit == 6
    assert "torch2trt state" in found.problems[0].what
    assert "nor a raw TensorRT plan" in found.problems[0].what


def test_an_empty_engine_beside_its_manifest_gives_both_reasons(release):
    folder = release(ampere=("lane_v3_ampere.engine", _tensorrt_plan()))
    (folder / "lane_v3_ampere.engine").write_bytes(b"")
    assert _inspect(folder / "lane_v3_ampere.engine").codes == ("EF600", "EF601")


# manifests


def test_a_manifest_is_shown_as_a_table(release):
    folder = release(ampere=("lane_v3_ampere.engine", _tensorrt_plan()), orin=(None, b""))
    found = _inspect(folder / "lane_v3.json")
    assert found.exit == 0
    assert "manifest of lane v3, revision 1" in found.out
    table = found.out.split("\n\n")[1].splitlines()
    assert [row.split()[:2] for row in table] == [["TARGET", "STATUS"], ["ampere", "passed"], ["orin", "skipped"]]
    assert table[1].endswith("lane_v3_ampere.engine")
    assert table[2].endswith("none: no runner with compute capability 8.7")


def test_latest_leads_to_its_manifest(release):
    folder = release(ampere=("lane_v3_ampere.engine", _tensorrt_plan()))
    (found,) = json.loads(_inspect(folder.parent / "latest.json", "--json").out)
    assert (found["kind"], found["manifest"]) == ("manifest", str(folder / "lane_v3.json"))
    assert found["content"]["model"]["version"] == 3


def test_a_manifest_tells_missing_and_changed_engines(release):
    folder = release(ampere=("lane_v3_ampere.engine", _tensorrt_plan()), turing=("lane_v3_turing.engine", _tensorrt_plan()))
    (folder / "lane_v3_ampere.engine").unlink()
    (folder / "lane_v3_turing.engine").write_bytes(b"")
    found = _inspect(folder / "lane_v3.json")
    assert "lane_v3_ampere.engine (not here)" in found.out
    assert "lane_v3_turing.engine (changed)" in found.out
    assert (found.exit, found.codes) == (6, ("EF600", "EF601"))


def test_other_json_is_no_manifest(write):
    found = _inspect(write("package.json", b'{"name": "x"}'))
    assert (found.exit, found.codes) == (6, ("EF602",))
    assert "no enginefarm manifest" in found.problems[0].why


def test_a_latest_that_points_elsewhere_is_not_followed(tmp_path, write):
    latest = {"schema": "enginefarm.latest/1", "model": "lane", "targets": {}, "manifest": "../../secret.json"}
    found = _inspect(write("latest.json", json.dumps(latest).encode()))
    assert found.exit == 6
    assert found.problems[0].where.file == str(tmp_path / "latest.json")


def test_text_that_would_drive_the_terminal_is_escaped(release):
    folder = release(ampere=("lane_v3_ampere.engine", _tensorrt_plan()))
    content = json.loads((folder / "lane_v3.json").read_bytes())
    content["model"]["source"] = content["engines"][0]["verdict"]["reason"] = "x\x1b[2J\u202e"
    (folder / "lane_v3.json").write_text(json.dumps(content))
    for name in ("lane_v3.json", "lane_v3_ampere.engine"):
        out = _inspect(folder / name).out
        assert "x\\x1b[2J\\u202e" in out
        assert "\x1b" not in out


# several files


def test_all_files_are_shown_and_all_problems_reported(write):
    good = write("lane.onnx", _model())
    found = _inspect(write("empty.engine", b""), good, write("page.onnx", b"<html></html>"))
    assert found.codes == ("EF600", "EF201")
    assert found.exit == 2
    assert "lane.onnx: ONNX model" in found.out


def test_json_holds_problems_too(write):
    result = _inspect(write("empty.engine", b""), "--json")
    (found,) = json.loads(result.out)
    assert (found["ok"], found["problems"][0]["code"], found["file_kind"]) == (False, "EF600", "empty")
    assert result.exit == 6


def test_a_file_name_with_a_line_break_forges_no_line(tmp_path):
    path = tmp_path / "a\nstatus  passed\x9b.engine"
    path.write_bytes(b"x")
    found = _inspect(path)
    assert not any(line.startswith("status") for line in found.out.splitlines())
    assert "\x9b" not in _inspect("--json", path).out
