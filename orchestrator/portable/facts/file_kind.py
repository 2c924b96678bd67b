"""What a file is, from its first bytes: people hand over downloads that failed, archives and engines under a model's name."""

import re
from typing import Any, Dict, List, Optional, Tuple

_TORCH_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # torch.save before the zip format
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_HTML = re.compile(rb"^(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)?<(?:!doctype\s+html|html|head|body|title)\b", re.IGNORECASE | re.DOTALL)

_TEXTS = {
    "empty": ("the file is empty (0 bytes)", "make or download it again; nothing was written into it"),
    "html": (
        "a web page (HTML): the download saved a page instead of the file",
        "download it again and look at its size; log in if the site asks for it",
    ),
    "git-lfs-pointer": ("a Git LFS pointer: the real file was not fetched", "git lfs install && git lfs pull"),
    "zip": ("a zip archive", "unpack it and give the file inside"),
    "torch-zip": (
        "a PyTorch file (zip): a state dict, TorchScript or torch2trt state, neither an ONNX model nor a raw TensorRT plan",
        "export the model with torch.onnx.export; of a torch2trt state save module.engine.serialize()",
    ),
    "tensorrt-plan": (
        "a TensorRT engine (plan), not an ONNX model",
        "load it with TensorRT; to build, give the ONNX model it was made from",
    ),
    "rtx-plan": ("a TensorRT-RTX engine, not an ONNX model", "load it with TensorRT-RTX; to build, give the ONNX model it was made from"),
    "gzip": ("a gzip archive", "unpack it (gunzip, or tar xzf) and give the file inside"),
    "json": ("a JSON text, neither a model nor an engine", "give the .onnx or .engine file"),
    "pickle": ("a Python pickle, neither an ONNX model nor a raw TensorRT plan", "export the model with torch.onnx.export"),
    "text": ("a plain text, neither a model nor an engine", "give the .onnx or .engine file"),
    "onnx-like": ("an ONNX model, not an engine", "build an engine from it"),
    "unknown": ("no known kind of model or engine", "check where the file comes from and that it was copied whole"),
}  # type: Dict[str, Tuple[str, str]]


def sniff(head: bytes, size: int) -> Dict[str, Any]:
    """Name the kind of a file of ``size`` bytes that starts with ``head`` (a few hundred bytes are enough).

    Gives "kind" (a key of the table above), "text" (what it is, for people) and "fix" (what to do when something else was meant).
    """
    kind = _kind(head, size)
    text, fix = _TEXTS[kind]
    if kind == "tensorrt-plan" and not head.startswith(b"ftrt"):
        text = "a TensorRT engine (plan) behind a metadata prefix, as Ultralytics exports it"
    return {"kind": kind, "text": text, "fix": fix}


def _kind(head: bytes, size: int) -> str:
    if size == 0 or not head:
        return "empty"
    if head.startswith(b"ftrt"):
        return "tensorrt-plan"
    if head.startswith(b"vtrt"):
        return "rtx-plan"
    if metadata_prefix(head, size) is not None:
        return "tensorrt-plan"
    if head.startswith(_ZIP_STARTS):
        return "torch-zip" if _is_torch_zip(head) else "zip"
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(_TORCH_LEGACY) or _is_pickle(head):
        return "pickle"
    return _text_kind(head) or ("onnx-like" if is_onnx_like(head, size) else "unknown")


def _text_kind(head: bytes) -> Optional[str]:
    text = _as_text(head)
    if text is None:
        return None
    if text.startswith(b"version https://git-lfs.github.com/spec/"):
        return "git-lfs-pointer"
    if _HTML.match(text):
        return "html"
    if text[:1] in (b"{", b"[") and re.match(rb"^(?:\{\s*(?:\"|\}|$)|\[\s*(?:[\[{\"\d\]-]|$))", text):
        return "json"
    return "text"


def _as_text(head: bytes) -> Optional[bytes]:
    """``head`` without byte order mark and leading blanks when it is text (UTF-8, UTF-16 with mark), else None."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        try:
            return head[: len(head) // 2 * 2].decode("utf-16").encode("utf-8").lstrip()
        except UnicodeDecodeError:
            return None
    body = head[3:] if head.startswith(b"\xef\xbb\xbf") else head
    if re.search(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]", body):
        return None
    for cut in range(4):  # the head may end inside a character
        try:
            body[: len(body) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return body.lstrip()
    return None


def _is_torch_zip(head: bytes) -> bool:
    # torch.save writes <name>/data.pkl first; TorchScript <name>/data.pkl or <name>/code/..., newer ones <name>/.format_version
    name_length = int.from_bytes(head[26:28], "little")
    name = head[30 : 30 + name_length]
    return bool(re.match(rb"^[^/]+/(?:data\.pkl|constants\.pkl|version|byteorder|code/|\.format_version|\.data/)", name))


def _is_pickle(head: bytes) -> bool:
    if len(head) < 3 or head[0] != 0x80 or not 2 <= head[1] <= 5:
        return False
    return head[2:3] == b"\x95" if head[1] >= 4 else head[2:3] in (b"}", b"]", b"(", b"c", b"X", b"K", b"G", b"\x8a")


def metadata_prefix(head: bytes, size: int) -> Optional[int]:
    """Length of an Ultralytics prefix (4-byte little-endian length + JSON) before a plan, or None.

    When ``head`` ends before the prefix does, its beginning alone decides.
    """
    if len(head) < 6 or head[4:5] != b"{":
        return None
    length = int.from_bytes(head[:4], "little")
    if not 2 <= length <= min(16 * 1024 * 1024, size - 4) or not re.match(rb"^\{\s*[\"}]", head[4:68]):
        return None
    magic = head[4 + length : 8 + length]
    return 4 + length if magic in (b"ftrt", b"vtrt") or len(magic) < 4 else None


# Fields of onnx.ModelProto (onnx.proto): number -> wire type
_MODEL_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
_TELLING = {7, 8}  # graph, opset_import: every model has them


def is_onnx_like(head: bytes, size: int) -> bool:
    """Whether ``head`` reads as the beginning of a protobuf with the fields of an ONNX model."""
    position = 0
    seen: List[int] = []
    while position < len(head) and len(seen) < 16:
        tag, after = _varint(head, position)
        if tag is None:
            break
        number, wire = tag >> 3, tag & 7
        if _MODEL_FIELDS.get(number) != wire:
            return False
        value, after = _varint(head, after)
        if value is None:
            break
        if wire == 2:
            after += value
            if after > size:
                return bool(seen)  # a model that is cut inside its graph is still meant to be one
        seen.append(number)
        position = after
    return bool(_TELLING.intersection(seen)) or seen[:1] == [1]


def _varint(data: bytes, position: int) -> Tuple[Optional[int], int]:
    value = 0
    for index in range(10):
        if position + index >= len(data):
            return None, position
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    return None, position
