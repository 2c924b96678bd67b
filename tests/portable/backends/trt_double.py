"""Doubles over the TensorRT Python API: they answer only to the names that a release really has.

The names are inventories of the real bindings (trt_api/<version>.json). The releases before 8.6 have no such inventory here:
theirs are derived in trt_api/older.json from the table in docs/facts/tensorrt_api.yaml, and prove no more than that table.
"""

from __future__ import annotations

import ctypes
import enum
import json
from pathlib import Path
from typing import Any

API = Path(__file__).with_name("trt_api")
TENSORRT_VERSIONS = ("7.1", "8.2", "8.4", "8.6.1", "10.0.1", "10.3.0", "10.9.0.34", "10.16.0.72", "11.4.0.106")
RTX_VERSION = "rtx-1.7.1.116"


def inventory(version: str) -> dict[str, set[str]]:
    """Class name (or ``module``) -> the names that this release has in it."""
    older = json.loads((API / "older.json").read_text())
    if version not in older:
        return {owner: set(names) for owner, names in json.loads((API / f"{version}.json").read_text()).items()}
    change = older[version]
    names = inventory(change["from"])
    for owner, gone in change["remove"].items():
        assert set(gone) <= names[owner], (version, owner, set(gone) - names[owner])
        names[owner] -= set(gone)
    for owner, added in change["add"].items():
        names[owner] |= set(added)
    for owner in set(names) - names["module"] - {"module", "Severity"}:
        del names[owner]
    return names


class Guarded:
    """Refuses every public name that the release does not have, for reading and for writing."""

    _names: frozenset[str] | set[str] = frozenset()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name not in type(self)._names:
            raise AttributeError(f"this release has no {type(self).__name__}.{name}")
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in type(self)._names:
            raise AttributeError(f"this release has no {type(self).__name__}.{name}")
        super().__setattr__(name, value)


class DoubleEnum(enum.Enum):
    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __int__(self) -> int:
        return int(self.value)


class DoubleTensor:
    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any, values: bool = False) -> None:
        self.name, self.shape, self.dtype, self.is_shape_tensor = name, shape, dtype, values


class DoubleProfile(Guarded):
    def __init__(self, world: DoubleTensorRT) -> None:
        self._world = world

    def set_shape(self, name: str, *dims: Any) -> None:
        self._world.calls.append(("set_shape", name, *dims))

    def set_shape_input(self, name: str, *values: Any) -> None:
        self._world.calls.append(("set_shape_input", name, *values))


class DoubleConfig(Guarded):
    def __init__(self, world: DoubleTensorRT) -> None:
        self._world = world
        for name in ("builder_optimization_level", "hardware_compatibility_level", "max_workspace_size"):
            if name in type(self)._names:
                setattr(self, name, None)

    def set_flag(self, flag: Any) -> None:
        self._world.flags.add(flag.name)

    def clear_flag(self, flag: Any) -> None:
        self._world.flags.discard(flag.name)

    def set_memory_pool_limit(self, pool: Any, size: int) -> None:
        self._world.calls.append(("set_memory_pool_limit", pool.name, size))

    def add_optimization_profile(self, profile: Any) -> int:
        return 0


class DoubleNetwork(Guarded):
    def __init__(self, world: DoubleTensorRT) -> None:
        self._world = world
        self.num_inputs, self.num_outputs, self.num_layers = 0, 0, 0

    def get_input(self, index: int) -> DoubleTensor:
        return DoubleTensor("x", (-1, 4), self._world.module.DataType.FLOAT)

    def get_output(self, index: int) -> DoubleTensor:
        return DoubleTensor("y", (-1, 4), self._world.module.DataType.FLOAT)

    def get_layer(self, index: int) -> Any:
        return self._world.layers[index]


class DoubleParserError(Guarded):
    def __init__(self, world: DoubleTensorRT) -> None:
        self._world = world

    def code(self) -> Any:
        return "ErrorCode.UNSUPPORTED_NODE"

    def desc(self) -> str:
        return "false"

    def node(self) -> int:
        return 3

    def node_name(self) -> str:
        return "det"

    def node_operator(self) -> str:
        return "Det"


class DoubleParser(Guarded):
    def __init__(self, network: DoubleNetwork, logger: Any) -> None:
        self._network = network
        self.num_errors = 0

    def parse_from_file(self, path: str) -> bool:
        return self._parse("parse_from_file", Path(path).read_bytes())

    def parse(self, data: bytes) -> bool:
        return self._parse("parse", data)

    def get_error(self, index: int) -> DoubleParserError:
        return self._network._world.make(DoubleParserError, "ParserError")

    def _parse(self, call: str, data: bytes) -> bool:
        world = self._network._world
        world.calls.append((call,))
        if data == b"unsupported":
            self.num_errors = 1
            return False
        self._network.num_inputs = self._network.num_outputs = 0 if data == b"empty" else 1
        self._network.num_layers = len(world.layers)
        return True


class DoubleBuilder(Guarded):
    _world: DoubleTensorRT

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def create_network(self, flags: int) -> DoubleNetwork:
        known = self._world.module.NetworkDefinitionCreationFlag
        self._world.network_flags = {flag.name for flag in known if flags >> int(flag) & 1}
        return self._world.make(DoubleNetwork, "INetworkDefinition")

    def create_builder_config(self) -> DoubleConfig:
        self._world.config = self._world.make(DoubleConfig, "IBuilderConfig")
        return self._world.config

    def create_optimization_profile(self) -> DoubleProfile:
        return self._world.make(DoubleProfile, "IOptimizationProfile")

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        self._world.calls.append(("build_serialized_network",))
        if "progress_monitor" in type(config)._names:
            monitor = config.progress_monitor
            monitor.phase_start("Building engine", None, 6)
            assert monitor.step_complete("Building engine", 0) is True
            monitor.phase_finish("Building engine")
        return self._world.plan(self._logger)

    def build_engine(self, network: Any, config: Any) -> Any:
        self._world.calls.append(("build_engine",))
        plan = self._world.plan(self._logger)
        return None if plan is None else self._world.make(DoubleEngine, "ICudaEngine")


class DoubleEngine(Guarded):
    """One input x and one output y = 2 x, float32, first dimension dynamic."""

    def __init__(self, world: DoubleTensorRT) -> None:
        self._world = world
        for name, value in (("num_io_tensors", 2), ("num_bindings", 2), ("num_optimization_profiles", 1)):
            if name in type(self)._names:
                setattr(self, name, value)

    def serialize(self) -> Any:
        return self._world.plan(None)

    def create_execution_context(self) -> DoubleContext:
        return self._world.make(DoubleContext, "IExecutionContext")

    def get_tensor_name(self, index: int) -> str:
        return "xy"[index]

    def get_tensor_mode(self, name: str) -> Any:
        mode = self._world.module.TensorIOMode
        return mode.INPUT if name == "x" else mode.OUTPUT

    def get_tensor_location(self, name: str) -> Any:
        return self._world.module.TensorLocation.DEVICE

    def get_tensor_dtype(self, name: str) -> Any:
        return self._world.module.DataType.FLOAT

    def get_binding_name(self, index: int) -> str:
        return "xy"[index]

    def binding_is_input(self, index: int) -> bool:
        return index == 0

    def is_shape_binding(self, index: int) -> bool:
        return False

    def get_binding_shape(self, index: int) -> tuple[int, ...]:
        return (-1, 4)

    def get_binding_dtype(self, index: int) -> Any:
        return self._world.module.DataType.FLOAT


class DoubleContext(Guarded):
    def __init__(self, world: DoubleTensorRT) -> None:
        self._world = world
        self._shape: tuple[int, ...] = ()

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shape = shape
        return shape[0] <= 8

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shape

    def set_binding_shape(self, index: int, shape: tuple[int, ...]) -> bool:
        self._shape = shape
        return shape[0] <= 8

    def get_binding_shape(self, index: int) -> tuple[int, ...]:
        return self._shape

    def execute_v2(self, addresses: list[int]) -> bool:
        count = self._shape[0] * self._shape[1]
        source = (ctypes.c_float * count).from_address(addresses[0])
        target = (ctypes.c_float * count).from_address(addresses[1])
        for index in range(count):
            target[index] = source[index] * 2
        return True


class DoubleRuntime(Guarded):
    _world: DoubleTensorRT

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        if "engine_host_code_allowed" in type(self)._names:
            self.engine_host_code_allowed = False

    def deserialize_cuda_engine(self, data: bytes) -> Any:
        if data != b"plan":
            severity = self._world.module.ILogger.Severity.ERROR
            self._logger.log(severity, "1: [x.cpp::f::3] Error Code 1: Serialization (Magic tag does not match)")
            return None
        return self._world.make(DoubleEngine, "ICudaEngine")


class DoubleTensorRT:
    """A module of one release, and what was done to it."""

    def __init__(self, version: str) -> None:
        self.names = inventory(version)
        self.flags: set[str] = {"TF32"}
        self.network_flags: set[str] = set()
        self.calls: list[tuple[Any, ...]] = []
        self.layers: list[Any] = []
        self.config: Any = None
        self.refuse: str | None = None
        self.module = self._module(version)

    def plan(self, logger: Any) -> bytes | None:
        if self.refuse is not None and logger is not None:
            logger.log(self.module.ILogger.Severity.ERROR, self.refuse)
            return None
        return b"plan"

    def make(self, kind: type[Any], owner: str) -> Any:
        return self._limited(kind, owner)(self)

    def _limited(self, kind: type[Any], owner: str) -> type[Any]:
        return type(kind.__name__, (kind,), {"_names": self.names[owner], "_world": self})

    def _module(self, version: str) -> Any:
        severity = DoubleEnum("Severity", {"INTERNAL_ERROR": 0, "ERROR": 1, "WARNING": 2, "INFO": 3, "VERBOSE": 4})
        members: dict[str, Any] = {
            "__version__": version,
            "ILogger": type("DoubleLogger", (), {"Severity": severity}),
            "IProgressMonitor": type("DoubleMonitor", (), {}),
            "Builder": self._limited(DoubleBuilder, "Builder"),
            "OnnxParser": self._limited(DoubleParser, "OnnxParser"),
            "Runtime": self._limited(DoubleRuntime, "Runtime"),
            "init_libnvinfer_plugins": lambda logger, namespace: self.calls.append(("init_libnvinfer_plugins", namespace)),
        }
        for number, name in enumerate(("DataType", "BuilderFlag", "MemoryPoolType", "NetworkDefinitionCreationFlag", "LayerType",
                                       "HardwareCompatibilityLevel", "TensorIOMode", "TensorLocation")):  # fmt: skip
            if name in self.names:
                # numbers differ from release to release: nothing may rest on them
                values = {member: index + number for index, member in enumerate(sorted(self.names[name]))}
                members[name] = DoubleEnum(name, values)
        here = {name: value for name, value in members.items() if name in self.names["module"] or name == "__version__"}
        return type("DoubleModule", (), here)


class DoubleCuda:
    """Host memory in the place of the GPU's."""

    def __init__(self) -> None:
        self._memory: dict[int, Any] = {}

    def use(self, capabilities: list[str]) -> dict[str, Any]:
        return {"index": 0, "name": "Double GPU", "compute_capability": (capabilities or ["8.6"])[0]}

    def allocate(self, size: int) -> int:
        memory = ctypes.create_string_buffer(max(size, 1))
        self._memory[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free(self, address: int) -> None:
        del self._memory[address]

    def to_device(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def from_device(self, address: int, size: int) -> bytearray:
        return bytearray(ctypes.string_at(address, size))

    def synchronize(self) -> None:
        pass
