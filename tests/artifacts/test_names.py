import shlex
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.artifacts.names import (
    EngineName,
    check_model_name,
    engine_file,
    manifest_file,
    model_name,
    parse_engine_file,
)
from orchestrator.errors import NAME_INVALID, EnginefarmError
from orchestrator.matrix.model_name import MAX_NAME_BYTES, suggest_name


@pytest.mark.parametrize(
    "name",
    [
        "lane",
        "lane v2",
        "voie_détection",
        "車線",
        "$(x)",
        "a+b@2,c=d",
        "l'avion",
        "lane.v2",
        "(lane)",
        "`id`",
        "a;b&c",
        "100%",
        "x" * 100,
        "конус",
    ],
)
def test_names_that_only_need_quoting_are_taken_as_they_are(name):
    assert check_model_name(name) == name


@pytest.mark.parametrize(
    ("name", "why", "suggestion"),
    [
        ("a:b", "':'", "a_b"),
        ("seg/lane", "'/'", "seg_lane"),
        ("models\\", "backslash", "models_"),
        ("C:\\work\\m.onnx", "Windows path", "m"),
        ("C:\\work\\", "Windows path", "work"),
        ("a\nb", "U+000A", "a_b"),
        ("a\x1b[31mb", "U+001B", "a_[31mb"),
        ("a\u202eb", "U+202E", "ab"),
        ("a\u00a0b", "U+00A0", "'a b'"),
        ("a*b", "'*'", "a_b"),
        ('a"b', "'\"'", "a_b"),
        ("<a>|?", "'<'", "_a___"),
        ("-lane", "leading dash", "lane"),
        (".lane", "leading dot", "lane"),
        ("..", "leading dot", "model"),
        (" lane", "begins with a space", "lane"),
        ("lane.", "trailing dot", "lane"),
        ("lane ", "trailing dot or space", "lane"),
        ("", "empty", "model"),
        ("CON", "device", "model_CON"),
        ("nul.v1", "device", "model_nul.v1"),
        ("COM¹", "device", "model_COM¹"),
        ("é" * 51, "102 bytes", "é" * 50),
    ],
)
def test_names_that_break_elsewhere_are_refused_with_a_ready_name(name, why, suggestion):
    with pytest.raises(EnginefarmError) as caught:
        check_model_name(name)
    assert caught.value.kind is NAME_INVALID
    assert why in caught.value.why
    assert caught.value.fix in (f"--name {suggestion}", f"--name {shlex.quote(suggestion)}")


def test_equal_looking_names_become_one_name():
    assert check_model_name("e\u0301tat") == "état"


@given(st.text(max_size=150))
def test_every_suggestion_is_itself_a_good_name(text):
    suggestion = suggest_name(text)
    assert check_model_name(suggestion) == unicodedata.normalize("NFC", suggestion)
    assert len(suggestion.encode()) <= MAX_NAME_BYTES


def test_the_name_comes_from_option_then_yaml_then_folder_then_stem():
    path, root = Path("models/seg/lane.onnx"), Path("models")
    assert model_name(path, root=root, config_name="yaml", option="option") == "option"
    assert model_name(path, root=root, config_name="yaml", option=None) == "yaml"
    assert model_name(path, root=root, config_name=None, option=None) == "seg__lane"
    assert model_name(path, root=None, config_name=None, option=None) == "lane"
    assert model_name(path, root=Path("elsewhere"), config_name=None, option=None) == "lane"
    assert model_name(Path("lane.v2.onnx"), root=None, config_name=None, option=None) == "lane.v2"


def test_an_empty_name_option_is_not_passed_over():
    assert model_name(Path("lane.onnx"), root=None, config_name=None, option="") == ""


def test_engine_names_say_version_tag_backend_and_whether_they_passed():
    assert engine_file("lane", 3, "ampere", "tensorrt", validated=True) == "lane_v3_ampere.engine"
    assert engine_file("lane", 3, "rtx-ada", "tensorrt-rtx", validated=False) == "lane_v3_rtx-ada.unvalidated.engine"
    assert engine_file("lane", 3, "cpu", "onnxruntime", validated=True) == "lane_v3_cpu.onnx"
    assert manifest_file("lane", 3) == "lane_v3.json"


@pytest.mark.parametrize("tag", ["v2_x", "a_v2_b", "a_v2", "x.unvalidated"])
def test_tags_that_read_as_a_version_are_refused(tag):
    with pytest.raises(EnginefarmError, match="cannot be told"):
        engine_file("lane", 3, tag, "tensorrt", validated=True)


def test_versions_in_file_names_are_numbers():
    found = [parse_engine_file(f"lane_v{number}_ampere.engine") for number in (9, 10)]
    assert [name.version for name in sorted(found, key=lambda name: name.version)] == [9, 10]


@pytest.mark.parametrize("name", ["lane.engine", "lane_v0_a.engine", "lane_v3_.engine", "lane_v3_a.trt", "lane_v3.json", "_v1_a.engine"])
def test_other_file_names_say_nothing(name):
    assert parse_engine_file(name) is None


@given(
    st.text(min_size=1, max_size=20).map(suggest_name),
    st.integers(1, 10**6),
    st.from_regex(r"[a-z0-9]{1,6}(?:[._-][a-z0-9]{1,6}){0,2}", fullmatch=True),
    st.sampled_from(["tensorrt", "onnxruntime"]),
    st.booleans(),
)
def test_a_file_name_reads_back_as_what_it_was_made_of(model, version, tag, backend, validated):
    try:
        name = engine_file(model, version, tag, backend, validated=validated)
    except EnginefarmError:
        return
    suffix = "onnx" if backend == "onnxruntime" else "engine"
    assert parse_engine_file(name) == EngineName(model, version, tag, suffix, validated)
