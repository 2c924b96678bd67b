from __future__ import annotations

import stat
import threading

import pytest

from orchestrator.artifacts.files import sha256_file
from orchestrator.artifacts.manifest import read_manifest
from orchestrator.artifacts.store import Release, finish_interrupted
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

from .conftest import files_below, latest_of


def test_a_commit_writes_engines_manifest_and_latest(make, output):
    engine = make.record("ampere", content=b"engine bytes")
    release = make.commit(output, (engine, b"engine bytes"), (make.record("jetson", "skipped"), None))
    assert files_below(output / "lane") == ["latest.json", "v1/lane_v1.json", "v1/lane_v1_ampere.engine"]
    path = output / "lane" / "v1" / "lane_v1.json"
    manifest = read_manifest(path)
    assert manifest == release.manifest
    assert [(record.target, record.file) for record in manifest.engines] == [("ampere", "lane_v1_ampere.engine"), ("jetson", None)]
    assert latest_of(output) == {
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
    assert latest_of(output)["revision"] == 2


def test_an_engine_that_passed_replaces_its_unvalidated_file(make, output):
    make.commit(output, (make.record("ampere", "unvalidated", b"one"), b"one"))
    assert "v1/lane_v1_ampere.unvalidated.engine" in files_below(output / "lane")
    make.commit(output, (make.record("ampere", content=b"two"), b"two"))
    assert [name for name in files_below(output / "lane") if name.endswith(".engine")] == ["v1/lane_v1_ampere.engine"]


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
    assert files_below(output / "lane") == ["latest.json", "v1/lane_v1.json"]


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
    assert [path for path in files_below(output / "lane") if path.endswith(".engine")] == ["v1/lane_v1_cpu.engine"]
    assert release.manifest.engines[0].verdict.status == "passed"
    assert latest_of(output)["targets"] == {"cpu": "passed"}


def test_a_placed_file_that_is_not_the_one_that_was_built_is_refused(make, output, tmp_path):
    (tmp_path / "built").write_bytes(b"cut sho")
    with Release(output, "lane", 1) as release:
        assert release.place(tmp_path / "built", "a.engine")[:2] == (make.digest(b"cut sho"), 7)
        with pytest.raises(EnginefarmError, match="built changed after it was built") as caught:
            release.place(tmp_path / "built", "b.engine", digest=make.digest(b"cut short"))
    assert caught.value.kind is DIGEST_MISMATCH
    assert files_below(output) == []


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


def test_a_failed_engine_goes_to_quarantine_with_the_evidence(make, output, tmp_path):
    engine, log = tmp_path / "engine.plan", tmp_path / "worker.log"
    engine.write_bytes(b"bad")
    log.write_text("it broke")
    for text in (b"first", b"second"):
        with Release(output, "lane", 1) as release:
            folder = release.quarantine("ampere", engine, {"worker.log": log, "verdict.json": text})
    assert folder == output / "lane" / "v1" / "quarantine" / "ampere"
    assert files_below(folder) == ["engine.plan", "verdict.json", "worker.log"]
    assert (folder / "verdict.json").read_bytes() == b"second"
    assert files_below(output) == [f"lane/v1/quarantine/ampere/{name}" for name in ("engine.plan", "verdict.json", "worker.log")]


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
    assert files_below(quarantine) == ["turing/problem.json"]
    make.commit(output, (make.record("turing", content=b"2"), b"2"))
    assert not quarantine.exists()


def test_evidence_stays_while_the_manifest_has_the_problem(make, output):
    make.commit(output, (make.record("ampere", content=b"1"), b"1"))
    quarantine = _fail(make, output)  # a rebuild failed, the good engine stays
    assert files_below(quarantine) == ["ampere/problem.json"]
    make.commit(output, (make.record("turing", content=b"2"), b"2"))
    assert files_below(quarantine) == ["ampere/problem.json"]
    make.commit(output, (make.record("ampere", "skipped", problem={"what": "no runner"}), None))
    assert files_below(quarantine) == ["ampere/problem.json"]


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
