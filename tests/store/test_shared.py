"""Many processes and threads on one store; any of them may be killed at any moment."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from orchestrator.store import Store, StoreCancelled, locks, pins
from orchestrator.store.layout import Layout

from .conftest import Keep, Spawn, files, key, never

WORK = """
import os, random, sys, time
from pathlib import Path
from orchestrator.store import Store

root, folder, count, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
store = Store(root)
names = list(range(count))
random.Random(seed).shuffle(names)
log = os.open(folder / "made", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
print("ready", flush=True)
sys.stdin.readline()
with store.session():
    for name in names:
        key = f"key {name}"
        with store.exclusive("build", key, cancel=lambda: False, on_wait=lambda text: None):
            if store.get("build", key) is None:
                source = folder / f"{os.getpid()}-{name}"
                # no two makers make the same bytes, like TensorRT
                source.write_bytes(os.urandom(200_000) + str(os.getpid()).encode())
                digest = store.put(source)
                store.put_result("build", key, {"what": key, "engine": digest}, {digest: source.stat().st_size})
                os.write(log, f"{name}\\n".encode())
    for name in range(count):
        found = store.get("build", f"key {name}")
        out = folder / f"out-{os.getpid()}"
        store.take(found["engine"], out)
        out.unlink()
        print(found["engine"])
"""


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def test_twenty_processes_make_each_key_once_and_get_the_same(root: Path, tmp_path: Path, spawn: Spawn) -> None:
    count = 12
    children = [spawn(WORK, root, tmp_path, count, seed) for seed in range(20)]
    assert {line(child) for child in children} == {"ready"}
    for child in children:
        go(child)
    answers = {child.communicate()[0] for child in children}
    assert [child.returncode for child in children] == [0] * 20
    assert len(answers) == 1
    made = (tmp_path / "made").read_text().split()
    assert Counter(made) == Counter(map(str, range(count)))
    assert not [name for name in files(root) if not name.startswith(("blobs/", "results/"))]


def test_makers_that_are_killed_leave_nothing_half_made(root: Path, tmp_path: Path, spawn: Spawn) -> None:
    chance = random.Random(5)
    count = 30
    for seed in range(12):
        children = [spawn(WORK, root, tmp_path, count, 2 * seed + number) for number in range(2)]
        for child in children:
            line(child)
            go(child)
        time.sleep(chance.uniform(0.0, 0.15))
        for child in children:
            child.kill()
        for child in children:
            child.wait()
        store = Store(root)
        assert store.verify().damaged == ()
        assert all(store.get(entry.kind, entry.key) is not None for entry in store.ls())
    last = spawn(WORK, root, tmp_path, count, 99)
    line(last)
    assert len(last.communicate("go\n")[0].split()) == count
    report = Store(root).gc(1 << 30)
    assert (report.results, report.blobs) == (count, count)
    assert len(files(root)) == 2 * count


HOLD = """
import sys
from pathlib import Path
from orchestrator.store import Store
store = Store(Path(sys.argv[1]))
with store.exclusive("build", "lane", cancel=lambda: False, on_wait=print):
    print("held", flush=True)
    sys.stdin.readline()
print("left", flush=True)
"""


@pytest.mark.parametrize("ending", ["leaves", "dies"])
def test_a_second_maker_waits_until_the_first_leaves_or_dies(store: Store, root: Path, spawn: Spawn, ending: str) -> None:
    holder = spawn(HOLD, root)
    assert line(holder) == "held"
    told: list[str] = []

    def on_wait(text: str) -> None:
        told.append(text)
        if ending == "leaves":
            go(holder)
        else:
            holder.kill()

    with store.exclusive("build", "lane", cancel=never, on_wait=on_wait):
        if ending == "leaves":
            assert line(holder) == "left"
    assert len(told) == 1
    expected = rf"waiting for process {holder.pid} on {re.escape(socket.gethostname())} \(since \d\d:\d\d:\d\d\), which makes the same"
    assert re.fullmatch(expected, told[0])
    assert files(root) == []


def test_other_keys_and_kinds_do_not_wait(store: Store, root: Path, spawn: Spawn) -> None:
    holder = spawn(HOLD, root)
    line(holder)
    told: list[str] = []
    for kind, name in (("build", "other"), ("validate", "lane")):
        with store.exclusive(kind, name, cancel=never, on_wait=told.append):
            pass
    assert told == []


def test_a_wait_can_be_cancelled(store: Store, root: Path, spawn: Spawn) -> None:
    holder = spawn(HOLD, root)
    line(holder)
    polls = iter([False, False, True])
    with pytest.raises(StoreCancelled), store.exclusive("build", "lane", cancel=lambda: next(polls), on_wait=lambda text: None):
        pytest.fail("it was let in")
    go(holder)
    assert line(holder) == "left"
    with store.exclusive("build", "lane", cancel=never, on_wait=lambda text: pytest.fail(text)):
        pass


def test_threads_of_one_store_wait_for_each_other(store: Store) -> None:
    inside = Counter[str]()
    most: list[int] = []

    def work() -> None:
        for _ in range(5):
            with store.exclusive("build", "lane", cancel=never, on_wait=lambda text: None):
                inside["now"] += 1
                most.append(inside["now"])
                time.sleep(0.001)
                inside["now"] -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 30


def test_a_lock_that_is_left_between_opening_and_taking_it_is_not_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(root)
    first, second = (locks.exclusive(layout, "build", "lane", never, print) for _ in range(2))
    first.__enter__()
    (path,) = layout.locks.iterdir()
    real = pins.is_free

    def meanwhile(handle: int) -> bool:
        monkeypatch.setattr(locks, "is_free", real)
        first.__exit__(None, None, None)
        second.__enter__()
        return real(handle)

    monkeypatch.setattr(locks, "is_free", meanwhile)
    assert locks._try(path) is None  # or two would be in
    second.__exit__(None, None, None)


def test_an_error_of_the_maker_lets_the_next_one_in(store: Store, root: Path) -> None:
    with pytest.raises(RuntimeError), store.exclusive("build", "lane", cancel=never, on_wait=print):
        raise RuntimeError
    with store.exclusive("build", "lane", cancel=never, on_wait=lambda text: pytest.fail(text)):
        assert len(files(root)) == 1
    assert files(root) == []


USE = """
import sys
from pathlib import Path
from orchestrator.store import Store
store = Store(Path(sys.argv[1]))
with store.session():
    found = store.get("build", sys.argv[2])
    print(found["engine"], flush=True)
    sys.stdin.readline()
    store.take(found["engine"], Path(sys.argv[3]))
    print("taken", flush=True)
    sys.stdin.readline()
"""


def test_gc_keeps_what_a_live_session_uses_and_takes_it_when_it_died(
    store: Store, keep: Keep, root: Path, tmp_path: Path, spawn: Spawn
) -> None:
    keep("used", b"used")
    keep("idle", b"idle")
    user = spawn(USE, root, key("used"), tmp_path / "out")
    digest = line(user)
    report = store.gc(0)
    assert [entry.what for entry in report.removed] == ["idle"]
    assert (report.results, report.blobs, report.in_use) == (1, 1, 1)
    go(user)
    assert line(user) == "taken"
    assert (tmp_path / "out").read_bytes() == b"used"
    user.kill()
    user.wait()
    report = store.gc(0)
    assert ([entry.what for entry in report.removed], report.in_use) == (["used"], 0)
    assert store.path(digest) is None
    assert files(root) == []


def test_gc_keeps_what_was_put_in_a_session_before_any_result_names_it(store: Store, root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    with store.session():
        digest = store.put(source)
        assert Store(root).gc(0).blobs == 1
        with store.session():
            pass
        assert Store(root).gc(0).blobs == 1  # the outer one is still open
        store.put_result("build", key(1), {"what": "lane"}, {digest: 7})
        assert Store(root).gc(0).results == 1
        assert store.get("build", key(1)) is not None
    assert Store(root).gc(0).results == 0


BUSY = """
import os, sys
from pathlib import Path
from orchestrator.store import Store
root, folder = Path(sys.argv[1]), Path(sys.argv[2])
source = folder / f"source-{os.getpid()}"
out = folder / f"out-{os.getpid()}"
for turn in range(40):
    store = Store(root)
    with store.session():
        source.write_bytes(b"%d" % (turn % 7) * 5000)
        digest = store.put(source)
        store.put_result("build", f"key {turn % 7}", {"what": "x"}, {digest: source.stat().st_size})
        if turn % 3 == 0:
            assert store.put(source, digest=digest) == digest
        assert store.get("build", f"key {turn % 7}") == {"what": "x"}
        assert store.path(digest)
        store.take(digest, out)
        assert out.read_bytes() == source.read_bytes()
        out.unlink()
print("good")
"""


def test_gc_all_the_time_takes_nothing_from_anybody(store: Store, root: Path, tmp_path: Path, spawn: Spawn) -> None:
    children = [spawn(BUSY, root, tmp_path) for _ in range(4)]
    while any(child.poll() is None for child in children):
        store.gc(0)
        time.sleep(0.002)
    assert [child.communicate()[0] for child in children] == ["good\n"] * 4
    store.gc(0)
    assert files(root) == []


def test_a_session_that_put_something_holds_the_store_to_its_limit(root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for number in range(6):
        store = Store(root, limit=25_000)
        with store.session():
            source.write_bytes(bytes([number]) * 10_000)
            digest = store.put(source)
            store.put_result("build", key(number), {"what": f"{number}"}, {digest: 10_000})
        # the file system's clock may give several files one time
        os.utime(root / "results" / "build" / key(number)[7:9] / key(number)[7:], (1_700_000_000 + number,) * 2)
    assert sorted(entry.what for entry in Store(root).ls()) == ["4", "5"]
    with Store(root, limit=0).session():
        pass  # one that only looks removes nothing
    assert len(list(Store(root).ls())) == 2


WRITE = """
import sys
from pathlib import Path
from orchestrator.store import blobs, Store
store = Store(Path(sys.argv[1]))
class Slow:
    def __init__(self): self.left = 3
    def read(self, size):
        self.left -= 1
        if self.left == 0:
            print("writing", flush=True)
            sys.stdin.readline()
        return b"x" * 1000 if self.left >= 0 else b""
with store._layout.new_file() as (file, path):
    blobs._copy(store._layout, Slow(), file)
print("left", flush=True)
"""


def test_gc_removes_the_files_of_dead_writers_only(store: Store, keep: Keep, root: Path, spawn: Spawn) -> None:
    keep("lane", b"content")
    before = files(root)
    writer = spawn(WRITE, root)
    assert line(writer) == "writing"
    assert len(files(root)) == 3
    store.gc(1 << 20)
    assert len(files(root)) == 3
    writer.kill()
    writer.wait()
    assert len(files(root)) == 3
    with contextlib.suppress(OSError), Store(root).session():
        pass
    store.gc(1 << 20)
    assert files(root) == before
