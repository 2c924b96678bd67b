"""Real logs: what each is explained as. cases/README.md says where they are from and which were in sight when patterns were written."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.portable.facts.explain import explain, explain_text
from orchestrator.portable.facts.failures import catalogue

CASES = Path(__file__).resolve().parents[2] / "cases"
HEALTHY = sorted((CASES / "healthy").glob("*.log"))
# std::bad_alloc alone: the log holds nothing of the calibration cache that was its cause
NOT_IN_THE_LOG = {"int8-badalloc"}


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CASES / name).read_text(encoding="utf-8").splitlines()]


ALL = load("failures.jsonl") + load("heldout.jsonl")
UNSEEN = load("unseen.jsonl")
WRITTEN = {
    "as it is": lambda lines: "\n".join(lines).encode(),
    "utf-16 with crlf": lambda lines: "\r\n".join(lines).encode("utf-16"),
    "github": lambda lines: "\n".join("2025-05-03T17:11:41.1234567Z " + line for line in lines).encode(),
    "compose": lambda lines: "\n".join("builder-1  | " + line for line in lines).encode(),
    "coloured": lambda lines: "\n".join(f"\x1b[31m{line}\x1b[0m" for line in lines).encode(),
    "json": lambda lines: "\n".join(json.dumps({"log": line + "\n", "stream": "stderr"}) for line in lines).encode(),
}


@pytest.mark.parametrize("case", ALL, ids=lambda case: case["id"])
def test_real_log_is_explained_with_its_kind_and_figures(case: dict[str, Any]) -> None:
    causes = explain_text(case["log"])["causes"]
    if case["id"] in NOT_IN_THE_LOG:
        assert case["kind"] in [other["kind"] for other in causes[0]["or"]]
        return
    assert causes, "nothing found"
    assert causes[0]["kind"] == case["kind"]
    figures = {name: str(value) for name, value in causes[0]["figures"].items()}
    assert figures.items() >= case.get("figures", {}).items()


@pytest.mark.parametrize("case", ALL, ids=lambda case: case["id"])
def test_evidence_names_lines_of_the_log(case: dict[str, Any]) -> None:
    lines = [line.rstrip("\n") for line in case["log"]]
    for cause in explain_text(lines)["causes"]:
        assert cause["evidence"]
        for item in cause["evidence"]:
            text = " ".join(item["text"].split())
            assert text in " ".join(lines[item["line"] - 1].split()), item


def test_unseen_logs_cover_every_kind() -> None:
    assert {case["kind"] for case in UNSEEN} == catalogue().kinds.keys()


@pytest.mark.parametrize("how", WRITTEN)
def test_unseen_logs_are_explained_however_they_are_written_down(how: str) -> None:
    wrong = []
    for case in UNSEEN:
        causes = explain(io.BytesIO(WRITTEN[how](case["log"])))["causes"]
        kind = causes[0]["kind"] if causes else None
        figures = {name: str(value) for name, value in causes[0]["figures"].items()} if causes else {}
        if kind != case["kind"] or not figures.items() >= case.get("figures", {}).items():
            wrong.append((case["id"], kind, figures))
    assert len(wrong) <= 0.05 * len(UNSEEN), wrong


def test_unseen_logs_are_explained_at_the_end_of_a_long_build() -> None:
    build = [f"[09/26/2026-10:21:07] [V] [TRT] Skipping tactic {number:#x}: No valid tactics, error 0.{number}" for number in range(300)]
    for case in UNSEEN[::4]:
        alone, behind = (explain_text(lines)["causes"] for lines in (case["log"], [*build, *case["log"]]))
        if alone[0]["kind"] in ("timing-cache", "int64-warning"):
            continue  # harmless lines are told of only when the log is about them
        assert [cause["code"] for cause in behind] == [cause["code"] for cause in alone], case["id"]
        assert behind[0]["evidence"][0]["line"] == alone[0]["evidence"][0]["line"] + len(build)


def test_what_a_verbose_build_tried_and_left_is_no_failure() -> None:
    tried = "[09/26/2026-10:21:07] [V] [TRT] Skipping CaskConvolution: No valid tactics for /model.0/conv/Conv"
    assert explain_text([tried] * 3)["causes"] == []
    missing = "[09/26/2026-10:21:07] [E] [TRT] Could not find any implementation for node /model.0/conv/Conv."
    assert explain_text([tried] * 3 + [missing])["causes"][0]["kind"] == "no-tactic"


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_healthy_log_is_blamed_for_nothing(path: Path) -> None:
    with path.open("rb") as stream:
        answer = explain(stream)
    assert [(cause["code"], cause["evidence"]) for cause in answer["causes"]] == []
    assert answer["lines"] > 3


def test_there_are_healthy_logs_of_many_products() -> None:
    assert len(HEALTHY) >= 44
    assert {path.stem.split("_")[0] for path in HEALTHY} >= {"rtx", "ort", "ef", "trtexec", "docker", "gitlab", "actions", "pip"}


def test_expecting_is_this_side_and_got_is_the_engine() -> None:
    line = "6: The engine plan file is generated on an incompatible device, expecting compute 8.9 got compute 8.6, please rebuild."
    (cause,) = explain_text([line])["causes"]
    assert cause["figures"] == {"device_cc": "8.9", "built_cc": "8.6", "built_with": "8.6", "runs_on": "8.9"}
    assert cause["sentence"] == "The engine was built for compute capability 8.6, this GPU has 8.9."


@pytest.mark.parametrize(
    ("number", "kind"),
    [(1953657974, "rtx-plan"), (67324752, "zip"), (85067528, "onnx-like"), (1936876918, "git-lfs-pointer"), (1836345404, "html")],
)
def test_first_four_bytes_are_turned_back_into_a_kind_of_file(number: int, kind: str) -> None:
    line = f"Trying to load an engine created with incompatible serialization version ({number} != 1953657958). Check that the engine"
    (cause,) = explain_text([line])["causes"]
    assert (cause["kind"], cause["figures"]["file_kind"]) == ("wrong-file-type", kind)
    assert cause["figures"]["first_bytes"] in cause["sentence"]


@pytest.mark.parametrize(
    ("line", "capability"),
    [
        ("1: Unsupported SM: 0x809", "8.9"),
        ("Error Code 1: Internal Error (Unsupported SM: 0xc00)", "12.0"),
        ("API Usage Error (Target GPU SM 120 is not supported by this TensorRT release.)", "12.0"),
        ("API Usage Error (Target GPU SM 70 is not supported by this TensorRT release.)", "7.0"),
    ],
)
def test_architecture_numbers_become_compute_capabilities(line: str, capability: str) -> None:
    assert explain_text([line])["causes"][0]["figures"]["device_cc"] == capability


SERIALIZATION = (
    "IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion {} failed. In parsePlan at /_src/x.cpp:7)"
)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (SERIALIZATION.format("plan.header.size == blobSize"), "corrupt-engine"),
        (SERIALIZATION.format("e.offset >= cursor"), "corrupt-engine"),
        (SERIALIZATION.format("*reinterpret_cast<rt::PlanFooter const*>(memory + cursor) == rt::kEND_OF_PLAN_MARKER"), "corrupt-engine"),
        (SERIALIZATION.format("somethingNew == 4"), "corrupt-engine"),
        (
            "Error Code 3: API Usage Error (Cannot deserialize with an empty memory buffer. In deserializeCudaEngineEx at x)",
            "corrupt-engine",
        ),
        (
            "[runtime.cpp::readHeader::765] Error Code 2: Internal Error (Assertion bufferSize >= minBufferSize failed.  In readHeader)",
            "corrupt-engine",
        ),
        (
            "Serialization (Serialization assertion header.pad == expectedPlatformTag failed.Platform specific tag mismatch)",
            "plan-version-mismatch",
        ),
        (
            "(The engine cannot run on this GPU, which has compute capability 9.0. Supported compute capabilities: 7.5.",
            "wrong-compute-capability",
        ),
    ],
)
def test_what_real_runtimes_say_of_damaged_and_foreign_plans(line: str, kind: str) -> None:
    assert explain_text([line, "4: [x] Error Code 4: Internal Error (Engine deserialization failed.)"])["causes"][0]["kind"] == kind


def test_consequences_are_folded_under_their_cause() -> None:
    log = [
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version",
        "[TRT] [W] CUDA initialization failure with error: 35. Please check your CUDA installation",
        "TypeError: pybind11::init(): factory function returned nullptr",
        "&&&& FAILED TensorRT.trtexec [TensorRT v101303]",
    ]
    (cause,) = explain_text(log)["causes"]
    assert (cause["kind"], cause["figures"]["cuda_required"]) == ("driver-too-old", "12.8")
    assert [item["line"] for item in cause["consequences"]] == [2, 3, 4]


def test_thousands_of_harmless_lines_do_not_hide_the_one_that_matters() -> None:
    cast = "[W] Your ONNX model has been generated with INT64 weights, while TensorRT does not natively support INT64."
    log = [cast] * 3000 + ["[E] Network has dynamic or shape inputs, but no optimization profile has been defined."]
    answer = explain_text(log)
    assert [cause["kind"] for cause in answer["causes"]] == ["dynamic-shape-no-profile"]
    assert (answer["harmless"][0]["count"], answer["causes"][0]["evidence"][0]["line"]) == (3000, 3001)


def test_soft_warnings_are_blamed_only_when_the_work_did_not_end_well() -> None:
    warning = "[W] [TRT] Tactic Device request: 4364MB Available: 3788MB. Device memory is insufficient to use tactic."
    assert explain_text([warning])["causes"][0]["kind"] == "insufficient-memory"
    done = explain_text([warning, "&&&& PASSED TensorRT.trtexec [TensorRT v8601]"])
    assert (done["causes"], done["harmless"][0]["code"]) == ([], "EF904")


def test_magic_of_a_timing_cache_is_no_broken_engine() -> None:
    magic = "[TRT] 1: [x] Error Code 1: Serialization (Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match)"
    ignored = "[TRT] 4: The timing cache will not be used!"
    ended = "[I] Engine built in 3.1 sec."
    assert explain_text([magic, ignored, ended])["causes"] == []
    assert explain_text([magic, ended])["causes"][0]["kind"] == "wrong-file-type"


def test_no_space_on_shared_memory_and_on_a_disk_are_two_causes() -> None:
    shm = "Unable to initialize shared memory key 'r' to requested size (67108864 bytes). Error: No space left on device"
    disk = "failed to register layer: write /var/lib/x: no space left on device"
    assert explain_text([shm])["causes"][0]["kind"] == "shm-size"
    assert explain_text([disk])["causes"][0]["kind"] == "disk-full"


def test_error_35_is_a_missing_gpu_request_unless_the_log_shows_an_old_driver() -> None:
    line = "CUDA error: CUDA driver version is insufficient for CUDA runtime version"
    (cause,) = explain_text([line])["causes"]
    assert (cause["kind"], cause["or"][0]["kind"]) == ("docker-gpu-not-requested", "driver-too-old")
    table = "| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |"
    assert explain_text([table, line])["causes"][0]["kind"] == "driver-too-old"


def test_errors_of_the_farm_itself_are_known() -> None:
    text = "error[EF307]: y differs from the reference"
    event = json.dumps({"event": "error", "code": "EF307", "title": "t", "what": "y differs from the reference"})
    assert [explain_text([line])["causes"][0]["code"] for line in (text, event)] == ["EF925", "EF925"]


def test_unknown_errors_are_shown_and_not_guessed_at() -> None:
    answer = explain_text(["all fine", "frobnicator: FATAL: the flux capacitor exploded"])
    assert (answer["causes"], answer["unknown"]) == ([], [{"line": 2, "text": "frobnicator: FATAL: the flux capacitor exploded"}])
