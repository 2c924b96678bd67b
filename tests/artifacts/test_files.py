from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from orchestrator.artifacts.files import CHUNK, copy_new, disk_errors, member, sha256_file, write_new
from orchestrator.errors import DISK, ENGINE_UNREADABLE, EnginefarmError


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 7])
def test_a_copy_is_whole_and_its_digest_is_that_of_the_bytes(tmp_path, size):
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "a").write_bytes(data[:size])
    expected = f"sha256:{hashlib.sha256(data[:size]).hexdigest()}"
    *found, status = copy_new(tmp_path / "a", tmp_path / "b")
    assert found == [expected, size]
    assert os.path.samestat(status, (tmp_path / "b").stat())
    assert (tmp_path / "b").read_bytes() == data[:size]
    assert sha256_file(tmp_path / "b") == expected


def test_what_exists_is_not_written_over(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", b"new")
    with pytest.raises(FileExistsError):
        copy_new(tmp_path / "a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_full_disk_is_reported_with_what_to_do():
    with pytest.raises(EnginefarmError) as caught, disk_errors("write lane_v1.json"), Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"x")
    assert (caught.value.kind, caught.value.exit) == (DISK, 4)
    assert caught.value.what == "cannot write lane_v1.json"
    assert caught.value.why == "No space left on device"
    assert "--output" in caught.value.fix


def test_a_member_is_a_plain_name(tmp_path):
    assert member(tmp_path, "$(x) y.engine") == tmp_path / "$(x) y.engine"
    with pytest.raises(EnginefarmError, match="is not a file name") as caught:
        member(tmp_path, "../x")
    assert caught.value.kind is ENGINE_UNREADABLE
