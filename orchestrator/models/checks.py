"""Checks of a decoded model: what makes it unusable (problems) and what its user should know (warnings).

No reader of ONNX refuses all of this: each check stands for a file that a checker, ONNX Runtime or TensorRT takes
without a word, or dies of.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from orchestrator.errors import MODEL_DAMAGED, MODEL_HOSTILE, MODEL_INVALID, Kind
from orchestrator.models import graphs
from orchestrator.models.dtypes import dtype_name, gpu_io_blocker
from orchestrator.models.model import TensorInfo
from orchestrator.models.operators import (
    DATA_DEPENDENT_OPS,
    NEWEST_IR,
    NEWEST_OPSET,
    OTHER_STANDARD_DOMAINS,
    PLACEHOLDER_DIMS,
    RANDOM_OPS,
    STANDARD_OPS,
)
from orchestrator.models.proto import Graph, ModelProto, Node, ValueInfo
from orchestrator.models.tensors import MAX_ELEMENTS, data_problem, small_values, tensor_problem
from orchestrator.models.text import listed, shown
from orchestrator.models.wire import Wire

_MAX_PROBLEMS = 1000


@dataclass
class Findings:
    """Everything the checks found; ``problems`` are (kind, what, fix)."""

    problems: list[tuple[Kind, str, str | None]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    op_types: dict[str, int] = field(default_factory=dict)
    custom_ops: tuple[str, ...] = ()
    random_ops: tuple[str, ...] = ()
    data_dependent_ops: tuple[str, ...] = ()
    gpu_blockers: tuple[str, ...] = ()
    placeholder_dims: bool = False
    unsorted: bool = False

    def refuse(self, what: str, fix: str | None = None, kind: Kind = MODEL_INVALID) -> None:
        if len(self.problems) < _MAX_PROBLEMS:  # a hostile file has one per two bytes
            self.problems.append((kind, what, fix))


def check(model: ModelProto, graph: Graph, wire: Wire) -> Findings:
    """All checks of one model; ``wire`` is needed to read small constants."""
    found = Findings()
    _versions(model, found)
    _signature(graph, found)
    for tensor in model.tensors:
        if problem := tensor_problem(tensor):
            found.refuse(problem)
        elif problem := data_problem(tensor):
            found.refuse(problem, "copy or export the model again", MODEL_DAMAGED)
    calls = graphs.check_calls(model)
    if calls:
        found.refuse(calls, "inline the functions before exporting", MODEL_HOSTILE)
    _structure(model, graph, found)
    nodes = list(graphs.all_nodes(graph.nodes))
    _operators(model, nodes, found)
    _bombs(graph, nodes, wire, found)
    return found


def _versions(model: ModelProto, found: Findings) -> None:
    if model.ir_version <= 0:
        found.refuse("the model has no ir_version", "export it again: no reader takes it")
    elif model.ir_version > NEWEST_IR:
        what = f"ir_version {model.ir_version} is newer than any that is known here (up to {NEWEST_IR})"
        found.refuse(what, f"export it again with a released onnx package (onnx.helper.make_model(..., ir_version={min(10, NEWEST_IR)}))")
    if "" not in model.opsets:
        found.refuse("the model does not say its opset: opset_import has no entry for ai.onnx", "export it again with an opset version")
    elif model.opsets[""] < 1:
        found.refuse(f"opset {model.opsets['']} does not exist", "export it again with an opset version")
    elif model.opsets[""] > NEWEST_OPSET:
        found.warnings.append(
            f"opset {model.opsets['']} is newer than any that is known here (up to {NEWEST_OPSET}): runtimes may refuse it"
        )
    if model.training:
        found.warnings.append("training information in the file is not used")
    if model.unknown:
        numbers = ", ".join(map(str, sorted(set(model.unknown))[:4]))
        found.warnings.append(f"the file has parts that ONNX does not define (field {numbers}): left-over bytes at its end?")


def _signature(graph: Graph, found: Findings) -> None:
    weights = {tensor.name: tensor for tensor in graph.initializers}
    _names_once(graph, found)
    if not graph.outputs:
        found.refuse("the model has no outputs", "export it again with at least one output")
    for value in graph.inputs:
        if value.name in weights:
            _shadowed(value, weights[value.name].dims, dtype_name(weights[value.name].code), found)
    inputs = [value for value in graph.inputs if value.name not in weights]
    found.inputs = tuple(_info(value, "input", found) for value in inputs)
    found.outputs = tuple(_info(value, "output", found) for value in graph.outputs)
    if not inputs:
        found.warnings.append("the model has no inputs: it gives the same outputs on every run")
    for name in {value.name for value in inputs} & {value.name for value in graph.outputs}:
        found.warnings.append(f"output {shown(name)} is also an input: a runtime may hand back the same memory")
    # only names that stand twice among the inputs are tied by a parser
    names = Counter(dim for value in inputs for dim in value.shape or () if isinstance(dim, str) and dim and _is_placeholder(dim))
    found.placeholder_dims = any(count > 1 for count in names.values())
    _io_types(found)


def _names_once(graph: Graph, found: Findings) -> None:
    names = {
        "initializer": [tensor.name for tensor in graph.initializers],
        "input": [value.name for value in graph.inputs],
        "output": [value.name for value in graph.outputs],
    }
    for word, all_of_them in names.items():
        for name, count in Counter(all_of_them).items():
            if not name:
                found.refuse(f"an {word} has no name")
            elif count > 1:
                found.refuse(f"{word} {shown(name)} is there {count} times", "rename one of them: runtimes bind tensors by name")


def _shadowed(value: ValueInfo, dims: tuple[int, ...], dtype: str | None, found: Findings) -> None:
    if value.dtype is not None and dtype is not None and value.dtype != dtype:
        found.refuse(f"input {shown(value.name)} is declared {value.dtype} and its initializer is {dtype}")
    declared = value.shape
    if declared is None:
        return
    fits = len(declared) == len(dims) and all(not isinstance(d, int) or d < 0 or d == dim for d, dim in zip(declared, dims, strict=True))
    if not fits:
        text = f"input {shown(value.name)} is declared {_shape(declared)} and its initializer has the shape {_shape(dims)}"
        found.refuse(text, "export it again: runtimes disagree on which of the two is meant")


def _info(value: ValueInfo, word: str, found: Findings) -> TensorInfo:
    if value.dtype is None:
        found.refuse(f"{word} {shown(value.name)} has no type", "run onnx.shape_inference.infer_shapes on it and save it again")
    shape = None if value.shape is None else tuple(_dim(dim) for dim in value.shape)
    elements = 1
    for dim in shape or ():
        elements *= dim if isinstance(dim, int) else 1
    if word == "input" and elements > MAX_ELEMENTS:
        found.refuse(f"input {shown(value.name)} has {elements:,} elements (limit {MAX_ELEMENTS:,})", kind=MODEL_HOSTILE)
    return TensorInfo(value.name, value.dtype or "undefined", shape)


def _is_placeholder(name: str) -> bool:
    return name.strip().lower() in PLACEHOLDER_DIMS or name.strip().lstrip("-").isdigit()


def _dim(dim: int | str | None) -> int | str | None:
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return None if dim is None or _is_placeholder(dim) else dim


def _shape(shape: tuple[int | str | None, ...]) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim)[:40] for dim in shape) + "]"


def _io_types(found: Findings) -> None:
    blockers: list[str] = []
    for word, infos in (("input", found.inputs), ("output", found.outputs)):
        for info in infos:
            if not info.is_tensor:
                blockers.append(f"{word} {shown(info.name)} is a {info.dtype.partition('(')[0]}, which TensorRT does not have")
                continue
            blocker = gpu_io_blocker(info.dtype) if info.dtype != "undefined" else None
            if blocker:
                blockers.append(f"{word} {shown(info.name)}: {blocker}")
            if info.dtype == "float64":
                found.warnings.append(f"{word} {shown(info.name)} is float64: slow on GPUs, and TensorRT computes it as float32")
    found.gpu_blockers += tuple(blockers)
    found.warnings.extend(f"{blocker}: only ONNX Runtime can take this model" for blocker in blockers)


def _structure(model: ModelProto, graph: Graph, found: Findings) -> None:
    checked = [graphs.check_main(graph), *(graphs.check_function(function) for function in model.functions)]
    for structure in checked:
        for problem in structure.problems:
            found.refuse(problem, "export it again")
        found.unsorted = found.unsorted or structure.unsorted
    if found.unsorted and not found.problems:
        found.warnings.append("nodes are not in topological order: runtimes sort them, onnx.checker refuses them")


def _operators(model: ModelProto, nodes: list[Node], found: Findings) -> None:
    defined = {(f.domain, f.name, f.overload) for f in model.functions}
    everywhere = nodes + [node for f in model.functions for node in graphs.all_nodes(f.nodes)]
    found.op_types = dict(sorted(Counter(node.key for node in everywhere).items()))
    foreign: dict[str, list[Node]] = {}
    random = {node.op for node in everywhere if not node.domain and (node.op in RANDOM_OPS or _trains(node))}
    for node in everywhere:
        if graphs.function_key(node) not in defined and _custom(node, model.opsets.get("", 0)):
            foreign.setdefault(node.key, []).append(node)
    for key, users in foreign.items():
        found.warnings.append(_custom_warning(users, model.opsets.get("", 0)))
        if users[0].domain in OTHER_STANDARD_DOMAINS:
            found.gpu_blockers += (f"operator {shown(key)} is not in TensorRT",)
    found.custom_ops = tuple(sorted(key for key, users in foreign.items() if users[0].domain not in OTHER_STANDARD_DOMAINS))
    found.random_ops = tuple(sorted(random))
    found.data_dependent_ops = tuple(sorted(DATA_DEPENDENT_OPS & found.op_types.keys()))
    if random:
        found.warnings.append(f"{listed(sorted(random))} gives other values on every run: outputs cannot be compared")


def _custom(node: Node, opset: int) -> bool:
    if node.domain:
        return True
    return STANDARD_OPS.get(node.op, NEWEST_OPSET + 1) > max(opset, 1) if opset <= NEWEST_OPSET else node.op not in STANDARD_OPS


def _custom_warning(users: list[Node], opset: int) -> str:
    node = users[0]
    more = f" (and {len(users) - 1} more)" if len(users) > 1 else ""
    where = f"node {shown(node.name)}{more}" if node.name else f"{len(users)} node{'s' if len(users) > 1 else ''}"
    if node.domain in OTHER_STANDARD_DOMAINS:
        return f"{where} uses operator {shown(node.op)} of domain {shown(node.domain)}: ONNX Runtime only, not in TensorRT"
    if not node.domain and node.op in STANDARD_OPS:
        return f"{where} uses operator {shown(node.op)}, which came with opset {STANDARD_OPS[node.op]}: the model says opset {opset}"
    domain = f"domain {shown(node.domain)}" if node.domain else "the default domain (not an ONNX operator)"
    return f"{where} uses operator {shown(node.op)} of {domain}: it needs a plugin (plugins: in the target's YAML)"


def _trains(node: Node) -> bool:
    """Dropout draws random numbers when its third input, training_mode, is given."""
    return node.op == "Dropout" and len(node.inputs) > 2 and bool(node.inputs[2])


def _bombs(graph: Graph, nodes: list[Node], wire: Wire, found: Findings) -> None:
    """Nodes whose output size is written in the file: 156 bytes can ask for terabytes."""
    constants: dict[str, tuple[int, ...]] = {}
    holders = [graph, *graphs.subgraphs(graph.nodes)]
    for tensor in (tensor for holder in holders for tensor in holder.initializers):
        values = small_values(tensor, wire)
        if values is not None:
            constants[tensor.name] = values
    for node in nodes:
        if node.op == "Constant" and not node.domain and node.outputs:
            values = _constant(node, wire)
            if values is not None:
                constants[node.outputs[0]] = values
    for node in nodes:
        elements = _output_elements(node, constants)
        if elements > MAX_ELEMENTS:
            text = f"node {shown(node.name)} ({node.op}) makes a tensor of at least {elements:,} elements (limit {MAX_ELEMENTS:,})"
            found.refuse(text, kind=MODEL_HOSTILE)
    for sparse in (sparse for holder in holders for sparse in holder.sparse):
        elements = _product(sparse.dims)
        if elements > MAX_ELEMENTS or min(sparse.dims, default=0) < 0:
            found.refuse(f"a sparse tensor has the shape {_shape(sparse.dims)}: {elements:,} elements", kind=MODEL_HOSTILE)


def _constant(node: Node, wire: Wire) -> tuple[int, ...] | None:
    value = node.attributes.get("value")
    if value is not None and value.tensors:
        return small_values(value.tensors[0], wire)
    if "value_ints" in node.attributes:
        return node.attributes["value_ints"].ints
    single = node.attributes.get("value_int")
    return None if single is None or single.number is None else (single.number,)


# operator -> number of the input that holds its output's shape (or repeats, or depth)
_SHAPED_BY = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "Resize": 3, "OneHot": 1, "Upsample": -1}


def _output_elements(node: Node, constants: dict[str, tuple[int, ...]]) -> int:
    """Elements that the node's output has at least, as far as constants in the file tell; 0 when they do not."""
    if node.domain:
        return 0
    if node.op in ("RandomNormal", "RandomUniform") and "shape" in node.attributes:
        return _product(node.attributes["shape"].ints)
    if node.op == "Range" and len(node.inputs) == 3:
        parts = [constants.get(name, ()) for name in node.inputs]
        if all(len(part) == 1 for part in parts) and parts[2][0]:
            return max(0, (parts[1][0] - parts[0][0]) // parts[2][0])
    index = _SHAPED_BY.get(node.op, -1)
    if 0 <= index < len(node.inputs):
        return _product(constants.get(node.inputs[index], (0,)))
    return 0


def _product(dims: tuple[int, ...]) -> int:
    elements = 1
    for dim in dims:
        elements *= max(0, dim)
    return elements
