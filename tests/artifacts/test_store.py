from __future__ import annotations

import json
import os
import stat
import threading

import pytest

from orchestrator.artifacts.entry import find_entry
from orchestrator.artifacts.files import sha256_file
from orchestrator.artifacts.manifest import read_manifest
from orchestrator.artifacts.store import Release, finish_interrupted, follow_latest, read_latest
from orchestrator.errors import (
    DIGEST_MISMATCH,
    DISK,
    ENGINE_UNREADABLE,
    LOCKED,
    MANIFEST_UNREADABLE,
    NAME_INVALID,
    NAME_TAKEN,
    EnginefarmError,
)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "artifacts"


def _tree(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != ".lock")


def _latest(output):
    return json.loads((output / "lane" / "latest.json").read_bytes())


def test_a_commit_writes_engines_manifest_and_latest(make, output):
    engine = make.record("ampere", content=b"engine bytes")
    release = make.commit(output, (engine, b"engine bytes"), (make.record("jetson", "skipped"), None))
    assert _tree(output / "lane") == ["latest.json", "v1/lane_v1.json", "v1/lane_v1_ampere.engine"]
    path = output / "lane" / "v1" / "lane_v1.json"
    manifest = read_manifest(path)
    assert manifest == release.manifest
    assert [(record.target, record.file) for record in manifest.engines] == [("ampere", "lane_v1_ampere.engine"), ("jetson", None)]
    assert _latest(output) == {
        "schema": "enginefarm.latest/1",
        "model": "lane",
        "version": 1,
        "revision": 1,
        "manifest": "v1/lane_v1.json",
        "digest": sha256_file(path),
        "targets": {"ampere": "passed"},
    }


def test_engines_are_copies_that_everyone_can_read(make, output, tmp_path):
    make.commit(output, (make.record("ampere", content=b"engine"), b"engine"))
    (tmp_path / "built").write_bytes(b"scribbled over")
    engine = output / "lane" / "v1" / "lane_v1_ampere.engine"
    assert engine.read_bytes() == b"engine"
    assert stat.S_IMODE(engine.stat().st_mode) == 0o644


def test_every_commit_raises_the_revision_and_keeps_the_manifest_before_it(make, output):
    first = make.commit(output, (make.record("ampere", content=b"one"), b"one"))
    before = first.manifest.as_json()
    second = make.commit(output, (make.record("turing", content=b"two"), b"two"))
    assert (first.manifest.revision, second.manifest.revision) == (1, 2)
    assert [record.target for record in second.manifest.engines] == ["ampere", "turing"]
    kept = output / "lane" / "v1" / "manifests" / f"{make.digest(before).removeprefix('sha256:')}.json"
    assert kept.read_bytes() == before
    assert _latest(output)["revision"] == 2


def test_an_engine_that_passed_replaces_its_unvalidated_file(make, output):
    make.commit(output, (make.record("ampere", "unvalidated", b"one"), b"one"))
    assert "v1/lane_v1_ampere.unvalidated.engine" in _tree(output / "lane")
    make.commit(output, (make.record("ampere", content=b"two"), b"two"))
    assert [name for name in _tree(output / "lane") if name.endswith(".engine")] == ["v1/lane_v1_ampere.engine"]


def test_a_failed_rebuild_leaves_the_good_engine(make, output):
    make.commit(output, (make.record("ampere", content=b"good"), b"good"))
    release = make.commit(output, (make.record("ampere", "failed", problem={"code": "EF300"}), None), move_latest=False)
    assert (output / "lane" / "v1" / "lane_v1_ampere.engine").read_bytes() == b"good"
    assert release.manifest.engines[0].verdict.status == "passed"
    assert release.manifest.engines[0].problem == {"code": "EF300"}


def test_a_placed_engine_whose_record_loses_is_not_put_in(make, output):
    make.commit(output, (make.record("cpu", "self-consistent", b"good", build_key="k"), b"good"))
    make.commit(output, (make.record("cpu", "unvalidated", b"newer", build_key="k"), b"newer"))
    assert (output / "lane" / "v1" / "lane_v1_cpu.unvalidated.engine").read_bytes() == b"good"


def test_an_engine_that_another_run_replaced_meanwhile_takes_nothing_else_with_it(make, output, tmp_path):
    make.commit(output, (make.record("ampere", content=b"reused"), b"reused"))
    make.commit(output, (make.record("ampere", content=b"of another run"), b"of another run"))
    turing = make.record("turing", content=b"turing")
    release = make.commit(output, (make.record("ampere", content=b"reused"), None), (turing, b"turing"))
    ampere, new = release.manifest.engines
    assert (ampere.digest, ampere.verdict.status) == (make.digest(b"of another run"), "passed")
    assert new == turing
    assert release.notes == ("ampere: lane_v1_ampere.engine was replaced meanwhile, so this run's result of it is left out",)


def test_a_record_without_its_file_and_without_a_predecessor_has_no_engine(make, output):
    release = make.commit(output, (make.record("ampere", content=b"engine"), None))
    assert [(record.file, record.verdict.status) for record in release.manifest.engines] == [(None, "skipped")]
    assert _tree(output / "lane") == ["latest.json", "v1/lane_v1.json"]


def test_a_reused_engine_whose_file_name_goes_to_another_target_makes_room(make, output, tmp_path):
    reused = make.record("a", content=b"a", tag="x")
    make.commit(output, (reused, b"a"))
    new = make.record("b", content=b"b", tag="x")
    (tmp_path / "built").write_bytes(b"b")
    with Release(output, "lane", 1) as release:
        release.place(tmp_path / "built", new.file)
        release.commit(make.manifest().model_copy(update={"engines": (reused, new)}), move_latest=True)
    assert [(record.target, record.file) for record in release.manifest.engines] == [("a", None), ("b", "lane_v1_x.engine")]
    assert (output / "lane" / "v1" / "lane_v1_x.engine").read_bytes() == b"b"


def test_a_weaker_build_with_other_options_leaves_engine_and_latest(make, output):
    make.commit(output, (make.record("cpu", content=b"good", build_key="k1"), b"good"))
    release = make.commit(output, (make.record("cpu", "unvalidated", b"fp16", build_key="k2"), b"fp16"), move_latest=False)
    assert [path for path in _tree(output / "lane") if path.endswith(".engine")] == ["v1/lane_v1_cpu.engine"]
    assert release.manifest.engines[0].verdict.status == "passed"
    assert _latest(output)["targets"] == {"cpu": "passed"}


def test_a_placed_file_that_is_not_the_one_that_was_built_is_refused(make, output, tmp_path):
    (tmp_path / "built").write_bytes(b"cut sho")
    with Release(output, "lane", 1) as release:
        assert release.place(tmp_path / "built", "a.engine") == (make.digest(b"cut sho"), 7)
        with pytest.raises(EnginefarmError, match="built changed after it was built") as caught:
            release.place(tmp_path / "built", "b.engine", digest=make.digest(b"cut short"))
    assert caught.value.kind is DIGEST_MISMATCH
    assert _tree(output) == []


def _place_and_fail(output, source):
    with Release(output, "lane", 1) as release:
        release.place(source, "lane_v1_ampere.engine")
        release.place(source.with_name("missing"), "lane_v1_turing.engine")


def test_an_exception_before_commit_leaves_nothing(output, tmp_path):
    (tmp_path / "built").write_bytes(b"engine")
    with pytest.raises(EnginefarmError, match=r"cannot write .*lane_v1_turing\.engine"):
        _place_and_fail(output, tmp_path / "built")
    assert not (output / "lane" / "v1").exists()


@pytest.mark.parametrize("name", ["../x.engine", "/x.engine", "..", ".", "", "a/b", "a\\b", "a\0b"])
def test_file_names_cannot_leave_the_folder(output, tmp_path, name):
    (tmp_path / "built").write_bytes(b"engine")
    with Release(output, "lane", 1) as release:
        with pytest.raises(EnginefarmError) as caught:
            release.place(tmp_path / "built", name)
        assert caught.value.kind is ENGINE_UNREADABLE
        with pytest.raises(EnginefarmError):
            release.quarantine(name, None, {})


def test_model_names_cannot_leave_the_folder(output):
    with pytest.raises(EnginefarmError) as caught:
        Release(output, "../lane", 1)
    assert caught.value.kind is NAME_INVALID


@pytest.mark.parametrize("name", ["$(x)", "lane two", "車線", "l'avion"])
def test_names_that_need_quoting_work(make, output, name):
    engine = make.record("cpu", content=b"engine", name=name)
    make.commit(output, (engine, b"engine"), model_record=make.model(name=name))
    assert (output / name / "v1" / f"{name}_v1_cpu.engine").read_bytes() == b"engine"


def test_latest_stays_when_the_run_did_not_end_well(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    engine = make.record("ampere", content=b"2", version=2)
    release = make.commit(output, (engine, b"2"), model_record=make.model(version=2, content="lane 2"), move_latest=False)
    assert _latest(output)["version"] == 1
    assert (release.latest_moved, release.latest_note) == (False, "it stays: the run did not end well")


def test_latest_never_loses_a_target(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"), (make.record("turing", content=b"1t"), b"1t"))
    second = make.model(version=2, content="lane 2")
    ampere, turing = make.record("ampere", content=b"2", version=2), make.record("turing", content=b"2t", version=2)
    release = make.commit(output, (ampere, b"2"), model_record=second)
    assert release.latest_note == "it stays at v1: in v2, turing has no engine"
    assert _latest(output)["version"] == 1
    release = make.commit(output, (turing, b"2t"), model_record=second)
    assert release.latest_moved
    assert (_latest(output)["version"], _latest(output)["revision"]) == (2, 2)


def test_latest_does_not_move_from_passed_to_unvalidated(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    engine = make.record("ampere", "unvalidated", b"2", version=2)
    release = make.commit(output, (engine, b"2"), model_record=make.model(version=2, content="lane 2"))
    assert release.latest_note == "it stays at v1: in v2, ampere was passed and is unvalidated"


def test_latest_follows_its_own_version_when_its_engines_are_replaced(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    make.commit(output, (make.record("ampere", content=b"again"), b"again"), (make.record("turing", "failed"), None), move_latest=False)
    assert _latest(output)["revision"] == 2


def test_latest_that_stays_at_its_version_describes_the_manifest_that_is_there(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    release = make.commit(output, (make.record("turing", "unvalidated", b"t"), b"t"), move_latest=False)
    assert (release.latest_moved, release.latest_note) == (False, "it stays: the run did not end well")
    latest = _latest(output)
    assert (latest["revision"], latest["targets"]) == (2, {"ampere": "passed"})
    assert latest["digest"] == sha256_file(output / "lane" / latest["manifest"])


def test_latest_never_moves_to_a_lower_version(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    second = make.model(version=2, content="lane 2")
    make.commit(output, (make.record("ampere", content=b"2", version=2), b"2"), model_record=second)
    release = make.commit(output, (make.record("ampere", content=b"again"), b"again"))
    assert release.latest_note == "it stays at v2: it never moves to a lower version"
    assert (_latest(output)["version"], _latest(output)["revision"]) == (2, 1)


@pytest.mark.parametrize("version", [1, 2])
def test_latest_moves_when_a_target_was_renamed_with_its_tag(make, output, version):
    make.commit(output, (make.record("a", content=b"1", tag="x"), b"1"))
    engine = make.record("b", content=b"2", tag="x", version=version)
    described = make.model(version=version, content=f"lane {version}")
    assert make.commit(output, (engine, b"2"), model_record=described).latest_moved
    assert (_latest(output)["version"], _latest(output)["targets"]) == (version, {"b": "passed"})


def test_a_run_with_nothing_new_lets_latest_follow(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"), move_latest=False)
    before = _tree(output)
    for good, moved, note in (
        (False, False, "it stays: the run did not end well"),
        (True, True, "every target that it had is there"),
        (True, False, "it names this revision already"),
    ):
        with Release(output, "lane", 1) as release:
            release.follow(move_latest=good)
        assert (release.latest_moved, release.latest_note) == (moved, note)
    assert _tree(output) == sorted(["lane/latest.json", *before])
    assert (_latest(output)["revision"], _latest(output)["digest"]) == (1, sha256_file(output / "lane" / "v1" / "lane_v1.json"))


def test_following_without_a_manifest_leaves_nothing(output):
    with Release(output, "lane", 1) as release:
        release.follow(move_latest=True)
    assert _tree(output) == []


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
    assert _latest(output)["targets"] == {"ampere": "passed", "turing": "passed"}


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
    assert _latest(output)["revision"] == 2


def test_a_failed_engine_goes_to_quarantine_with_the_evidence(make, output, tmp_path):
    engine, log = tmp_path / "engine.plan", tmp_path / "worker.log"
    engine.write_bytes(b"bad")
    log.write_text("it broke")
    for text in (b"first", b"second"):
        with Release(output, "lane", 1) as release:
            folder = release.quarantine("ampere", engine, {"worker.log": log, "verdict.json": text})
    assert folder == output / "lane" / "v1" / "quarantine" / "ampere"
    assert _tree(folder) == ["engine.plan", "verdict.json", "worker.log"]
    assert (folder / "verdict.json").read_bytes() == b"second"
    assert _tree(output) == [f"lane/v1/quarantine/ampere/{name}" for name in ("engine.plan", "verdict.json", "worker.log")]


FAILED = {"what": "the builder died"}


def _fail(make, output, tag="ampere"):
    with Release(output, "lane", 1) as release:
        release.quarantine(tag, None, {"problem.json": b"{}"})
        release.commit(make.manifest(make.record(tag, "failed", problem=FAILED)), move_latest=False)
    return output / "lane" / "v1" / "quarantine"


@pytest.mark.parametrize("status", ["passed", "self-consistent", "unvalidated"])
def test_an_engine_without_a_problem_ends_the_quarantine_of_its_tag(make, output, status):
    quarantine = _fail(make, output)
    _fail(make, output, "turing")
    make.commit(output, (make.record("ampere", status, content=b"1"), b"1"))
    assert _tree(quarantine) == ["turing/problem.json"]
    make.commit(output, (make.record("turing", content=b"2"), b"2"))
    assert not quarantine.exists()


def test_evidence_stays_while_the_manifest_has_the_problem(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    quarantine = _fail(make, output)  # a rebuild failed, the good engine stays
    assert _tree(quarantine) == ["ampere/problem.json"]
    make.commit(output, (make.record("turing", content=b"2"), b"2"))
    assert _tree(quarantine) == ["ampere/problem.json"]
    make.commit(output, (make.record("ampere", "skipped", problem={"what": "no runner"}), None))
    assert _tree(quarantine) == ["ampere/problem.json"]


def test_two_models_that_took_one_version_at_once_do_not_mix(make, output, tmp_path):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    (tmp_path / "built").write_bytes(b"other model")
    other = make.manifest(make.record("ampere", content=b"other model"), model=make.model(content="another lane"))
    with Release(output, "lane", 1) as release:
        release.place(tmp_path / "built", "lane_v1_ampere.engine")
        with pytest.raises(EnginefarmError, match="became another model") as caught:
            release.commit(other, move_latest=True)
    assert caught.value.kind is NAME_TAKEN
    assert (output / "lane" / "v1" / "lane_v1_ampere.engine").read_bytes() == b"1"


def test_runs_at_once_all_end_up_in_the_manifest(make, output, tmp_path):
    failures = []

    def run(number):
        try:
            content = f"engine {number}".encode()
            source = tmp_path / f"built-{number}"
            source.write_bytes(content)
            engine = make.record(f"target{number}", content=content)
            with Release(output, "lane", 1) as release:
                release.place(source, engine.file)
                release.commit(make.manifest(engine), move_latest=True)
        except Exception as error:  # noqa: BLE001  (shown by the assertion below)
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    manifest = read_manifest(output / "lane" / "v1" / "lane_v1.json")
    assert manifest.revision == 8
    assert {record.target for record in manifest.engines} == {f"target{number}" for number in range(8)}
    assert all(sha256_file(output / "lane" / "v1" / record.file) == record.digest for record in manifest.engines)


def test_a_lock_that_stays_held_is_reported_after_a_message(output):
    said = []
    with Release(output, "lane", 1), pytest.raises(EnginefarmError) as caught:
        Release(output, "lane", 2, timeout=0.05, on_wait=said.append).__enter__()
    assert caught.value.kind is LOCKED
    assert said == [f"waiting for another run that writes to {output / 'lane'}"]
    with Release(output, "lane", 2):
        pass


def test_a_damaged_manifest_is_not_overwritten(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    path = output / "lane" / "v1" / "lane_v1.json"
    path.write_bytes(b"{")
    with pytest.raises(EnginefarmError) as caught:
        make.commit(output, (make.record("ampere", content=b"2"), b"2"))
    assert caught.value.kind is MANIFEST_UNREADABLE
    assert path.read_bytes() == b"{"
    path.unlink()
    make.commit(output, (make.record("ampere", content=b"3"), b"3"))  # the lock was given back


def test_a_disk_error_says_what_could_not_be_written(tmp_path):
    (tmp_path / "artifacts").write_text("a file where the folder should be")
    with pytest.raises(EnginefarmError) as caught:
        Release(tmp_path / "artifacts", "lane", 1).__enter__()
    assert caught.value.kind is DISK
    assert caught.value.what == f"cannot write to {tmp_path / 'artifacts' / 'lane' / 'v1'}"


def test_nothing_to_finish_takes_no_lock(output):
    finish_interrupted(output, "lane")
    assert not output.exists()
