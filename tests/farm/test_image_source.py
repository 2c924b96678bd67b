"""Which digest a target's image is: from the lock, else from its registry, once, and only where that is allowed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError, Kind
from orchestrator.farm.images import ImageSource
from orchestrator.farm.local import Farm
from orchestrator.images.lock import Entry, Lock
from orchestrator.images.policy import Policy, policy
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.schema import Target

PLATFORM = "linux/amd64"


def target(name: str = "ampere-cu122", **changes: Any) -> Target:
    (found,) = load_matrix(None).select((name,))
    return found.target.model_copy(update=changes)


def refused(call: Callable[[], object]) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        call()
    return caught.value


def test_locked_names_every_image_that_is_not(tmp_path: Any) -> None:
    targets = [target("ampere-cu122"), target("turing-cu118"), target("cpu")]
    assert ImageSource(Lock(), Policy()).check_locked(targets) == []
    problems = ImageSource(Lock(), Policy(), locked=True).check_locked(targets)
    assert [problem.where.target for problem in problems if problem.where] == ["ampere-cu122", "turing-cu118"]
    assert {problem.kind for problem in problems} == {errors.IMAGE_NOT_LOCKED}
    assert errors.IMAGE_NOT_LOCKED.exit == 5


@pytest.mark.parametrize(
    ("image", "kind"),
    [("nvcr.io/nvidia/tensorrt:23.09-py3", errors.IMAGE_OFFLINE), ("registry.example/x/y:1", errors.IMAGE_NOT_ALLOWED)],
)
def test_offline_and_the_allow_list_need_no_registry_to_say_no(image: str, kind: Kind) -> None:
    source = ImageSource(Lock(), Policy(), offline=True)
    assert refused(lambda: source.pin(target(image=image), PLATFORM)).kind is kind


def test_a_locked_image_needs_no_registry() -> None:
    image = target().image or ""
    entry = Entry(image, PLATFORM, "sha256:" + "a" * 64, "sha256:" + "b" * 64, 1, "2026-01-31T08:00:00Z", tensorrt="8.6.1.6")
    source = ImageSource(Lock({entry.key: entry}), Policy(), locked=True, offline=True)
    assert source.pin(target(), PLATFORM) is entry
    assert source.known(target(), "linux/arm64") is entry  # the target's own platform counts


def test_an_image_that_is_not_locked_is_looked_up_once(registry: Any, gate: Any, described: Callable[..., Any]) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", "23.09-py3", env={"TRT_VERSION": "8.6.1.6", "CUDA_VERSION": "12.2.1"})
    source = ImageSource(Lock(), policy(mirrors={"nvcr.io/": f"{gate.host}/nvcr/"}))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: source.pin(target(), PLATFORM), range(8)))
    assert {entry.pinned for entry in found} == {f"nvcr.io/nvidia/tensorrt@{digest}"}
    assert len([path for path in gate.asked if path.endswith("/manifests/23.09-py3")]) == 1
    assert (found[0].tensorrt, source.known(target(), PLATFORM)) == ("8.6.1.6", found[0])
    (spot,) = Farm([described("rack", "8.0")], source).place(target()).build
    assert spot.image == found[0].pinned


def test_what_the_registry_says_is_the_targets_problem(registry: Any) -> None:
    source = ImageSource(Lock(), policy(mirrors={"nvcr.io/": f"{registry.host}/nvcr/"}))
    error = refused(lambda: source.pin(target(image="nvcr.io/nvidia/absent:1"), PLATFORM))
    assert error.kind is errors.IMAGE_MISSING
    assert error.where is not None
    assert error.where.target == "ampere-cu122"
