"""What is known of NVIDIA's container images and of JetPack without pulling anything.

Sources: docs/facts/ngc_tensorrt.yaml, docs/facts/jetson.yaml. An image that they do not hold is unknown, not refused.
"""

import re
from typing import Any, Dict, List, Optional, Tuple

from .answer import NO, UNKNOWN, YES, Answer
from .capability import family, is_jetson, key
from .data import load
from .version import matches, parse

_NGC = "docs/facts/ngc_tensorrt.yaml"
_JETSON = "docs/facts/jetson.yaml"
_MONTH = re.compile(r"^(\d\d\.\d\d)-py3(-[a-z0-9]+)?$")


def split_reference(reference: str) -> Tuple[str, str]:
    """``"nvcr.io/nvidia/tensorrt:23.09-py3@sha256:..."`` -> repository and tag ("" when it has none)."""
    name = reference.strip().split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return head + slash + last, tag


def _is_ngc(repository: str) -> bool:
    # a mirror serves the same image under another registry name
    return repository == "nvcr.io/nvidia/tensorrt" or repository.endswith("/nvidia/tensorrt")


def image_facts(reference: str) -> Optional[Dict[str, Any]]:
    """What an image holds, or None when the facts do not know it.

    Keys: image, tensorrt (None = not known), tensorrt_from ("image", "host" or "none"), cuda, python, driver_min, driver_datacenter
    (compat branches; [] = unknown), cc_min, platforms, jetpack (condition on the device, None off Jetson), confidence
    (per "tensorrt", "cuda", "driver"), note, source. Values that are not known are None.
    """
    repository, tag = split_reference(reference)
    if _is_ngc(repository):
        for row in load("ngc_tensorrt")["releases"]:
            if row["tag"] == tag:
                return _ngc_row(reference, row)
    for row in load("jetson")["images"]:
        same = repository == row["repository"] or repository.endswith("/" + row["repository"].split("/", 1)[1])
        if same and (tag in row["tags"] or ("tag_prefix" in row and tag.startswith(row["tag_prefix"]))):
            return _jetson_row(reference, row)
    return None


def _ngc_row(reference: str, row: Dict[str, Any]) -> Dict[str, Any]:
    facts = {"image": reference, "tensorrt_from": "image", "jetpack": None, "note": row.get("note", ""), "source": _NGC}
    for name in ("tensorrt", "cuda", "python", "driver_min", "driver_datacenter", "cc_min", "platforms", "confidence"):
        facts[name] = row[name]
    if "tensorrt_arm64" in row:
        facts["tensorrt_arm64"] = row["tensorrt_arm64"]
    return facts


def _jetson_row(reference: str, row: Dict[str, Any]) -> Dict[str, Any]:
    device = jetpack_facts(row["like"]) if "like" in row else None
    confidence = row["confidence"]
    return {
        "image": reference,
        "tensorrt": row.get("tensorrt") or (device["tensorrt"] if device else None),
        "tensorrt_from": row["tensorrt_from"],
        "cuda": device["cuda"] if device else None,
        "python": device["python"] if device else None,
        "driver_min": None,
        "driver_datacenter": [],
        "cc_min": device["cc"][0] if device else None,
        "platforms": ["linux/arm64"],
        "jetpack": row["jetpack"],
        "confidence": {"tensorrt": confidence, "cuda": confidence, "driver": confidence},
        "note": row.get("how") or row.get("note", ""),
        "source": _JETSON,
    }


def image_problem(reference: str) -> Optional[Tuple[str, str]]:
    """(what, fix) for an image that is known not to exist, else None."""
    repository, tag = split_reference(reference)
    if not _is_ngc(repository):
        return None
    for row in load("jetson")["not_published"]:
        if tag.endswith(row["tag_suffix"]):
            month = tag[: -len(row["tag_suffix"])]
            picked = row["use_for"].get(month, range(len(row["use"])))
            fixes = ["{}: {}".format(*row["use"][index]) for index in picked]
            return "{} does not exist: no tag of this repository ends in -jetpack".format(reference), "; ".join(fixes)
    match = _MONTH.match(tag)
    if match and match.group(1) in load("ngc_tensorrt")["not_published"]:
        tags = [row["tag"] for row in load("ngc_tensorrt")["releases"]]
        older = [name for name in tags if name < tag]
        newer = [name for name in tags if name > tag]
        return "{} was never published".format(reference), "take {}".format(" or ".join(older[-1:] + newer[:1]))
    return None


def image_supports(reference: str, capability: str) -> Answer:
    """Whether engines for a compute capability can be built in an image at all (TensorRT's own range is asked separately)."""
    facts = image_facts(reference)
    if facts is None:
        return Answer(UNKNOWN, "{} is not in the facts".format(reference), "unsourced", _NGC)
    ngc = facts["source"] == _NGC
    named = "compute capability {} ({})".format(capability, family(capability))
    if ngc and is_jetson(capability):
        sbsa = [row["jetpack"] for row in load("jetson")["jetpack"] if parse(row["jetpack"])[0] >= 7 and capability in row["cc"]]
        if sbsa:
            text = "{} builds for {} only on a device with JetPack {} or newer".format(reference, named, sbsa[0])
            return Answer(UNKNOWN, text, "inferred", _JETSON)
        return Answer(NO, "{} is an image for discrete GPUs; {} is a Jetson".format(reference, named), "nvidia_document", _JETSON)
    if not ngc and not is_jetson(capability):
        return Answer(NO, "{} is an image for Jetson; {} is a discrete GPU".format(reference, named), "secondary", _JETSON)
    if facts["cc_min"] and key(capability) < key(facts["cc_min"]):
        text = "{} needs compute capability {} or newer, not {}".format(reference, facts["cc_min"], capability)
        return Answer(NO, text, facts["confidence"]["driver"], facts["source"])
    return Answer(YES, "{} takes {}".format(reference, named), facts["confidence"]["tensorrt"], facts["source"])


def jetpack_facts(jetpack_version: str) -> Optional[Dict[str, Any]]:
    """The row of a JetPack release ("4.6.1", "6.1 rev.1"): jetpack, l4t (list), tensorrt, cuda, python, cc (list); None when unknown."""
    for row in load("jetson")["jetpack"]:
        if row["jetpack"] == jetpack_version.strip():
            return dict(row)
    try:
        wanted = parse(jetpack_version)
    except ValueError:
        return None
    final = [row for row in load("jetson")["jetpack"] if parse(row["jetpack"]) == wanted]
    return final[-1] if final else None


def jetpack_of_l4t(l4t: str) -> Optional[str]:
    """The JetPack of an L4T release: ``"32.7.1"`` -> ``"4.6.1"``; None when the facts do not hold it."""
    for row in load("jetson")["jetpack"]:
        if any(matches(l4t, release) and len(parse(l4t)) >= len(parse(release)) for release in row["l4t"]):
            return str(row["jetpack"])
    return None


def jetpacks_with(tensorrt: str, capability: str) -> List[Dict[str, Any]]:
    """JetPack releases that carry this TensorRT (to the precision given) for a device of this capability."""
    rows = load("jetson")["jetpack"]
    return [row for row in rows if row["tensorrt"] and matches(row["tensorrt"], tensorrt) and capability in row["cc"]]
