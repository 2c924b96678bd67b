from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.models import copies
from orchestrator.models.copies import read_only_copy


def test_a_copy_has_the_same_bytes_and_a_file_of_its_own(tmp_path: Path) -> None:
    source, dest = tmp_path / "w.bin", tmp_path / "copy.bin"
    source.write_bytes(os.urandom((2 << 20) + 7))
    source.chmod(0o444)

    read_only_copy(source, dest)

    assert dest.read_bytes() == source.read_bytes()
    assert dest.stat().st_mode & 0o777 == 0o444
    assert [path.stat().st_nlink for path in (source, dest)] == [1, 1]
    assert source.stat().st_ino != dest.stat().st_ino


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    source, dest = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"new")
    dest.write_bytes(b"old")

    with pytest.raises(FileExistsError):
        read_only_copy(source, dest)

    assert dest.read_bytes() == b"old"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="FICLONE is Linux's")
def test_what_the_file_system_cannot_share_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    asked: list[int] = []

    def refused(_dest: int, request: int, _source: Any) -> int:
        asked.append(request)
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "ioctl", refused)
    (tmp_path / "a").write_bytes(b"weights")

    read_only_copy(tmp_path / "a", tmp_path / "b")

    assert asked == [copies._FICLONE]
    assert (tmp_path / "b").read_bytes() == b"weights"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="FICLONE is Linux's")
def test_nothing_is_copied_after_the_file_system_shared_the_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def shared(dest: int, _request: int, source: int) -> int:
        """What the call does on btrfs and XFS, seen from outside: the other file has all bytes."""
        os.pwrite(dest, os.pread(source, 1 << 20, 0), 0)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", shared)
    (tmp_path / "a").write_bytes(b"weights")

    read_only_copy(tmp_path / "a", tmp_path / "b")

    assert (tmp_path / "b").read_bytes() == b"weights"
