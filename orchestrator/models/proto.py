"""ONNX messages as far as safety, digest and signature need them (onnx.proto, IR version 14)."""

from __future__ import annotations

from dataclasses import dataclass, field

Span = tuple[int, int]


@dataclass(slots=True)
class Tensor:
    """A TensorProto without its weights. ``numbers`` are the first values of an int32 or int64 list, ``raw`` its raw_data."""

    name: str = ""
    code: int = 0
    dims: tuple[int, ...] = ()
    raw: Span | None = None
    typed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Field number of a typed list -> (elements counted one by one, bytes of packed lists)."""
    floats: tuple[Span, ...] = ()
    """Packed float_data and double_data."""
    numbers: tuple[int, ...] = ()
    external: tuple[tuple[str, str], ...] | None = None
    """Key and value pairs of data outside the file, in file order; None when the data is inside."""

    @property
    def elements(self) -> int:
        count = 1
        for dim in self.dims:
            count *= dim
        return count


@dataclass(slots=True)
class Attribute:
    name: str = ""
    number: int | None = None
    ints: tuple[int, ...] = ()
    tensors: list[Tensor] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)


@dataclass(slots=True)
class Node:
    op: str = ""
    domain: str = ""
    name: str = ""
    overload: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, Attribute] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.domain}::{self.op}" if self.domain else self.op

    def graphs(self) -> list[Graph]:
        return [graph for attribute in self.attributes.values() for graph in attribute.graphs]


@dataclass(slots=True)
class ValueInfo:
    """``dtype`` is None when the type is missing, ``shape`` None when the rank is."""

    name: str = ""
    dtype: str | None = None
    shape: tuple[int | str | None, ...] | None = None


@dataclass(slots=True)
class Sparse:
    values: Tensor | None = None
    indices: Tensor | None = None
    dims: tuple[int, ...] = ()


@dataclass(slots=True)
class Graph:
    nodes: list[Node] = field(default_factory=list)
    initializers: list[Tensor] = field(default_factory=list)
    sparse: list[Sparse] = field(default_factory=list)
    inputs: list[ValueInfo] = field(default_factory=list)
    outputs: list[ValueInfo] = field(default_factory=list)


@dataclass(slots=True)
class Function:
    name: str = ""
    domain: str = ""
    overload: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    opsets: dict[str, int] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class ModelProto:
    ir_version: int = 0
    producer: str = ""
    opsets: dict[str, int] = field(default_factory=dict)
    graph: Graph | None = None
    functions: list[Function] = field(default_factory=list)
    training: list[Graph] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    """Every tensor anywhere in the file, for the checks of weights and external data."""
    node_count: int = 0


def canonical_domain(domain: str) -> str:
    """``ai.onnx`` is the written-out form of the default domain."""
    return "" if domain == "ai.onnx" else domain
