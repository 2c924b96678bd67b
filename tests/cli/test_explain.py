from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from orchestrator.cli.explain import explain_command
from orchestrator.errors import USAGE, EnginefarmError

Call = Callable[..., Result]

MISMATCH = "[TRT] [E] 6: The engine plan file is not compatible with this version of TensorRT, expecting library version 8.0.0 got 8.0.1, x"
FAILED = "[TRT] [E] 4: [runtime.cpp::deserializeCudaEngine::50] Error Code 4: Internal Error (Engine deserialization failed.)"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run ``enginefarm explain ...`` in an empty folder; errors of the farm are raised."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(explain_command)

    def run(*arguments: str, stdin: bytes | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def test_text_names_cause_figures_fix_evidence_and_consequence(call: Call) -> None:
    Path("build.log").write_text(f"start\n{MISMATCH}\n{FAILED}\n")
    lines = call("build.log").stdout.splitlines()
    assert lines[0] == "1. plan-version-mismatch (EF801, certain)"
    assert lines[1].strip() == "The engine was built with TensorRT 8.0.1 and is loaded by TensorRT 8.0.0."
    assert [line.split()[0] for line in lines[2:]] == ["fix:", "line", "then:"]
    assert lines[3].split(None, 2)[1:] == ["2", MISMATCH]


def test_json_of_standard_input(call: Call) -> None:
    answer = json.loads(call("-", "--json", stdin=f"{MISMATCH}\r\n{FAILED}\r\n".encode("utf-16")).stdout)
    (cause,) = answer["causes"]
    assert (cause["kind"], cause["code"], cause["confidence"]) == ("plan-version-mismatch", "EF801", "certain")
    assert (cause["figures"]["built_with"], cause["figures"]["runs_on"]) == ("8.0.1", "8.0.0")
    assert cause["evidence"] == [{"line": 1, "text": MISMATCH}]
    assert [item["line"] for item in cause["consequences"]] == [2]
    assert answer["mixed"] is False


def test_a_log_without_failure_ends_with_0_and_says_what_was_not_blamed(call: Call) -> None:
    Path("ok.log").write_text("[W] Your ONNX model has been generated with INT64 weights\n[I] a\n[I] b\n&&&& PASSED TensorRT.trtexec\n")
    result = call("ok.log")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:2] == ["nothing in 4 lines is a known failure", "seen and not blamed:"]
    assert "INT64" in result.stdout


def test_a_line_with_a_cause_of_its_own_ends_the_message_before_it(call: Call) -> None:
    log = b"[E] 10: Could not find any implementation for node {ForeignNode[...]}\nKilled\n"
    causes = json.loads(call("--json", stdin=log).stdout)["causes"]
    assert sorted((cause["code"], len(cause["evidence"])) for cause in causes) == [("EF900", 1), ("EF956", 1)]


def test_what_is_no_file_is_not_searched_for_and_a_pipe_is_read(call: Call) -> None:
    with pytest.raises(EnginefarmError, match="/dev/zero is no regular file"):
        call("/dev/zero")
    os.mkfifo("pipe")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(Path("pipe").write_text, MISMATCH)
        assert json.loads(call("pipe", "--json").stdout)["causes"][0]["code"] == "EF801"


def test_causes_end_with_0_too(call: Call) -> None:
    assert call(stdin=MISMATCH.encode()).exit_code == 0


def test_only_causes_of_a_kind(call: Call) -> None:
    log = f"{MISMATCH}\nwrite /var/lib/x: no space left on device\n".encode()
    assert [c["kind"] for c in json.loads(call("--json", "--kind", "disk-full", stdin=log).stdout)["causes"]] == ["disk-full"]
    assert call("--kind", "mig", stdin=log).stdout.splitlines()[0] == "nothing in 2 lines is a known failure of kind mig"
    with pytest.raises(EnginefarmError, match="is not known") as raised:
        call("--kind", "disk-ful", stdin=log)
    assert (raised.value.fix or "").startswith("did you mean disk-full?")


def test_codes_of_the_catalogue_and_of_the_farm_and_kinds(call: Call) -> None:
    assert call("EF801").stdout.splitlines()[0] == "EF801: plan-version-mismatch"
    assert "<built_trt>" in call("ef801").stdout
    assert call("EF106").stdout.splitlines()[0] == "EF106: no such build can exist"
    assert json.loads(call("EF106", "--json").stdout) == {"code": "EF106", "title": "no such build can exist", "exit": 2}
    kind = json.loads(call("wrong-file-type", "--json").stdout)
    assert "EF808" in kind["codes"]
    assert call("wrong-file-type").stdout.splitlines()[0] == "wrong-file-type"


def test_a_file_named_like_a_code_is_read(call: Call) -> None:
    Path("EF801").write_text("write /x: no space left on device\n")
    assert "disk-full" in call("EF801").stdout


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("biuld.log", "did you mean build.log?"),
        ("EF800", "did you mean "),
        ("disk-fulll", "did you mean disk-full?"),
        (".", "give one of its logs: build.log"),
    ],
)
def test_what_is_not_there_is_a_usage_error_with_a_suggestion(call: Call, name: str, fix: str) -> None:
    Path("build.log").write_text("x\n")
    with pytest.raises(EnginefarmError) as raised:
        call(name)
    assert raised.value.kind is USAGE
    assert (raised.value.fix or "").startswith(fix)


def test_an_engine_is_not_read_as_a_log(call: Call) -> None:
    Path("lane.engine").write_bytes(b"ftrt" + bytes(100))
    with pytest.raises(EnginefarmError, match="not a log") as raised:
        call("lane.engine")
    assert raised.value.fix == "enginefarm inspect lane.engine"


def test_compressed_logs_are_read(call: Call) -> None:
    Path("build.log.gz").write_bytes(gzip.compress(f"{MISMATCH}\n".encode()))
    assert "plan-version-mismatch" in call("build.log.gz").stdout


def test_names_out_of_a_log_do_not_drive_the_terminal(call: Call) -> None:
    result = call(stdin="could not find plugin \u202eabc\x07def version 1\n".encode())
    assert "\x07" not in result.stdout
    assert "\u202e" not in result.stdout


def test_a_mixed_log_says_so(call: Call) -> None:
    log = f"sm86-1  | {MISMATCH}\nsm89-1  | write /x: no space left on device\n".encode()
    first, second, *_ = call(stdin=log).stdout.splitlines()
    assert first == "the log mixes the output of sm86-1, sm89-1; each cause names its own"
    assert second.endswith("[sm86-1]")
