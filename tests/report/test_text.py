from __future__ import annotations

import json
import os
import subprocess

import pytest

from orchestrator.report.text import columns, command_line, duration, hang, json_text, one_line, safe, size


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, ""), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (4_660_000, "4.7 MB"), (2 * 10**9, "2.0 GB"), (10**12, "1.0 TB")],
)
def test_size_has_a_decimal_unit(count: int | None, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0s"), (9.9, "9.9s"), (9.99, "10s"), (59.4, "59s"), (185, "3m05s"), (7800, "2h10m")]
)
def test_duration_is_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_control_characters_and_direction_marks_cannot_drive_the_terminal() -> None:
    assert safe("a\x1b[31mb\u202ec") == "a\\x1b[31mb\\u202ec"
    assert safe("größe\tok\n") == "größe\tok\n"


def test_a_part_of_a_line_cannot_forge_another_line() -> None:
    assert one_line("größe\tok\r\n\u2028x\x1b") == "größe\\tok\\r\\n\\u2028x\\x1b"


def test_json_text_drives_no_terminal_and_reads_back() -> None:
    content = {"größe": "a\x9b31m\x1b\u202e\udcff\n"}
    text = json_text(content)
    assert "größe" in text
    assert json.loads(text) == content
    assert text.encode()
    assert not any(character in text for character in "\x9b\x1b\u202e")


@pytest.mark.parametrize(
    "word", ["plain", "two words", "l'avion", "車線", "a\nb", "a\x1b]0;x\x07'\\c", "\x9b1", "a\u202e9", "\udcff7", "\x011"]
)
def test_a_command_line_is_one_line_that_a_shell_reads_back(word: str) -> None:
    line = command_line(["printf", "%s", word])
    assert "\n" not in line
    assert safe(line) == line
    shell = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert shell.stdout == os.fsencode(word)


def test_columns_are_aligned_and_lines_have_no_trailing_blanks() -> None:
    lines = columns([("target", "size", ""), ("rtx-ada", "4.7 MB", "x"), ("cpu", "910 kB", "")], right=frozenset({1}))
    assert lines == ["target     size", "rtx-ada  4.7 MB  x", "cpu      910 kB"]


def test_hanging_text_wraps_beside_its_label_only_on_a_terminal() -> None:
    text = "needs compute capability 8.0 and TensorRT 8.6.1"
    assert hang("ampere", text, None, 8) == ["ampere  " + text]
    wrapped = hang("ampere", text, 40, 8)
    assert wrapped[0].startswith("ampere  needs")
    assert all(line.startswith(" " * 8) for line in wrapped[1:])
    assert " ".join(line[8:] for line in wrapped) == text
