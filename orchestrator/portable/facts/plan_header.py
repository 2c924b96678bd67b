"""Reads the first and last bytes of a serialized engine ("plan"), without TensorRT and without a GPU.

Rules and their sources: docs/facts/plan_header.yaml. A field that is not proven for a version is reported as None, never as damage.
"""

import os
from typing import Any, Dict, List, Optional, Tuple

from .data import load
from .file_kind import metadata_prefix, sniff
from .version import compare

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 4 * 1024
_TENSORRT_MAGIC = b"ftrt"
_RTX_MAGIC = b"vtrt"
_RTX_HEADER_BYTES = 64
_RTX_SECTIONS = 64  # the section table: entries of 24 bytes: tag, 0, offset, size
_MINIMUM_BYTES = 32
# a line feed in binary data follows a carriage return once in 256 times: three of three is no chance
_ENOUGH_LINE_FEEDS = 3
_REPLACEMENT = b"\xef\xbf\xbd"  # what a text decoder leaves of a byte that is not UTF-8

_FIX_COPY = "copy it again in binary mode (scp, rsync, git with '*.engine binary' in .gitattributes), or build it again"
_FIX_AGAIN = "copy or download it again and compare the digest with the manifest, or build it again"


def read(path: str) -> Dict[str, Any]:
    """Describe the file at ``path``; reads at most its first 64 KiB (after a metadata prefix as many again) and last 4 KiB.

    Keys: "kind" ("tensorrt", "tensorrt-rtx", "tensorrt-7" or "not-a-plan"), "version" ("8.6.1.6"), "serialization" (the tag that old
    versions print), "declared_size" (bytes), "capabilities" (TensorRT-RTX only), "platform_tag", "prefix_bytes" (length of an
    Ultralytics prefix), "size" (bytes of the file), "problems" (list of {"kind", "text", "fix"}; kind is "corrupt-engine" or
    "wrong-file-type") and "file_kind" (of a file that is not a plan: what :func:`file_kind.sniff` says). What is not known is None.
    Raises OSError when the file cannot be read.
    """
    with open(path, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        head = stream.read(HEAD_BYTES)
        prefix = metadata_prefix(head, size) or 0
        plan = head
        if prefix:
            stream.seek(prefix)
            plan = stream.read(HEAD_BYTES)
        stream.seek(max(0, size - TAIL_BYTES))
        tail = stream.read(TAIL_BYTES)
    return _describe(head, plan, prefix, size, tail)


def read_bytes(head: bytes, size: int, tail: bytes) -> Dict[str, Any]:
    """As :func:`read`, from the first bytes, the size of the whole file, and its last bytes (at least 4).

    A metadata prefix longer than ``head`` leaves the plan's own fields unknown.
    """
    prefix = metadata_prefix(head, size) or 0
    return _describe(head, head[prefix:], prefix, size, tail)


def _describe(head: bytes, plan: bytes, prefix: int, size: int, tail: bytes) -> Dict[str, Any]:
    magic = plan[:4]
    if magic not in (_TENSORRT_MAGIC, _RTX_MAGIC):
        return _not_a_plan(head, size)
    facts: Dict[str, Any] = {
        "kind": "tensorrt" if magic == _TENSORRT_MAGIC else "tensorrt-rtx",
        "version": None,
        "serialization": None,
        "declared_size": None,
        "capabilities": None,
        "platform_tag": None,
        "prefix_bytes": prefix,
        "size": size,
        "problems": [],
        "file_kind": None,
    }
    if prefix:
        text = "{} bytes of metadata come before the plan, as Ultralytics exports it: a plain loader refuses the file".format(prefix)
        facts["problems"].append(_problem("wrong-file-type", text, "skip the first {} bytes, or export without metadata".format(prefix)))
    plan_size = size - prefix
    if plan_size < _MINIMUM_BYTES or len(plan) < _MINIMUM_BYTES:
        text = "the plan is cut: {} bytes, less than its header".format(plan_size)
        facts["problems"].append(_problem("corrupt-engine", text, _FIX_AGAIN))
        return facts
    feeds, pairs = _line_feeds(plan, tail)
    suspicious = 0 < feeds == pairs
    _read_fields(facts, plan.replace(b"\r\n", b"\n") if suspicious else plan)
    grown = facts["declared_size"] is not None and facts["declared_size"] < plan_size
    if suspicious and (grown or feeds >= _ENOUGH_LINE_FEEDS):
        text = "the plan was damaged by a text-mode transfer: every line feed (0A) became 0D 0A (old TensorRT says 'got 0.0.0')"
        facts["problems"].append(_problem("wrong-file-type", text, _FIX_COPY))
    elif plan[:HEAD_BYTES].count(_REPLACEMENT) >= _ENOUGH_LINE_FEEDS:
        text = "the plan was damaged by a text conversion: bytes became the UTF-8 replacement character"
        facts["problems"].append(_problem("wrong-file-type", text, _FIX_COPY))
    else:
        facts["problems"].extend(_damage(facts, plan, plan_size, tail))
    return facts


def _not_a_plan(head: bytes, size: int) -> Dict[str, Any]:
    kind = sniff(head, size)
    empty = kind["kind"] == "empty"
    text = kind["text"] if empty else "not an engine: this is {}".format(kind["text"])
    if kind["kind"] == "unknown":
        text = "not an engine: it starts with {}, not with ftrt or vtrt".format(" ".join("{:02x}".format(byte) for byte in head[:4]))
    return {
        "kind": "not-a-plan",
        "version": None,
        "serialization": None,
        "declared_size": None,
        "capabilities": None,
        "platform_tag": None,
        "prefix_bytes": 0,
        "size": size,
        "problems": [_problem("corrupt-engine" if empty else "wrong-file-type", text, kind["fix"])],
        "file_kind": kind,
    }


def _problem(kind: str, text: str, fix: str) -> Dict[str, str]:
    return {"kind": kind, "text": text, "fix": fix}


def _number(data: bytes, offset: int, length: int) -> int:
    return int.from_bytes(data[offset : offset + length], "little")


def _read_fields(facts: Dict[str, Any], plan: bytes) -> None:
    outer = _number(plan, 4, 4)
    if facts["kind"] == "tensorrt" and outer != 0:
        facts["kind"], facts["serialization"] = "tensorrt-7", outer
        return
    facts["version"] = ".".join(str(byte) for byte in plan[24:28])
    if facts["kind"] == "tensorrt-rtx":
        facts["declared_size"] = _number(plan, 16, 8)
        mask = _number(plan, 32, 4)
        bits: Dict[str, int] = load("plan_header")["tensorrt_rtx"]["capability_mask"]
        facts["capabilities"] = [name for name, bit in sorted(bits.items(), key=lambda item: item[1]) if mask & bit]
    elif _has_size_field(facts["version"]):
        facts["declared_size"] = _number(plan, 16, 8)
        facts["platform_tag"] = _number(plan, 28, 4)
    else:
        facts["serialization"] = _number(plan, 8, 4)


def _has_size_field(version: str) -> bool:
    known = load("plan_header")["tensorrt"]["size_checked"]
    return compare(version, known["first"]) >= 0 and compare(version, known["last"]) <= 0


def _line_feeds(plan: bytes, tail: bytes) -> Tuple[int, int]:
    """How many line feeds there are, and how many of them follow a carriage return."""
    return plan.count(b"\n") + tail[1:].count(b"\n"), plan.count(b"\r\n") + tail.count(b"\r\n")


def _damage(facts: Dict[str, Any], plan: bytes, size: int, tail: bytes) -> List[Dict[str, str]]:
    """What the runtime would refuse: size, header, section table and end mark, each only where it is proven for the version."""
    declared: Optional[int] = facts["declared_size"]
    if declared is not None and declared != size:
        text = "the plan is {}: its header says {} bytes, the file has {}".format("cut" if size < declared else "too long", declared, size)
        return [_problem("corrupt-engine", text, _FIX_AGAIN)]
    if facts["kind"] != "tensorrt-rtx":
        return []
    problems = []
    if _number(plan, 4, 4) != 0 or plan[28:32] != _RTX_MAGIC:
        problems.append(_problem("corrupt-engine", "the plan's header is damaged: its fixed bytes differ", _FIX_AGAIN))
    elif not _sections_fit(plan, size):
        problems.append(_problem("corrupt-engine", "the plan's section table is damaged: a section lies outside the file", _FIX_AGAIN))
    if tail[-4:] != bytes(bytearray.fromhex(load("plan_header")["tensorrt_rtx"]["end_mark"])):
        problems.append(_problem("corrupt-engine", "the plan's end mark is missing: its end was cut or overwritten", _FIX_AGAIN))
    return problems


def _sections_fit(plan: bytes, size: int) -> bool:
    count = _number(plan, 8, 8)
    cursor = _RTX_SECTIONS + 24 * count
    if not 0 < count <= 64 or len(plan) < cursor:
        return False
    for index in range(count):
        entry = _RTX_SECTIONS + 24 * index
        offset, length = _number(plan, entry + 8, 8), _number(plan, entry + 16, 8)
        if offset < cursor or offset + length > size - 4:
            return False
        cursor = offset + length
    return True
