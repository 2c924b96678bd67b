"""Triton model repositories and ONNX Runtime model packages, read back by protobuf's own text parser and by ONNX Runtime itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.artifacts.manifest import TensorRecord
from orchestrator.portable.runtime.errors import LoadError
from orchestrator.portable.runtime.manifest import open_manifest
from orchestrator.portable.runtime.ort_package import export_ort_package
from orchestrator.portable.runtime.triton import export_triton

TRT = {"backend": "tensorrt", "backend_version": "10.11.0.33"}


def parse(text: str) -> Any:
    """The text as a ModelConfig with the fields used here; numbers and types from model_config.proto of triton-inference-server/common."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = descriptor_pb2.FileDescriptorProto(name="triton.proto", package="inference", syntax="proto3")
    types = file.enum_type.add(name="DataType")
    names = (
        "INVALID",
        "BOOL",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "FP16",
        "FP32",
        "FP64",
        "STRING",
        "BF16",
    )
    for number, name in enumerate(names):
        types.value.add(name=f"TYPE_{name}", number=number)
    kinds = {"string": 9, "int32": 5, "int64": 3, "message": 11, "enum": 14}

    def message(owner: Any, name: str, *fields: tuple[str, int, str, str, bool]) -> Any:
        made = owner.add(name=name)
        for field, number, kind, of, many in fields:
            made.field.add(name=field, number=number, type=kinds[kind], type_name=of or None, label=3 if many else 1)
        return made

    message(file.message_type, "Reshape", ("shape", 1, "int64", "", True))
    for tensor, dims, reshape in (("Input", 4, 5), ("Output", 3, 5)):
        message(
            file.message_type, tensor, ("name", 1, "string", "", False), ("data_type", 2, "enum", ".inference.DataType", False),
            ("dims", dims, "int64", "", True), ("reshape", reshape, "message", ".inference.Reshape", False),
        )  # fmt: skip
    group = message(file.message_type, "Group", ("kind", 4, "enum", ".inference.Group.Kind", False))
    kind = group.enum_type.add(name="Kind")
    for number, name in enumerate(("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")):
        kind.value.add(name=name, number=number)
    message(file.message_type, "Parameter", ("string_value", 1, "string", "", False))
    config = message(
        file.message_type, "ModelConfig", ("name", 1, "string", "", False), ("max_batch_size", 4, "int32", "", False),
        ("input", 5, "message", ".inference.Input", True), ("output", 6, "message", ".inference.Output", True),
        ("instance_group", 7, "message", ".inference.Group", True), ("default_model_filename", 8, "string", "", False),
        ("cc_model_filenames", 9, "message", ".inference.ModelConfig.CcModelFilenamesEntry", True),
        ("parameters", 14, "message", ".inference.ModelConfig.ParametersEntry", True), ("backend", 17, "string", "", False),
    )  # fmt: skip
    key = ("key", 1, "string", "", False)
    files = message(config.nested_type, "CcModelFilenamesEntry", key, ("value", 2, "string", "", False))
    parameters = message(config.nested_type, "ParametersEntry", key, ("value", 2, "message", ".inference.Parameter", False))
    files.options.map_entry = parameters.options.map_entry = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))()
    return text_format.Parse(text, made)


def config_of(repository: Path) -> Any:
    return parse((repository / "lane" / "config.pbtxt").read_text())


def test_triton_gets_a_file_for_each_capability(folder: Any, tmp_path: Path, doubling: bytes) -> None:
    folder.add("t4", b"plan of 7.5", compute_capability=("7.5",), **TRT)
    folder.add("a100", b"plan of 8.0", compute_capability=("8.0",), **TRT)
    folder.add("plus", b"plan of 8.6", compute_capability=("8.6",), hardware_compatibility="ampere_plus", **TRT)
    folder.add("rtx", b"rtx", backend="tensorrt-rtx", backend_version="1.7.1.116", compute_capability=("8.6",))
    folder.add("old", b"old", status="unvalidated", compute_capability=("9.0",), **TRT)
    folder.add("cpu", doubling)

    done = export_triton(open_manifest(str(folder.write())), str(tmp_path / "repo"))

    config = config_of(tmp_path / "repo")
    files = dict(config.cc_model_filenames)
    assert (config.name, config.backend, config.default_model_filename) == ("lane", "tensorrt", "")
    assert (files["7.5"], files["8.0"], files["8.6"], files["9.0"]) == (
        "model_t4.plan",
        "model_a100.plan",
        "model_plus.plan",
        "model_plus.plan",
    )
    assert "8.7" not in files  # a Jetson: no compatibility level reaches it
    assert (config.max_batch_size, list(config.input[0].dims), list(config.output[0].dims)) == (8, [4], [4])
    assert config.instance_group[0].kind == 1
    version = tmp_path / "repo" / "lane" / "3"
    assert {path.name: path.read_bytes() for path in version.iterdir()} == {
        "model_t4.plan": b"plan of 7.5", "model_a100.plan": b"plan of 8.0", "model_plus.plan": b"plan of 8.6",
    }  # fmt: skip
    assert dict(done.left) == {
        "rtx": "Triton has no backend for TensorRT-RTX", "old": "it is unvalidated", "cpu": "a Triton model has one backend",
    }  # fmt: skip
    assert done.notes == ["Triton has to bring TensorRT 10.11.0.33"]


def test_triton_takes_onnx_where_there_is_no_plan(folder: Any, tmp_path: Path, doubling: bytes) -> None:
    folder.add("cpu", doubling)

    export_triton(open_manifest(str(folder.write())), str(tmp_path / "repo"))

    config = config_of(tmp_path / "repo")
    assert (config.backend, config.default_model_filename, config.instance_group[0].kind) == ("onnxruntime", "model.onnx", 2)
    assert (tmp_path / "repo" / "lane" / "3" / "model.onnx").read_bytes() == doubling


def test_triton_names_and_scalars_survive_its_text_format(folder: Any, tmp_path: Path) -> None:
    strange = TensorRecord(name='im"a\\ge\n\u00e4', dtype="int64", shape=(2, -1))
    scalar = TensorRecord(name="s", dtype="float16", shape=())
    folder.add("t4", b"plan", compute_capability=("7.5",), inputs=(strange,), outputs=(scalar,), profiles={}, **TRT)

    export_triton(open_manifest(str(folder.write())), str(tmp_path / "repo"))

    config = config_of(tmp_path / "repo")
    assert (config.max_batch_size, config.input[0].name, list(config.input[0].dims)) == (0, strange.name, [2, -1])
    assert (list(config.output[0].dims), config.output[0].HasField("reshape"), config.output[0].data_type) == ([1], True, 10)


def test_two_engines_for_one_capability_have_to_be_chosen_from(folder: Any, tmp_path: Path) -> None:
    folder.add("a", b"plan a", compute_capability=("8.6",), **TRT)
    folder.add("b", b"plan b", compute_capability=("8.6",), backend="tensorrt", backend_version="8.6.1.6", version_compatible=True)
    opened = open_manifest(str(folder.write()))

    with pytest.raises(LoadError, match=r"a and b are both for compute capability 8\.6"):
        export_triton(opened, str(tmp_path / "repo"))
    assert not (tmp_path / "repo" / "lane").exists()
    done = export_triton(opened, str(tmp_path / "repo"), targets=["b"])
    assert done.targets == ["b"]
    assert "version-compatible=true" in done.notes[0]
    with pytest.raises(FileExistsError):
        export_triton(opened, str(tmp_path / "repo"), targets=["b"])
    with pytest.raises(LoadError, match="no engine of target x"):
        export_triton(opened, str(tmp_path / "other"), targets=["x*"])


def test_an_export_copies_nothing_that_changed(folder: Any, tmp_path: Path, doubling: bytes) -> None:
    engine = folder.add("cpu", doubling)
    opened = open_manifest(str(folder.write()))
    engine.write_bytes(doubling[:-1] + b"!")

    for export, name in ((export_triton, "repo"), (export_ort_package, "package")):
        with pytest.raises(LoadError, match="its digest is not the manifest's"):
            export(opened, str(tmp_path / name))
    assert not (tmp_path / "package").exists()
    assert list((tmp_path / "repo").iterdir()) == []


def test_onnx_runtime_opens_the_package_and_runs_the_variant(folder: Any, tmp_path: Path, doubling: bytes) -> None:
    import onnxruntime

    folder.add("cpu", doubling)
    folder.add("cuda", doubling, provider="cuda", compute_capability=("8.6",))
    folder.add("t4", b"plan", compute_capability=("7.5",), **TRT)
    package = tmp_path / "package"

    done = export_ort_package(open_manifest(str(folder.write())), str(package))

    assert done.targets == ["cpu", "cuda"]
    assert dict(done.left) == {"t4": "a tensorrt plan is no ONNX model"}
    component = json.loads((package / "model" / "component.json").read_text())
    assert component["variants"]["cuda"]["ep"] == "CUDAExecutionProvider"
    if not hasattr(onnxruntime, "ModelPackageContext"):
        pytest.skip("this ONNX Runtime reads no model packages")
    context = onnxruntime.ModelPackageContext(str(package))
    assert context.get_variant_ep_name("model", "cuda") == "CUDAExecutionProvider"
    selected = context.select_component("model", onnxruntime.ModelPackageOptions(onnxruntime.SessionOptions()))
    assert selected.get_selected_variant_name() == "cpu"
    (y,) = selected.create_session().run(None, {"x": np.ones((2, 4), np.float32)})
    assert np.array_equal(y, 2 * np.ones((2, 4), np.float32))


def test_a_package_without_onnx_engines_is_not_written(folder: Any, tmp_path: Path) -> None:
    folder.add("t4", b"plan", compute_capability=("7.5",), **TRT)

    with pytest.raises(LoadError, match="t4: a tensorrt plan is no ONNX model"):
        export_ort_package(open_manifest(str(folder.write())), str(tmp_path / "package"))
