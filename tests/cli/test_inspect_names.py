"""What ``inspect`` says when a file's name, its content and the manifest do not agree, and how a manifest looks on a terminal."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from onnx import TensorProto, helper
from typer.testing import CliRunner

from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, TensorRecord, Verdict
from orchestrator.artifacts.store import Release
from orchestrator.cli.inspect import _text, inspect_command, look
from orchestrator.errors import EnginefarmError, flatten

app = typer.Typer()
app.command()(inspect_command)
TENSOR = TensorRecord(name="x", dtype="float32", shape=(-1, 3))
BITS = {"7.5": 1, "8.0": 2, "8.6": 4, "8.9": 8}


def inspect(*arguments: object) -> SimpleNamespace:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    problems = flatten(result.exception) if isinstance(result.exception, EnginefarmError) else ()
    exit_code = result.exception.exit if isinstance(result.exception, EnginefarmError) else result.exit_code
    return SimpleNamespace(out=result.stdout, problems=problems, codes=[problem.kind.code for problem in problems], exit=exit_code)


def rtx_plan(*capabilities: str) -> bytes:
    body = b"layers" * 60
    sections = struct.pack("<4sIQQ4sIQQ", b"NGNE", 0, 112, len(body), b"THGW", 0, 112 + len(body), 0)
    size = 64 + len(sections) + len(body) + 4
    head = struct.pack("<4sIQQ4B4sI", b"vtrt", 0, 2, size, 1, 7, 1, 116, b"vtrt", sum(BITS[name] for name in capabilities))
    return head.ljust(64, b"\0") + sections + body + bytes.fromhex("998b8d8b")


def tensorrt_plan() -> bytes:
    return struct.pack("<4sIQQ4BI", b"ftrt", 0, 237, 0, 8, 6, 1, 6, 0) + bytes(range(200))


def onnx_file() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    return data


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def record_of(tag: str, file: str | None, data: bytes, capabilities: tuple[str, ...]) -> EngineRecord:
    skipped = Verdict(
        status="skipped", reason="no runner with compute capability 8.7, and a reason that does not end on one line of 80 cells"
    )
    return EngineRecord(
        target=tag,
        tag=tag,
        file=file,
        digest=digest_of(data) if file else None,
        size_bytes=len(data) if file else None,
        backend="onnxruntime" if tag == "cpu" else "tensorrt-rtx",
        backend_version="1.7.1.116",
        compute_capability=capabilities,
        platform="linux/amd64",
        precision="fp32",
        verdict=Verdict(status="unvalidated", reason="no GPU") if file else skipped,
    )


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The version folder of a release with two RTX engines, one for ONNX Runtime, and one target that was skipped."""
    engines: dict[str, tuple[str | None, bytes, tuple[str, ...]]] = {
        "rtx-ada": ("lane_v3_rtx-ada.unvalidated.engine", rtx_plan("8.9"), ("8.9",)),
        "rtx-turing": ("lane_v3_rtx-turing.unvalidated.engine", rtx_plan("7.5"), ("7.5",)),
        "cpu": ("lane_v3_cpu.onnx", onnx_file(), ()),
        "orin": (None, b"", ("8.7",)),
    }
    model = ModelRecord(name="lane", version=3, digest=digest_of(b"lane"), source="lane.onnx", inputs=(TENSOR,), outputs=(TENSOR,))
    records = tuple(record_of(tag, *content) for tag, content in engines.items())
    with Release(tmp_path / "artifacts", "lane", 3) as writer:
        for file, data, _ in engines.values():
            if file:
                (tmp_path / "built").write_bytes(data)
                writer.place(tmp_path / "built", file)
        manifest = Manifest(model=model, revision=1, run="r7", created_at="2026-01-01T00:00:00Z", enginefarm="0.1.0", engines=records)
        return writer.commit(manifest, move_latest=True).parent


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lane_v3_rtx-ampere.engine", "the name says tag rtx-ampere and checked; lane_v3.json says tag rtx-ada and unvalidated"),
        ("lane_v3_rtx-ada.engine", "the name says checked; lane_v3.json says unvalidated"),
        ("lane_v4_rtx-ada.unvalidated.engine", "the name says version 4; lane_v3.json says version 3"),
        ("road_v3_rtx-ada.unvalidated.engine", "the name says model road; lane_v3.json says model lane"),
    ],
)
def test_a_copy_under_a_name_that_promises_something_else_is_refused(release: Path, name: str, said: str) -> None:
    shutil.copyfile(release / "lane_v3_rtx-ada.unvalidated.engine", release / name)

    found = inspect(release / name)

    assert (found.exit, found.codes) == (6, ["EF605"])
    assert found.problems[0].why == said
    assert found.problems[0].fix == "rename it to lane_v3_rtx-ada.unvalidated.engine"


def test_a_copy_of_an_onnxruntime_engine_under_another_tag_is_refused(release: Path) -> None:
    shutil.copyfile(release / "lane_v3_cpu.onnx", release / "lane_v3_ort-cuda.onnx")

    assert inspect(release / "lane_v3_cpu.onnx").exit == 0
    assert inspect(release / "lane_v3_ort-cuda.onnx").codes == ["EF605"]


def test_a_name_that_promises_nothing_is_fine(release: Path) -> None:
    shutil.copyfile(release / "lane_v3_rtx-ada.unvalidated.engine", release / "newest.engine")

    assert inspect(release / "newest.engine").exit == 0


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("x_v1_rtx-ampere.engine", rtx_plan("8.9"), "for compute capability 8.9; target rtx-ampere says tensorrt-rtx and 8.0, 8.6"),
        ("x_v1_rtx-ampere.unvalidated.engine", rtx_plan("8.0"), "for compute capability 8.0; target rtx-ampere says"),
        ("x_v1_rtx-ada.engine", tensorrt_plan(), "that of a TensorRT engine; target rtx-ada says tensorrt-rtx and 8.9"),
        (
            "x_v1_ampere.engine",
            rtx_plan("8.0"),
            "that of a TensorRT-RTX engine for compute capability 8.0; target ampere-cu122 says tensorrt",
        ),
        ("x_v1_cpu.engine", rtx_plan("8.0"), "target cpu says onnxruntime"),
    ],
)
def test_a_tag_that_the_header_contradicts_is_refused(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(data)

    found = inspect(tmp_path / name)

    assert (found.exit, found.codes) == (6, ["EF605"])
    assert why in found.problems[0].why


@pytest.mark.parametrize("name", ["x_v1_rtx-ampere.engine", "x_v1_somebodys.engine", "rtx-ada.engine"])
def test_a_tag_that_fits_or_that_nobody_knows_is_fine(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(rtx_plan("8.0", "8.6"))

    assert inspect(tmp_path / name).exit == 0


def test_tags_of_the_projects_own_targets_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "car.yaml").write_text("name: car\ntag: car\nextends: rtx-turing\n")
    (tmp_path / "x_v1_car.engine").write_bytes(rtx_plan("8.9"))
    monkeypatch.chdir(tmp_path)

    assert inspect("x_v1_car.engine").codes == ["EF605"]
    (tmp_path / "targets" / "car.yaml").write_text("name: car\ntag: [\n")
    assert inspect("x_v1_car.engine").exit == 0  # what is wrong with the targets is not this command's business


def test_a_header_that_the_manifest_itself_contradicts_is_refused(release: Path) -> None:
    path = release / "lane_v3.json"
    content = json.loads(path.read_bytes())
    next(engine for engine in content["engines"] if engine["target"] == "rtx-ada")["compute_capability"] = ["12.0"]
    path.write_text(json.dumps(content))

    found = inspect(release / "lane_v3_rtx-ada.unvalidated.engine")

    assert found.codes == ["EF605"]
    assert "lane_v3.json for target rtx-ada says tensorrt-rtx and 12.0" in found.problems[0].why


def test_a_missing_engine_of_a_manifest_is_an_error(release: Path) -> None:
    (release / "lane_v3_rtx-ada.unvalidated.engine").rename(release / "lane_v3_rtx-ampere.engine")

    found = inspect(release / "lane_v3.json")

    assert (found.exit, found.codes) == (6, ["EF600"])
    assert found.problems[0].what == "lane_v3_rtx-ada.unvalidated.engine is not here"
    assert f"enginefarm repro {release / 'lane_v3.json'} rtx-ada" in found.problems[0].fix


@pytest.mark.parametrize("content", [b"", onnx_file()[:40], b"<html></html>", tensorrt_plan()])
def test_a_damaged_onnxruntime_engine_is_a_damaged_engine_and_not_a_bad_model(release: Path, tmp_path: Path, content: bytes) -> None:
    (release / "lane_v3_cpu.onnx").write_bytes(content)
    (tmp_path / "lane.onnx").write_bytes(content)

    assert (inspect(release / "lane_v3_cpu.onnx").exit, inspect(release / "lane_v3_cpu.onnx").codes) == (6, ["EF600", "EF601"])
    assert inspect(tmp_path / "lane.onnx").exit == 2


def test_digests_say_what_they_are_of(release: Path, tmp_path: Path) -> None:
    (tmp_path / "lane.onnx").write_bytes(onnx_file())
    engine = [line.split(maxsplit=2) for line in inspect(release / "lane_v3_cpu.onnx").out.splitlines()]

    assert ["file", "digest", digest_of(onnx_file())] in engine
    assert ["model", "lane", f"v3, model digest {digest_of(b'lane')}"] in engine
    assert not any(words[:1] in (["digest"], ["sha256"]) for words in engine)
    assert "  model digest  sha256:" in inspect(tmp_path / "lane.onnx").out


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_manifest_fits_the_terminal(release: Path, width: int) -> None:
    lines = _text(look(release / "lane_v3.json"), width).splitlines()
    table = lines[lines.index("") + 1 :]

    assert max(map(len, table)) <= width
    words = " ".join(" ".join(table).split())
    for text in ("lane_v3_rtx-ada.unvalidated.engine", "compute capability 8.9, linux/amd64", "a reason that does not end on one line"):
        assert text in words


def test_without_a_terminal_an_engine_is_one_line(release: Path) -> None:
    (table,) = inspect(release / "lane_v3.json").out.split("\n\n")[1:]

    assert [line.split()[0] for line in table.splitlines()] == ["TARGET", "cpu", "orin", "rtx-ada", "rtx-turing"]
    assert table.splitlines()[2].endswith("a reason that does not end on one line of 80 cells")


def test_the_width_is_that_of_the_terminal(release: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "orchestrator", "inspect", str(release / "lane_v3.json")]
    done = subprocess.run(
        command, stdout=theirs, stdin=theirs, env={**os.environ, "COLUMNS": "70"}, stderr=subprocess.PIPE, check=False, cwd=release
    )
    os.close(theirs)
    shown = _read_all(ours).decode()

    assert done.returncode == 0, done.stderr
    table = shown.replace("\r", "").split("\n\n")[1]
    assert max(map(len, table.splitlines())) <= 70
    assert len(table.splitlines()) > 5


def _read_all(handle: int) -> bytes:
    data = b""
    try:
        while part := os.read(handle, 1 << 16):
            data += part
    except OSError:  # the other end of a terminal was closed
        pass
    os.close(handle)
    return data
