"""The memo never gives an answer about a file that is not the one that was read."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from orchestrator.store.fingerprint import COARSE_TICK_NS, TICK_NS, is_settled
from orchestrator.store.memo import Memo

from .conftest import SECOND, reopened, settled_file, sha256


def test_an_unchanged_file_is_hashed_once_also_by_the_next_process(path: Path, model: Path) -> None:
    memo = Memo(path)
    assert memo.digest(model) == memo.digest(model) == sha256(model)
    assert memo.hashed_bytes == 7000
    memo = reopened(memo, path)
    assert memo.digest(model) == sha256(model)
    assert memo.hashed_bytes == 0


def test_a_file_made_just_now_is_kept_too(path: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b"just now")
    memo = Memo(path)
    memo.digest(fresh)
    memo = reopened(memo, path)
    memo.digest(fresh)
    assert memo.hashed_bytes == 0


def test_a_file_that_was_hashed_while_it_was_written_is_not_read_again(path: Path, tmp_path: Path) -> None:
    fresh, other, gone = (tmp_path / name for name in ("fresh", "other", "gone"))
    files = []
    for file in (fresh, other, gone):
        file.write_bytes(b"just now")
        files.append((file, sha256(file), file.stat()))
    fresh.rename(tmp_path / "named")
    files[0] = (tmp_path / "named", *files[0][1:])
    time.sleep(0.03)
    other.write_bytes(b"another!")
    gone.unlink()
    memo = Memo(path)
    memo.know(files)
    memo = reopened(memo, path)
    assert memo.digest(tmp_path / "named") == files[0][1]
    assert memo.hashed_bytes == 0
    assert memo.digest(other) == sha256(other) != files[1][1]
    assert memo.hashed_bytes == 8


def test_touched_renamed_and_rewritten_files_are_hashed_again(path: Path, model: Path) -> None:
    memo = Memo(path)
    memo.digest(model)
    model.touch()
    assert memo.digest(model) == sha256(model)
    assert memo.hashed_bytes == 2 * 7000
    moved = model.rename(model.with_name("other.onnx"))
    assert memo.digest(moved) == sha256(moved)
    assert memo.hashed_bytes == 3 * 7000
    before = moved.stat()
    moved.write_bytes(b"WEIGHTS" * 1000)
    os.utime(moved, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert moved.stat().st_mtime_ns == before.st_mtime_ns
    assert memo.digest(moved) == sha256(moved)


def test_a_link_stands_for_what_it_leads_to(path: Path, model: Path, tmp_path: Path) -> None:
    link = tmp_path / "latest.onnx"
    link.symlink_to(model)
    memo = Memo(path)
    assert memo.digest(link) == sha256(model)
    other = settled_file(tmp_path / "other.onnx", b"other")
    link.unlink()
    link.symlink_to(other)
    assert memo.digest(link) == sha256(other)
    hashed = memo.hashed_bytes
    assert memo.digest(link) == sha256(other)
    assert memo.hashed_bytes == hashed


@pytest.mark.parametrize("name", ["none", "folder", "pipe", "nul\0"])
def test_what_is_no_regular_file_is_an_os_error(path: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError):
        Memo(path).digest(tmp_path / name)


def test_names_that_are_not_utf8_are_names(path: Path, tmp_path: Path) -> None:
    odd = settled_file(tmp_path / os.fsdecode(b"mod\xff.onnx"), b"odd")
    memo = Memo(path)
    memo.digest(odd)
    memo = reopened(memo, path)
    assert memo.digest(odd) == sha256(odd)
    assert memo.hashed_bytes == 0


def test_a_value_holds_while_all_its_files_do(path: Path, model: Path, tmp_path: Path) -> None:
    side = settled_file(tmp_path / "weights.bin", b"w")
    memo = Memo(path)
    memo.put("model", "lane", "1", [(model, model.stat()), (side, side.stat())], {"inputs": [["x", None]]})
    for one in (memo, reopened(memo, path)):
        assert one.get("model", "lane", "1") == {"inputs": [["x", None]]}
        assert one.get("model", "lane", "2") is None
        assert one.get("model", "other", "1") is None
        assert one.get("host", "lane", "1") is None
    side.write_bytes(b"v")
    assert Memo(path).get("model", "lane", "1") is None
    side.unlink()
    assert Memo(path).get("model", "lane", "1") is None


def test_a_value_is_the_caller_s_own(path: Path, model: Path) -> None:
    memo = Memo(path)
    memo.put("model", "lane", "1", [(model, model.stat())], {"inputs": []})
    found = memo.get("model", "lane", "1")
    assert found is not None
    found["inputs"].append("x")
    assert memo.get("model", "lane", "1") == {"inputs": []}


def test_a_status_from_just_after_a_change_is_not_kept(path: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b"just now")
    memo = Memo(path)
    memo.put("model", "lane", "1", [(fresh, fresh.stat())], 1)
    assert memo.get("model", "lane", "1") is None
    since = memo.settle([fresh, tmp_path / "none"])
    memo.put("model", "lane", "1", [(fresh, fresh.stat())], 1, since=since)
    assert memo.get("model", "lane", "1") == 1


@dataclass
class Status:
    st_mtime_ns: int
    st_ctime_ns: int


NOW = 1_800_000_000 * SECOND + 123_456_789


@pytest.mark.parametrize(
    ("mtime", "ctime", "settled"),
    [
        (NOW - SECOND, NOW - SECOND, True),
        (NOW - TICK_NS // 2, NOW - SECOND, False),
        (NOW - SECOND, NOW - TICK_NS // 2, False),
        (NOW - SECOND - NOW % SECOND, NOW - SECOND - NOW % SECOND, False),  # whole seconds: they may be two seconds long
        (NOW - 3 * SECOND - NOW % SECOND, NOW - 3 * SECOND - NOW % SECOND, True),
        (NOW + 3600 * SECOND, NOW - SECOND, False),  # set to the future a second ago
        (NOW + 3600 * SECOND, NOW - 2 * COARSE_TICK_NS, True),  # set to the future long ago
        (NOW - SECOND, NOW + 3600 * SECOND, False),  # changed before the clock was set back
        (NOW + 3600 * SECOND, NOW + 3600 * SECOND, False),
    ],
)
def test_when_a_status_is_settled(mtime: int, ctime: int, settled: bool) -> None:
    assert is_settled(cast("os.stat_result", Status(mtime, ctime)), NOW) is settled


def test_with_the_clock_set_back_digests_are_right_and_none_is_kept(path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() - 86400 * SECOND)
    memo = Memo(path)
    assert memo.digest(model) == sha256(model)
    assert memo.digest(model) == sha256(model)
    assert memo.hashed_bytes == 2 * 7000


class Disturbed(Memo):
    """Changes ``target`` right after it was read, ``times`` times."""

    target: Path
    times = 1

    def _stream(self, file: BinaryIO) -> str:
        digest = super()._stream(file)
        if self.times > 0:
            self.times -= 1
            self.target.write_bytes(os.urandom(7000))
        return digest


def test_a_change_while_it_is_read_is_read_again(path: Path, model: Path) -> None:
    memo = Disturbed(path)
    memo.target = model
    assert memo.digest(model) == sha256(model)
    assert memo.hashed_bytes == 2 * 7000


def test_a_file_that_changes_for_ever_is_not_waited_for_nor_kept(path: Path, model: Path) -> None:
    memo = Disturbed(path)
    memo.target, memo.times = model, 100
    memo.digest(model)
    assert memo.times == 97
    memo.times = 0
    assert memo.digest(model) == sha256(model)


def test_threads_hash_a_file_once(path: Path, tmp_path: Path) -> None:
    big = settled_file(tmp_path / "big", os.urandom(1 << 22))
    memo = Memo(path)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(memo.digest(big))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [sha256(big)] * 8
    assert memo.hashed_bytes == 1 << 22


class Files(RuleBasedStateMachine):
    """Files that change in every way and at any speed: a digest is always that of the bytes."""

    names = st.sampled_from(["a", "b", "link"])
    contents = st.binary(min_size=3, max_size=3)  # one size, or the size would tell

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.memo = Memo(self.folder / "cache" / "memo.db")
        for name in ("a", "b"):
            (self.folder / name).write_bytes(b"abc")
        (self.folder / "link").symlink_to("a")

    @rule(name=names, content=contents)
    def write(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    @rule(name=names, content=contents)
    def write_and_reset_time(self, name: str, content: bytes) -> None:
        path = self.folder / name
        before = path.stat()
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    @rule(name=names, content=contents)
    def replace(self, name: str, content: bytes) -> None:
        new = self.folder / "new"
        new.write_bytes(content)
        new.replace(self.folder / name)

    @rule(name=names, content=contents)
    def remove_and_make(self, name: str, content: bytes) -> None:
        (self.folder / name).unlink()
        (self.folder / name).write_bytes(content)

    @rule(at=st.sampled_from([0, 1_600_000_000, 1_600_000_000.5, 4_000_000_000]), name=names)
    def set_time(self, name: str, at: float) -> None:
        os.utime(self.folder / name, (at, at))

    @rule()
    def swap(self) -> None:
        a, b, other = (self.folder / name for name in ("a", "b", "other"))
        a.rename(other)
        b.rename(a)
        other.rename(b)

    @rule(to=st.sampled_from(["a", "b"]))
    def point(self, to: str) -> None:
        (self.folder / "link").unlink()
        (self.folder / "link").symlink_to(to)

    @rule()
    def reopen(self) -> None:
        self.memo = reopened(self.memo, self.folder / "cache" / "memo.db")

    @rule(name=names)
    def digest(self, name: str) -> None:
        try:
            expected = sha256(self.folder / name)
        except OSError:  # a link that leads to itself
            return
        assert self.memo.digest(self.folder / name) == expected

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.memo.close()
            shutil.rmtree(self.folder)


Files.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestFiles = Files.TestCase
