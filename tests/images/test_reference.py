from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import IMAGE_REFERENCE, EnginefarmError, Where
from orchestrator.images.reference import is_digest, normalise, parse

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("nvcr.io/nvidia/tensorrt:23.09-py3", "nvcr.io/nvidia/tensorrt:23.09-py3"),
        ("python:3.12", "docker.io/library/python:3.12"),
        ("docker.io/python:3.12", "docker.io/library/python:3.12"),
        ("index.docker.io/acme/app", "docker.io/acme/app"),
        ("acme/app", "docker.io/acme/app"),
        ("localhost/app:1", "localhost/app:1"),
        ("127.0.0.1:5000/a/b_c/d__e/f-g:T.a_g", "127.0.0.1:5000/a/b_c/d__e/f-g:T.a_g"),
        ("[::1]:5000/app:1", "[::1]:5000/app:1"),
        ("NVCR.IO/nvidia/tensorrt:1", "nvcr.io/nvidia/tensorrt:1"),
        (f"nvcr.io/nvidia/tensorrt:1@{DIGEST}", f"nvcr.io/nvidia/tensorrt:1@{DIGEST}"),
    ],
)
def test_a_reference_has_one_spelling(text: str, whole: str) -> None:
    assert normalise(text) == whole
    assert normalise(whole) == whole


@pytest.mark.parametrize(
    ("text", "why", "fix"),
    [
        ("", "empty", "write it like"),
        ("docker pull python:3.12", "space", "did you mean python:3.12?"),
        ("nvcr.io/a:1\n", "space", "did you mean nvcr.io/a:1?"),
        ("https://nvcr.io/nvidia/tensorrt:23.09-py3", "scheme", "did you mean nvcr.io/nvidia/tensorrt:23.09-py3?"),
        ("nvcr.io/NVIDIA/TensorRT:23.09-py3", "lower case", "did you mean nvcr.io/nvidia/tensorrt:23.09-py3?"),
        ("nvcr.io/nvidia/tensorrt:23.09-py3@sha256:12", "64", "did you mean nvcr.io/nvidia/tensorrt:23.09-py3?"),
        ("nvcr.io/nvidia/tensorrt@md5:12", "64", "write it like"),
        ("NVIDIA/tensorrt:1", "lower case", "did you mean nvidia/tensorrt:1?"),
        ("nvcr.io/nvidia/tensorrt:-1", '"-1" is not a tag', "write it like"),
        ("nvcr.io/nvidia/tensorrt:", '"" is not a tag', "write it like"),
        ("nvcr.io//tensorrt:1", "part of the repository is empty", "write it like"),
        ("nvcr.io/a..b:1", '"a..b"', "write it like"),
        ("host:99999/app:1", "not a registry", "write it like"),
        ("bad_host.io/app:1", "not a registry", "write it like"),
        ("a/" * 130 + "a:1", "more than 255", "write it like"),
    ],
)
def test_what_is_no_reference_is_told_with_the_wrong_part_and_a_right_one(text: str, why: str, fix: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        parse(text, Where(file="t.yaml", line=3))
    assert caught.value.kind is IMAGE_REFERENCE
    assert why in (caught.value.why or "")
    assert fix in (caught.value.fix or "")
    assert caught.value.where == Where(file="t.yaml", line=3)
    assert "\n" not in caught.value.what


def test_pinning_drops_the_tag() -> None:
    assert str(parse("nvcr.io/a:1").pinned(DIGEST)) == f"nvcr.io/a@{DIGEST}"


@given(st.text(max_size=80))
def test_any_text_is_a_reference_or_an_error_of_ours(text: str) -> None:
    try:
        reference = parse(text)
    except EnginefarmError as error:
        found: object = error.kind
    else:
        found = IMAGE_REFERENCE
        assert parse(str(reference)) == reference
    assert found is IMAGE_REFERENCE


def test_digests_are_lower_case_and_of_full_length() -> None:
    assert is_digest(DIGEST)
    assert not any(is_digest(text) for text in (DIGEST.upper(), DIGEST[:-1], DIGEST + "\n", DIGEST[7:]))
