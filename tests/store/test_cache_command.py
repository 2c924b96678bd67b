"""``enginefarm cache``: what it prints, what it removes, how it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.cli.main import run as run_command
from orchestrator.store import Store

from .conftest import Keep, key
from .test_store import blob_file, flip, result_file


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / ".enginefarm" / "cache"


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``enginefarm cache ...`` in this test's folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            run_command(["cache", *arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert isinstance(ended.value.code, int)
        return Answer(ended.value.code, out, err)

    return run


def three(keep: Keep, root: Path) -> None:
    for position, name in enumerate(("lane: rtx-ada", "lane: cpu", "seg\x1b[31m: cpu")):
        keep(name, bytes([position]) * 10_000)
        at = 1_700_000_000 + 86400 * position
        os.utime(result_file(root, "build", name), (at, at))


def test_ls_lists_results_newest_first(call: Call, keep: Keep, root: Path) -> None:
    three(keep, root)
    code, out, err = call("ls")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["USED", "KIND", "SIZE", "WHAT"]
    assert [line.split("  ")[-1] for line in lines[1:]] == ["seg\\x1b[31m: cpu", "lane: cpu", "lane: rtx-ada"]
    assert all(" build " in line and " 10.4 kB " in line for line in lines[1:])
    assert err == "3 results, 31.2 kB in .enginefarm/cache\n"


def test_ls_as_json_is_data_only(call: Call, keep: Keep, root: Path, store: Store) -> None:
    three(keep, root)
    code, out, err = call("ls", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["schema"], found["folder"], found["bytes"]) == ("enginefarm.cache/1", ".enginefarm/cache", store.size())
    last = found["results"][-1]
    assert last == {"kind": "build", "key": key("lane: rtx-ada"), "what": "lane: rtx-ada", "bytes": last["bytes"], "used": 1_700_000_000}


def test_without_a_cache_every_command_ends_well_and_makes_none(call: Call, root: Path) -> None:
    assert call("ls") == (0, "", "nothing is kept in .enginefarm/cache\n")
    assert call("gc", "--keep", "0") == (0, "removed 0 results, freed 0 B; 0 results and 0 blobs left, 0 B\n", "")
    assert call("verify") == (0, "all whole; 0 results and 0 blobs left, 0 B\n", "")
    assert json.loads(call("ls", "--json").out)["results"] == []
    assert not root.exists()


def test_gc_keeps_what_fits_and_what_is_in_use(call: Call, keep: Keep, root: Path) -> None:
    three(keep, root)
    code, out, err = call("gc", "--keep", "25 kB")
    assert (code, err) == (0, "")
    assert out == "removed 1 result, freed 10.4 kB; 2 results and 2 blobs left, 20.8 kB\n"
    with (live := Store(root)).session():
        live.get("build", key("lane: cpu"))
        code, out, err = call("gc", "--keep", "0")
    assert out == "removed 1 result, freed 10.4 kB; 1 result and 1 blob left, 10.4 kB\n"
    assert err == "1 result stayed: in use by a live run\n"
    found = json.loads(call("gc", "--keep", "0", "--json").out)
    assert [entry["what"] for entry in found["removed"]] == ["lane: cpu"]
    assert (found["keep"], found["results"], found["bytes"]) == (0, 0, 0)


@pytest.mark.parametrize("size", ["much", "-1", "20 parsecs", ""])
def test_a_size_that_is_none_is_a_usage_error_and_removes_nothing(call: Call, keep: Keep, root: Path, size: str) -> None:
    three(keep, root)
    code, out, err = call("gc", f"--keep={size}")
    assert (code, out) == (2, "")
    assert "--keep" in err
    assert len(list(Store(root).ls())) == 3


def test_verify_ends_with_1_when_something_was_damaged_and_then_with_0(call: Call, keep: Keep, root: Path) -> None:
    digest = keep("lane: cpu", b"engine")
    keep("seg: cpu", b"other")
    flip(blob_file(root, digest), 0)
    (root / "notes").write_bytes(b"mine")
    code, out, err = call("verify")
    assert code == 1
    assert out.splitlines() == [
        f"blob {digest} does not hold what its name says; removed",
        f"build {key('lane: cpu')} (lane: cpu) names a blob that is not there any more: {digest}; removed",
        f"2 damaged; 1 result and 1 blob left, {Store(root).size()} B",
    ]
    assert err == "not ours, left alone: notes\n"
    code, out, _ = call("verify", "--json")
    found = json.loads(out)
    assert (code, found["damaged"], found["foreign"], found["results"]) == (0, [], ["notes"], 1)


def test_the_cache_is_where_the_build_has_it(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in (("option", "a"), ("environment", "b"), ("settings", "project/c")):
        source = tmp_path / "source"
        source.write_bytes(b"x")
        Store(tmp_path / folder).put_result("build", key(1), {"what": name}, {})
    (tmp_path / "project" / "deeper").mkdir()
    (tmp_path / "project" / ".git").mkdir()
    (tmp_path / "project" / "enginefarm.yaml").write_text("cache: c\n")
    monkeypatch.chdir(tmp_path / "project" / "deeper")
    assert "settings" in call("ls").out
    monkeypatch.setenv("ENGINEFARM_CACHE", str(tmp_path / "b"))
    assert "environment" in call("ls").out
    assert "option" in call("ls", "--cache", str(tmp_path / "a")).out


def test_a_file_for_a_cache_is_a_usage_error(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    code, _, err = call("ls", "--cache", "file")
    assert code == 2
    assert "the cache is not a folder" in err
