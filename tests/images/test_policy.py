from __future__ import annotations

import pytest

from orchestrator.errors import IMAGE_NOT_ALLOWED, USAGE, EnginefarmError, Where
from orchestrator.images.policy import Policy, policy, read_mirror
from orchestrator.images.reference import parse

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize("image", ["nvcr.io/nvidia/tensorrt:1", "ghcr.io/acme/app:1", "ghcr.io/acme:1"])
def test_images_under_an_allowed_prefix_may_be_used(image: str) -> None:
    policy(["nvcr.io", "ghcr.io/acme/"]).check(parse(image))


@pytest.mark.parametrize("image", ["python:3", "nvcr.io.evil.example/nvidia/tensorrt:1", "ghcr.io/acme-evil/app:1", "ghcr.io/other/app:1"])
def test_others_are_refused_with_exit_6(image: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        policy(["nvcr.io", "ghcr.io/acme/"]).check(parse(image), Where(file="t.yaml", line=9))
    assert (caught.value.kind, caught.value.exit) == (IMAGE_NOT_ALLOWED, 6)
    assert caught.value.where == Where(file="t.yaml", line=9)
    assert "nvcr.io, ghcr.io/acme" in (caught.value.why or "")


def test_a_misspelt_registry_gets_a_suggestion() -> None:
    with pytest.raises(EnginefarmError) as caught:
        policy().check(parse("ncvr.io/nvidia/tensorrt:1"))
    assert "did you mean nvcr.io?" in (caught.value.fix or "")


def test_an_empty_allow_list_allows_nothing() -> None:
    with pytest.raises(EnginefarmError):
        policy([]).check(parse("nvcr.io/a:1"))


def test_by_default_only_nvidia_s_registry_is_allowed() -> None:
    Policy().check(parse("nvcr.io/nvidia/l4t-tensorrt:r8.2.1-runtime"))
    with pytest.raises(EnginefarmError):
        Policy().check(parse("docker.io/library/python:3"))


def test_a_mirror_keeps_tag_and_digest_and_the_longest_prefix_counts() -> None:
    rules = policy(mirrors={"nvcr.io": "registry.example:5000/nvcr/", "nvcr.io/nvidia/tensorrt": "other.example/trt"})
    assert (
        str(rules.fetched_from(parse(f"nvcr.io/nvidia/l4t-base:r32@{DIGEST}")))
        == f"registry.example:5000/nvcr/nvidia/l4t-base:r32@{DIGEST}"
    )
    assert str(rules.fetched_from(parse("nvcr.io/nvidia/tensorrt:1"))) == "other.example/trt:1"
    assert str(rules.fetched_from(parse("nvcr.io/nvidia/tensorrt2:1"))) == "registry.example:5000/nvcr/nvidia/tensorrt2:1"
    assert str(rules.fetched_from(parse("ghcr.io/a/b:1"))) == "ghcr.io/a/b:1"


def test_docker_s_own_registry_can_be_mirrored() -> None:
    rules = policy(mirrors={"docker.io": "registry.example/hub"})
    assert str(rules.fetched_from(parse("python:3"))) == "registry.example/hub/library/python:3"


@pytest.mark.parametrize("text", ["", "nvidia", "https://nvcr.io", "nvcr.io/UPPER", "nvcr.io/a b"])
def test_what_is_no_prefix_is_a_usage_error(text: str) -> None:
    for make in (lambda: policy([text]), lambda: policy(mirrors={text: "a.example"}), lambda: policy(mirrors={"a.example": text})):
        with pytest.raises(EnginefarmError) as caught:
            make()
        assert caught.value.kind is USAGE


def test_a_mirror_rule_of_the_command_line() -> None:
    assert read_mirror("nvcr.io/=a.example:5000/nvcr/") == ("nvcr.io/", "a.example:5000/nvcr/")
    for text in ("nvcr.io", "=a", "a="):
        with pytest.raises(EnginefarmError):
            read_mirror(text)
