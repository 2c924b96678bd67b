"""Archives to and from containers."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.runners.docker_files import CHUNK_BYTES, Entry, folders_of, pack, unpack

LIMIT = 1 << 30


def nothing() -> None:
    pass


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for info, content in members:
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def come(data: bytes, folder: Path, **options: Any) -> Any:
    return unpack([data], folder, **{"limit_bytes": LIMIT, "skip": {}, "check": nothing, **options})


@settings(max_examples=60, deadline=None)
@given(
    contents=st.dictionaries(st.from_regex(r"[a-zé]{1,60}(/[a-z0-9]{1,60}){0,3}", fullmatch=True), st.binary(max_size=2000), max_size=5),
    size=st.integers(1, 700),
)
def test_what_is_packed_comes_out_whole(contents: dict[str, bytes], size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    names = [name for name in contents if not any(other.startswith(name + "/") for other in contents)]
    data = b"".join(pack([*folders_of(f"top/{n}" for n in names), *(Entry(f"top/{n}", contents[n]) for n in names)], nothing))
    pieces: Iterator[bytes] = (data[start : start + size] for start in range(0, len(data), size))
    found = unpack(pieces, tmp_path_factory.mktemp("out"), limit_bytes=LIMIT, skip={}, check=nothing)
    assert {name: file.path.read_bytes() for name, file in found.items()} == {name: contents[name] for name in names}


def test_files_are_roots_and_read_only_and_links_are_links(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.write_bytes(b"x" * (3 * CHUNK_BYTES + 17))
    data = b"".join(pack([Entry("step", mode=0o1777), Entry("step/model", source), Entry("step/link", link="../in/x")], nothing))
    with tarfile.open(fileobj=io.BytesIO(data)) as found:
        folder, model, link = found.getmembers()
        assert (folder.mode, model.mode, model.size) == (0o1777, 0o444, source.stat().st_size)
        assert {(info.uid, info.gid) for info in (folder, model, link)} == {(0, 0)}
        assert link.issym()
        assert link.linkname == "../in/x"
        file = found.extractfile(model)
        assert file is not None
        assert file.read() == source.read_bytes()


def test_packing_holds_little_at_a_time(tmp_path: Path) -> None:
    source = tmp_path / "big"
    with source.open("wb") as file:
        file.truncate(64 << 20)
    sizes = [len(piece) for piece in pack([Entry("a", source), Entry("b", b"y")], nothing)]
    assert max(sizes) <= 2 * CHUNK_BYTES
    assert sum(sizes) > 64 << 20


def test_the_check_ends_a_transfer(tmp_path: Path) -> None:
    source = tmp_path / "big"
    with source.open("wb") as file:
        file.truncate(8 << 20)
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(pack([Entry("a", source)], check))
    data = b"".join(pack([Entry("top/a", source)], nothing))
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        unpack(
            (data[n : n + CHUNK_BYTES] for n in range(0, len(data), CHUNK_BYTES)),
            tmp_path / "out",
            limit_bytes=LIMIT,
            skip={},
            check=check,
        )


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (member("step/../../etc/passwd"), "leaves"),
        (member("/step/x"), "leaves"),
        (member("step"), "leaves"),
        (member("step/x", tarfile.SYMTYPE, "/etc/passwd"), "no plain file"),
        (member("step/x", tarfile.LNKTYPE, "step/y"), "no plain file"),
        (member("step/x", tarfile.FIFOTYPE), "no plain file"),
        (member("step/x", tarfile.CHRTYPE), "no plain file"),
        (member("step/known", tarfile.SYMTYPE, "/etc"), "no plain file"),
    ],
)
def test_hostile_entries_are_refused(tmp_path: Path, bad: tarfile.TarInfo, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        come(archive((bad, b"")), tmp_path / "out", skip={"known": "../in/known"})
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "out"])


def test_expected_links_are_passed_over(tmp_path: Path) -> None:
    data = archive((member("step/model", tarfile.SYMTYPE, "../in/model"), b""), (member("step/r"), b"x"))
    assert set(come(data, tmp_path / "out", skip={"model": "../in/model"})) == {"r"}


def test_too_much_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more than 5 bytes"):
        come(archive((member("s/a"), b"123"), (member("s/b"), b"456")), tmp_path / "out", limit_bytes=5)


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two files"):
        come(archive((member("s/a"), b"1"), (member("s/a"), b"2")), tmp_path / "out")
    with pytest.raises(ValueError, match="two files"):
        come(archive((member("s/b"), b"1"), (member("s/b/c"), b"2")), tmp_path / "out")


@pytest.mark.parametrize("cut", [700, 512 + 5000, 512 + 9999])
def test_a_cut_archive_is_never_taken_for_whole(tmp_path: Path, cut: int) -> None:
    data = archive((member("s/a"), bytes(10_000)))
    with pytest.raises(tarfile.ReadError):
        come(data[:cut], tmp_path / "out")


def test_folders_come_before_what_is_in_them() -> None:
    assert [entry.name for entry in folders_of(["in/a/b/c", "in/d"])] == ["in", "in/a", "in/a/b"]


@pytest.fixture
def shrinking(tmp_path: Path) -> Callable[[], Iterator[bytes]]:
    source = tmp_path / "model"
    source.write_bytes(bytes(4 << 20))

    def pieces() -> Iterator[bytes]:
        for number, piece in enumerate(pack([Entry("a", source)], nothing)):
            if number == 0:
                with source.open("r+b") as file:
                    file.truncate(1 << 20)
            yield piece

    return pieces


def test_a_file_that_shrinks_while_it_is_sent_is_an_error(shrinking: Callable[[], Iterator[bytes]]) -> None:
    with pytest.raises(OSError, match="shorter"):
        list(shrinking())
