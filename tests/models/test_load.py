from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from orchestrator.errors import (
    DIGEST_MISMATCH,
    MODEL_DAMAGED,
    MODEL_EXTERNAL_MISSING,
    MODEL_EXTERNAL_UNSAFE,
    MODEL_MISSING,
    MODEL_NOT_ONNX,
    EnginefarmError,
)
from orchestrator.models import external, load
from orchestrator.models.load import load_model

ROOT = Path(__file__).resolve().parents[2]


def refused(path: Path, **options: Any) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        load_model(path, **options)
    return caught.value


def with_external(make: Any, *names: str) -> Path:
    """A sum of one tensor of 64 floats per side file."""
    tensors, nodes, last = [], [], "x"
    for index, name in enumerate(names):
        tensor = make.external(name)
        tensor.name = f"w{index}"
        tensors.append(tensor)
        out = "y" if index == len(names) - 1 else f"s{index}"
        nodes.append(helper.make_node("Add", [last, tensor.name], [out]))
        last = out
        file = make.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(np.full(64, index, np.float32).tobytes())
    return make.save(make.model(nodes, initializers=tensors))


def test_facts_of_a_model(make: Any) -> None:
    model = load_model(make.save(make.add(make.weight(), inputs=[make.value("x", ["N", 64])], outputs=[make.value("y", ["N", 64])])))
    assert model.inputs[0].name == "x"
    assert model.inputs[0].dtype == "float32"
    assert model.inputs[0].shape == ("N", 64)
    assert model.opsets == {"": 17}
    assert (model.ir_version, model.nodes, model.op_types, model.weight_dtypes) == (10, 1, {"Add": 1}, {"float32": 1})
    assert model.digest.startswith("sha256:")
    assert model.staged is None


@pytest.mark.parametrize("dim", ["?", "-1", "", "None", "unknown", -1, -2, None])
def test_placeholders_are_no_names(make: Any, dim: Any) -> None:
    model = load_model(make.save(make.neg(inputs=[make.value("x", [dim, dim, 3])], outputs=[make.value("y", None)])), deep=False)
    assert model.inputs[0].shape == (None, None, 3)
    assert model.placeholder_dims == (dim in ("?", "-1", "None", "unknown"))


def test_real_names_are_kept(make: Any) -> None:
    model = load_model(make.save(make.neg(inputs=[make.value("x", ["batch", "unk__214"])], outputs=[make.value("y", None)])), deep=False)
    assert model.inputs[0].shape == ("batch", "unk__214")
    assert not model.placeholder_dims


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (TensorProto.FLOAT16, "float16"),
        (TensorProto.BFLOAT16, "bfloat16"),
        (TensorProto.FLOAT8E4M3FN, "float8_e4m3fn"),
        (TensorProto.BOOL, "bool"),
        (TensorProto.STRING, "string"),
        (TensorProto.INT64, "int64"),
    ],
)
def test_types_have_numpy_names(make: Any, code: int, name: str) -> None:
    model = make.model([helper.make_node("Identity", ["x"], ["y"])], [make.value("x", dtype=code)], [make.value("y", dtype=code)])
    assert load_model(make.save(model), deep=False).inputs[0].dtype == name


def test_a_missing_model_is_met_with_the_name_that_was_meant(make: Any) -> None:
    make.save(make.neg(), "lane.onnx")
    error = refused(make.folder / "lnae.onnx")
    assert error.kind == MODEL_MISSING
    assert error.fix == f"did you mean {make.folder / 'lane.onnx'}?"


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    error = refused(tmp_path / "nowhere" / "lane.onnx")
    assert error.kind == MODEL_MISSING
    assert "no folder" in error.what


@pytest.mark.parametrize("text", ["C:\\data\\m.onnx", "C:/data/m.onnx", "models\\m.onnx", "\\\\server\\share\\m.onnx", "m.onnx\\"])
def test_a_windows_path_is_named(text: str) -> None:
    error = refused(Path(text))
    assert error.kind == MODEL_MISSING
    assert "Windows path" in error.what
    assert "models/m.onnx" in str(error.fix)


def test_a_folder_is_refused_with_a_model_in_it(make: Any) -> None:
    make.save(make.neg(), "lane.onnx")
    error = refused(make.folder)
    assert error.kind == MODEL_NOT_ONNX
    assert "lane.onnx" in str(error.fix)


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    assert refused(tmp_path / "m.onnx").kind == MODEL_NOT_ONNX
    assert refused(Path("/dev/zero")).kind == MODEL_NOT_ONNX


@pytest.mark.parametrize("path", ["a\0b.onnx", "x" * 5000])
def test_impossible_paths_are_refused(path: str) -> None:
    assert refused(Path(path)).kind == MODEL_MISSING


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b"<!doctype html><html></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1\n", "LFS"),
        (b"PK\x03\x04" + bytes(60), "zip"),
        (b"ftrt" + bytes(200), "TensorRT engine"),
        (b"vtrt" + bytes(200), "TensorRT-RTX engine"),
        (b'{"a": 1}', "JSON"),
        (b"\x80\x04\x95" + bytes(60), "pickle"),
    ],
)
def test_what_is_no_onnx_is_named(make: Any, data: bytes, word: str) -> None:
    error = refused(make.save(data))
    assert error.kind == MODEL_NOT_ONNX
    assert word in error.what
    assert error.fix


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_model_is_damaged(make: Any, keep: float) -> None:
    data = make.add(make.weight()).SerializeToString()
    assert refused(make.save(data[: int(len(data) * keep)])).kind == MODEL_DAMAGED


def test_many_side_files_are_all_found_and_staged(make: Any, tmp_path: Path) -> None:
    names = ["transformer.wte.weight", "sub/dir/h.0.bias", "weights_0.bin", "ünïcode.bin", "with space.bin"]
    model = load_model(with_external(make, *names), stage=tmp_path / "stage")
    assert [file.path for file in model.external] == sorted(names)
    for name in names:
        assert (tmp_path / "stage" / name).read_bytes() == (make.folder / name).read_bytes()
    assert model.size_bytes == (make.folder / "model.onnx").stat().st_size + 5 * 256
    assert model.staged == tmp_path / "stage" / "model.onnx"


def test_staged_files_cannot_be_written(make: Any, tmp_path: Path) -> None:
    load_model(with_external(make, "w.bin"), stage=tmp_path / "stage")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "stage").iterdir()}
    assert modes == {"model.onnx": 0o444, "w.bin": 0o444}


def test_missing_side_files_are_listed_with_their_tensors(make: Any) -> None:
    path = with_external(make, "a.bin", "b.bin", "c.bin")
    (make.folder / "a.bin").unlink()
    (make.folder / "c.bin").unlink()
    error = refused(path)
    assert error.kind == MODEL_EXTERNAL_MISSING
    assert error.what == "2 external data files are missing: 'a.bin' (tensors 'w0'); 'c.bin' (tensors 'w2')"


def test_a_link_that_stays_inside_is_followed(make: Any, tmp_path: Path) -> None:
    path = with_external(make, "real/w.bin")
    (make.folder / "w.bin").symlink_to("real/w.bin")
    linked = make.save(make.add(make.external("w.bin")), "linked.onnx")
    assert load_model(linked, stage=tmp_path / "stage").external[0].path == "w.bin"
    assert not (tmp_path / "stage" / "w.bin").is_symlink()
    assert load_model(path, deep=False).external[0].size == 256


def test_a_dot_in_the_location_is_the_same_file(make: Any) -> None:
    with_external(make, "w.bin")
    assert load_model(make.save(make.add(make.external("./w.bin"))), deep=False).external[0].path == "w.bin"


def test_nothing_is_read_when_one_path_is_bad(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (make.folder / "good.bin").write_bytes(bytes(256))
    good, bad = make.external("good.bin"), make.external("../../etc/passwd")
    bad.name = "v"
    nodes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Add", ["s", "v"], ["y"])]
    opened: list[str] = []
    monkeypatch.setattr(load, "open_side_file", lambda folder, file: opened.append(file.path))
    refused(make.save(make.model(nodes, initializers=[good, bad])), stage=tmp_path / "stage")
    assert opened == []


def test_a_swap_between_check_and_read_is_caught(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_external(make, "w.bin")
    secret = make.folder.parent / "secret"
    secret.write_bytes(bytes(256))

    def swapped(folder: Path, file: external.SideFile) -> int:
        (make.folder / "w.bin").unlink()
        (make.folder / "w.bin").symlink_to(secret)
        return external.open_side_file(folder, file)

    monkeypatch.setattr(load, "open_side_file", swapped)
    assert refused(path).kind == DIGEST_MISMATCH


def test_a_swap_for_another_file_is_caught(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_external(make, "w.bin")

    def swapped(folder: Path, file: external.SideFile) -> int:
        other = make.folder / "other"
        other.write_bytes(bytes(256))
        other.rename(make.folder / "w.bin")
        return external.open_side_file(folder, file)

    monkeypatch.setattr(load, "open_side_file", swapped)
    assert refused(path).kind == DIGEST_MISMATCH


def test_renaming_the_model_keeps_the_digest(make: Any) -> None:
    path = with_external(make, "w.bin")
    first = load_model(path, deep=False).digest
    assert load_model(path.rename(make.folder / "other.onnx"), deep=False).digest == first


def test_staging_keeps_the_digest(make: Any, tmp_path: Path) -> None:
    path = with_external(make, "w.bin", "v.bin")
    assert load_model(path, deep=False).digest == load_model(path, stage=tmp_path / "stage", deep=False).digest


def test_external_paths_and_their_order_count(make: Any) -> None:
    one = load_model(with_external(make, "a.bin", "b.bin"), deep=False).digest
    (make.folder / "a.bin").write_bytes((make.folder / "b.bin").read_bytes())
    assert load_model(make.folder / "model.onnx", deep=False).digest != one


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_byte_of_external_data_is_in_the_digest(make: Any, data: st.DataObject) -> None:
    path = with_external(make, "w.bin")
    before = load_model(path, deep=False).digest
    content = bytearray((make.folder / "w.bin").read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    (make.folder / "w.bin").write_bytes(content)
    assert load_model(path, deep=False).digest != before


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_bytes_gives_anything_but_an_error_or_another_digest(make: Any, data: st.DataObject) -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "b", [], [make.value("b", ["n"])])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=make.weight(np.array(True))),
        helper.make_node("If", ["c"], ["m"], then_branch=branch, else_branch=branch),
        helper.make_node("f", ["m"], ["k"], domain="loc"),
        helper.make_node("Add", ["k", "w"], ["y"], name="add"),
    ]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("loc", "f", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], opsets)
    model = make.model(nodes, initializers=[make.external("w.bin")], functions=[function], domains=["loc"])
    (make.folder / "w.bin").write_bytes(bytes(256))
    original = model.SerializeToString()
    mutated = _mutated(original, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "declared_shape_warnings", lambda graph, size: ())  # a child process for each would take minutes
        before = load_model(make.save(original)).digest
        try:
            after = load_model(make.save(mutated)).digest
        except EnginefarmError as error:
            after = error.what
    assert after.isprintable()
    assert (after == before) == (mutated == original)


def _mutated(original: bytes, data: st.DataObject) -> bytes:
    content = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        match data.draw(st.sampled_from(["flip", "drop", "insert", "cut", "repeat"])):
            case "flip":
                content[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "drop":
                del content[at : at + data.draw(st.integers(1, 8))]
            case "insert":
                content[at:at] = data.draw(st.binary(min_size=1, max_size=12))
            case "cut":
                del content[at:]
            case _:
                content[at:at] = content[at : at + data.draw(st.integers(1, 64))]
    return bytes(content)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300))
def test_any_bytes_are_answered_with_an_error(make: Any, content: bytes) -> None:
    assert refused(make.save(content), deep=False).what


def test_a_large_sparse_side_file_is_hashed_and_staged_in_flat_memory(make: Any, tmp_path: Path) -> None:
    size = 300 << 20
    with (make.folder / "w.bin").open("wb") as file:
        file.truncate(size)
    path = make.save(make.add(make.external("w.bin", size // 4), outputs=[make.value("y", None)], inputs=[make.value("x", [1])]))
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom orchestrator.models.load import load_model\n"
        "import numpy, orchestrator.models.weights\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "model = load_model(Path(sys.argv[1]), deep=False)\n"
        "print(model.size_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True, check=True)
    total, grown_kib = map(int, run.stdout.split())
    assert total > size
    assert grown_kib < 32 << 10, f"{grown_kib} KiB more for a file of {size >> 10} KiB"


def test_no_room_for_a_copy_is_said_before_it_is_made(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        free = 10

    monkeypatch.setattr(load.shutil, "disk_usage", lambda path: Full)
    error = refused(make.save(make.neg()), stage=tmp_path / "stage")
    assert "no space" in error.what
    assert list((tmp_path / "stage").iterdir()) == []


def test_a_stage_that_is_in_use_is_not_overwritten(make: Any, tmp_path: Path) -> None:
    load_model(make.save(make.neg()), stage=tmp_path / "stage", deep=False)
    before = (tmp_path / "stage" / "model.onnx").read_bytes()
    refused(make.save(make.add(make.weight())), stage=tmp_path / "stage")
    assert (tmp_path / "stage" / "model.onnx").read_bytes() == before


def test_loading_imports_no_onnx(make: Any) -> None:
    path = make.save(make.add(make.weight()))
    program = (
        "import sys\nfrom pathlib import Path\nfrom orchestrator.models.load import load_model\nload_model(Path(sys.argv[1]))\n"
        "print([name for name in ('onnx', 'onnxruntime') if name in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_scan_limits_are_counted_in_one_pass(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.models import wire

    monkeypatch.setattr(wire, "MAX_FIELDS", 20)
    assert "fields" in refused(make.save(make.add(make.weight()))).what
    monkeypatch.setattr(wire, "MAX_FIELDS", 10_000)
    monkeypatch.setattr(wire, "MAX_TEXT", 4)
    assert "names" in refused(make.save(make.add(make.weight()))).what


def test_a_number_that_crosses_the_read_window_is_read(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.models import wire

    path = make.save(make.add(make.weight()))
    whole = load_model(path, deep=False)
    monkeypatch.setattr(wire, "_WINDOW", 24)
    assert load_model(path, deep=False) == whole


def test_a_dangling_link_is_not_offered_as_itself(make: Any) -> None:
    (make.folder / "lane.onnx").symlink_to("gone.onnx")
    error = refused(make.folder / "lane.onnx")
    assert (error.kind, error.what) == (MODEL_MISSING, "this link leads to 'gone.onnx', where no file is")
    assert error.fix == f"there is no .onnx file in {make.folder}"


def test_a_name_that_is_far_from_what_is_there_gets_a_list(make: Any) -> None:
    make.save(make.neg(), "segmentation.onnx")
    assert refused(make.folder / "lane.onnx").fix == "models in this folder: segmentation.onnx"


@pytest.mark.parametrize("location", ["model.onnx/x", "other.onnx/x"])
def test_external_data_below_the_models_own_name_is_refused(make: Any, tmp_path: Path, location: str) -> None:
    """Staged, the model is a file of that name, which cannot be a folder as well."""
    path = make.save(make.add(make.external(location)), "other.onnx")
    if location.startswith("model"):
        (make.folder / "model.onnx").mkdir()
        (make.folder / location).write_bytes(bytes(256))
    with pytest.raises(EnginefarmError) as caught:
        load_model(path, stage=tmp_path / "stage")
    assert caught.value.kind == MODEL_EXTERNAL_UNSAFE
    assert "a folder with the name of the model file itself" in caught.value.what
