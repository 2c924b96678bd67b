"""The parts of the hand-run proofs that can be wrong without a GPU: the committed table, the cut kit, what counts as an overlap."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"enginefarm_gpu_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kit, kit_engine, on_device, tables = (_load(name) for name in ("kit", "kit_engine", "on_device", "tables"))


def test_the_table_is_that_of_the_committed_result() -> None:
    text = tables.DOCUMENT.read_text()
    assert tables.render(text) == text


def test_pieces_make_the_file_again(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "kit.tar").write_bytes(data)

    pieces = kit.cut(tmp_path / "kit.tar", tmp_path, 4096)

    assert [piece["size"] for piece in pieces] == [4096, 4096, 2048]
    assert pieces[0]["sha256"] == hashlib.sha256(data[:4096]).hexdigest()
    reader = on_device.Pieces([tmp_path / piece["file"] for piece in pieces])
    assert b"".join(iter(lambda: reader.read(1000), b"")) == data


def test_a_damaged_piece_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "kit.tar").write_bytes(b"abc")
    pieces = kit.cut(tmp_path / "kit.tar", tmp_path)
    (tmp_path / "kit.json").write_text(on_device.json.dumps({"pieces": pieces}))
    (tmp_path / "kit.00").write_bytes(b"abd")

    with pytest.raises(SystemExit, match=r"missing or damaged: kit.00"):
        on_device.unpack(tmp_path)


def test_constraints_are_the_locked_versions_without_their_hashes() -> None:
    lock = "# comment\nnumpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\nrich==15.0.0\n"
    assert kit.constraints(lock) == "numpy==2.5.5 ; python_full_version >= '3.12'\nrich==15.0.0\n"


def step(name: str, start: float, end: float | None, gpu: str = "GPU-a") -> dict[str, Any]:
    return {"id": name, "gpu": gpu, "start": start} | ({} if end is None else {"die": end})


@pytest.mark.parametrize(
    ("steps", "pairs"),
    [
        ([step("one", 0, 1), step("two", 1, 2)], []),
        ([step("two", 1.9, 3), step("one", 0, 2)], [("one", "two")]),
        ([step("one", 0, 9), step("two", 1, 2), step("three", 3, 4)], [("one", "two"), ("one", "three")]),
        ([step("one", 0, None), step("two", 5, 6)], [("one", "two")]),
        ([step("one", 0, 2), step("two", 1, 3, "GPU-b")], []),
    ],
)
def test_steps_overlap_on_one_gpu_only(steps: list[dict[str, Any]], pairs: list[tuple[str, str]]) -> None:
    assert kit_engine.overlaps(steps) == pairs


LOCKED = {
    "user": "10001:10001", "network": "none", "read_only_root": True, "cap_drop": ["ALL"], "cap_add": None,
    "security_opt": ["no-new-privileges"], "privileged": False, "pids": 1024, "memory": 1 << 30, "init": True, "devices": ["/dev/nvidia0"],
    "mounts": [["volume", "/enginefarm", "rw"], ["bind", "/usr/local/nvidia", "ro"]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({}, []),
        ({"network": "bridge"}, ["network is bridge"]),
        ({"user": "0:0"}, ["it runs as root"]),
        ({"cap_add": ["SYS_ADMIN"]}, ["capabilities were added"]),
        ({"pids": None}, ["pids has no limit"]),
        ({"mounts": [["bind", "/usr/local/nvidia", "rw"]]}, ["/usr/local/nvidia can be written"]),
        ({"devices": ["/dev/nvidia0", "/dev/nvidia1"]}, ["devices is ['/dev/nvidia0', '/dev/nvidia1']"]),
    ],
)
def test_a_container_that_is_not_locked_down_is_told(change: dict[str, Any], what: list[str]) -> None:
    assert kit_engine.loose(LOCKED | change, ["/dev/nvidia0"]) == what
