"""Structure of graphs: who produces what, cycles, and calls of model-local functions, all without recursion limits hit.

Subgraphs (If, Loop, Scan) see the values of the graphs around them; a node needs what its subgraphs need. The
decoder bounds nesting, so recursion over subgraphs here is bounded too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from orchestrator.models.decode import MAX_NODES
from orchestrator.models.proto import Function, Graph, ModelProto, Node
from orchestrator.models.text import listed, shown

MAX_CALL_DEPTH = 100

FunctionKey = tuple[str, str, str]


@dataclass
class Structure:
    """What is wrong with one graph; empty when nothing is."""

    problems: list[str] = field(default_factory=list)
    unsorted: bool = False


def all_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for graph in node.graphs():
            yield from all_nodes(graph.nodes)


def subgraphs(nodes: Iterable[Node]) -> Iterator[Graph]:
    """Every subgraph below the nodes."""
    for node in all_nodes(nodes):
        yield from node.graphs()


def check_main(graph: Graph) -> Structure:
    """The main graph and, through :func:`_free`, all of its subgraphs."""
    given = {value.name for value in graph.inputs} | _initializers(graph)
    return _check(graph.nodes, given, [value.name for value in graph.outputs], "the graph")


def check_function(function: Function) -> Structure:
    return _check(function.nodes, set(function.inputs), function.outputs, f"function {shown(function.name)}")


def _check(nodes: list[Node], given: set[str], outputs: list[str], what: str) -> Structure:
    found = Structure()
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.outputs):
            if name in producer or name in given:
                found.problems.append(f"value {shown(name)} of {what} is defined twice, the second time by {_label(node)}")
            producer[name] = index
    needs = [_needs(node, found) for node in nodes]
    for node, names in zip(nodes, needs, strict=True):
        missing = [name for name in names if name not in producer and name not in given]
        if missing:
            found.problems.append(f"{_label(node)} uses {listed(missing)}, which nothing in {what} produces")
    orphans = [name for name in outputs if name not in producer and name not in given]
    if orphans:
        found.problems.append(f"output {listed(orphans)} of {what} is produced by no node")
    edges = [sorted({producer[name] for name in names if name in producer}) for names in needs]
    found.unsorted = found.unsorted or any(source >= index for index, sources in enumerate(edges) for source in sources)
    if found.unsorted:
        cycle = _cycle(edges)
        if cycle:
            path = " -> ".join(_label(nodes[index]) for index in cycle[:8])
            found.problems.append(f"{what} has a cycle: {path}")
    return found


def _needs(node: Node, found: Structure) -> set[str]:
    names = set(filter(None, node.inputs))
    for graph in node.graphs():
        names |= _free(graph, found)
    return names


def _free(graph: Graph, found: Structure) -> set[str]:
    """Names that a subgraph takes from the graphs around it; problems inside it are noted in ``found``."""
    given = {value.name for value in graph.inputs} | _initializers(graph)
    producer = {name: index for index, node in enumerate(graph.nodes) for name in node.outputs if name}
    needs = [_needs(node, found) for node in graph.nodes]
    edges = [sorted({producer[name] for name in names if name in producer}) for names in needs]
    if any(source >= index for index, sources in enumerate(edges) for source in sources):
        found.unsorted = True
        cycle = _cycle(edges)
        if cycle:
            found.problems.append("a subgraph has a cycle: " + " -> ".join(_label(graph.nodes[index]) for index in cycle[:8]))
    used = {value.name for value in graph.outputs}.union(*needs)
    return {name for name in used if name and name not in producer and name not in given}


def _initializers(graph: Graph) -> set[str]:
    dense = {tensor.name for tensor in graph.initializers}
    return dense | {sparse.values.name for sparse in graph.sparse if sparse.values is not None}


def _cycle(edges: list[list[int]]) -> list[int]:
    """One cycle of the graph "node needs nodes", closed (first == last); empty when there is none."""
    state = [0] * len(edges)  # 0 new, 1 on the path, 2 done
    for root in range(len(edges)):
        if state[root]:
            continue
        path, todo = [root], [iter(edges[root])]
        state[root] = 1
        while todo:
            following = next(todo[-1], None)
            if following is None:
                state[path.pop()] = 2
                todo.pop()
            elif state[following] == 1:
                return [*path[path.index(following) :], following][::-1]
            elif state[following] == 0:
                state[following] = 1
                path.append(following)
                todo.append(iter(edges[following]))
    return []


def _label(node: Node) -> str:
    if node.name:
        return f"node {shown(node.name)}"
    made = next(filter(None, node.outputs), "")
    return f"{node.key} (of {shown(made)})" if made else node.key


def function_key(node: Node) -> FunctionKey:
    return (node.domain, node.op, node.overload)


def check_calls(model: ModelProto) -> str | None:
    """What is wrong with the calls between model-local functions: a cycle, or too deep, or too many nodes when
    expanded. Libraries expand functions by recursion and die of either (SIGSEGV), so it is counted first."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    if not functions:
        return None
    keys = list(functions)
    number = {key: index for index, key in enumerate(keys)}
    calls = [[number[function_key(n)] for n in all_nodes(functions[key].nodes) if function_key(n) in number] for key in keys]
    cycle = _cycle(calls)
    if cycle:
        return "functions call each other in a cycle: " + " -> ".join(shown(keys[index][1]) for index in cycle[:8])
    size, depth = _expansions(functions, keys, calls)
    graph_nodes = list(all_nodes(model.graph.nodes)) if model.graph else []
    called = [number[function_key(node)] for node in graph_nodes if function_key(node) in number]
    total = len(graph_nodes) + sum(size[index] for index in called)
    if total > MAX_NODES:
        return f"functions expand to more than {MAX_NODES:,} nodes"
    deepest = max((depth[index] for index in called), default=0)
    return f"functions call each other {deepest} levels deep (limit {MAX_CALL_DEPTH})" if deepest > MAX_CALL_DEPTH else None


def _expansions(
    functions: dict[FunctionKey, Function], keys: list[FunctionKey], calls: list[list[int]]
) -> tuple[dict[int, int], dict[int, int]]:
    """Nodes (capped) and call depth of each function when fully expanded; ``calls`` has no cycle."""
    size: dict[int, int] = {}
    depth: dict[int, int] = {}
    for root in range(len(keys)):
        todo = [root]
        while todo:
            index = todo[-1]
            if index in size:
                todo.pop()
                continue
            waiting = [callee for callee in calls[index] if callee not in size]
            if waiting:
                todo.extend(set(waiting))
                continue
            todo.pop()
            own = sum(1 for _ in all_nodes(functions[keys[index]].nodes))
            size[index] = min(MAX_NODES + 1, own + sum(size[callee] for callee in calls[index]))
            depth[index] = 1 + max((depth[callee] for callee in calls[index]), default=0)
    return size, depth
