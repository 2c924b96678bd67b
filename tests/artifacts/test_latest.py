"""latest.json: when it moves, when it stays, and one that cannot be used."""

from __future__ import annotations

import json
import os

import pytest

from orchestrator.artifacts.entry import find_entry
from orchestrator.artifacts.files import sha256_file
from orchestrator.artifacts.manifest import read_manifest
from orchestrator.artifacts.store import Release, follow_latest, read_latest
from orchestrator.errors import (
    MANIFEST_UNREADABLE,
    EnginefarmError,
)

from .conftest import files_below, latest_of


def test_latest_stays_when_the_run_did_not_end_well(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    engine = make.record("ampere", content=b"2", version=2)
    release = make.commit(output, (engine, b"2"), model_record=make.model(version=2, content="lane 2"), move_latest=False)
    assert latest_of(output)["version"] == 1
    assert (release.latest_moved, release.latest_note) == (False, "it stays: the run did not end well")


def test_latest_never_loses_a_target(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"), (make.record("turing", content=b"1t"), b"1t"))
    second = make.model(version=2, content="lane 2")
    ampere, turing = make.record("ampere", content=b"2", version=2), make.record("turing", content=b"2t", version=2)
    release = make.commit(output, (ampere, b"2"), model_record=second)
    assert release.latest_note == "it stays at v1: in v2, turing has no engine"
    assert latest_of(output)["version"] == 1
    release = make.commit(output, (turing, b"2t"), model_record=second)
    assert release.latest_moved
    assert (latest_of(output)["version"], latest_of(output)["revision"]) == (2, 2)


def test_latest_does_not_move_from_passed_to_unvalidated(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    engine = make.record("ampere", "unvalidated", b"2", version=2)
    release = make.commit(output, (engine, b"2"), model_record=make.model(version=2, content="lane 2"))
    assert release.latest_note == "it stays at v1: in v2, ampere was passed and is unvalidated"


def test_latest_follows_its_own_version_when_its_engines_are_replaced(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    make.commit(output, (make.record("ampere", content=b"again"), b"again"), (make.record("turing", "failed"), None), move_latest=False)
    assert latest_of(output)["revision"] == 2


def test_latest_that_stays_at_its_version_describes_the_manifest_that_is_there(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    release = make.commit(output, (make.record("turing", "unvalidated", b"t"), b"t"), move_latest=False)
    assert (release.latest_moved, release.latest_note) == (False, "it stays: the run did not end well")
    latest = latest_of(output)
    assert (latest["revision"], latest["targets"]) == (2, {"ampere": "passed"})
    assert latest["digest"] == sha256_file(output / "lane" / latest["manifest"])


def test_latest_never_moves_to_a_lower_version(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    second = make.model(version=2, content="lane 2")
    make.commit(output, (make.record("ampere", content=b"2", version=2), b"2"), model_record=second)
    release = make.commit(output, (make.record("ampere", content=b"again"), b"again"))
    assert release.latest_note == "it stays at v2: it never moves to a lower version"
    assert (latest_of(output)["version"], latest_of(output)["revision"]) == (2, 1)


@pytest.mark.parametrize("version", [1, 2])
def test_latest_moves_when_a_target_was_renamed_with_its_tag(make, output, version):
    make.commit(output, (make.record("a", content=b"1", tag="x"), b"1"))
    engine = make.record("b", content=b"2", tag="x", version=version)
    described = make.model(version=version, content=f"lane {version}")
    assert make.commit(output, (engine, b"2"), model_record=described).latest_moved
    assert (latest_of(output)["version"], latest_of(output)["targets"]) == (version, {"b": "passed"})


def test_a_run_with_nothing_new_lets_latest_follow(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"), move_latest=False)
    before = files_below(output)
    for good, moved, note in (
        (False, False, "it stays: the run did not end well"),
        (True, True, "every target that it had is there"),
        (True, False, "it names this revision already"),
    ):
        with Release(output, "lane", 1) as release:
            release.follow(move_latest=good)
        assert (release.latest_moved, release.latest_note) == (moved, note)
    assert files_below(output) == sorted(["lane/latest.json", *before])
    assert (latest_of(output)["revision"], latest_of(output)["digest"]) == (1, sha256_file(output / "lane" / "v1" / "lane_v1.json"))


def test_following_without_a_manifest_leaves_nothing(output):
    with Release(output, "lane", 1) as release:
        release.follow(move_latest=True)
    assert files_below(output) == []


def test_latest_moves_on_when_the_version_that_it_names_was_deleted(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    (output / "lane" / "v1" / "lane_v1.json").unlink()
    engine = make.record("turing", content=b"2", version=2)
    assert make.commit(output, (engine, b"2"), model_record=make.model(version=2, content="lane 2")).latest_moved


OURS = {"schema": "enginefarm.latest/1", "version": 1, "manifest": "v1/lane_v1.json", "targets": {"ampere": "passed"}}


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", "\0", "[" * 200_000),
        *(
            json.dumps(OURS | changes)
            for changes in ({"targets": ["ampere"]}, {"targets": {"ampere": []}}, {"version": "1"}, {"version": None})
        ),
        *(json.dumps(OURS | {"manifest": path}) for path in ("../x", "/etc", "v1/..", "v1", "v1/a/b", "v1/\0", None, 3)),
    ],
)
def test_a_latest_that_is_not_ours_is_no_latest(make, output, content):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    (output / "lane" / "latest.json").write_text(content)
    assert read_latest(output / "lane") is None
    assert follow_latest(output / "lane" / "latest.json") == output / "lane" / "latest.json"
    release = make.commit(output, (make.record("turing", content=b"2"), b"2"))
    assert release.notes == (f"{output / 'lane' / 'latest.json'} was damaged, or not ours: it is written anew",)
    assert latest_of(output)["targets"] == {"ampere": "passed", "turing": "passed"}


def test_a_damaged_latest_says_what_to_give_instead(output):
    output.mkdir()
    (output / "latest.json").write_text(json.dumps(OURS | {"manifest": "../x"}))
    with pytest.raises(EnginefarmError, match="manifest cannot be used") as caught:
        read_manifest(follow_latest(output / "latest.json"))
    assert caught.value.why == "it is a latest.json that names no manifest below it"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"), move_latest=False)
    os.mkfifo(output / "lane" / "latest.json")
    os.mkfifo(output / "lane" / "v1" / "a.json")
    assert read_latest(output / "lane") is None
    assert find_entry(output / "lane" / "v1" / "lane_v1_ampere.engine").record.target == "ampere"
    with pytest.raises(EnginefarmError) as caught:
        read_manifest(output / "lane" / "v1" / "a.json")
    assert (caught.value.kind, caught.value.why) == (MANIFEST_UNREADABLE, "it is not a regular file")
    assert make.commit(output, (make.record("ampere", content=b"2"), b"2")).latest_moved
    assert latest_of(output)["revision"] == 2
