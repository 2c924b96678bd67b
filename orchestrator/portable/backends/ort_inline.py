"""A model and its external data as one ONNX file: weights move into the graph, every other byte stays as it is.

ONNX Runtime writes the references of the model that it was given into the file that it saves, and the weights stay where they were:
such a file is no engine. No protobuf library is there where the worker runs, so this walks the wire format of onnx.proto
(https://github.com/onnx/onnx/blob/main/onnx/onnx.proto) itself; memory stays flat.
"""

import mmap
import os
import stat
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from ..worker.errors import StepError, quoted
from ..worker.files import CHUNK_BYTES

# message -> number of a field -> message in it, for all fields that can lead to a tensor
_INNER: Dict[str, Dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_DIMS, _DATA_TYPE, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 1, 2, 9, 13, 14  # of TensorProto
_EXTERNAL = 1  # TensorProto.DataLocation
# TensorProto.DataType -> bits of one element, for a tensor that does not say how many bytes it has
_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
    17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2, 27: 6, 28: 6,
}  # fmt: skip
_MAX_DEPTH = 100  # protobuf's own readers go no deeper
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# What the new file consists of: bytes, a range of the model (None, start, end), or a range of a side file (location, start, end)
Piece = Union[bytes, Tuple[Optional[str], int, int]]
Field = Tuple[int, int, int, int, int]  # number, wire type, value or length, start of the field, start of its payload


class _DamagedError(ValueError):
    """The bytes are no ONNX model."""


def self_contained(model: str, temporary: str) -> str:
    """``model`` when all its weights are inside, else ``temporary``, written with them. StepError when a side file is not as named."""
    pieces = pieces_of(model)
    if not pieces:
        return model
    folder = os.path.dirname(model)
    with open(temporary, "wb") as file:
        for piece in pieces:
            if isinstance(piece, bytes):
                file.write(piece)
                continue
            location, start, end = piece
            for chunk in _read(model if location is None else _side_file(folder, location), start, end):
                file.write(chunk)
    return temporary


def pieces_of(path: str) -> List[Piece]:
    """What the file at ``path`` with its external data inside consists of; empty when it has none, or is no ONNX file."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _message(data, 0, len(data), "model", 0) or []
            except ValueError:  # ONNX Runtime says what is wrong with it
                return []


def _message(data: Any, start: int, end: int, kind: str, depth: int) -> Optional[List[Piece]]:
    """The message ``data[start:end]`` with external data inside; None when it has none."""
    if depth > _MAX_DEPTH:
        raise _DamagedError
    pieces: List[Piece] = []
    kept = start
    for number, wire, length, begin, payload in _fields(data, start, end):
        inner = _INNER[kind].get(number)
        if inner is None or wire != _BYTES:
            continue
        stop = payload + length
        changed = _tensor(data, payload, stop) if inner == "tensor" else _message(data, payload, stop, inner, depth + 1)
        if changed is not None:
            pieces += [(None, kept, begin), _header(number, sum(map(_size, changed))), *changed]
            kept = stop
    return [*pieces, (None, kept, end)] if pieces else None


def _tensor(data: Any, start: int, end: int) -> Optional[List[Piece]]:
    pieces: List[Piece] = []
    entries: Dict[str, str] = {}
    elements, data_type, location = 1, 0, 0
    for number, wire, value, begin, payload in _fields(data, start, end):
        stop = payload + (value if wire == _BYTES else 0)
        if number == _EXTERNAL_DATA and wire == _BYTES:
            key_value = {inner[0]: data[inner[4] : inner[4] + inner[2]] for inner in _fields(data, payload, stop) if inner[1] == _BYTES}
            entries[key_value.get(1, b"").decode("utf-8", "replace")] = key_value.get(2, b"").decode("utf-8", "replace")
            continue
        if number in (_RAW_DATA, _DATA_LOCATION):
            location = value if number == _DATA_LOCATION else location
            continue
        if number == _DIMS:
            elements *= _product(data, payload, stop) if wire == _BYTES else value
        elif number == _DATA_TYPE:
            data_type = value
        pieces.append((None, begin, max(stop, payload)))
    if location != _EXTERNAL:
        return None
    offset = int(entries.get("offset") or 0)
    length = (elements * _BITS[data_type] + 7) // 8 if data_type in _BITS else int(entries.get("length") or 0)
    weights = (entries.get("location", ""), offset, offset + length)
    return [*pieces, _header(_RAW_DATA, length), weights]


def _product(data: Any, start: int, end: int) -> int:
    product = 1
    while start < end:
        value, start = _varint(data, start, end)
        product *= value
    return product


def _fields(data: Any, start: int, end: int) -> Iterator[Field]:
    position = start
    while position < end:
        begin = position
        tag, position = _varint(data, position, end)
        number, wire = tag >> 3, tag & 7
        value = 0
        if wire == _VARINT:
            value, payload = _varint(data, position, end)
            position = payload
        elif wire == _BYTES:
            value, payload = _varint(data, position, end)
            position = payload + value
        elif wire in (_FIXED64, _FIXED32):
            payload = position = position + (8 if wire == _FIXED64 else 4)
        else:
            raise _DamagedError
        if position > end:
            raise _DamagedError
        yield number, wire, value, begin, payload


def _varint(data: Any, position: int, end: int) -> Tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _DamagedError


def _header(number: int, length: int) -> bytes:
    """Tag and length of a field with bytes."""
    found = bytearray()
    for value in (number << 3 | _BYTES, length):
        while value > 0x7F:
            found.append(value & 0x7F | 0x80)
            value >>= 7
        found.append(value)
    return bytes(found)


def _size(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece[2] - piece[1]


def _side_file(folder: str, location: str) -> str:
    """The path of a side file, which lies in the model's folder and is a regular file there."""
    parts = [part for part in location.split("/") if part not in ("", ".")]
    path = os.path.join(folder, *parts)
    if location.startswith("/") or "\0" in location or not parts or ".." in parts:
        raise StepError("bad-request", "external data {} does not stay in the model's folder".format(quoted(location)))
    try:
        regular = stat.S_ISREG(os.lstat(path).st_mode)
    except OSError as error:
        raise StepError("parse-failed", "external data {} is not there: {}".format(quoted(location), error.strerror)) from error
    if not regular:
        raise StepError("parse-failed", "external data {} is not a regular file".format(quoted(location)))
    return path


def _read(path: str, start: int, end: int) -> Iterator[bytes]:
    with open(path, "rb") as file:
        file.seek(start)
        while start < end:
            chunk = file.read(min(CHUNK_BYTES, end - start))
            if not chunk:
                raise StepError("parse-failed", "external data {} is too short".format(quoted(os.path.basename(path))))
            start += len(chunk)
            yield chunk
