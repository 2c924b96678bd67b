from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from orchestrator.portable.facts.file_kind import is_onnx_like, sniff

HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def zipped(*names: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return stream.getvalue()


def model() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    built: bytes = helper.make_model(graph, producer_name="test", opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    return built


def ultralytics(magic: bytes = b"ftrt") -> bytes:
    metadata = json.dumps({"description": "yolo", "names": {str(i): f"class {i}" for i in range(80)}}).encode()
    return struct.pack("<I", len(metadata)) + metadata + magic + bytes(60)


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", "empty", "0 bytes"),
        (HTML, "html", "web page"),
        (b"\n\n  <html lang=en>", "html", "web page"),
        (b"\xef\xbb\xbf<!doctype HTML>", "html", "web page"),
        (b"<!-- saved -->\n<head>", "html", "web page"),
        ("<!DOCTYPE html>".encode("utf-16"), "html", "web page"),
        (LFS, "git-lfs-pointer", "Git LFS pointer"),
        (zipped("model/model.onnx"), "zip", "zip archive"),
        (zipped(), "zip", "zip archive"),
        (zipped("archive/data.pkl", "archive/data/0"), "torch-zip", "torch2trt state"),
        (zipped("model_trt/data.pkl"), "torch-zip", "torch2trt state"),
        (zipped("net/code/__torch__.py"), "torch-zip", "TorchScript"),
        (b"ftrt" + bytes(60), "tensorrt-plan", "TensorRT engine"),
        (b"vtrt" + bytes(60), "rtx-plan", "TensorRT-RTX engine"),
        (ultralytics(), "tensorrt-plan", "Ultralytics"),
        (gzip.compress(b"engine"), "gzip", "gzip"),
        (b'{"a": 1}', "json", "JSON"),
        (b"[\n  1, 2]", "json", "JSON"),
        (pickle.dumps({"state": [1.0]}), "pickle", "pickle"),
        (pickle.dumps([1, 2], protocol=2), "pickle", "pickle"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02", "pickle", "pickle"),
        ("Bitte später erneut versuchen\n".encode(), "text", "plain text"),
        (model(), "onnx-like", "ONNX model"),
        (bytes(range(256)), "unknown", "no known kind"),
        (b"\x7fELF\x02\x01\x01" + bytes(57), "unknown", "no known kind"),
    ],
)
def test_kinds(content: bytes, kind: str, words: str) -> None:
    found = sniff(content[:4096], len(content))
    assert found["kind"] == kind
    assert words in found["text"]
    assert found["fix"]


def test_an_empty_file_says_so_in_the_words_of_the_documentation() -> None:
    assert sniff(b"", 0)["text"] == "the file is empty (0 bytes)"


def test_a_text_cut_inside_a_character_is_still_text() -> None:
    content = ("a" * 63 + "ü").encode()
    assert sniff(content[:64], len(content))["kind"] == "text"


def test_the_shipped_example_reads_as_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load_from_string(model()), path)
    head = path.read_bytes()[:512]
    assert sniff(head, path.stat().st_size)["kind"] == "onnx-like"


@pytest.mark.parametrize("cut", [2, 8, 20, 60])
def test_a_cut_model_still_reads_as_one(cut: int) -> None:
    content = model()[:cut]
    assert sniff(content, len(content))["kind"] == "onnx-like"


def test_a_model_larger_than_the_head_reads_as_one() -> None:
    content = b"\x08\x09" + b"\x12\x04test" + b"\x3a" + b"\xff\xff\xff\x7f" + bytes(100)
    assert is_onnx_like(content, 2**28)


@pytest.mark.parametrize("content", [b"\x08", b"\x3a\x05", b"\x12\x03abc", b"\x0a\x02ab", bytes(64), b"\xff" * 64])
def test_other_protobufs_and_noise_are_not_models(content: bytes) -> None:
    assert not is_onnx_like(content, len(content))


@given(st.binary(max_size=300))
def test_any_bytes_get_an_answer(content: bytes) -> None:
    found = sniff(content, len(content))
    assert set(found) == {"kind", "text", "fix"}
    assert (found["kind"] == "empty") is (content == b"")
