"""ls, gc and verify: what they find, what they remove, what they leave alone."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from orchestrator.store import Store, sweep
from orchestrator.store.layout import Layout
from orchestrator.store.results import SCHEMA

from .conftest import Keep, files, key
from .test_store import blob_file, flip, result_file


def used(root: Path, name: object, at: float) -> None:
    os.utime(result_file(root, "build", name), (at, at))


def test_ls_gives_the_most_recently_used_first_with_sizes(store: Store, keep: Keep, root: Path) -> None:
    for number in range(3):
        keep(number, b"x" * (1000 * number))
        used(root, number, 1_700_000_000 + number)
    found = list(store.ls())
    assert [(entry.kind, entry.key, entry.what) for entry in found] == [("build", key(name), str(name)) for name in (2, 1, 0)]
    assert [entry.used for entry in found] == [1_700_000_002, 1_700_000_001, 1_700_000_000]
    assert found[0].bytes == 2000 + result_file(root, "build", 2).stat().st_size
    assert store.size() == sum((root / name).stat().st_size for name in files(root))


def test_gc_removes_the_least_recently_used_until_it_fits(store: Store, keep: Keep, root: Path) -> None:
    for number in range(5):
        keep(number, bytes([number]) * 10_000)
    for position, number in enumerate((3, 0, 4, 1, 2)):
        used(root, number, 1_700_000_000 + position)
    report = store.gc(25_000)
    assert [entry.what for entry in report.removed] == ["3", "0", "4"]
    assert [entry.what for entry in store.ls()] == ["2", "1"]
    assert (report.results, report.blobs, report.bytes) == (2, 2, store.size())
    assert report.bytes <= 25_000
    assert report.freed > 30_000
    assert store.gc(25_000).removed == ()


def test_a_blob_goes_with_the_last_result_that_names_it(store: Store, keep: Keep, root: Path) -> None:
    digest = keep("old", b"shared" * 1000)
    keep("new", b"shared" * 1000)
    used(root, "old", 1_700_000_000)
    report = store.gc(6500)
    assert [entry.what for entry in report.removed] == ["old"]
    assert store.path(digest) is not None
    assert [entry.what for entry in store.gc(0).removed] == ["new"]
    assert store.path(digest) is None


def test_gc_removes_blobs_without_results_and_results_without_blobs(store: Store, keep: Keep, root: Path, tmp_path: Path) -> None:
    keep("lane", b"content")
    lost = keep("lost", b"lost")
    (tmp_path / "orphan").write_bytes(b"orphan")
    orphan = store.put(tmp_path / "orphan")
    blob_file(root, lost).unlink()
    keep("torn", b"torn")
    os.truncate(result_file(root, "build", "torn"), 40)
    store.gc(1 << 30)
    assert store.path(orphan) is None
    assert [entry.what for entry in store.ls()] == ["lane"]
    assert len(files(root)) == 2


def test_what_a_killed_process_left_goes_with_the_next_session_that_writes_nothing_itself(store: Store, keep: Keep, root: Path) -> None:
    digest = keep("lane", b"content")
    left = root / "tmp/1-0.tmp"
    left.write_bytes(b"half")
    with Store(root, limit=0).session():
        assert left.exists()
    assert not left.exists()
    assert store.path(digest) is not None, "only a session that put something looks at the limit"


def test_results_from_before_the_clock_was_set_back_do_not_stay_for_ever(store: Store, keep: Keep, root: Path) -> None:
    future = time.time() + 10 * 86400
    for number, at in enumerate((future, 1_700_000_000, 0)):
        keep(number, bytes([number]) * 10_000)
        used(root, number, at)
    assert [entry.what for entry in store.gc(25_000).removed] == ["2"]
    assert result_file(root, "build", 0).stat().st_mtime <= time.time()
    keep("later", b"l" * 10_000)
    used(root, "later", time.time() + 1)
    assert [entry.what for entry in store.gc(15_000).removed] == ["1", "0"]


def newer(root: Path, name: object) -> Path:
    """Make a result into one of a newer release."""
    path = result_file(root, "build", name)
    data = path.read_bytes().split(b"\n")
    rest = b"\n".join([data[1], b"\x00 whatever a newer release writes"])
    path.write_bytes(f"{SCHEMA[:-1]}9 {hashlib.sha256(rest).hexdigest()}\n".encode() + rest)
    return path


def test_a_result_of_a_newer_release_is_no_result_but_stays_with_its_blobs(store: Store, keep: Keep, root: Path) -> None:
    digest = keep("newer", b"content")
    keep("ours", b"ours")
    path = newer(root, "newer")
    assert store.get("build", key("newer")) is None
    report = store.gc(0)
    assert [entry.what for entry in report.removed] == ["ours"]
    assert path.exists()
    assert store.path(digest) is not None
    assert store.verify().damaged == ()
    assert [entry.what for entry in store.ls()] == ["newer"]


def test_a_result_is_broken_when_it_is_damaged_or_its_blob_is_lost_not_when_it_is_absent_or_newer(
    store: Store, keep: Keep, root: Path
) -> None:
    for name in ("whole", "torn", "lost", "newer"):
        digest = keep(name, name.encode())
        if name == "lost":
            blob_file(root, digest).unlink()
    os.truncate(result_file(root, "build", "torn"), 40)
    newer = result_file(root, "build", "newer")
    newer.write_bytes(newer.read_bytes().replace(SCHEMA.encode(), b"enginefarm.result/2"))
    names = ("whole", "torn", "lost", "newer", "absent")
    assert [name for name in names if store.is_broken("build", key(name))] == ["torn", "lost"]


def test_verify_finds_everything_that_is_wrong_and_removes_it(store: Store, keep: Keep, root: Path, tmp_path: Path) -> None:
    digests = {name: keep(name, name.encode() * 100) for name in ("whole", "flipped", "short", "gone", "linked", "pipe", "header")}
    flip(blob_file(root, digests["flipped"]), 5)
    blob_file(root, digests["short"]).chmod(0o644)
    os.truncate(blob_file(root, digests["short"]), 10)
    blob_file(root, digests["gone"]).unlink()
    outside = tmp_path / "outside"
    outside.write_bytes(b"linked" * 100)
    for name in ("linked", "pipe"):
        blob_file(root, digests[name]).unlink()
    blob_file(root, digests["linked"]).symlink_to(outside)
    os.mkfifo(blob_file(root, digests["pipe"]))
    flip(result_file(root, "build", "header"), 3)
    report = store.verify()
    said = "\n".join(report.damaged)
    for name in ("flipped", "short", "linked", "pipe"):
        assert f"blob {digests[name]} " in said
    for name in ("flipped", "short", "gone", "linked", "pipe"):
        assert f"build {key(name)} ({name}) names a blob that is not there any more: {digests[name]}; removed" in said
    assert f"build {key('header')} is damaged; removed" in said
    assert len(report.damaged) == 4 + 6
    assert outside.read_bytes() == b"linked" * 100
    assert (report.results, report.blobs) == (1, 2)
    assert store.get("build", key("whole")) is not None
    assert [name for name in digests if store.has("build", key(name))] == ["whole"]
    assert store.verify().damaged == ()


def test_verify_leaves_foreign_files_alone_and_follows_no_link(store: Store, keep: Keep, root: Path, tmp_path: Path) -> None:
    digest = keep("lane", b"content")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ("ff" + "0" * 62)).write_bytes(b"not what its name says")
    shard = blob_file(root, digest).parent
    foreign = [root / "notes.txt", root / "blobs" / "README", shard / "x.tmp", root / "results" / "Foreign"]
    for path in foreign:
        path.write_bytes(b"mine")
    (shard / ("0" * 64)).write_bytes(b"in the folder of another prefix")
    (root / "blobs" / "ff").symlink_to(elsewhere)
    (shard / ("f" * 64)).mkdir()
    report = store.verify()
    assert report.damaged == ()
    names = {path.relative_to(root).as_posix() for path in [*foreign, shard / ("0" * 64), root / "blobs" / "ff", shard / ("f" * 64)]}
    assert set(report.foreign) == names
    store.gc(0)
    assert all(path.read_bytes() == b"mine" for path in foreign)
    assert len(list(elsewhere.iterdir())) == 1


def test_a_blob_that_another_process_made_good_meanwhile_is_not_removed(
    store: Store, keep: Keep, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = keep("lane", b"content")
    flip(blob_file(root, digest), 0)
    real = sweep._blob_problem

    def meanwhile(item: sweep._Item) -> str | None:
        found = real(item)
        good = root / "good"
        good.write_bytes(b"content")
        good.replace(item.path)
        return found

    monkeypatch.setattr(sweep, "_blob_problem", meanwhile)
    assert store.verify().damaged == ()
    assert blob_file(root, digest).read_bytes() == b"content"


def test_gc_does_nothing_beside_a_gc_that_is_running(store: Store, keep: Keep, root: Path) -> None:
    keep("lane", b"content")
    with Layout(root).alone() as first:
        assert first
        sweep.tidy(Layout(root), 0)
    assert [entry.what for entry in store.ls()] == ["lane"]
    sweep.tidy(Layout(root), 0)
    assert list(store.ls()) == []
