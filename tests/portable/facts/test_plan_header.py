from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.portable.facts import plan_header

ROOT = Path(__file__).resolve().parents[3]
BODY = bytes(range(256)) * 64  # holds a lone 0A per 256 bytes, as binary data does


def tensorrt(version: tuple[int, int, int, int], size: int | None = None, tag8: int = 0, outer: int = 0, platform: int = 0) -> bytes:
    total = 32 + len(BODY)
    return b"ftrt" + struct.pack("<IQQ4BI", outer, tag8, total if size is None else size, *version, platform) + BODY


def rtx(mask: int = 4, size: int | None = None, end: bytes = b"\x99\x8b\x8d\x8b", second: bytes = b"vtrt") -> bytes:
    engine, weights = BODY, bytes(64)
    first = 64 + 2 * 24
    total = first + len(engine) + len(weights) + 4
    head = b"vtrt" + struct.pack("<IQQ4B", 0, 2, total if size is None else size, 1, 7, 1, 116) + second
    head += struct.pack("<I", mask) + bytes(28)
    table = b"NGNE" + struct.pack("<IQQ", 0, first, len(engine))
    table += b"THGW" + struct.pack("<IQQ", 0, first + len(engine), len(weights))
    return head + table + engine + weights + end


def describe(content: bytes) -> dict[str, Any]:
    return plan_header.read_bytes(content[: plan_header.HEAD_BYTES], len(content), content[-plan_header.TAIL_BYTES :])


def kinds(facts: dict[str, Any]) -> list[str]:
    return [problem["kind"] for problem in facts["problems"]]


@pytest.mark.parametrize(
    ("version", "tag8", "text"),
    [((8, 2, 1, 8), 205, "8.2.1.8"), ((8, 6, 1, 6), 237, "8.6.1.6"), ((9, 2, 0, 5), 228, "9.2.0.5"), ((10, 15, 1, 29), 240, "10.15.1.29")],
)
def test_older_tensorrt_gives_version_and_serialization_tag(version: tuple[int, int, int, int], tag8: int, text: str) -> None:
    facts = describe(tensorrt(version, size=1, tag8=tag8))
    assert (facts["kind"], facts["version"], facts["serialization"]) == ("tensorrt", text, tag8)
    # the size field is not proven for these: it is unknown, not damage
    assert facts["declared_size"] is None
    assert facts["platform_tag"] is None
    assert facts["problems"] == []


@pytest.mark.parametrize("version", [(10, 16, 1, 11), (11, 0, 0, 114), (11, 4, 0, 106)])
def test_newer_tensorrt_gives_size_and_platform_tag(version: tuple[int, int, int, int]) -> None:
    content = tensorrt(version, tag8=2, platform=7)
    facts = describe(content)
    assert facts["version"] == ".".join(map(str, version))
    assert (facts["declared_size"], facts["platform_tag"], facts["serialization"]) == (len(content), 7, None)
    assert facts["problems"] == []


@pytest.mark.parametrize(("change", "word"), [(-1, "too long"), (1, "cut")])
def test_a_wrong_size_is_damage_only_where_the_size_is_proven(change: int, word: str) -> None:
    size = len(tensorrt((11, 0, 0, 114))) + change
    facts = describe(tensorrt((11, 0, 0, 114), size=size))
    assert kinds(facts) == ["corrupt-engine"]
    assert word in facts["problems"][0]["text"]
    assert describe(tensorrt((11, 5, 0, 1), size=size))["problems"] == []
    assert describe(tensorrt((10, 15, 0, 1), size=size))["problems"] == []


@pytest.mark.parametrize("outer", [96, 97, 87, 43])
def test_tensorrt_7_is_named_and_its_version_not_trusted(outer: int) -> None:
    facts = describe(tensorrt((7, 1, 3, 0), outer=outer))
    assert (facts["kind"], facts["version"], facts["serialization"]) == ("tensorrt-7", None, outer)
    assert facts["problems"] == []


@pytest.mark.parametrize(
    ("mask", "capabilities"),
    [(1, ["7.5"]), (6, ["8.0", "8.6"]), (0x30, ["12.0", "12.1"]), (0x7E, ["8.0", "8.6", "8.9", "12.0", "12.1"]), (0, [])],
)
def test_rtx_capabilities_come_from_the_mask(mask: int, capabilities: list[str]) -> None:
    facts = describe(rtx(mask=mask))
    assert (facts["kind"], facts["version"], facts["capabilities"]) == ("tensorrt-rtx", "1.7.1.116", capabilities)
    assert facts["problems"] == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (rtx()[:-1], "cut"),
        (rtx()[:200], "cut"),
        (rtx()[:20], "less than its header"),
        (rtx() + b"\0", "too long"),
        (rtx(end=b"\0\0\0\0"), "end mark"),
        (rtx(second=b"\0\0\0\0"), "header is damaged"),
        (rtx()[:72] + struct.pack("<Q", 2**40) + rtx()[80:], "section table"),
        (rtx()[:8] + struct.pack("<Q", 2**40) + rtx()[16:], "section table"),
    ],
)
def test_damaged_rtx_plans(content: bytes, words: str) -> None:
    facts = describe(content)
    assert kinds(facts) == ["corrupt-engine"]
    assert words in facts["problems"][0]["text"]
    assert facts["problems"][0]["fix"]


@pytest.mark.parametrize(
    ("original", "version"),
    [
        (tensorrt((8, 6, 1, 6), size=10), "8.6.1.6"),
        (tensorrt((10, 3, 0, 26)), "10.3.0.26"),  # the major number itself is the byte 0A
        (tensorrt((10, 16, 1, 11)), "10.16.1.11"),
        (tensorrt((11, 4, 0, 106)), "11.4.0.106"),
        (rtx(), "1.7.1.116"),
    ],
)
def test_text_mode_damage_is_named_and_the_version_still_read(original: bytes, version: str) -> None:
    facts = describe(original.replace(b"\n", b"\r\n"))
    assert kinds(facts) == ["wrong-file-type"]
    assert "text-mode" in facts["problems"][0]["text"]
    assert "0.0.0" in facts["problems"][0]["text"]
    assert facts["version"] == version


def test_one_line_feed_is_enough_when_the_file_also_grew() -> None:
    content = b"ftrt" + struct.pack("<IQQ4BI", 0, 2, 3032, 11, 0, 0, 114, 0) + bytes(1500) + b"\n" + bytes(1499)
    assert describe(content)["problems"] == []
    assert "text-mode" in describe(content.replace(b"\n", b"\r\n"))["problems"][0]["text"]


def test_utf8_conversion_is_named() -> None:
    content = tensorrt((8, 6, 1, 6)).decode("utf-8", "replace").encode()
    facts = describe(content)
    assert kinds(facts) == ["wrong-file-type"]
    assert "UTF-8" in facts["problems"][0]["text"]


@pytest.mark.parametrize("plan", [tensorrt((8, 5, 3, 1)), tensorrt((11, 0, 0, 114)), rtx()])
def test_a_metadata_prefix_is_measured_and_skipped(plan: bytes, tmp_path: Path) -> None:
    metadata = json.dumps({"stride": 32, "names": {str(i): f"class {i}" for i in range(9000)}}).encode()
    assert len(metadata) > plan_header.HEAD_BYTES
    path = tmp_path / "yolo.engine"
    path.write_bytes(struct.pack("<I", len(metadata)) + metadata + plan)
    facts = plan_header.read(str(path))
    bare = describe(plan)
    assert facts["prefix_bytes"] == 4 + len(metadata)
    assert kinds(facts) == ["wrong-file-type"]
    assert f"{4 + len(metadata)} bytes of metadata" in facts["problems"][0]["text"]
    assert {name: facts[name] for name in ("kind", "version", "capabilities", "declared_size")} == {
        name: bare[name] for name in ("kind", "version", "capabilities", "declared_size")
    }


@pytest.mark.parametrize(
    ("content", "kind", "problem", "words"),
    [
        (b"", "empty", "corrupt-engine", "0 bytes"),
        (b"<!DOCTYPE html><html>", "html", "wrong-file-type", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs-pointer", "wrong-file-type", "Git LFS"),
        (b"PK\x03\x04" + bytes(40), "zip", "wrong-file-type", "zip"),
        (b"\x08\x09\x12\x04test\x3a\x00", "onnx-like", "wrong-file-type", "ONNX"),
        (b"\xde\xad\xbe\xef" * 16, "unknown", "wrong-file-type", "starts with de ad be ef"),
    ],
)
def test_what_is_not_a_plan_is_named(content: bytes, kind: str, problem: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "lane_v1_ampere.engine"
    path.write_bytes(content)
    facts = plan_header.read(str(path))
    assert (facts["kind"], facts["version"], facts["size"]) == ("not-a-plan", None, len(content))
    assert facts["file_kind"]["kind"] == kind
    assert kinds(facts) == [problem]
    assert words in facts["problems"][0]["text"]


def test_reading_a_huge_file_touches_only_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "huge.engine"
    size = 8 * 1024**3
    with path.open("wb") as stream:
        stream.write(b"vtrt" + struct.pack("<IQQ4B", 0, 2, size, 1, 7, 1, 116) + b"vtrt" + struct.pack("<I", 8) + bytes(28))
        stream.write(b"NGNE" + struct.pack("<IQQ", 0, 112, size - 1000) + b"THGW" + struct.pack("<IQQ", 0, size - 500, 100))
        stream.seek(size - 4)
        stream.write(b"\x99\x8b\x8d\x8b")
    facts = plan_header.read(str(path))
    assert (facts["size"], facts["capabilities"], facts["problems"]) == (size, ["8.9"], [])


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        plan_header.read(str(tmp_path / "none.engine"))


@given(st.sampled_from([b"ftrt", b"vtrt", b"", b'\x10\0\0\0{"']), st.binary(max_size=400), st.integers(0, 2**40))
def test_any_bytes_get_an_answer(magic: bytes, rest: bytes, extra: int) -> None:
    content = magic + rest
    facts = plan_header.read_bytes(content, len(content) + extra, content[-4:])
    assert facts["kind"] in ("tensorrt", "tensorrt-7", "tensorrt-rtx", "not-a-plan")
    assert (facts["kind"] == "not-a-plan") is (facts["file_kind"] is not None)


@given(st.integers(1, len(rtx()) - 1))
def test_every_cut_of_an_rtx_plan_is_noticed(length: int) -> None:
    assert describe(rtx()[:length])["problems"]


def test_the_documented_layout_is_the_one_that_is_read() -> None:
    layout = yaml.safe_load((ROOT / "docs/facts/plan_header.yaml").read_text(encoding="utf-8"))
    assert layout["tensorrt"]["magic"].encode() == plan_header._TENSORRT_MAGIC
    assert layout["tensorrt_rtx"]["magic"].encode() == plan_header._RTX_MAGIC
    offsets = {field["offset"]: field["meaning"] for field in layout["tensorrt_rtx"]["fields"]}
    assert {16, 24, 28, 32, plan_header._RTX_SECTIONS} <= set(offsets)
