"""Files, events, errors, tensors of the worker."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.portable.worker.errors import StepError, kind_of_text, printable, quoted
from orchestrator.portable.worker.events import Events
from orchestrator.portable.worker.files import chunks_of, describe, inside, write_json, write_whole
from orchestrator.portable.worker.tensors import Tensor, byte_count, read_tensor, write_tensor


def test_a_file_is_whole_and_hashed_as_it_is_written(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)

    size, digest = write_whole(str(tmp_path / "f"), chunks_of(data))

    assert (tmp_path / "f").read_bytes() == data
    assert (size, digest) == (len(data), hashlib.sha256(data).hexdigest())
    assert describe(str(tmp_path / "f")) == (size, digest)


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def failing() -> object:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_whole(str(tmp_path / "f"), failing())  # type: ignore[arg-type]

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"f": b"old"}


def test_json_is_written_sorted(tmp_path: Path) -> None:
    write_json(str(tmp_path / "j"), {"b": 1, "a": [2]})

    assert (tmp_path / "j").read_text() == '{"a": [2], "b": 1}'


@pytest.mark.parametrize("path", ["", "/a", "..", "a/../b", "a//b", "./a", "a/.", "a\0b"])
def test_paths_that_leave_the_folder_are_refused(path: str) -> None:
    with pytest.raises(StepError) as caught:
        inside("/step", path)

    assert caught.value.kind == "bad-request"


@given(st.text())
def test_no_path_leads_out_of_the_folder(path: str) -> None:
    try:
        found = inside("/step", path)
    except StepError:
        return
    assert os.path.normpath(found).startswith("/step/")


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    assert all(c.isprintable() or c in "\n\t" for c in printable(text))


def test_long_text_is_cut() -> None:
    assert len(printable("x" * 10_000)) == 4000
    assert quoted("a\x07b") == r'"a\x07b"'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Unexpected exception std::bad_alloc In compileGraph", "out-of-memory"),
        ("Error Code 2: OutOfMemory (Requested size was 12037567 bytes.)", "out-of-memory"),
        ("cannot allocate memory for thread-local data: ABORT", "out-of-memory"),
        ("libx.so: failed to map segment: Cannot allocate memory", "out-of-memory"),
        ("OpenBLAS error: Memory allocation still failed after 10 retries, giving up.", "out-of-memory"),
        ("write: No space left on device", "disk-full"),
        ("Could not find any implementation for node {memory}", None),
        ("", None),
    ],
)
def test_texts_about_memory_and_disk_are_recognised(text: str, kind: str | None) -> None:
    assert kind_of_text(text) == kind


def test_events_stand_between_the_markers_of_their_nonce(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file, Events(file.fileno(), "n1") as events:
        events.phase("parsing")
        events.phase("parsing")
        events.phase("building")
        events.log("warning", "two\nlines \x1b[31m \ud800")

    lines = (tmp_path / "out").read_text().splitlines()
    assert lines[:2] == ["", "===enginefarm-events n1 begin==="]
    assert lines[-1] == "===enginefarm-events n1 end==="
    assert [json.loads(line) for line in lines[2:-1]] == [
        {"event": "phase", "phase": "parsing"},
        {"event": "phase", "phase": "building"},
        {"event": "log", "level": "warning", "text": "two\nlines \\x1b[31m \\ud800"},
    ]


def test_events_do_not_stop_the_step_when_nobody_reads() -> None:
    reader, writer = os.pipe()
    os.close(reader)

    with Events(writer, "n") as events:
        events.phase("building")

    os.close(writer)


def test_tensors_travel_as_raw_bytes(tmp_path: Path) -> None:
    described = write_tensor(str(tmp_path), "t.bin", Tensor("x", "float16", (2, 3), bytes(range(12))))

    assert described == {"name": "x", "dtype": "float16", "shape": [2, 3], "file": "t.bin"}
    assert read_tensor(str(tmp_path), described) == Tensor("x", "float16", (2, 3), bytes(range(12)))


def test_a_tensor_file_of_the_wrong_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(b"123")

    with pytest.raises(StepError, match='tensor "x": 3 bytes where 8 belong'):
        read_tensor(str(tmp_path), {"name": "x", "dtype": "float32", "shape": [2], "file": "t.bin"})


def test_types_without_whole_bytes_are_refused() -> None:
    assert byte_count("bfloat16", (3, 5)) == 30
    assert byte_count("float32", ()) == 4
    with pytest.raises(StepError, match="int4 cannot be carried"):
        byte_count("int4", (2,))
