"""The memo's own file: shared, killed, damaged, of another release, or not to be had at all."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

import pytest

from orchestrator.store.fingerprint import TICK_NS
from orchestrator.store.memo import Memo
from orchestrator.store.memo_file import SCHEMA_VERSION

from .conftest import SECOND, Spawn, reopened, sha256


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, b"SQLite format 3\0" + bytes(4000)])
def test_a_file_that_is_no_memo_is_set_aside(path: Path, model: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    memo = Memo(path)
    memo.digest(model)
    memo = reopened(memo, path)
    memo.digest(model)
    assert memo.hashed_bytes == 0
    aside = path.with_name("memo.db.unusable")
    assert not content or aside.read_bytes() == content


def test_a_memo_of_a_newer_release_is_set_aside(path: Path, model: Path) -> None:
    memo = Memo(path)
    memo.digest(model)
    memo.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()
    memo = Memo(path)
    memo.digest(model)
    memo = reopened(memo, path)
    memo.digest(model)
    assert memo.hashed_bytes == 0
    assert path.with_name("memo.db.unusable").exists()


def test_a_newer_memo_in_use_is_left_alone(path: Path, model: Path) -> None:
    used = Memo(path)
    used.digest(model)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()
    other = Memo(path)
    assert other.digest(model) == sha256(model)
    other.close()
    assert not path.with_name("memo.db.unusable").exists()
    used.close()


def test_bytes_that_a_disk_changed_are_never_an_answer(path: Path, model: Path, tmp_path: Path) -> None:
    memo = Memo(path)
    true = memo.digest(model)
    memo.close()
    original = path.read_bytes()
    at = original.index(true.encode()) + 10
    for position in (at, at - 60, 20, 110, 4096, len(original) - 20):
        damaged = bytearray(original)
        damaged[position] ^= 1
        for left in path.parent.iterdir():
            left.unlink()
        path.write_bytes(damaged)
        memo = Memo(path)
        assert memo.digest(model) == true
        memo.close()


def test_damage_found_while_it_is_open_makes_the_memo_anew(path: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"f{number}" for number in range(300)]
    for file in files:
        file.write_bytes(file.name.encode())
    time.sleep(2 * TICK_NS / SECOND)
    memo = Memo(path)
    for file in files:
        memo.digest(file)
    memo.close()
    data = bytearray(path.read_bytes())
    data[8192:] = os.urandom(len(data) - 8192)
    path.write_bytes(data)
    memo = Memo(path)
    assert [memo.digest(file) for file in files] == [sha256(file) for file in files]
    memo = reopened(memo, path)
    assert [memo.digest(file) for file in files] == [sha256(file) for file in files]
    memo = reopened(memo, path)
    for file in files:
        memo.digest(file)
    assert memo.hashed_bytes == 0


MANY = """
import sys
from pathlib import Path
from orchestrator.store.memo import Memo
memo = Memo(Path(sys.argv[1]))
files = sorted(Path(sys.argv[2]).iterdir())
print("ready", flush=True)
sys.stdin.readline()
for file in files:
    print(memo.digest(file))
memo.close()
"""


def test_twenty_processes_share_a_memo(path: Path, tmp_path: Path, spawn: Spawn) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02d}").write_bytes(os.urandom(100))
    time.sleep(2 * TICK_NS / SECOND)
    children = [spawn(MANY, path, folder) for _ in range(20)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    true = [sha256(file) for file in sorted(folder.iterdir())]
    answers = [child.communicate("go\n")[0].splitlines() for child in children]
    assert answers == [true] * 20
    assert [child.returncode for child in children] == [0] * 20
    memo = Memo(path)
    assert [memo.digest(file) for file in sorted(folder.iterdir())] == true
    assert memo.hashed_bytes == 0


def test_a_kill_loses_rows_at_most(path: Path, tmp_path: Path, spawn: Spawn) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(200):
        (folder / f"{number:03d}").write_bytes(os.urandom(100))
    time.sleep(2 * TICK_NS / SECOND)
    true = [sha256(file) for file in sorted(folder.iterdir())]
    for lines in (1, 50, 150):
        child = spawn(MANY, path, folder)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        for _ in range(lines):
            child.stdout.readline()
        child.kill()
        child.wait()
        memo = Memo(path)
        assert [memo.digest(file) for file in sorted(folder.iterdir())] == true


def test_no_room_for_the_memo_is_no_error(model: Path) -> None:
    memo = Memo(Path("/proc/none/memo.db"))
    assert memo.digest(model) == memo.digest(model) == sha256(model)
    assert memo.hashed_bytes == 7000
    memo.close()
