"""What the odd models of several test files are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, helper

from orchestrator.models.load import load_model
from orchestrator.models.model import Model

F = TensorProto.FLOAT


def node(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, name=attributes.pop("name", op.lower()), **attributes)


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def wrap(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def doubling_functions(count: int) -> list[onnx.FunctionProto]:
    """f0 calls f1 twice, f1 calls f2 twice, ...: 2^count nodes out of a few bytes."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)]
    functions = []
    for index in range(count):
        op, domain = (f"f{index + 1}", "loc") if index + 1 < count else ("Neg", "")
        nodes = [helper.make_node(op, ["a"], ["b"], domain=domain), helper.make_node(op, ["b"], ["c"], domain=domain)]
        functions.append(helper.make_function("loc", f"f{index}", ["a"], ["c"], nodes, opsets))
    return functions


def load(make: Any, build: Callable[[Any], Any]) -> Model:
    return load_model(make.save(build(make)), deep=False)
