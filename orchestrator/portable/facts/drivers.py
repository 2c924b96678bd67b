"""Whether a host's NVIDIA driver can run a CUDA version. Source of every number: docs/facts/drivers.yaml."""

import re
from functools import lru_cache
from typing import Dict, List, Optional, Sequence, Tuple

from .answer import NO, UNKNOWN, YES, Answer
from .data import load
from .version import parse

_SOURCE = "docs/facts/drivers.yaml"
_FIRST_BUILD_NUMBER = 50  # 11.0.194 ends in a build number, 12.2.1 in a release number


def _at_least(driver: str, floor: str) -> bool:
    """``driver >= floor``, missing components counting as 0 on both sides."""
    left, right = parse(driver), parse(floor)
    width = max(len(left), len(right))
    return left + (0,) * (width - len(left)) >= right + (0,) * (width - len(right))


@lru_cache(maxsize=1)
def _bundles() -> Dict[Tuple[int, ...], str]:
    """The driver of every CUDA; asked for each pair of engine and host, so it is put together once."""
    return {parse(name): driver for name, driver in load("drivers")["bundled"]["cuda"].items()}


def _bundled(cuda: str) -> Optional[str]:
    """Driver that ships with this CUDA; of an unknown patch release the nearest older one, of "12.2" the first."""
    wanted = parse(cuda)
    known = _bundles()
    if wanted in known:
        return known[wanted]
    same_minor = sorted(name for name in known if name[:2] == wanted[:2])
    if not same_minor:
        return None
    numbered = [name for name in same_minor if len(name) < 3 or name[2] < _FIRST_BUILD_NUMBER] or same_minor
    if len(wanted) < 3 or wanted[2] >= _FIRST_BUILD_NUMBER:
        return known[numbered[0]]
    older = [name for name in numbered if name <= wanted]
    return known[older[-1] if older else numbered[0]]


def minimum_driver(cuda_version: str) -> Dict[str, Optional[str]]:
    """Driver floors of a CUDA version: "full" (every feature) and "minor" (minor-version compatibility); None = not known, or none."""
    wanted = parse(cuda_version)
    minor = load("drivers")["minor_compatibility"]
    exact = minor["exact"].get(".".join(str(part) for part in wanted[:2]))
    return {"full": _bundled(cuda_version), "minor": exact or minor["floor"].get(str(wanted[0]))}


def is_data_center(gpu_name: str) -> Optional[bool]:
    """Whether a GPU is a data-center product, by the name that the driver reports; None when the name does not settle it."""
    patterns = load("drivers")["gpu_names"]
    for kind, verdict in (("consumer", False), ("either", None), ("data_center", True)):
        if any(re.search(pattern, gpu_name) for pattern in patterns[kind]):
            return verdict
    return None


def _in_branch(driver: str, branches: Sequence[str]) -> bool:
    return any(parse(driver)[0] == parse(branch)[0] and _at_least(driver, branch) for branch in branches)


def driver_check(
    driver_version: str, cuda: str, data_center: Optional[bool] = None, compat_branches: Optional[Sequence[str]] = None
) -> Answer:
    """Whether a host with this driver runs programs of this CUDA version.

    ``data_center``: whether the GPU is a data-center product (None = not known). ``compat_branches``: driver branches from which the
    image's compat package works ("470.57" = 470.57 and newer 470); None = no compat package, empty = an image whose list is not known.
    """
    floors = minimum_driver(cuda)
    full, minor = floors["full"], floors["minor"]
    if full is None and minor is None:
        return Answer(UNKNOWN, "CUDA {} is not in the facts".format(cuda), "unsourced", _SOURCE)
    if full is not None and _at_least(driver_version, full):
        return Answer(YES, "driver {} runs CUDA {} in full".format(driver_version, cuda), "secondary", _SOURCE)
    if minor is not None and _at_least(driver_version, minor):
        text = "driver {} runs CUDA {} through minor-version compatibility: PTX and newer features may fail".format(driver_version, cuda)
        return Answer(YES, text + (" (full from {})".format(full) if full else ""), "nvidia_document", _SOURCE)
    return _forward(driver_version, cuda, data_center, compat_branches, minor or full or "")


def _forward(driver: str, cuda: str, data_center: Optional[bool], branches: Optional[Sequence[str]], floor: str) -> Answer:
    too_old = "driver {} is too old for CUDA {}: it needs {} or newer".format(driver, cuda, floor)
    if branches is None or data_center is False:
        return Answer(NO, too_old, "nvidia_document", _SOURCE)
    known = _known_branches(cuda, branches)
    if known and not _in_branch(driver, known):
        return Answer(NO, too_old + ", also with the image's compat package", "nvidia_document", _SOURCE)
    if not known:
        text = too_old + "; the image's compat package may help on a data-center GPU, from branches that are not known"
        return Answer(UNKNOWN, text, "unsourced", _SOURCE)
    if data_center is None:
        return Answer(UNKNOWN, too_old + "; the image's compat package helps only on a data-center GPU", "nvidia_document", _SOURCE)
    text = "driver {} runs CUDA {} through the image's compat package".format(driver, cuda)
    return Answer(YES, text, "nvidia_document", _SOURCE)


def _known_branches(cuda: str, branches: Sequence[str]) -> List[str]:
    # the pages of CUDA 13 images carry a stale CUDA 12 list, or none: the image's own NVIDIA_REQUIRE_CUDA is what holds
    if parse(cuda)[0] == 13:
        return list(load("drivers")["forward_compatibility"]["cuda_13"]["branches"])
    return list(branches)
