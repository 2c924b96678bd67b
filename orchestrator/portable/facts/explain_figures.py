"""Turns the named groups of a pattern into figures: numbers decoded, and which side built and which side runs."""

import struct
from typing import Any, Dict

from .file_kind import sniff

# figure of the engine, figure of this runtime or device: docs/facts/engine_rules.yaml, "expecting <this side> got <the engine>"
PAIRS = (("built_trt", "runtime_trt"), ("built_cc", "device_cc"), ("serialized_tag", "current_tag"))

_WHOLE = (
    "current_tag",
    "serialized_tag",
    "cuda_error",
    "needed_mb",
    "available_mb",
    "requested_bytes",
    "available_bytes",
    "exit_code",
    "opset",
    "max_opset",
)

# CUDA's own names: cuda.h and driver_types.h of CUDA 11 to 13
CUDA_ERRORS = {
    1: "cudaErrorInvalidValue",
    2: "cudaErrorMemoryAllocation",
    3: "cudaErrorInitializationError",
    34: "cudaErrorStubLibrary",
    35: "cudaErrorInsufficientDriver",
    46: "cudaErrorDevicesUnavailable",
    48: "cudaErrorNoKernelImageForDevice (before CUDA 10.1)",
    98: "cudaErrorInvalidDeviceFunction",
    100: "cudaErrorNoDevice",
    101: "cudaErrorInvalidDevice",
    209: "cudaErrorNoKernelImageForDevice",
    222: "cudaErrorUnsupportedPtxVersion",
    304: "cudaErrorOperatingSystem",
    700: "cudaErrorIllegalAddress",
    702: "cudaErrorLaunchTimeout",
    719: "cudaErrorLaunchFailure",
    802: "cudaErrorSystemNotReady",
    803: "cudaErrorSystemDriverMismatch",
    804: "cudaErrorCompatNotSupportedOnDevice",
    999: "cudaErrorUnknown",
}


def figures_of(groups: Dict[str, Any]) -> Dict[str, Any]:
    """Figures of one match; groups that took no part are left out. Names end up as they are in docs/troubleshooting.md."""
    figures = {}  # type: Dict[str, Any]
    for name, text in groups.items():
        if text is None or not text.strip():
            continue
        text = text.strip().strip("'\"`").rstrip(".,;:") or text
        if name.startswith("sm_"):
            figures["device_cc"] = _capability(name, text)
        elif name == "magic":
            figures.update(_first_bytes(int(text)))
        else:
            figures[name] = int(text) if name in _WHOLE and text.isdigit() else text
    if figures.get("cuda_error") in CUDA_ERRORS:
        figures["cuda_error_name"] = CUDA_ERRORS[figures["cuda_error"]]
    for built, runs in PAIRS:
        if built in figures and runs in figures:
            figures["built_with"], figures["runs_on"] = figures[built], figures[runs]
    return figures


def _capability(name: str, text: str) -> str:
    """A compute capability from TensorRT's numbers: 0x809 is 8.9 (hex: major, two digits of minor), SM 120 is 12.0."""
    if name == "sm_hex":
        value = int(text, 16)
        return "{}.{}".format(value >> 8, value & 0xFF)
    return "{}.{}".format(text[:-1], text[-1])


def _first_bytes(number: int) -> Dict[str, Any]:
    """What kind of file begins with the four bytes that TensorRT printed as a little-endian number."""
    head = struct.pack("<I", number & 0xFFFFFFFF)
    shown = "".join(chr(byte) if 32 <= byte < 127 else "\\x{:02x}".format(byte) for byte in head)
    kind = sniff(head, 1 << 20)["kind"]
    if kind in ("unknown", "pickle", "text", "json"):
        kind = _guess(head) or kind
    return {"first_bytes": shown, "file_kind": kind, "file_is": _NAMED.get(kind, "no engine that is known")}


def _guess(head: bytes) -> str:
    """A kind from four bytes alone, where a longer head would be needed to be sure."""
    if head[:1] == b"\x08" and head[2:3] in (b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x3a", b"\x42"):
        return "onnx-like"
    if head == b"vers":
        return "git-lfs-pointer"
    if head[:1] == b"<":
        return "html"
    if head[:1] == b"\x80" and 2 <= head[1] <= 5:
        return "pickle"
    return "metadata-prefix" if head[2:] == b"\0\0" else ""


_NAMED = {
    "onnx-like": "an ONNX model",
    "rtx-plan": "a TensorRT-RTX engine",
    "tensorrt-plan": "a TensorRT engine",
    "zip": "a zip archive (PyTorch saves these)",
    "torch-zip": "a PyTorch file",
    "html": "a web page",
    "git-lfs-pointer": "a Git LFS pointer",
    "gzip": "a gzip archive",
    "json": "a JSON text",
    "text": "a text",
    "pickle": "a Python pickle",
    "metadata-prefix": "something with a length in front, as Ultralytics writes before its engines",
}
