"""One process and its store: what goes in comes out, and what is not whole is as good as not there."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.errors import DIGEST_MISMATCH, DISK, EnginefarmError
from orchestrator.store import BlobLost, Store, StoreUnwritable

from .conftest import Keep, files, key

MEGABYTE = 1 << 20


def blob_file(root: Path, digest: str) -> Path:
    return root / "blobs" / digest[7:9] / digest[7:]


def result_file(root: Path, kind: str, name: object) -> Path:
    found = key(name)[7:]
    return root / "results" / kind / found[:2] / found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_what_was_put_comes_out_again(store: Store, keep: Keep, root: Path, tmp_path: Path) -> None:
    content = os.urandom(3 * MEGABYTE + 1)
    digest = keep("lane", content)
    assert store.get("build", key("lane")) == {"what": "lane", "engine": digest}
    store.take(digest, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o644
    found = store.path(digest)
    assert found == blob_file(root, digest)
    assert stat.S_IMODE(found.stat().st_mode) == 0o444
    assert len(files(root)) == 2


def test_an_empty_file_is_a_blob_like_any_other(store: Store, keep: Keep, tmp_path: Path) -> None:
    store.take(keep("empty", b""), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b""


def test_making_and_asking_a_store_touches_nothing(store: Store, root: Path) -> None:
    assert store.get("build", key(1)) is None
    assert not store.has("build", key(1))
    assert store.path(key(1)) is None
    assert list(store.ls()) == []
    assert store.memo.get("model", "lane", "1") is None
    assert (store.gc(0).results, store.verify().damaged) == (0, ())
    with store.session():
        pass
    assert not root.exists()


def test_a_later_result_takes_the_place_of_the_first(store: Store, keep: Keep) -> None:
    keep("lane", b"one")
    second = keep("lane", b"two")
    found = store.get("build", key("lane"))
    assert found is not None
    assert found["engine"] == second


def test_kinds_do_not_mix(store: Store, keep: Keep) -> None:
    keep("lane", b"one")
    assert store.get("validate", key("lane")) is None
    assert not store.has("validate", key("lane"))


def test_keys_and_kinds_cannot_leave_the_folder(store: Store, tmp_path: Path, root: Path) -> None:
    store.put_result("build", "../../escaped", {"what": ""}, {})
    assert store.get("build", "../../escaped") == {"what": ""}
    assert sorted(path.name for path in tmp_path.iterdir()) == [root.name]
    with pytest.raises(ValueError, match="kind"):
        store.put_result("../build", key(1), {}, {})
    with pytest.raises(ValueError, match="digest"):
        store.path("sha256:../../etc/passwd")


def test_has_follows_what_this_store_does_and_looks_again_when_told(store: Store, keep: Keep, root: Path) -> None:
    assert not store.has("build", key(1))
    keep(1, b"one")
    assert store.has("build", key(1))
    result_file(root, "build", 1).unlink()
    assert store.has("build", key(1))
    assert store.get("build", key(1)) is None
    assert not store.has("build", key(1))
    Store(root).put_result("build", key(1), {}, {})
    assert not store.has("build", key(1))
    store.refresh()
    assert store.has("build", key(1))


def test_a_file_whose_digest_is_known_is_not_read_again(store: Store, keep: Keep, tmp_path: Path, root: Path) -> None:
    digest = keep("lane", b"content")
    before = blob_file(root, digest).stat()
    other = tmp_path / "same size"
    other.write_bytes(b"CONTENT")
    assert store.put(other, digest=digest) == digest  # the digest is the caller's word while the blob is there
    assert blob_file(root, digest).stat() == before


def test_a_blob_of_the_wrong_size_is_replaced(store: Store, keep: Keep, tmp_path: Path, root: Path) -> None:
    digest = keep("lane", b"content")
    blob_file(root, digest).unlink()
    blob_file(root, digest).write_bytes(b"half")
    assert store.get("build", key("lane")) is None
    source = tmp_path / "again"
    source.write_bytes(b"content")
    store.put(source, digest=digest)
    store.take(digest, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"content"


def test_a_file_that_is_not_what_its_digest_says_does_not_come_in(store: Store, tmp_path: Path, root: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"changed")
    with pytest.raises(EnginefarmError, match="changed after it was made") as caught:
        store.put(source, digest=key("something else"))
    assert caught.value.kind is DIGEST_MISMATCH
    assert files(root) == []


def test_a_source_that_is_not_there_is_no_fault_of_the_cache(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.put(tmp_path / "nothing")


@pytest.mark.parametrize("at", [0, -1])
def test_a_damaged_blob_is_found_when_it_leaves_and_goes(store: Store, keep: Keep, root: Path, tmp_path: Path, at: int) -> None:
    digest = keep("lane", b"x" * 3000)
    flip(blob_file(root, digest), at)
    with pytest.raises(BlobLost, match=r"was damaged and is removed") as caught:
        store.take(digest, tmp_path / "out")
    assert digest[:19] in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert store.path(digest) is None
    assert store.get("build", key("lane")) is None
    keep("lane", b"x" * 3000)
    store.take(digest, tmp_path / "out")


def test_a_missing_blob_is_said_to_be_missing(store: Store, keep: Keep, root: Path, tmp_path: Path) -> None:
    digest = keep("lane", b"content")
    blob_file(root, digest).unlink()
    with pytest.raises(BlobLost, match="is missing in the cache"):
        store.take(digest, tmp_path / "out")
    assert store.get("build", key("lane")) is None


def test_links_in_the_place_of_blobs_and_folders_are_not_followed(store: Store, keep: Keep, root: Path, tmp_path: Path) -> None:
    digest = keep("lane", b"content")
    outside = tmp_path / "outside"
    outside.write_bytes(b"content")
    blob_file(root, digest).unlink()
    blob_file(root, digest).symlink_to(outside)
    assert store.path(digest) is None
    with pytest.raises(BlobLost):
        store.take(digest, tmp_path / "out")
    assert outside.read_bytes() == b"content"
    shard = blob_file(root, digest).parent
    assert list(shard.iterdir()) == []  # the link itself went
    shard.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / digest[7:]).write_bytes(b"content")
    shard.symlink_to(elsewhere)
    assert store.path(digest) is None
    with pytest.raises(StoreUnwritable):
        store.put(outside)
    assert (elsewhere / digest[7:]).read_bytes() == b"content"


@pytest.mark.parametrize("where", ["first line", "key", "blobs", "value"])
def test_a_flipped_byte_anywhere_in_a_result_makes_it_none(store: Store, keep: Keep, root: Path, where: str) -> None:
    keep("lane", b"content")
    path = result_file(root, "build", "lane")
    data = path.read_bytes()
    flip(path, {"first line": 25, "key": data.index(b'"key"') + 20, "blobs": data.index(b"blobs") + 20, "value": len(data) - 5}[where])
    assert store.get("build", key("lane")) is None


@pytest.mark.parametrize("length", [0, 10, 200])
def test_a_result_that_a_power_cut_left_short_is_none(store: Store, keep: Keep, root: Path, length: int) -> None:
    keep("lane", b"content")
    path = result_file(root, "build", "lane")
    os.truncate(path, length)
    assert store.get("build", key("lane")) is None
    assert list(store.ls()) == []


def test_a_result_under_a_foreign_key_is_none(store: Store, keep: Keep, root: Path) -> None:
    keep("lane", b"content")
    other = result_file(root, "build", "other")
    other.parent.mkdir(exist_ok=True)
    other.write_bytes(result_file(root, "build", "lane").read_bytes())
    assert store.get("build", key("other")) is None


def test_the_destination_is_never_overwritten_and_its_trouble_is_not_the_cache_s(store: Store, keep: Keep, tmp_path: Path) -> None:
    digest = keep("lane", b"content")
    (tmp_path / "out").write_bytes(b"mine")
    for place in ("out", "no folder/out"):
        with pytest.raises(EnginefarmError, match="cannot write out") as caught:
            store.take(digest, tmp_path / place)
        assert caught.value.kind is DISK
        assert not isinstance(caught.value, StoreUnwritable | BlobLost)
    assert (tmp_path / "out").read_bytes() == b"mine"


def test_use_is_noted_at_most_once_an_hour_and_mends_a_time_in_the_future(store: Store, keep: Keep, root: Path) -> None:
    keep("lane", b"content")
    path = result_file(root, "build", "lane")
    now = time.time()
    for before, moved in ((now - 600, False), (now - 7200, True), (now + 86400, True)):
        os.utime(path, (before, before))
        assert store.get("build", key("lane")) is not None
        assert (path.stat().st_mtime != pytest.approx(before)) is moved
        assert path.stat().st_mtime <= time.time()


FULL = """
import resource, sys
from pathlib import Path
from orchestrator.store import Store, StoreUnwritable
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = Store(Path(sys.argv[1]))
with store.session():
    try:
        store.put(Path(sys.argv[2]))
    except StoreUnwritable as error:
        print(error.what, "|", error.why)
    try:
        store.put_result("build", "sha256:" + "0" * 64, {"what": "x" * 200_000}, {})
    except StoreUnwritable as error:
        print(error.what, "|", error.why)
"""


def test_a_write_that_does_not_fit_leaves_nothing(tmp_path: Path, root: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(os.urandom(300_000))
    done = subprocess.run([sys.executable, "-c", FULL, root, source], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"cannot write to the cache {root} | File too large"] * 2
    assert files(root) == []


def in_own_mounts(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a shell script that mounts something, where nobody else sees it."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root, and unshare")
    words = ["unshare", "-m", "sh", "-c", script, "sh", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this machine does not let root mount")
    return done


SMALL = """
mount -t tmpfs -o size=1m none "$1" || exit 77
exec "$2" -c "$3" "$1" "$4"
"""
FILL = """
import sys
from pathlib import Path
from orchestrator.store import Store, StoreUnwritable
root, source = Path(sys.argv[1]) / "cache", Path(sys.argv[2])
store = Store(root)
made = 0
for number in range(40):
    source.write_bytes(bytes([number]) * 60_000)
    try:
        with store.session(), store.exclusive("build", f"{number}", cancel=lambda: False, on_wait=print):
            digest = store.put(source)
            store.put_result("build", f"{number}", {"what": f"{number}"}, {digest: 60_000})
            made += 1
    except StoreUnwritable as error:
        assert "No space left" in error.why, error.why
    store.memo.digest(source)
store.memo.close()
assert 5 < made < 30, made
assert not list((root / "tmp").iterdir())
whole = sum(store.get("build", f"{number}") is not None for number in range(40))
assert whole == made == len(list(store.ls())), (whole, made)
for blob in root.glob("blobs/*/*"):
    store.take("sha256:" + blob.name, source.with_name(blob.name))
assert store.verify().damaged == ()
report = store.gc(300_000)
assert report.removed and report.bytes <= 300_000, report
digest = store.put(source)
store.put_result("build", "after", {"what": "after"}, {digest: 60_000})
assert store.get("build", "after")
print("good")
"""


def test_a_full_disk_costs_results_but_never_half_of_one(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    done = in_own_mounts(SMALL, tmp_path / "small", sys.executable, FILL, tmp_path / "source")
    assert (done.stdout, done.returncode) == ("good\n", 0), done.stderr


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77
exec "$2" -c "$3" "$1" "$4"
"""
LOOK = """
import sys
from pathlib import Path
from orchestrator.store import Store, StoreUnwritable
root, folder = Path(sys.argv[1]), Path(sys.argv[2])
store = Store(root)
with store.session():
    found = store.get("build", "lane")
    store.take(found["engine"], folder / "out")
    assert store.has("build", "lane") and [entry.what for entry in store.ls()] == ["lane"]
    assert store.memo.digest(folder / "out") == found["engine"]
    assert store.verify().damaged == ()
    for write in (lambda: store.put(folder / "out"), lambda: store.put_result("build", "x", {}, {}), lambda: store.gc(0)):
        try:
            write()
        except StoreUnwritable as error:
            print(error.why)
    assert store.put(folder / "out", digest=found["engine"]) == found["engine"]
    try:
        with store.exclusive("build", "lane", cancel=lambda: False, on_wait=print):
            raise AssertionError
    except StoreUnwritable as error:
        print(error.why)
store.memo.close()
none = Store(root / "none")
assert none.get("build", "lane") is None and not none.has("build", "lane")
"""


def test_a_cache_that_may_only_be_read_is_read(store: Store, root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    digest = store.put(source)
    store.put_result("build", "lane", {"what": "lane", "engine": digest}, {digest: 7})
    time.sleep(0.03)
    store.memo.digest(source)
    store.memo.close()
    done = in_own_mounts(READ_ONLY, root, sys.executable, LOOK, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["Read-only file system"] * 4


def test_a_file_in_the_place_of_the_cache_is_unwritable_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    store = Store(tmp_path / "file")
    assert store.get("build", key(1)) is None
    assert store.path(key(1)) is None
    with pytest.raises(StoreUnwritable):
        store.put(tmp_path / "file")
    with pytest.raises(StoreUnwritable):
        store.put_result("build", key(1), {}, {})
    assert store.memo.digest(tmp_path / "file").startswith("sha256:")
    store.memo.close()
