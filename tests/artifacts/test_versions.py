from __future__ import annotations

import pytest

from orchestrator.artifacts.manifest import TensorRecord
from orchestrator.artifacts.versions import VersionChoice, choose_version, related, versions
from orchestrator.errors import MANIFEST_UNREADABLE, NAME_TAKEN, VERSION_UNKNOWN, EnginefarmError


@pytest.fixture
def output(tmp_path):
    return tmp_path / "artifacts"


@pytest.fixture
def choose(make, output):
    def call(content="lane 1", *, signature=None, requested=None, ci=False):
        return choose_version(output, "lane", make.digest(content), signature or make.model(), requested=requested, ci=ci)

    return call


def _version(make, output, number, content):
    make.commit(output, (make.record("cpu", "skipped"), None), model_record=make.model(version=number, content=content))


def test_the_first_version_is_1(choose):
    assert choose() == VersionChoice(1, 1, "the first version")


def test_the_same_model_keeps_its_version_and_gets_the_next_revision(make, output, choose):
    _version(make, output, 1, "lane 1")
    _version(make, output, 2, "lane 2")
    first = choose("lane 1")
    assert (first.version, first.revision, first.held is not None) == (1, 2, True)
    _version(make, output, 1, "lane 1")
    assert choose("lane 1").revision == 3


def test_a_new_model_gets_the_number_after_the_highest_as_a_number(make, output, choose):
    for number in (9, 10, 2):
        _version(make, output, number, f"lane {number}")
    assert list(versions(output, "lane")) == [2, 9, 10]
    chosen = choose("lane 11")
    assert (chosen.version, chosen.revision, chosen.held is not None) == (11, 1, False)


def test_folders_that_are_no_committed_version_do_not_count(make, output, choose):
    _version(make, output, 1, "lane 1")
    for name in ("v7", "v07", "v0", "old", "v2.bak"):
        (output / "lane" / name).mkdir()
    (output / "lane" / "v8").write_text("a file")
    assert choose("lane 2").version == 2


def test_the_version_on_the_command_line_wins(make, output, choose):
    _version(make, output, 1, "lane 1")
    assert choose("lane 2", requested=7).version == 7
    again = choose("lane 1", requested=1)
    assert (again.version, again.revision, again.held is not None) == (1, 2, True)


def test_a_requested_version_that_holds_another_model_is_refused_with_the_one_to_take(make, output, choose):
    _version(make, output, 1, "lane 1")
    _version(make, output, 2, "lane 2")
    with pytest.raises(EnginefarmError, match="lane v1 is another model") as caught:
        choose("lane 3", requested=1)
    assert caught.value.kind is NAME_TAKEN
    assert make.digest("lane 1")[:19] in caught.value.why
    assert caught.value.fix == "--model-version 3"
    with pytest.raises(EnginefarmError) as caught:
        choose("lane 2", requested=1)
    assert caught.value.fix == "--model-version 2"
    assert "which is v2" in caught.value.why


def test_ci_with_nothing_to_go_by_is_a_usage_error_that_says_so(make, output, choose):
    with pytest.raises(EnginefarmError, match="nothing says which version") as caught:
        choose(ci=True)
    assert (caught.value.kind, caught.value.exit) == (VERSION_UNKNOWN, 2)
    assert caught.value.fix == "--model-version 1"
    assert choose(ci=True, requested=4).version == 4
    _version(make, output, 4, "lane 4")
    assert choose("lane 5", ci=True).version == 5


def test_a_name_with_an_unrelated_signature_is_taken(make, output, choose):
    _version(make, output, 1, "lane 1")
    other = make.model(inputs=(TensorRecord(name="tokens", dtype="int64", shape=(-1, -1)),))
    with pytest.raises(EnginefarmError, match="lane is the name of another model") as caught:
        choose("other", signature=other)
    assert caught.value.kind is NAME_TAKEN
    assert "v1 is image -> mask, this one is tokens -> mask" in caught.value.why
    assert "--name lane-2" in caught.value.fix
    assert "--model-version 2" in caught.value.fix
    assert choose("other", signature=other, requested=2).version == 2


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"shape": (1, 1, 32, 32)}, True),
        ({"shape": None}, True),
        ({"dtype": "float16"}, False),
        ({"shape": (-1, 3)}, False),
        ({"name": "picture"}, False),
    ],
)
def test_signatures_are_related_by_name_type_and_rank(make, change, same):
    changed = TensorRecord.model_construct(**(make.image.model_dump() | change))
    assert related(make.model(), make.model().model_copy(update={"inputs": (changed,)})) is same


def test_one_common_input_is_enough(make):
    extra = TensorRecord(name="threshold", dtype="float32", shape=())
    assert related(make.model(), make.model(inputs=(make.image, extra)))
    assert not related(make.model(), make.model(outputs=(extra,)))
    assert related(make.model(inputs=()), make.model(inputs=()))


def test_a_damaged_manifest_is_not_passed_over(make, output, choose):
    _version(make, output, 1, "lane 1")
    (output / "lane" / "v1" / "lane_v1.json").write_bytes(b"{")
    with pytest.raises(EnginefarmError) as caught:
        choose("lane 2")
    assert caught.value.kind is MANIFEST_UNREADABLE
    assert "--model-version" in caught.value.fix


def test_a_requested_version_does_not_read_the_damaged_manifest_of_another(make, output, choose):
    _version(make, output, 1, "lane 1")
    _version(make, output, 2, "lane 2")
    (output / "lane" / "v1" / "lane_v1.json").write_bytes(b"{")
    assert choose("lane 3", requested=3).version == 3
    with pytest.raises(EnginefarmError) as caught:
        choose("lane 3", requested=2)
    assert (caught.value.kind, caught.value.fix) == (NAME_TAKEN, "--model-version 3")
    with pytest.raises(EnginefarmError) as caught:
        choose("lane 3", requested=1)
    assert caught.value.kind is MANIFEST_UNREADABLE


def test_a_version_folder_that_was_renamed_by_hand_is_noticed(make, output, choose):
    _version(make, output, 1, "lane 1")
    (output / "lane" / "v1").rename(output / "lane" / "v3")
    (output / "lane" / "v3" / "lane_v1.json").rename(output / "lane" / "v3" / "lane_v3.json")
    with pytest.raises(EnginefarmError, match="manifest of lane v1 lies in the folder of lane v3"):
        choose("lane 2")
