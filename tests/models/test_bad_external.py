"""External data that leaves the model's folder, is no file, or does not fit: one small model for each kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from orchestrator.errors import (
    MODEL_EXTERNAL_MISSING,
    MODEL_EXTERNAL_UNSAFE,
    MODEL_INVALID,
    Kind,
)
from orchestrator.models.load import load_model

from .conftest import assert_refused
from .pieces import node


def ext_absolute(make: Any) -> Any:
    return make.add(make.external("/etc/hostname"))


def ext_dotdot(make: Any) -> Any:
    (make.folder.parent / "outside.bin").write_bytes(bytes(256))
    return make.add(make.external("../outside.bin"))


def ext_dotdot_inside(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("sub/../w.bin"))


def ext_backslash(make: Any) -> Any:
    return make.add(make.external("..\\w.bin"))


def ext_drive(make: Any) -> Any:
    return make.add(make.external("C:w.bin"))


def ext_sibling_prefix(make: Any) -> Any:
    evil = make.folder.with_name("models-evil")
    evil.mkdir()
    (evil / "w.bin").write_bytes(bytes(256))
    (make.folder / "w.bin").symlink_to(evil / "w.bin")
    return make.add(make.external("w.bin"))


def ext_symlink(make: Any) -> Any:
    (make.folder.parent / "outside.bin").write_bytes(bytes(256))
    (make.folder / "w.bin").symlink_to("../outside.bin")
    return make.add(make.external("w.bin"))


def ext_symlink_dir(make: Any) -> Any:
    outside = make.folder.parent / "outside"
    outside.mkdir()
    (outside / "w.bin").write_bytes(bytes(256))
    (make.folder / "sub").symlink_to(outside)
    return make.add(make.external("sub/w.bin"))


def ext_symlink_loop(make: Any) -> Any:
    (make.folder / "w.bin").symlink_to("w.bin")
    return make.add(make.external("w.bin"))


def ext_fifo(make: Any) -> Any:
    import os

    os.mkfifo(make.folder / "w.bin")
    return make.add(make.external("w.bin"))


def ext_folder(make: Any) -> Any:
    (make.folder / "w.bin").mkdir()
    return make.add(make.external("w.bin"))


def ext_itself(make: Any) -> Any:
    return make.add(make.external("bad.onnx"))


def ext_in_constant(make: Any) -> Any:
    """External data is also taken from the attribute of a node inside a branch."""
    constant = node("Constant", [], ["k"])
    constant.attribute.append(helper.make_attribute("value", make.external("../../secret.bin")))
    branch = helper.make_graph([constant], "b", [], [make.value("k")])
    condition = numpy_helper.from_array(np.array(True), "c")
    return make.model([node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)], initializers=[condition])


def ext_no_location(make: Any) -> Any:
    tensor = make.external("w.bin")
    del tensor.external_data[:]
    return make.add(tensor)


def ext_location_twice(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    tensor = make.external("w.bin")
    tensor.external_data.add(key="location", value="/etc/passwd")
    return make.add(tensor)


def ext_negative_offset(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", offset=-256))


def ext_offset_past_end(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", offset=128, length=256))


def ext_offset_overflow(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", offset=2**63 - 1, length=2**63 - 1))


def ext_offset_not_a_number(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", offset="0x10"))


def ext_length_too_small(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(256))
    return make.add(make.external("w.bin", length=4))


def ext_short(make: Any) -> Any:
    (make.folder / "w.bin").write_bytes(bytes(40))
    return make.add(make.external("w.bin"))


def ext_missing(make: Any) -> Any:
    return make.add(make.external("w.bin"))


REFUSED: list[tuple[Callable[[Any], Any], Kind, str]] = [
    (ext_absolute, MODEL_EXTERNAL_UNSAFE, "/etc/hostname"),
    (ext_dotdot, MODEL_EXTERNAL_UNSAFE, "../outside.bin"),
    (ext_dotdot_inside, MODEL_EXTERNAL_UNSAFE, "sub/../w.bin"),
    (ext_backslash, MODEL_EXTERNAL_UNSAFE, "w.bin"),
    (ext_drive, MODEL_EXTERNAL_UNSAFE, "C:w.bin"),
    (ext_sibling_prefix, MODEL_EXTERNAL_UNSAFE, "link"),
    (ext_symlink, MODEL_EXTERNAL_UNSAFE, "link"),
    (ext_symlink_dir, MODEL_EXTERNAL_UNSAFE, "link"),
    (ext_symlink_loop, MODEL_EXTERNAL_UNSAFE, "link"),
    (ext_fifo, MODEL_EXTERNAL_UNSAFE, "FIFO"),
    (ext_folder, MODEL_EXTERNAL_UNSAFE, "folder"),
    (ext_itself, MODEL_EXTERNAL_UNSAFE, "itself"),
    (ext_in_constant, MODEL_EXTERNAL_UNSAFE, "../../secret.bin"),
    (ext_no_location, MODEL_INVALID, "location"),
    (ext_location_twice, MODEL_INVALID, "'location'"),
    (ext_negative_offset, MODEL_INVALID, "offset"),
    (ext_offset_past_end, MODEL_EXTERNAL_MISSING, "too short"),
    (ext_offset_overflow, MODEL_EXTERNAL_MISSING, "too short"),
    (ext_offset_not_a_number, MODEL_INVALID, "'0x10'"),
    (ext_length_too_small, MODEL_INVALID, "4 of 256 bytes"),
    (ext_short, MODEL_EXTERNAL_MISSING, "too short"),
    (ext_missing, MODEL_EXTERNAL_MISSING, "'w.bin' (tensors 'w')"),
]


@pytest.mark.parametrize(("build", "kind", "text"), REFUSED, ids=[case[0].__name__ for case in REFUSED])
def test_is_refused(make: Any, build: Callable[[Any], Any], kind: Kind, text: str, tmp_path: Path) -> None:
    assert_refused(make, build(make), kind, text, tmp_path / "stage")


def test_hard_linked_external_data_is_copied_and_hashed(make: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.bin"
    elsewhere.write_bytes(bytes(256))
    (make.folder / "w.bin").hardlink_to(elsewhere)
    stage = tmp_path / "stage"
    model = load_model(make.save(make.add(make.external("w.bin"))), stage=stage)
    elsewhere.write_bytes(b"x" * 256)
    assert (stage / "w.bin").read_bytes() == bytes(256)
    assert model.external[0].digest.startswith("sha256:")
