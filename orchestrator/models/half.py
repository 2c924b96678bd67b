"""float16 conversion of an ONNX graph; runs in the child process that convert.py starts.

The work is done by ``onnxruntime.transformers.float16``, with what it needs to give a graph that TensorRT-RTX takes
(docs/facts/rtx.yaml lists what breaks without):

* sizes and coordinates stay float32: values computed from shapes alone (Shape, Size, Range) are not data, float16
  counts only to 2048, and the compiler refuses a Range whose result it should give as float16
* a pair of casts float32 -> float16 -> float32 between two nodes that both stay float32 is taken out
* nodes are sorted: the library appends the casts it adds, onnx.checker and onnx.reference want them in order
* types are checked by onnx before the result is believed
"""

from __future__ import annotations

from typing import Any

# Operators whose float inputs are never data worth halving, or that no float16 kernel computes (library's own list
# plus what TensorRT-RTX refuses in float16).
_MORE_BLOCKED = ("Range", "CumSum", "EyeLike", "RandomUniform", "RandomNormal", "Multinomial", "Bernoulli")
_MAX = 65504.0
_SHAPE_OPS = ("Shape", "Size")


def to_half(model: Any) -> tuple[Any, list[str]]:
    """``model`` (onnx.ModelProto) with float16 inside and float32 inputs and outputs, and names of constants that
    stayed float32 because they would not fit. Raises what the library raises."""
    from onnxruntime.transformers import float16

    name_nodes(model.graph)
    blocked = [*float16.DEFAULT_OP_BLOCK_LIST, *_MORE_BLOCKED]
    before = _inference_error(model)
    large, kept = large_norms(model.graph)
    keep = [*shape_nodes(model.graph), *large]
    lift_constants(model)
    converted = float16.convert_float_to_float16(model, keep_io_types=True, op_block_list=blocked, node_block_list=keep)
    sort_nodes(converted.graph)
    bypass_cast_pairs(converted.graph)
    drop_empty_attributes(converted.graph)
    after = _inference_error(converted)
    if after is not None and before is None:
        raise ValueError(f"the converted graph does not fit together: {after}")
    return converted, kept


def name_nodes(graph: Any) -> None:
    """Unique names for nodes that have none: the block list goes by name."""
    used = {node.name for node in graph.node if node.name}
    seen: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name or f"node_{index}"
        while name in seen or (not node.name and name in used):
            name += "_"
        node.name = name
        seen.add(name)


def shape_nodes(graph: Any) -> list[str]:
    """Names of nodes whose values come from shapes and not from data."""
    weights = {tensor.name for tensor in graph.initializer}
    data = {value.name for value in graph.input if value.name not in weights}
    sizes: set[str] = set()
    names = []
    for node in ordered(graph):
        needs = set(node.input) | _outer_names(node)
        if node.op_type in _SHAPE_OPS:
            sizes.update(node.output)
        elif needs & data:
            data.update(node.output)
        elif needs & sizes or node.op_type == "Range":
            sizes.update(node.output)
            names.append(node.name)
    return names


def lift_constants(model: Any) -> None:
    """Makes initializers of the main graph's Constant nodes: the library keeps an initializer float32 where only
    float32 nodes use it, and halves every Constant."""
    kept = []
    for node in model.graph.node:
        value = next((attribute for attribute in node.attribute if attribute.name == "value" and attribute.HasField("t")), None)
        if node.op_type != "Constant" or node.domain or value is None:
            kept.append(type(node).FromString(node.SerializeToString()))
            continue
        tensor = model.graph.initializer.add()
        tensor.CopyFrom(value.t)
        tensor.name = node.output[0]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.ir_version = max(model.ir_version, 4)  # before 4 every initializer had to be an input too


def large_norms(graph: Any) -> tuple[list[str], list[str]]:
    """BatchNormalization nodes with statistics beyond float16, and the names of those constants.

    A clamped mask value still masks; a clamped variance scales the whole channel wrongly.
    """
    import numpy as np
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants.update((node.output[0], attribute.t) for attribute in node.attribute if attribute.name == "value")
    nodes, names = [], []
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            continue
        large = [constants[name] for name in node.input[1:] if name in constants]
        large = [tensor for tensor in large if np.any(np.abs(numpy_helper.to_array(tensor)) > _MAX)]
        if large:
            nodes.append(node.name)
            names += [tensor.name for tensor in large]
    return nodes, names


def _outer_names(node: Any) -> set[str]:
    """Every name that the node's subgraphs mention: more than they take from outside, never less."""
    names: set[str] = set()
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
            names.update(value.name for value in graph.output)
            for inner in graph.node:
                names.update(inner.input)
                names |= _outer_names(inner)
    return names


def ordered(graph: Any) -> list[Any]:
    """The graph's nodes in topological order, keeping the given order where it is one."""
    producer = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [
        sorted({producer[name] for name in {*node.input, *_outer_names(node)} if name in producer and producer[name] != index})
        for index, node in enumerate(graph.node)
    ]
    result: list[Any] = []
    done: set[int] = set()
    for root in range(len(needs)):
        todo = [root]
        while todo:
            index = todo[-1]
            if index in done:
                todo.pop()
                continue
            waiting = [source for source in needs[index] if source not in done]
            if waiting and len(todo) <= len(needs):
                todo.extend(reversed(waiting))
                continue
            todo.pop()
            done.add(index)
            result.append(graph.node[index])
    return result


def sort_nodes(graph: Any) -> None:
    """Sorts the graph and all of its subgraphs in place."""
    nodes = [type(node).FromString(node.SerializeToString()) for node in ordered(graph)]
    del graph.node[:]
    graph.node.extend(nodes)
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else list(attribute.graphs):
                sort_nodes(inner)


def bypass_cast_pairs(graph: Any) -> None:
    """Feeds the float32 value straight to whoever casts its float16 copy back to float32."""
    producer = {name: node for node in graph.node for name in node.output}
    direct: dict[str, str] = {}
    for node in graph.node:
        if _cast_to(node) != 1:
            continue
        first = producer.get(node.input[0])
        # only the library's own casts: a float16 cast of the model's author rounds on purpose
        if first is not None and _cast_to(first) == 10 and first.name.endswith("_cast_to_fp16_node"):
            direct[node.output[0]] = first.input[0]
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = direct.get(name, name)
    used = {name for node in graph.node for name in {*node.input, *_outer_names(node)}} | outputs
    kept = [node for node in graph.node if not (_cast_to(node) and node.name.endswith("_node") and node.output[0] not in used)]
    kept = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(kept)


def _cast_to(node: Any) -> int:
    if node.op_type != "Cast" or node.domain:
        return 0
    return next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)


def drop_empty_attributes(graph: Any) -> None:
    """The library leaves an empty tensor in every attribute that it looked at."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and attribute.t.ByteSize() == 0:
                attribute.ClearField("t")
            if attribute.HasField("g"):
                drop_empty_attributes(attribute.g)
            for inner in attribute.graphs:
                drop_empty_attributes(inner)


def _inference_error(model: Any) -> str | None:
    """What onnx's type check says, None when types fit."""
    from onnx import shape_inference

    bare = type(model).FromString(model.SerializeToString())
    del bare.graph.value_info[:]
    try:
        shape_inference.infer_shapes(bare, check_type=True, strict_mode=True)
    except Exception as error:  # noqa: BLE001  (onnx raises several unrelated types, all with the story in the text)
        return str(error)[:500]
    return None
