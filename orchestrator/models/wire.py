"""Protobuf wire format, read with bounds: no schema library, no recursion, no byte read that is not needed.

Protobuf libraries load the whole message, follow nesting as deep as the file likes and allocate what it asks for.
This reader walks a file through one window of fixed size, skips what nobody asks for (weights), and stops at
limits on the number of fields and on the bytes of text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

# Protobuf's own readers refuse messages nested deeper than 100: no model that they load comes near.
MAX_DEPTH = 100
# A graph of the largest allowed node count has a few million fields; the rest is room for attribute lists.
MAX_FIELDS = 12_000_000
# All names of the largest public models together stay below 16 MiB.
MAX_TEXT = 256 << 20

_WINDOW = 1 << 18
_HEADER = 20  # the longest tag and length


class Damaged(Exception):  # noqa: N818  (says what the file is)
    """The bytes are not a protobuf message; the text says where and how."""


class TooMuch(Exception):  # noqa: N818  (says what the file is)
    """The file goes beyond a limit of this reader; the text says which."""


class Field(NamedTuple):
    """One field: for BYTES the payload is ``[start, end)`` of the file, else ``value`` holds the number."""

    number: int
    wire: int
    value: int
    start: int
    end: int


class Wire:
    """Reads the messages of one open file; ``size`` is the number of bytes that belong to it."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        self._base = 0
        self._buffer = b""
        self._fields = 0
        self._text = 0

    def fields(self, start: int, end: int) -> Iterator[Field]:
        """The fields of the message at ``[start, end)``, in file order.

        Raises Damaged (cut, impossible tag, a length that leaves the message) and TooMuch.
        """
        position = start
        while position < end:
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise TooMuch(f"more than {MAX_FIELDS:,} fields")
            tag, position = self._varint(position, end)
            number, wire = tag >> 3, tag & 7
            if number == 0 or number > 0x1FFFFFFF:
                raise Damaged(f"impossible field number {number} at byte {position:,}")
            if wire == VARINT:
                value, position = self._varint(position, end)
                yield Field(number, wire, value, position, position)
            elif wire == BYTES:
                length, position = self._varint(position, end)
                stop = position + length
                if stop > end:
                    raise Damaged(f"a field of {length:,} bytes at byte {position:,} goes {stop - end:,} bytes past the end")
                yield Field(number, wire, length, position, stop)
                position = stop
            elif wire in (FIXED32, FIXED64):
                stop = position + (4 if wire == FIXED32 else 8)
                if stop > end:
                    raise Damaged(f"a number at byte {position:,} is cut off")
                yield Field(number, wire, int.from_bytes(self.read(position, stop), "little"), position, stop)
                position = stop
            else:
                raise Damaged(f"impossible wire type {wire} at byte {position:,}")

    def read(self, start: int, end: int) -> bytes:
        """The bytes ``[start, end)``; the caller bounds their number."""
        low = start - self._base
        if low >= 0 and end - self._base <= len(self._buffer):
            return self._buffer[low : end - self._base]
        if end - start > _WINDOW:
            return self._pread(start, end - start)
        self._load(start)
        return self._buffer[: end - start]

    def text(self, start: int, end: int, limit: int) -> str:
        """A string field. Raises Damaged when it is no UTF-8, TooMuch when it is longer than ``limit`` bytes."""
        self._text += end - start
        if end - start > limit:
            raise TooMuch(f"a name of {end - start:,} bytes (limit {limit:,})")
        if self._text > MAX_TEXT:
            raise TooMuch(f"more than {MAX_TEXT >> 20} MiB of names")
        try:
            return self.read(start, end).decode()
        except UnicodeDecodeError:
            raise Damaged(f"text at byte {start:,} is not UTF-8") from None

    def packed_varints(self, start: int, end: int, limit: int) -> list[int]:
        """Numbers of a packed repeated field, as signed 64 bit; at most ``limit`` of them are read."""
        numbers: list[int] = []
        position = start
        while position < end and len(numbers) < limit:
            value, position = self._varint(position, end)
            numbers.append(signed(value))
        return numbers

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        low = position - self._base
        if low < 0 or low + _HEADER > len(self._buffer):
            self._load(position)
            low = 0
        buffer = self._buffer
        value = shift = 0
        while True:
            if position >= end or low >= len(buffer):
                raise Damaged(f"the file ends inside a number at byte {position:,}")
            byte = buffer[low]
            low += 1
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, position
            shift += 7
            if shift > 63:
                raise Damaged(f"a number at byte {position:,} does not end")

    def _load(self, position: int) -> None:
        self._buffer = self._pread(position, min(_WINDOW, self.size - position))
        self._base = position

    def _pread(self, start: int, length: int) -> bytes:
        data = os.pread(self.fd, length, start)
        if len(data) != length:
            raise Damaged("the file became shorter while it was read")
        return data


def signed(value: int) -> int:
    """A varint as the signed 64-bit number that protobuf means by it."""
    return value - (1 << 64) if value >= 1 << 63 else value
