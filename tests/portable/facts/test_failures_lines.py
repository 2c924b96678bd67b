"""However a log was written down, the same is read out of it."""

from __future__ import annotations

import io
import json
import textwrap
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.portable.facts.explain import explain, explain_text
from orchestrator.portable.facts.explain_lines import JSON_LIMIT, PIECE, encoding_of, read_lines

WORDS = "The engine plan file is not compatible with this version of TensorRT, expecting library version 10.7.0.23 got 10.3.0.26, x."
LINE = f"IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error ({WORDS})"


def causes(data: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = explain(io.BytesIO(data))["causes"]
    return found


def is_found(data: bytes, line: int = 1) -> bool:
    found = causes(data)
    assert [cause["code"] for cause in found] == ["EF801"], found
    figures = found[0]["figures"]
    assert (figures["built_with"], figures["runs_on"]) == ("10.3.0.26", "10.7.0.23")
    return bool(found[0]["evidence"][0]["line"] == line)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_any_encoding_and_line_end(encoding: str, end: str) -> None:
    assert is_found(end.join(["first – line", LINE, "last"]).encode(encoding), 2)


def test_utf_16_appended_to_utf_8_as_a_shell_does() -> None:
    assert is_found(b"begin\n" * 3000 + (LINE + "\r\n").encode("utf-16-le"), 3001)


@pytest.mark.parametrize(
    "prefix",
    [
        "[TRT] [E] ",
        "[TensorRT] ERROR: ",
        "ERROR: [TRT]: ",
        "[09/26/2026-10:21:07] [E] ",
        "[09/26/2026-10:21:07] [E] [TRT] ",
        "2025-05-03T17:11:41.1234567Z ",
        "2025-05-03T17:11:41.1234567Z ##[error]",
        "2025-05-03T17:11:41.123456Z 00O ",
        "section_start:1730964077:build\r\x1b[0K",
        "2025-05-03T17:11:41.123456789Z stderr F ",
        "\x1b[31;1m",
        "\x1b]8;;http://x\x07",
        "web-1  | ",
        "farm_worker.1    | 2025-05-03 17:11:41,123 - root - ERROR - ",
        "[pod/lane-7d9c/server] ",
        "May  3 17:11:41 host gitlab-runner[1701]: ",
        "(worker pid=123) ",
        "#12 34.5 ",
        "E   ",
        "  lane rtx-ampere: [error] ",
        "E0521 10:20:33.123456 1 logging.cc:40] ",
        "::error file=a.py,line=3::",
        "\tcaused by: ",
    ],
)
def test_what_is_put_before_a_line(prefix: str) -> None:
    assert is_found(f"start\n{prefix}{LINE}\x1b[0m\nend\n".encode(), 2)


@pytest.mark.parametrize(
    "fields",
    [
        {"log": LINE + "\n", "stream": "stderr", "time": "2025-05-03T17:11:41Z"},
        {"level": "error", "msg": LINE},
        {"message": f"\u001b[31m{LINE}\u001b[0m", "severity": "ERROR"},
        {"event": "step-log", "model": "lane", "target": "sm86", "level": "error", "text": LINE},
        {"log": {"lines": ["a", LINE]}},
        {"unusual": LINE},
    ],
)
def test_json_lines(fields: dict[str, object]) -> None:
    assert is_found(json.dumps(fields).encode() + b"\n")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_messages_wrapped_at_blanks_or_anywhere(width: int) -> None:
    wrapped = causes("\n".join(textwrap.wrap(WORDS, width)).encode())
    assert [(cause["code"], cause["figures"]["runs_on"]) for cause in wrapped] == [("EF801", "10.7.0.23")]
    cut = [WORDS[start : start + width] for start in range(0, len(WORDS), width)]
    assert causes("\n".join(cut).encode())[0]["figures"]["runs_on"] == "10.7.0.23"


def test_two_messages_on_one_line_are_both_found() -> None:
    glued = "expecting compute 8.6 got compute 7.5, please rebuild.4: [runtime.cpp::x::50] Error Code 4: (Engine deserialization failed.)"
    (cause,) = explain_text([glued])["causes"]
    assert cause["evidence"] == [{"line": 1, "text": "expecting compute 8.6 got compute 7.5, please rebuild."}]
    assert [item["code"] for item in cause["consequences"]] == ["EF940"]


def test_parts_of_a_line_that_the_container_runtime_split_are_joined() -> None:
    stamp = "2025-05-03T17:11:41.123456789Z stderr"
    data = f"{stamp} P {LINE[:90]}\n{stamp} P {LINE[90:140]}\n{stamp} F {LINE[140:]}\n"
    assert is_found(data.encode(), 3)


def test_carriage_returns_of_progress_bars_do_not_count_as_lines() -> None:
    assert is_found(f"one\n10%\r50%\r{LINE}\nend\n".encode(), 2)


def test_output_of_two_targets_is_kept_apart() -> None:
    log = [
        "sm86-1  | expecting library version 10.7.0.23 got 10.3.0.26, please rebuild.",
        "sm89-1  | write /var/lib/x: no space left on device",
        "sm86-1  | 4: [runtime.cpp::deserializeCudaEngine::50] Error Code 4: Internal Error (Engine deserialization failed.)",
    ]
    answer = explain_text(log)
    assert answer["mixed"] is True
    assert {(cause["source"], cause["kind"], len(cause["consequences"])) for cause in answer["causes"]} == {
        ("sm86-1", "plan-version-mismatch", 1),
        ("sm89-1", "disk-full", 0),
    }


def test_two_runtimes_without_names_are_said_to_be_mixed() -> None:
    lines = [f"expecting library version {runs} got 8.5.3.1, please rebuild." for runs in ("8.6.1.6", "10.3.0.26")]
    answer = explain_text([*lines, *["quiet"] * 9])
    assert (answer["mixed"], len(answer["causes"])) == (True, 2)
    assert explain_text(lines[:1])["mixed"] is False


def test_a_message_inside_a_line_of_a_megabyte_is_found() -> None:
    filler = "x" * (PIECE + 77)
    assert is_found((filler + " " + LINE + " " + filler * 100).encode())
    assert is_found(("y" * (2 * JSON_LIMIT) + " " + LINE).encode())


@pytest.mark.parametrize(
    "text", ["a", " ", "error ", "(", "8.6.", "could not find plugin ", "cuda error ", "\u00e9", "\\", "external data "]
)
def test_long_repetitive_lines_end_in_reasonable_work(text: str) -> None:
    # nothing to assert on time: an exponential pattern would not end at all
    answer = explain(io.BytesIO((text * (60_000 // len(text)) + "\n" + LINE).encode()))
    assert "EF801" in [cause["code"] for cause in answer["causes"]]


def test_memory_does_not_grow_with_the_log() -> None:
    def peak(lines: int) -> int:
        class Log(io.RawIOBase):
            left = lines

            def read(self, _size: int = -1) -> bytes:
                self.left -= 1
                return (
                    f"[V] [TRT] Tactic: 0x{self.left:016x} Time: {self.left}.5\n[E] could not find plugin P{self.left}\n".encode()
                    if self.left >= 0
                    else b""
                )

        tracemalloc.start()
        explain(Log())  # type: ignore[arg-type]
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(50)
    assert peak(1500) < peak(300) + 200_000


@given(st.binary(max_size=400))
def test_any_bytes_are_a_log(data: bytes) -> None:
    answer = explain(io.BytesIO(data))
    assert set(answer) == {"causes", "harmless", "unknown", "mixed", "lines"}
    json.dumps(answer)


@given(st.binary(max_size=200))
def test_encoding_is_one_that_python_knows(head: bytes) -> None:
    assert head.decode(encoding_of(head), "replace") is not None


def test_empty_log_has_no_lines() -> None:
    assert list(read_lines(io.BytesIO(b""))) == []
    assert explain(io.BytesIO(b"\n\n")) == {"causes": [], "harmless": [], "unknown": [], "mixed": False, "lines": 0}
