"""What a file is, from its first bytes: people hand over downloads that failed, archives and engines under a model's name."""

import re
from typing import Any, Dict, List, Optional, Tuple

_TORCH_LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"  # torch.save before the zip format
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_HTML = re.compile(rb"^(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)?<(?:!doctype\s+html|html|head|body|title)\b", re.IGNORECASE | re.DOTALL)

# (offset, bytes there, kind): what the formats' own descriptions give as their signature
_SIGNATURES = (
    (0, b"ftrt", "tensorrt-plan"),
    (0, b"vtrt", "rtx-plan"),
    (0, b"\x1f\x8b", "gzip"),
    (0, b"\xfd7zXZ\x00", "xz"),
    (0, b"\x28\xb5\x2f\xfd", "zstd"),
    (4, b"1AY&SY", "bzip2"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z"),
    (257, b"ustar", "tar"),
    (0, b"\x7fELF", "program"),
    (0, b"\xcf\xfa\xed\xfe", "program"),  # Mach-O, 64 bits
    (0, b"\x89PNG\r\n\x1a\n", "image"),
    (0, b"\xff\xd8\xff", "image"),  # JPEG
    (0, b"GIF8", "image"),
    (0, b"\x89HDF\r\n\x1a\n", "hdf5"),
    (0, b"\x93NUMPY", "numpy"),
    (0, b"PAR1", "parquet"),
    (0, b"GGUF", "gguf"),
    (4, b"TFL3", "tflite"),  # flatbuffers carry their identifier at 4
    (4, b"ORTM", "ort"),
    (4, b"ET12", "executorch"),
)

_ENOUGH_ZEROS = 64  # bytes: no format that is meant here begins with as many
_VARINT = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
# saved_model.pb: schema version 1, a MetaGraphDef, in it a MetaInfoDef with a list of operators, a tag or a version
_SAVED_MODEL = re.compile(rb"\x08\x01\x12" + _VARINT + rb"\x0a" + _VARINT + rb"[\x12\x22\x2a\x32]")
# GraphDef: a NodeDef, in it a name and an operator
_GRAPH_DEF = re.compile(rb"\x0a" + _VARINT + rb"\x0a[\x01-\x7f][\w./-]+\x12[\x01-\x7f][A-Z]\w")
# Core ML: specification version, a description, in it an input, in it a name
_CORE_ML = re.compile(rb"\x08[\x01-\x14]\x12" + _VARINT + rb"\x0a" + _VARINT + rb"\x0a")

_TORCH_EXPORT = "export the model with torch.onnx.export"
_TF_EXPORT = "convert it to ONNX: python -m tf2onnx.convert --{} PATH --output model.onnx"
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
    "pickle": ("a Python pickle, neither an ONNX model nor a raw TensorRT plan", _TORCH_EXPORT),
    "xz": ("an xz archive", "unpack it (xz -d, or tar xJf) and give the file inside"),
    "zstd": ("a Zstandard archive", "unpack it (zstd -d, or tar --zstd -xf) and give the file inside"),
    "bzip2": ("a bzip2 archive", "unpack it (bunzip2, or tar xjf) and give the file inside"),
    "7z": ("a 7-Zip archive", "unpack it (7z x) and give the file inside"),
    "tar": ("a tar archive", "unpack it (tar xf) and give the file inside"),
    "program": (
        "a compiled program or library, neither a model nor an engine",
        "give the .onnx or .engine file; a library of plugins belongs in `plugins:` of a target",
    ),
    "image": ("an image, neither a model nor an engine", "give the .onnx or .engine file"),
    "hdf5": (
        "an HDF5 file, as Keras saves models and weights",
        'in Keras: keras.models.load_model(PATH).export("model.onnx", format="onnx")',
    ),
    "keras-zip": ("a Keras model (zip), not an ONNX model", 'in Keras: keras.models.load_model(PATH).export("model.onnx", format="onnx")'),
    "tflite": ("a TensorFlow Lite model, not an ONNX model", _TF_EXPORT.format("tflite")),
    "tf-saved-model": ("a TensorFlow SavedModel, not an ONNX model", _TF_EXPORT.format("saved-model").replace("PATH", "FOLDER")),
    "tf-graph": (
        "a TensorFlow graph (GraphDef), not an ONNX model",
        _TF_EXPORT.format("graphdef") + " --inputs NAME:0 --outputs NAME:0",
    ),
    "coreml": ("a Core ML model, not an ONNX model", "export the model to ONNX from where it was trained"),
    "executorch": ("an ExecuTorch program, not an ONNX model", _TORCH_EXPORT),
    "ort": ("an ONNX Runtime model in .ort format, not an ONNX model", "give the ONNX model that it was made from"),
    "safetensors": ("a safetensors file: weights without the network that uses them", "load them into the model and use torch.onnx.export"),
    "gguf": ("a GGUF file: weights for llama.cpp, without a network", "export the model to ONNX from where it was trained"),
    "numpy": ("a NumPy array, neither a model nor an engine", "give the .onnx or .engine file; an array can be a sample (`samples:`)"),
    "parquet": ("a Parquet table, neither a model nor an engine", "give the .onnx or .engine file"),
    "zeros": (
        "nothing but zero bytes where a file begins: space was reserved for it and its content never arrived",
        "copy or download it again",
    ),
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
    for offset, magic, kind in _SIGNATURES:
        if head.startswith(magic, offset):
            return kind
    if metadata_prefix(head, size) is not None:
        return "tensorrt-plan"
    if head.startswith(_ZIP_STARTS):
        return _zip_kind(head)
    if head.startswith(_TORCH_LEGACY) or _is_pickle(head):
        return "pickle"
    if len(head) >= min(size, _ENOUGH_ZEROS) and not any(head):
        return "zeros"
    return _text_kind(head) or _binary_kind(head, size)


def _binary_kind(head: bytes, size: int) -> str:
    if _is_safetensors(head, size):
        return "safetensors"
    if head[:2] == b"MZ":
        return "program"
    if _SAVED_MODEL.match(head):
        return "tf-saved-model"
    if _GRAPH_DEF.match(head):
        return "tf-graph"
    if _CORE_ML.match(head):
        return "coreml"
    return "onnx-like" if is_onnx_like(head, size) else "unknown"


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


def _zip_kind(head: bytes) -> str:
    """From the name of the archive's first file."""
    name_length = int.from_bytes(head[26:28], "little")
    name = head[30 : 30 + name_length]
    # torch.save writes <name>/data.pkl first; TorchScript <name>/data.pkl or <name>/code/..., newer ones <name>/.format_version
    if re.match(rb"^[^/]+/(?:data\.pkl|constants\.pkl|version|byteorder|code/|\.format_version|\.data/)", name):
        return "torch-zip"
    if re.match(rb"^(?:metadata\.json|config\.json|model\.weights\.h5)$", name):
        return "keras-zip"
    return "coreml" if re.search(rb"\.ml(?:package|modelc)/", name) else "zip"


def _is_safetensors(head: bytes, size: int) -> bool:
    """Eight bytes with the length of a JSON header, then that header."""
    length = int.from_bytes(head[:8], "little")
    return 2 <= length <= size - 8 and re.match(rb"^\{\s*[\"}]", head[8:64]) is not None


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
