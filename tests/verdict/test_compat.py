"""Engines and hosts out of what people name, pairs, exit codes, and the views of a grid."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import EMPTY_SELECTION, USAGE, EnginefarmError, Exit, flatten
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.schema import Target
from orchestrator.report.compat import compat_html, compat_lines
from orchestrator.verdict.compat import (
    COMPAT_SCHEMA,
    EngineSubject,
    HostSubject,
    Pair,
    Trial,
    agreement,
    as_json,
    exit_code,
    grid,
    judge_pair,
)
from orchestrator.verdict.compat_subjects import engines_from, host_of_target, hosts_from, read_host

from .compat_release import AMPERE, onnx_bytes, record, rtx_bytes, write_release

TARGETS: dict[str, Target] = {name: effective.target for name, effective in load_matrix(None).targets.items()}
NOT_THERE = {"error": "not installed"}
HOST: dict[str, Any] = {
    "schema": "enginefarm.host/1",
    "platform": "linux/amd64",
    "gpus": [{"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0", "memory_bytes": 80 << 30}],
    "driver": {"version": "535.104.05", "cuda": "12.2"},
    "jetson": None,
    "container": False,
    "backends": {
        "tensorrt": {"version": "8.6.1.6", "cuda": "12.2"},
        "tensorrt-rtx": {"error": "not installed"},
        "onnxruntime": {"error": "not installed"},
    },
}


def no_runners() -> list[Any]:
    return []


def no_local() -> Any:
    raise AssertionError("this machine was asked")


def lines(found: Any, width: int | None = 140) -> str:
    return "\n".join(line for line, _ in compat_lines(found, width))


# --- engines ---


def test_engines_of_a_manifest_carry_record_and_header(tmp_path: Path) -> None:
    failed = record("broken", None, b"", "failed")
    path = write_release(tmp_path, (failed, b""))

    found = {engine.name: engine for engine in engines_from([path], ())}

    assert list(found) == ["lane_v3_cpu.onnx", "lane_v3_rtx-ada.unvalidated.engine"]
    rtx = found["lane_v3_rtx-ada.unvalidated.engine"]
    assert (rtx.facts["backend_version"], rtx.facts["compute_capability"]) == ("1.7.1.116", ["8.9"])
    assert rtx.file == tmp_path / "lane_v3_rtx-ada.unvalidated.engine"


def test_an_engine_file_finds_its_manifest_and_a_folder_its_engines(tmp_path: Path) -> None:
    write_release(tmp_path)

    by_file = engines_from([tmp_path / "lane_v3_cpu.onnx"], ())
    by_folder = engines_from([tmp_path], ())

    assert by_file[0].record is not None
    assert by_file[0].facts["backend"] == "onnxruntime"
    assert [engine.name for engine in by_folder] == ["lane_v3_cpu.onnx", "lane_v3_rtx-ada.unvalidated.engine"]
    assert all(engine.record is not None for engine in by_folder)


MISNAMED = {
    "a.plan": "",
    "noextension": "",
    "weights.bin": "",
    "lane_v3_cpu.onnx": "is a TensorRT-RTX engine with the name of an ONNX model",
}


@pytest.mark.parametrize("name", MISNAMED)
def test_an_engine_is_what_its_header_says_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(rtx_bytes())

    by_file, by_folder = engines_from([tmp_path / name], ()), engines_from([tmp_path], ())

    for engine in (*by_file, *by_folder):
        assert (engine.name, engine.facts["backend"], engine.facts["compute_capability"]) == (name, "tensorrt-rtx", ["8.9"])
        assert MISNAMED[name] in "".join(note["text"] for note in engine.notes)
        assert bool(engine.notes) is bool(MISNAMED[name])


def test_a_model_with_the_name_of_an_engine_is_judged_as_what_it_is_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "x.engine").write_bytes(onnx_bytes())
    (tmp_path / "host.json").write_text("{}")
    host = HOST | {"backends": {"onnxruntime": {"version": "1.23.0", "providers": ["cpu"]}}}

    (engine,) = engines_from([tmp_path], ())
    found = judge_pair(engine, HostSubject("h", "file", (host,)))

    assert (found["verdict"], found["reason"]) == ("loads-with-warning", "this is an ONNX model with the name of an engine")
    assert found["rules"][-1]["rule"] == "name"


def test_a_name_that_contradicts_the_manifest_is_a_warning_and_never_hides_a_refusal(tmp_path: Path) -> None:
    write_release(tmp_path)
    (tmp_path / "lane_v3_rtx-ada.unvalidated.engine").rename(tmp_path / "lane_v3_rtx-turing.engine")

    (engine,) = engines_from([tmp_path / "lane_v3_rtx-turing.engine"], ())
    found = judge_pair(engine, HostSubject("h", "file", (HOST,)))

    assert "the name says tag rtx-turing and checked; lane_v3.json says tag rtx-ada and unvalidated" in engine.notes[0]["text"]
    assert found["verdict"] == "does-not-load"
    assert found["rules"][-1]["rule"] == "name"


def test_a_cut_plan_is_damaged_and_not_misnamed(tmp_path: Path) -> None:
    (tmp_path / "a.engine").write_bytes(rtx_bytes()[:-9])

    (engine,) = engines_from([tmp_path / "a.engine"], ())
    assert engine.notes == ()
    assert "cut" in engine.facts["problems"][0]["text"]


def test_files_that_a_manifest_no_longer_describes_do_not_load(tmp_path: Path) -> None:
    path = write_release(tmp_path)
    one, two = tmp_path / "lane_v3_cpu.onnx", tmp_path / "lane_v3_rtx-ada.unvalidated.engine"
    one_bytes, two_bytes = one.read_bytes(), two.read_bytes()

    def reasons() -> list[str]:
        found = grid(engines_from([path], ()), [HostSubject("h", "file", (HOST,))]).pairs
        return [pair.found["reason"] for pair in found if pair.verdict == "does-not-load"]

    one.write_bytes(two_bytes)
    two.write_bytes(one_bytes)
    assert all("the one that was checked has" in reason for reason in reasons())
    assert "it is lane_v3_rtx-ada.unvalidated.engine under this name" in reasons()[0]
    one.write_bytes(b"")
    two.write_bytes(two_bytes.replace(b"layers", b"LAYERS"))
    assert reasons()[0] == "the file is empty (0 bytes)"
    assert "its digest is" in reasons()[1]


def test_a_pipe_is_no_engine_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.engine")
    os.mkfifo(tmp_path / "host.json")

    with pytest.raises(EnginefarmError, match="no regular file"):
        engines_from([tmp_path / "a.engine"], ())
    with pytest.raises(EnginefarmError, match="no engine in"):
        engines_from([tmp_path], ())
    with pytest.raises(EnginefarmError, match="cannot be used"):
        read_host(tmp_path / "host.json")


def test_a_manifest_without_its_files_is_judged_by_what_it_says(tmp_path: Path) -> None:
    path = write_release(tmp_path)
    (tmp_path / "lane_v3_cpu.onnx").unlink()

    cpu = engines_from([path], ())[0]

    assert cpu.file is None
    assert cpu.facts["backend"] == "onnxruntime"


def test_a_changed_engine_is_refused_before_it_is_judged(tmp_path: Path) -> None:
    write_release(tmp_path)
    (tmp_path / "lane_v3_cpu.onnx").write_bytes(b"other")

    with pytest.raises(EnginefarmError) as caught:
        engines_from([tmp_path / "lane_v3_cpu.onnx"], ())
    assert caught.value.kind.code == "EF601"


def test_every_path_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")

    with pytest.raises(EnginefarmError) as caught:
        engines_from([tmp_path / "x.json", tmp_path / "gone.engine"], ())
    assert [problem.kind.code for problem in flatten(caught.value)] == ["EF602", "EF400"]
    with pytest.raises(EnginefarmError) as empty:
        engines_from([_empty(tmp_path)], ())
    assert empty.value.kind is EMPTY_SELECTION


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_matrix_means_the_engine_of_every_target() -> None:
    found = {engine.name: engine for engine in engines_from([Path("matrix")], TARGETS.values())}

    assert found.keys() == TARGETS.keys()
    assert found["ampere-cu122"].facts["backend_version"] == "8.6.1.6"  # the image's, written out


# --- hosts ---


def test_a_target_describes_a_host_and_invents_nothing() -> None:
    found = host_of_target(TARGETS["ampere-cu122"]).descriptions[0]

    assert found["driver"] == {"version": None, "minimum": "525.60.13"}
    assert found["gpus"] == [{"index": 0, "name": None, "compute_capability": "8.0", "memory_bytes": None}]
    assert found["backends"]["tensorrt"] == {"version": "8.6.1.6", "cuda": "12.2"}


def test_every_target_loads_its_own_engine_or_says_what_is_not_known() -> None:
    engines = {engine.name: engine for engine in engines_from([Path("matrix")], TARGETS.values())}
    for name, target in TARGETS.items():
        found = judge_pair(engines[name], host_of_target(target))
        assert found["verdict"] != "does-not-load", (name, found["reason"])


def test_a_host_that_may_have_one_of_several_gpus_is_unknown_where_they_differ() -> None:
    engine = EngineSubject(
        "rtx", {"backend": "tensorrt-rtx", "backend_version": "1.7.1.116", "compute_capability": ["8.6"], "platform": "linux/amd64"}
    )

    found = judge_pair(engine, host_of_target(TARGETS["rtx-ampere"]))

    assert found["verdict"] == "unknown"
    assert "8.0: does-not-load" in found["reason"]
    assert found["rules"][0]["text"] == found["reason"]


def test_hosts_are_named_by_target_file_runner_and_all(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(HOST))

    class Here:
        name = "here"

        def host(self) -> dict[str, Any]:
            return HOST

    runners: Any = lambda: [Here()]  # noqa: E731
    local: Any = Here
    found = hosts_from([f"ampere-cu122,{path}", "here", "this"], TARGETS, runners, local)

    assert [(host.name, host.kind) for host in found] == [
        ("ampere-cu122", "target"),
        (str(path), "file"),
        ("here", "runner"),
        ("this", "runner"),
    ]
    everything = hosts_from(["all"], TARGETS, runners, no_local)
    assert [host.name for host in everything] == ["here", *TARGETS]


def test_a_misspelt_host_gets_the_closest_names() -> None:
    with pytest.raises(EnginefarmError) as caught:
        hosts_from(["amper-cu122", "thsi"], TARGETS, no_runners, no_local)

    first, second = flatten(caught.value)
    assert first.kind is USAGE
    assert "did you mean ampere-cu122" in str(first.fix)
    assert "this" in str(second.fix)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "enginefarm.manifest/1"}', "not json", '{"a":' * 100_000])
def test_a_file_that_is_no_host_description_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)

    with pytest.raises(EnginefarmError) as caught:
        read_host(path)
    assert "enginefarm doctor --save" in str(caught.value.fix)


# --- exit codes ---


def pair(verdict: str, outcome: str | None = None) -> Pair:
    trial = Trial(outcome, "", agreement(verdict, outcome)) if outcome else None
    return Pair("e", "h", {"verdict": verdict, "reason": "", "rules": [], "gpu": None}, trial)


@pytest.mark.parametrize(
    ("pairs", "code"),
    [
        ([pair("loads"), pair("loads-with-warning")], Exit.OK),
        ([pair("loads"), pair("unknown")], Exit.NO_RUNNER),
        ([pair("unknown"), pair("does-not-load")], Exit.FAILED),
        ([pair("unknown", "loads")], Exit.OK),
        ([pair("unknown", "refused")], Exit.FAILED),
        ([pair("unknown", "not tried")], Exit.NO_RUNNER),
        ([pair("loads", "loads slower")], Exit.OK),
        ([pair("loads", "crashes under load")], Exit.FAILED),
        ([pair("does-not-load", "loads")], Exit.FAILED),
        ([pair("does-not-load", "refused")], Exit.FAILED),
    ],
)
def test_unknown_is_not_green_and_a_wrong_prediction_fails(pairs: list[Pair], code: Exit) -> None:
    assert exit_code(pairs) == code


@pytest.mark.parametrize(
    ("verdict", "outcome", "agrees"),
    [
        ("loads", "loads", True),
        ("loads-with-warning", "loads slower", True),
        ("loads", "refused", False),
        ("does-not-load", "crashes at load", True),
        ("does-not-load", "loads", False),
        ("unknown", "loads", None),
        ("loads", "not tried", None),
    ],
)
def test_a_trial_agrees_with_the_prediction_or_not(verdict: str, outcome: str, agrees: bool | None) -> None:
    assert agreement(verdict, outcome) is agrees


# --- views ---


def small_grid(tmp_path: Path, trials: dict[tuple[str, str], Trial] | None = None, host: str = "a100") -> Any:
    engines = engines_from([write_release(tmp_path, (record("ampere", "lane_v3_ampere.engine", b"ftrt", **AMPERE), b"ftrt"))], ())
    (tmp_path / "lane_v3_ampere.engine").unlink()
    engines = engines_from([tmp_path / "lane_v3.json"], ())
    return grid(engines, [HostSubject(host, "file", (HOST,)), host_of_target(TARGETS["cpu"])], trials)


def test_the_table_has_a_row_per_engine_and_the_reasons_below(tmp_path: Path) -> None:
    text = lines(small_grid(tmp_path))

    assert re.search(r"^ENGINE +a100 +cpu$", text, re.MULTILINE)
    assert re.search(r"^lane_v3_ampere.engine +loads +no$", text, re.MULTILINE)
    assert "lane_v3_ampere.engine on cpu: no, no NVIDIA GPU here" in text
    assert text.endswith("6 pairs: 2 load, 0 with a warning, 0 unknown, 4 do not load")


def test_a_grid_that_is_too_wide_becomes_lists(tmp_path: Path) -> None:
    found = small_grid(tmp_path)

    text = lines(found, 40)
    assert "ENGINE" not in text
    assert re.search(r"^lane_v3_ampere.engine\n  loads +a100\n  no +cpu$", text, re.MULTILINE)


def test_one_pair_is_shown_in_full(tmp_path: Path) -> None:
    found = small_grid(tmp_path)
    one = grid(found.engines[2:], found.hosts[1:])

    text = lines(one)
    assert text.startswith("lane_v3_ampere.engine on cpu: does-not-load\n  no NVIDIA GPU here")
    assert "fix: run it where such a GPU is" in text
    assert "docs/facts/engine_rules.yaml" in text


def test_disagreements_come_first_everywhere(tmp_path: Path) -> None:
    wrong = Trial("refused", "Version tag does not match", False)
    found = small_grid(tmp_path, {("lane_v3_ampere.engine", "a100"): wrong})

    assert lines(found).splitlines()[1].startswith("WRONG  lane_v3_ampere.engine on a100: predicted loads")
    answer = as_json(found)
    assert answer["pairs"][0]["trial"]["outcome"] == "refused"
    assert answer["disagreements"] == 1
    assert compat_html(found).index("The rules were wrong") < compat_html(found).index("<table>")


def test_the_json_holds_every_pair_with_its_rules(tmp_path: Path) -> None:
    answer = as_json(small_grid(tmp_path))

    assert answer["schema"] == COMPAT_SCHEMA
    assert answer["counts"] == {"loads": 2, "loads-with-warning": 0, "unknown": 0, "does-not-load": 4}
    assert len(answer["pairs"]) == 6
    assert all(pair["rules"] for pair in answer["pairs"])
    assert json.loads(json.dumps(answer)) == answer


class Links(HTMLParser):
    """Collects tags, and every attribute that would fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href") and not str(value).startswith("#")]


def test_the_html_is_one_file_that_fetches_and_runs_nothing(tmp_path: Path) -> None:
    hostile = '<script>alert(1)</script>"\x1b'
    text = compat_html(small_grid(tmp_path, host=hostile))

    page = Links()
    page.feed(text)
    assert page.fetched == []
    assert not {"script", "link", "img", "iframe"} & page.tags
    assert "<script>" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    assert text.count("<details") == 6
