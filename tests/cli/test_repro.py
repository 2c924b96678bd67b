from __future__ import annotations

import hashlib
import json
import shlex
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, TensorRecord, Verdict
from orchestrator.artifacts.store import Release
from orchestrator.cli.repro import repro_command
from orchestrator.errors import EnginefarmError

app = typer.Typer()
app.command()(repro_command)

TENSOR = TensorRecord(name="x", dtype="float32", shape=(-1, 3))


def _repro(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None:
        assert isinstance(result.exception, EnginefarmError), result.exception
        return SimpleNamespace(out=result.stdout, error=result.exception, code=result.exception.kind.code, exit=result.exception.exit)
    return SimpleNamespace(out=result.stdout, err=result.stderr, error=None, exit=0)


def _digest(data):
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def release(tmp_path):
    """Commit engines of one model at version 3, each with its recorded command; returns the version folder."""

    def make(name="lane", source="models/lane.onnx", **commands):
        records = []
        with Release(tmp_path / "artifacts", name, 3) as writer:
            for target, command in commands.items():
                (tmp_path / "built").write_bytes(target.encode())
                file = f"{name}_v3_{target}.engine"
                placed = writer.place(tmp_path / "built", file)
                records.append(
                    EngineRecord(
                        target=target,
                        tag=target,
                        file=file,
                        digest=placed.digest,
                        size_bytes=placed.size_bytes,
                        backend="tensorrt-rtx",
                        backend_version="1.7.1.116",
                        compute_capability=("8.0", "8.6"),
                        platform="linux/amd64",
                        precision="fp16",
                        profiles={"x": {"min": (1, 3), "opt": (4, 3), "max": (8, 3)}},
                        worker="worker 1 sha256:0",
                        built_on={"os": "Debian 12", "gpus": []},
                        verdict=Verdict(status="unvalidated", reason="no GPU"),
                        reproduce=command,
                    )
                )
            model = ModelRecord(name=name, version=3, digest=_digest(b"m"), source=source, inputs=(TENSOR,), outputs=(TENSOR,))
            manifest = Manifest(
                model=model, revision=1, run="r7", created_at="2026-01-01T00:00:00Z", enginefarm="0.1.0", engines=tuple(records)
            )
            return writer.commit(manifest, move_latest=True).parent

    return make


COMMAND = "enginefarm build models/lane.onnx --target ampere --model-version 3"


def test_the_recorded_command_is_printed_alone_on_standard_output(release):
    folder = release(ampere=COMMAND)
    found = _repro(folder / "lane_v3.json", "ampere")
    assert found.out == COMMAND + "\n"
    comments = found.err.splitlines()
    assert all(line.startswith("# ") for line in comments)
    assert f"# model digest: {_digest(b'm')}" in comments
    assert "# backend: tensorrt-rtx 1.7.1.116" in comments
    assert "# worker: worker 1 sha256:0" in comments
    assert f"# engine digest: {_digest(b'ampere')}" in comments


def test_an_engine_leads_to_its_own_command(release):
    folder = release(ampere=COMMAND, turing=COMMAND.replace("ampere", "turing"))
    assert "--target turing" in _repro(folder / "lane_v3_turing.engine").out
    assert "--target turing" in _repro(folder / "lane_v3_turing.engine", "turing").out
    assert "--target turing" in _repro((folder / "lane_v3_turing.engine").rename(folder / "renamed.engine")).out


def test_latest_and_a_manifest_with_one_target_need_no_target(release):
    folder = release(ampere=COMMAND)
    assert _repro(folder / "lane_v3.json").out == COMMAND + "\n"
    assert _repro(folder.parent / "latest.json").out == COMMAND + "\n"


def test_a_manifest_with_several_targets_asks_which(release):
    folder = release(ampere=COMMAND, turing=COMMAND)
    found = _repro(folder / "lane_v3.json")
    assert found.exit == 2
    assert found.error.what == "the manifest has 2 targets: ampere, turing"
    assert found.error.fix == f"enginefarm repro {folder / 'lane_v3.json'} ampere"


def _edit(path, target, **changes):
    content = json.loads(path.read_bytes())
    for record in content["engines"]:
        if record["target"] == target:
            record.update(changes)
    path.write_text(json.dumps(content))


NO_ENGINE = {"file": None, "digest": None, "size_bytes": None}


def test_the_target_in_the_example_has_an_engine(release):
    folder = release(ampere=COMMAND, orin=COMMAND)
    path = folder / "lane_v3.json"
    _edit(path, "ampere", verdict={"status": "skipped", "reason": "no runner"}, **NO_ENGINE)
    assert _repro(path).error.fix == f"enginefarm repro {path} orin"
    _edit(path, "orin", verdict={"status": "failed", "reason": "it died"}, **NO_ENGINE)
    found = _repro(path)
    assert (found.exit, found.error.fix) == (2, None)
    assert "an engine of none of them" in found.error.why


def test_a_target_that_was_skipped_has_no_command(release):
    path = release(ampere=COMMAND, orin=COMMAND) / "lane_v3.json"
    reason = "no runner with compute capability 8.7"
    _edit(path, "orin", verdict={"status": "skipped", "reason": reason}, **NO_ENGINE)
    found = _repro(path, "orin")
    assert (found.exit, found.out) == (2, "")
    assert found.error.what == "nothing was built for orin: it was skipped"
    assert found.error.why == reason
    assert found.error.fix.endswith("--target orin")


def test_a_failed_build_can_be_tried_again(release):
    path = release(ampere=COMMAND) / "lane_v3.json"
    _edit(path, "ampere", verdict={"status": "failed", "reason": "the builder died"}, **NO_ENGINE)
    found = _repro(path)
    assert found.out == COMMAND + "\n"
    assert "# there is no engine: failed: the builder died" in found.err.splitlines()


def test_an_unknown_target_is_answered_with_the_nearest(release):
    folder = release(ampere=COMMAND, turing=COMMAND)
    found = _repro(folder / "lane_v3.json", "amper")
    assert (found.exit, found.code, found.error.fix) == (2, "EF107", "did you mean ampere?")
    assert _repro(folder / "lane_v3.json", "xyz").error.fix == "choose from ampere, turing"


def test_an_engine_of_another_target_than_asked_is_refused(release):
    folder = release(ampere=COMMAND)
    found = _repro(folder / "lane_v3_ampere.engine", "turing")
    assert found.exit == 2
    assert found.error.what == "lane_v3_ampere.engine is of target ampere, not turing"


def test_an_engine_that_changed_is_not_the_one_that_was_built(release):
    folder = release(ampere=COMMAND)
    (folder / "lane_v3_ampere.engine").write_bytes(b"other")
    assert (found := _repro(folder / "lane_v3_ampere.engine")).exit == 6
    assert found.code == "EF601"


def test_an_engine_without_a_manifest_and_a_missing_file_are_named(tmp_path):
    (tmp_path / "lane.engine").write_bytes(b"x")
    assert _repro(tmp_path / "lane.engine").error.what == "nothing says how this engine was built"
    assert _repro(tmp_path / "lane.engine").exit == 6
    assert _repro(tmp_path / "missing.engine").exit == 2
    assert _repro(tmp_path / "missing.json").code == "EF602"


@pytest.mark.parametrize(
    "command",
    [
        None,
        "",
        "rm -rf ~",
        "enginefarm build x; rm -rf ~",
        "enginefarm build $(id)",
        "enginefarm build 'x",
        "enginefarm runners",
        "enginefarm build x\nid",
        "enginefarm build 'x\x1b]0;title\x07'",
        "enginefarm build",
        "enginefarm build x y",
        "enginefarm build x --target",
        "enginefarm build x --python /tmp/evil",
        "enginefarm build x --python=/tmp/evil",
        "enginefarm build x --runners /tmp/runners.yaml",
        "enginefarm build x --output /etc",
        "enginefarm build x -o/etc",
    ],
)
def test_a_recorded_text_that_is_no_plain_command_is_made_anew(release, command):
    folder = release(source="my models/$(x).onnx", ampere=command)
    words = shlex.split(_repro(folder / "lane_v3.json").out)
    assert words == [
        *("enginefarm", "build", "my models/$(x).onnx", "--target", "ampere", "--name", "lane", "--model-version", "3"),
        *("--precision", "fp16", "--shape", "x:1x3:4x3:8x3", "--force", "--allow-unvalidated"),
    ]


def test_a_file_name_with_a_leading_dash_is_no_option(release):
    folder = release(source="-lane.onnx", ampere=None)
    assert shlex.split(_repro(folder / "lane_v3.json").out)[2] == "./-lane.onnx"


@pytest.mark.parametrize("name", ["lane two", "$(x)", "車線", "l'avion"])
def test_names_that_need_quoting_come_out_as_one_argument(release, name):
    folder = release(name=name, ampere=None)
    words = shlex.split(_repro(folder / f"{name}_v3_ampere.engine").out)
    assert words[words.index("--name") + 1] == name


def test_json_holds_command_arguments_and_inputs(release):
    folder = release(ampere=COMMAND)
    found = json.loads(_repro(folder / "lane_v3.json", "--json").out)
    assert found["command"] == COMMAND
    assert found["arguments"] == COMMAND.split()
    assert found["inputs"]["model_digest"] == _digest(b"m")
    assert found["inputs"]["compute_capability"] == ["8.0", "8.6"]


def test_names_of_a_stranger_neither_drive_the_terminal_nor_forge_lines(release):
    folder = release(source="a\x1b]0;x\x07\nrm -rf ~\x9b.onnx", ampere=None)
    found = _repro(folder / "lane_v3.json")
    assert found.out.startswith("enginefarm build $'a\\033]0;x\\007\\012rm -rf ~\\302\\233.onnx' --target ampere ")
    assert len(found.out.splitlines()) == 1
    assert all(line.startswith("# ") for line in found.err.splitlines())
    raw = _repro(folder / "lane_v3.json", "--json").out
    assert not any(character in found.out + found.err + raw for character in "\x1b\x07\x9b")
    assert json.loads(raw)["arguments"][2] == "a\x1b]0;x\x07\nrm -rf ~\x9b.onnx"
