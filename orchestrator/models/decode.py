"""Decodes a model from the wire with bounds.

A singular field that occurs twice is refused: protobuf would merge or overwrite, and what one reader checks must be
what the next one loads. Names are bounded and free of control characters, nesting is bounded as in protobuf's own
readers, and weights are measured, never read.
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.models.dtypes import dtype_name
from orchestrator.models.proto import Attribute, Function, Graph, ModelProto, Node, Sparse, Tensor, ValueInfo, canonical_domain
from orchestrator.models.wire import BYTES, MAX_DEPTH, VARINT, Damaged, Field, TooMuch, Wire, signed

MAX_NODES = 200_000
MAX_FUNCTIONS = 10_000
MAX_GRAPHS = 200_000
MAX_VALUES = 200_000
# Tensors, attributes, sparse tensors, pieces of packed lists and entries of external data together: five per node. An empty
# one takes two bytes of a file and hundreds of bytes of memory.
MAX_PARTS = 1_000_000
MAX_OPSETS = 1000  # of a model or function; one per domain
MAX_NAME = 4095  # TensorRT's ONNX parser takes names below 4096 bytes
MAX_RANK = 64
_SMALL = 64  # integer constants up to this many elements are kept: shapes, repeats, sizes

_NODE_TEXTS = {3: "name", 4: "op", 7: "domain", 8: "overload"}
_FUNCTION_TEXTS = {1: "name", 10: "domain", 13: "overload"}
RawShape = tuple[int | str | None, ...] | None


class Decoder:
    """Decodes one model. Raises Damaged or TooMuch."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.model = ModelProto()
        self._graphs = self._values = self._parts = 0

    def decode(self) -> ModelProto:
        model = self.model
        seen: set[int] = set()
        producer = {2: "", 3: ""}
        for f in self.wire.fields(0, self.wire.size):
            if f.number <= 7:
                _once(seen, f, "the model")
            if f.number == 1:
                model.ir_version = signed(_varint(f))
            elif f.number in producer:
                producer[f.number] = self._name(f)
            elif f.number == 7:
                model.graph = self._graph(f, 1)
            elif f.number == 8:
                self._opset(f, model.opsets)
            elif f.number == 20:
                self._training(f)
            elif f.number == 25:
                self._function(f)
            elif f.number not in (4, 5, 6, 14, 26):
                model.unknown += [f.number][: _SMALL - len(model.unknown)]
        model.producer = " ".join(producer.values()).strip()
        return model

    def _graph(self, f: Field, depth: int) -> Graph:
        self._graphs += 1
        if self._graphs > MAX_GRAPHS:
            raise TooMuch(f"more than {MAX_GRAPHS:,} graphs")
        graph = Graph()
        for g in self._message(f, depth):
            if g.number == 1:
                graph.nodes.append(self._node(g, depth + 1))
            elif g.number == 5:
                graph.initializers.append(self._tensor(g, depth + 1))
            elif g.number == 11:
                graph.inputs.append(self._kept_value(g, depth + 1))
            elif g.number == 12:
                graph.outputs.append(self._kept_value(g, depth + 1))
            elif g.number == 13:
                self._value(g, depth + 1)  # not kept: only its names and nesting are checked
            elif g.number == 15:
                graph.sparse.append(self._sparse(g, depth + 1))
        return graph

    def _node(self, f: Field, depth: int) -> Node:
        self.model.node_count += 1
        if self.model.node_count > MAX_NODES:
            raise TooMuch(f"more than {MAX_NODES:,} nodes")
        node, seen = Node(), set[int]()
        for g in self._message(f, depth):
            if g.number == 1:
                node.inputs.append(self._name(g))
            elif g.number == 2:
                node.outputs.append(self._name(g))
            elif g.number == 5:
                attribute = self._attribute(g, depth + 1)
                if attribute.name in node.attributes:
                    raise Damaged(f"a node has the attribute {attribute.name!r} twice")
                node.attributes[attribute.name] = attribute
            elif g.number in _NODE_TEXTS:
                _once(seen, g, "a node")
                setattr(node, _NODE_TEXTS[g.number], self._name(g))
        node.domain = canonical_domain(node.domain)
        return node

    def _attribute(self, f: Field, depth: int) -> Attribute:
        self._part()
        attribute, seen, ints = Attribute(), set[int](), list[int]()
        for g in self._message(f, depth):
            if g.number in (1, 2, 3, 4, 5, 6, 14, 20, 21, 22):
                _once(seen, g, "an attribute")
            if g.number == 1:
                attribute.name = self._name(g)
            elif g.number == 3:
                attribute.number = signed(_varint(g))
            elif g.number in (5, 10):
                attribute.tensors.append(self._tensor(g, depth + 1))
            elif g.number in (6, 11):
                attribute.graphs.append(self._graph(g, depth + 1))
            elif g.number == 8 and len(ints) <= _SMALL:
                ints.extend(self._ints(g))
            elif g.number in (22, 23):
                self._sparse(g, depth + 1)
            elif g.number in (14, 15):
                self._type(g, depth + 1)
        attribute.ints = tuple(ints)
        return attribute

    def _tensor(self, f: Field, depth: int) -> Tensor:
        self._part()
        tensor, seen = Tensor(), set[int]()
        small: list[int] = []
        floats: list[tuple[int, int]] = []
        entries: list[tuple[str, str]] = []
        for g in self._message(f, depth):
            if g.number in (2, 8, 9, 14):
                _once(seen, g, "a tensor")
            if g.number == 1:
                tensor.dims += self._dims(g, len(tensor.dims))
            elif g.number == 2:
                tensor.code = _varint(g)
            elif g.number == 8:
                tensor.name = self._name(g)
            elif g.number == 9:
                _bytes(g)
                tensor.raw = (g.start, g.end)
            elif g.number in (4, 5, 6, 7, 10, 11):
                self._typed(g, tensor, small, floats)
            elif g.number == 13:  # minded even where the location flag is missing
                self._part()
                entries.append(self._entry(g, depth + 1))
                tensor.external = ()
            elif g.number == 14 and _varint(g) == 1:
                tensor.external = ()
        tensor.numbers, tensor.floats = tuple(small), tuple(floats)
        tensor.external = tuple(entries) if tensor.external is not None else None
        self.model.tensors.append(tensor)
        return tensor

    def _part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise TooMuch(f"more than {MAX_PARTS:,} tensors, attributes and pieces of them")

    def _typed(self, f: Field, tensor: Tensor, small: list[int], floats: list[tuple[int, int]]) -> None:
        single, packed = tensor.typed.get(f.number, (0, 0))
        if f.wire == BYTES and f.number != 6:
            packed += f.end - f.start
        else:
            single += 1
        tensor.typed[f.number] = (single, packed)
        if f.number in (4, 10) and f.wire == BYTES:
            self._part()
            floats.append((f.start, f.end))
        if f.number in (5, 7) and len(small) <= _SMALL:
            small.extend(self._ints(f))

    def _dims(self, f: Field, already: int) -> tuple[int, ...]:
        dims = tuple(self._ints(f))
        if already + len(dims) > MAX_RANK:
            raise TooMuch(f"a tensor of more than {MAX_RANK} dimensions")
        return dims

    def _sparse(self, f: Field, depth: int) -> Sparse:
        self._part()
        sparse, seen = Sparse(), set[int]()
        for g in self._message(f, depth):
            if g.number == 3:
                sparse.dims += self._dims(g, len(sparse.dims))
            elif g.number in (1, 2):
                _once(seen, g, "a sparse tensor")
                setattr(sparse, "values" if g.number == 1 else "indices", self._tensor(g, depth + 1))
        return sparse

    def _kept_value(self, f: Field, depth: int) -> ValueInfo:
        self._values += 1
        if self._values > MAX_VALUES:
            raise TooMuch(f"more than {MAX_VALUES:,} inputs and outputs")
        return self._value(f, depth)

    def _value(self, f: Field, depth: int) -> ValueInfo:
        value, seen = ValueInfo(), set[int]()
        for g in self._message(f, depth):
            if g.number in (1, 2):
                _once(seen, g, "a value")
            if g.number == 1:
                value.name = self._name(g)
            elif g.number == 2:
                value.dtype, value.shape = self._type(g, depth + 1)
        return value

    def _type(self, f: Field, depth: int) -> tuple[str | None, RawShape]:
        kinds = {4: "sequence", 5: "map", 7: "opaque", 8: "sparse", 9: "optional"}
        dtype: str | None = None
        shape: RawShape = None
        seen: set[int] = set()
        for g in self._message(f, depth):
            if g.number != 1 and g.number not in kinds:
                continue
            _once(seen, g, "a type")
            if len(seen) > 1:
                raise Damaged("a value has two types")
            if g.number == 1:
                dtype, shape = self._tensor_type(g, depth + 1)
            elif g.number == 8:
                inner, shape = self._tensor_type(g, depth + 1)
                dtype = f"sparse({inner or '?'})"
            else:
                inner = self._inner_type(g, depth + 1) if g.number != 7 else None
                dtype = f"{kinds[g.number]}({inner or '?'})"
        return dtype, shape

    def _inner_type(self, f: Field, depth: int) -> str | None:
        """Element type of a sequence or optional (field 1), value type of a map (field 2; its field 1 is a number)."""
        inner: str | None = None
        for g in self._message(f, depth):
            if g.wire == BYTES and g.number in (1, 2):
                inner, _ = self._type(g, depth + 1)
        return inner

    def _tensor_type(self, f: Field, depth: int) -> tuple[str | None, RawShape]:
        seen: set[int] = set()
        dtype: str | None = None
        shape: RawShape = None
        for g in self._message(f, depth):
            if g.number == 1:
                _once(seen, g, "a tensor type")
                dtype = dtype_name(_varint(g))
            elif g.number == 2:
                _once(seen, g, "a tensor type")
                dims = [self._dim(d, depth + 2) for d in self._message(g, depth + 1) if d.number == 1]
                if len(dims) > MAX_RANK:
                    raise TooMuch(f"a value of more than {MAX_RANK} dimensions")
                shape = tuple(dims)
        return dtype, shape

    def _dim(self, f: Field, depth: int) -> int | str | None:
        dim: int | str | None = None
        for g in self._message(f, depth):
            if g.number == 1:
                dim = signed(_varint(g))
            elif g.number == 2:
                dim = self._name(g)
        return dim

    def _function(self, f: Field) -> None:
        if len(self.model.functions) == MAX_FUNCTIONS:
            raise TooMuch(f"more than {MAX_FUNCTIONS:,} functions")
        function, seen = Function(), set[int]()
        for g in self._message(f, 1):
            if g.number in _FUNCTION_TEXTS:
                _once(seen, g, "a function")
                setattr(function, _FUNCTION_TEXTS[g.number], self._name(g))
            elif g.number == 4:
                function.inputs.append(self._name(g))
            elif g.number == 5:
                function.outputs.append(self._name(g))
            elif g.number == 7:
                function.nodes.append(self._node(g, 2))
            elif g.number == 9:
                self._opset(g, function.opsets)
            elif g.number == 11:
                self._attribute(g, 2)
        function.domain = canonical_domain(function.domain)
        self.model.functions.append(function)

    def _training(self, f: Field) -> None:
        for g in self._message(f, 1):
            if g.number in (1, 2):
                self.model.training.append(self._graph(g, 2))

    def _opset(self, f: Field, into: dict[str, int]) -> None:
        domain, version = "", 0
        for g in self._message(f, 1):
            if g.number == 1:
                domain = canonical_domain(self._name(g))
            elif g.number == 2:
                version = signed(_varint(g))
        into[domain] = max(version, into.get(domain, version))
        if len(into) > MAX_OPSETS:
            raise TooMuch(f"more than {MAX_OPSETS:,} opsets")

    def _entry(self, f: Field, depth: int) -> tuple[str, str]:
        key = value = ""
        for g in self._message(f, depth):
            if g.number == 1:
                key = self._name(g)
            elif g.number == 2:
                value = self._name(g)
        return key, value

    def _ints(self, f: Field) -> list[int]:
        if f.wire == BYTES:
            return self.wire.packed_varints(f.start, f.end, _SMALL + 1)
        return [signed(_varint(f))]

    def _name(self, f: Field) -> str:
        _bytes(f)
        text = self.wire.text(f.start, f.end, MAX_NAME)
        if not text.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text):
            raise TooMuch(f"a name with control characters: {text[:60]!a}")
        return text

    def _message(self, f: Field, depth: int) -> Iterator[Field]:
        _bytes(f)
        if depth > MAX_DEPTH:
            raise TooMuch(f"messages nested deeper than {MAX_DEPTH}")
        return self.wire.fields(f.start, f.end)


def _once(seen: set[int], f: Field, what: str) -> None:
    if f.number in seen:
        raise Damaged(f"{what} has field {f.number} twice (byte {f.start:,})")
    seen.add(f.number)


def _varint(f: Field) -> int:
    if f.wire != VARINT:
        raise Damaged(f"field {f.number} at byte {f.start:,} should be a number")
    return f.value


def _bytes(f: Field) -> None:
    if f.wire != BYTES:
        raise Damaged(f"field {f.number} at byte {f.start:,} should be text or a message")
