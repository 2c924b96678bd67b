"""A commit that is killed between any two of its file operations: either it never happened, or the next run finds it finished."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from orchestrator.artifacts.files import sha256_file
from orchestrator.artifacts.manifest import read_manifest
from orchestrator.artifacts.store import Release, finish_interrupted
from orchestrator.artifacts.versions import choose_version

OPERATIONS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "fcntl.flock")


def _kill_before(step, folder):
    """Make this process kill itself before its ``step``-th operation on files below ``folder``."""
    done = 0

    def count():
        nonlocal done
        done += 1
        if done > step:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, arguments):
        opened = event == "open" and str(arguments[0]).startswith(folder)
        if opened or event in OPERATIONS:
            count()

    fsync = os.fsync

    def counted(handle):
        count()
        fsync(handle)

    os.fsync = counted
    sys.addaudithook(hook)


def _run_killed(step, output, work):
    """Run ``work`` in a child that dies at ``step``; whether it came to its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _kill_before(step, str(output))
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.waitstatus_to_exitcode(status) == 0


def _check(output, make):
    """Everything that the manifest and latest.json say is true; returns the manifest."""
    folder = output / "lane" / "v1"
    manifest = read_manifest(folder / "lane_v1.json")
    files = {record.file: record.digest for record in manifest.engines}
    assert {file: sha256_file(folder / file) for file in files} == files
    assert {path.name for path in folder.glob("*.engine")} == set(files)
    latest = json.loads((output / "lane" / "latest.json").read_bytes())
    assert (latest["revision"], latest["digest"]) == (manifest.revision, make.digest(manifest.as_json()))
    return manifest


def _first(make, output):
    make.commit(output, (make.record("ampere", "unvalidated", b"a1"), b"a1"), (make.record("turing", content=b"t1"), b"t1"))


def test_a_killed_commit_is_never_half_done(make, tmp_path):
    finished, revisions, step = False, [], 0
    while not finished:
        output = tmp_path / str(step) / "artifacts"
        output.mkdir(parents=True)
        _first(make, output)

        def work(output=output):
            make.commit(output, (make.record("ampere", content=b"a2"), b"a2"), (make.record("turing", content=b"t2"), b"t2"))

        finished = _run_killed(step, output, work)
        chosen = choose_version(output, "lane", make.digest("lane 1"), make.model(), requested=None, ci=True)
        manifest = _check(output, make)
        assert (chosen.version, chosen.revision) == (1, manifest.revision + 1)
        revisions.append(manifest.revision)
        # the next run works, and leaves nothing of the dead one
        release = make.commit(output, (make.record("ada", content=b"d3"), b"d3"))
        assert release.manifest.revision == manifest.revision + 1
        assert [record.target for record in _check(output, make).engines] == ["ada", "ampere", "turing"]
        assert [path.name for path in (output / "lane" / "v1").glob(".*")] == []
        step += 1
    assert revisions == sorted(revisions)
    assert revisions[0] == 1
    assert revisions[-1] == 2
    assert step > 25


def test_a_first_commit_that_is_killed_leaves_no_version_or_a_whole_one(make, tmp_path):
    finished, step = False, 0
    while not finished:
        output = tmp_path / str(step) / "artifacts"
        output.mkdir(parents=True)
        finished = _run_killed(step, output, lambda output=output: _first(make, output))
        finish_interrupted(output, "lane")
        if (output / "lane" / "v1" / "lane_v1.json").exists():
            assert _check(output, make).revision == 1
        else:
            assert not (output / "lane" / "latest.json").exists()
            assert list(output.rglob("*.engine")) == [path for path in output.rglob("*.engine") if ".stage-" in path.parent.name]
        step += 1
    assert step > 20


def test_finishing_that_is_killed_can_be_finished(make, tmp_path):
    """The finisher dies too, again and again, each time one operation later."""
    output = tmp_path / "artifacts"
    output.mkdir()
    _first(make, output)
    for start in range(60):
        if _run_killed(start, output, lambda: make.commit(output, (make.record("turing", content=b"t2"), b"t2"))):
            pytest.fail("no kill left a commit to finish")
        if (output / "lane" / "v1" / ".commit").exists():
            break
    step = 0
    while not _run_killed(step, output, lambda: finish_interrupted(output, "lane")):
        step += 1
    assert step > 5
    assert _check(output, make).revision == 2


def test_a_quarantine_that_a_killed_commit_left_is_ended_by_whoever_finishes_it(make, tmp_path):
    finished, step = False, 0
    while not finished:
        output = tmp_path / str(step) / "artifacts"
        output.mkdir(parents=True)
        with Release(output, "lane", 1) as release:
            release.quarantine("ampere", None, {"problem.json": b"{}", "worker.log": b"it died"})
            failed = make.record("ampere", "failed", problem={"what": "it died"})
            release.commit(make.manifest(failed), move_latest=False)

        finished = _run_killed(step, output, lambda output=output: make.commit(output, (make.record("ampere", content=b"1"), b"1")))
        finish_interrupted(output, "lane")
        (found,) = read_manifest(output / "lane" / "v1" / "lane_v1.json").engines
        assert (output / "lane" / "v1" / "quarantine").exists() is (found.verdict.status == "failed")
        step += 1
    assert step > 20


@pytest.mark.parametrize("content", [{}, {"lane_v1.json": b"{"}, {"lane_v1_ampere.engine": b"half"}])
def test_an_undecided_commit_of_a_dead_run_is_thrown_away(make, tmp_path, content):
    output = tmp_path / "artifacts"
    output.mkdir()
    _first(make, output)
    stage = output / "lane" / "v1" / ".stage-dead"
    stage.mkdir()
    for name, data in content.items():
        (stage / name).write_bytes(data)
    with Release(output, "lane", 1) as release:
        assert not stage.exists()
        assert release.previous is not None
    assert _check(output, make).revision == 1
