from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
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


def tarred(name: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return stream.getvalue()


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


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
        (b"\x7fELF\x02\x01\x01" + bytes(57), "program", "compiled program or library"),
        (b"MZ\x90\x00\x03" + bytes(59), "program", "compiled program or library"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "image", "an image"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF\x00", "image", "an image"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), "hdf5", "HDF5"),
        (zipped("metadata.json", "config.json", "model.weights.h5"), "keras-zip", "Keras model"),
        (zipped("net.mlpackage/Manifest.json"), "coreml", "Core ML"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(40), "tflite", "TensorFlow Lite"),
        (b"\x1c\x00\x00\x00ORTM" + bytes(40), "ort", ".ort format"),
        (b"\x1c\x00\x00\x00ET12eh00" + bytes(40), "executorch", "ExecuTorch"),
        (b"GGUF\x03\x00\x00\x00" + bytes(40), "gguf", "GGUF"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", "numpy", "NumPy array"),
        (b"PAR1\x15\x04\x15" + bytes(40), "parquet", "Parquet"),
        (lzma.compress(b"engine"), "xz", "xz archive"),
        (bz2.compress(b"engine"), "bzip2", "bzip2 archive"),
        (b"\x28\xb5\x2f\xfd\x24\x06" + bytes(10), "zstd", "Zstandard archive"),
        (b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(40), "7z", "7-Zip"),
        (tarred("model.onnx"), "tar", "tar archive"),
        (safetensors(), "safetensors", "weights without the network"),
        (bytes(1), "zeros", "zero bytes"),
        (bytes(5000), "zeros", "zero bytes"),
        # saved_model.pb: schema version, MetaGraphDef, MetaInfoDef with a list of operators
        (b"\x08\x01\x12\xa8\xcb\x06\x0a\xf3\x9d\x01\x12\xd9\x9c\x01\x0a" + bytes(60), "tf-saved-model", "SavedModel"),
        (b"\x0a\x3a\x0a\x05input\x12\x0bPlaceholder\x2a\x1f\x0a\x05shape", "tf-graph", "GraphDef"),
        (b"\x08\x04\x12\xd7\x01\x0a\x28\x0a\x05image\x12\x05photo", "coreml", "Core ML"),
    ],
)
def test_kinds(content: bytes, kind: str, words: str) -> None:
    found = sniff(content[:4096], len(content))
    assert found["kind"] == kind
    assert words in found["text"]
    assert found["fix"]


def test_an_empty_file_says_so_in_the_words_of_the_documentation() -> None:
    assert sniff(b"", 0)["text"] == "the file is empty (0 bytes)"


@pytest.mark.parametrize("content", [b"MZ is how a text may begin", b"PAR", b"GG", bytes(4) + b"TFL"])
def test_the_beginning_of_a_signature_alone_decides_nothing(content: bytes) -> None:
    assert sniff(content, 1 << 20)["kind"] in ("text", "unknown")


def test_a_few_zero_bytes_of_a_large_file_decide_nothing() -> None:
    assert sniff(bytes(4), 1 << 20)["kind"] == "unknown"


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
