"""Every name that the TensorRT code touches exists in every release in which that line runs.

The source is walked once per release: a ``hasattr`` of an API object decides, by the release's inventory, which branch
is followed, and so does ``set_flag`` with a constant name. Variables carry API objects by convention (ROLES).
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.portable.backends import trt

FOLDER = Path(trt.__file__).parent
ROLES = {
    "trt": "module",
    "builder": "Builder",
    "network": "INetworkDefinition",
    "config": "IBuilderConfig",
    "parser": "OnnxParser",
    "error": "ParserError",
    "profile": "IOptimizationProfile",
    "known": "NetworkDefinitionCreationFlag",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
    "self.engine": "ICudaEngine",
    "self.context": "IExecutionContext",
}
# where a conventional name is something else, or an API object has another name
LOCAL = {
    ("trt_network", "_described"): {"tensor": "ITensor"},
    ("trt_network", "_dims"): {"tensor": "ITensor"},
    ("trt_network", "add_profiles"): {"tensor": "ITensor"},
    ("trt_common", "log"): {"error": ""},
    ("trt_common", "_import"): {"error": ""},
    ("trt_common", "load_plugins"): {"error": ""},
    ("trt", "make_builder"): {"error": ""},
    ("trt_run", "load"): {"error": ""},
    ("rtx", "_set_capability"): {"known": ""},
}
MODULES = {"tensorrt": ("trt", "trt_network", "trt_common", "trt_run"), "rtx": ("rtx", "trt_network", "trt_common", "trt_run")}
VERSION_FUNCTIONS = {"NamedSession": True, "BindingSession": False}  # class -> whether it is for engines with num_io_tensors
ALWAYS = {"__version__", "__members__", "__init__"}


class Walk:
    """Collects names that the release does not have in lines that it reaches, and counts all names looked at."""

    def __init__(self, module: str, names: dict[str, set[str]]) -> None:
        self.module, self.names = module, names
        self.missing: list[str] = []
        self.seen: set[tuple[str, str]] = set()
        self.roles: dict[str, str] = {}

    def file(self, path: Path) -> None:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name in VERSION_FUNCTIONS:
                if VERSION_FUNCTIONS[node.name] == ("num_io_tensors" in self.names["ICudaEngine"]):
                    self.block(node.body)
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                self.block([node])

    def block(self, body: list[ast.stmt]) -> bool:
        """Walk statements; True when the end of the block cannot be reached."""
        for node in body:
            if isinstance(node, (ast.Return, ast.Raise)):
                self.expressions(node)
                return True
            if self.statement(node):
                return True
        return False

    def statement(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return self.branch(node)
        if isinstance(node, ast.Try):
            ends = self.block(node.body)
            for handler in node.handlers:
                self.block(handler.body)
            return self.block(node.finalbody) or ends
        if isinstance(node, ast.FunctionDef):
            before = self.roles
            self.roles = {**before, **LOCAL.get((self.module, node.name), {})}
            self.block(node.body)
            self.roles = before
        elif isinstance(node, (ast.For, ast.With, ast.While, ast.ClassDef)):
            self.header(node)
            return self.block(node.body) and isinstance(node, ast.With)
        else:
            self.expressions(node)
        return False

    def header(self, node: ast.stmt) -> None:
        """What stands before the body: iterators, conditions, context managers, base classes."""
        for field, value in ast.iter_fields(node):
            if field not in ("body", "orelse"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.expressions(child)

    def branch(self, node: ast.If) -> bool:
        decided = self.decide(node.test)
        if decided is None:
            self.expressions(node.test)
            first, second = self.block(node.body), self.block(node.orelse)
            return first and second and bool(node.orelse)
        return self.block(node.body if decided else node.orelse)

    def decide(self, test: ast.expr) -> bool | None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.decide(test.operand)
            return None if inner is None else not inner
        if not isinstance(test, ast.Call) or not isinstance(test.func, ast.Name):
            return None
        last = test.args[-2] if test.func.id == "set_flag" else test.args[-1]
        if not isinstance(last, ast.Constant):
            return None
        if test.func.id == "set_flag":
            return last.value in self.names["BuilderFlag"]
        owner = self.owner(test.args[0]) if test.func.id == "hasattr" else None
        return None if not owner else last.value in self.names.get(owner, set())

    def expressions(self, node: ast.AST) -> None:
        if isinstance(node, ast.IfExp):
            decided = self.decide(node.test)
            if decided is not None:
                return self.expressions(node.body if decided else node.orelse)
        if isinstance(node, ast.Attribute):
            owner = self.owner(node.value)
            if owner and node.attr not in ALWAYS:
                self.seen.add((owner, node.attr))
                if node.attr not in self.names.get(owner, set()):
                    self.missing.append(f"{self.module}.py:{node.lineno}: {owner}.{node.attr}")
        for child in ast.iter_child_nodes(node):
            self.expressions(child)
        return None

    def owner(self, node: ast.expr) -> str | None:
        """The API class of an expression, None when it is none of TensorRT's."""
        text = ast.unparse(node)
        role = self.roles.get(text, ROLES.get(text))
        if role is not None:
            return role
        if isinstance(node, ast.Attribute) and self.owner(node.value) == "module":
            return node.attr
        return None


def walk(doubles: ModuleType, version: str, modules: tuple[str, ...]) -> Walk:
    found = Walk("", doubles.inventory(version))
    for module in modules:
        found.module = module
        found.file(FOLDER / f"{module}.py")
    return found


@pytest.mark.parametrize("version", ["7.1", "8.2", "8.4", "8.6.1", "10.0.1", "10.3.0", "10.9.0.34", "10.16.0.72", "11.4.0.106"])
def test_tensorrt_code_touches_only_names_that_the_release_has(doubles: ModuleType, version: str) -> None:
    found = walk(doubles, version, MODULES["tensorrt"])

    assert found.missing == []
    assert ("Builder", "create_network") in found.seen
    assert len(found.seen) > 30


def test_rtx_code_touches_only_names_that_the_release_has(doubles: ModuleType) -> None:
    found = walk(doubles, doubles.RTX_VERSION, MODULES["rtx"])

    assert found.missing == []
    assert ("IBuilderConfig", "set_compute_capability") in found.seen


@pytest.mark.parametrize(
    ("version", "code", "missing"),
    [
        ("11.4.0.106", "def f(trt, config):\n config.max_workspace_size = 1", ["m.py:2: IBuilderConfig.max_workspace_size"]),
        ("8.2", "def f(trt):\n return trt.MemoryPoolType.WORKSPACE", ["m.py:2: module.MemoryPoolType", "m.py:2: MemoryPoolType.WORKSPACE"]),
        ("11.4.0.106", "def f(trt):\n if hasattr(trt.BuilderFlag, 'FP16'):\n  return trt.BuilderFlag.FP16", []),
        ("8.6.1", "def f(engine):\n if not hasattr(engine, 'x'):\n  return\n engine.y()", []),
    ],
)
def test_the_walk_itself_finds_a_name_that_is_gone(
    doubles: ModuleType, tmp_path: Path, version: str, code: str, missing: list[str]
) -> None:
    (tmp_path / "m.py").write_text(code)
    found = Walk("m", doubles.inventory(version))
    found.file(tmp_path / "m.py")

    assert sorted(found.missing) == sorted(missing)
