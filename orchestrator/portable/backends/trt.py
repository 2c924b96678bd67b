"""TensorRT build step for every release from 7.1 to 11.4, by feature test and enum NAME, never by version number.

What exists in which release: docs/facts/tensorrt_api.yaml; tests/portable/backends/trt_api holds the names themselves.
"""

import time
from typing import Any, Dict, List

from ..worker.errors import StepError
from ..worker.events import Events
from ..worker.files import inside
from .cuda import Cuda
from .trt_common import enum_name, failure, import_tensorrt, load_plugins, make_logger
from .trt_network import add_profiles, built, parse, set_flag, watch

_PRECISION_FLAGS = {"fp16": "FP16", "bf16": "BF16", "int8": "INT8", "fp8": "FP8"}
_QUANTIZED = ("int8", "fp8")


def build(request: Dict[str, Any], folder: str, events: Events) -> Dict[str, Any]:
    """Answer a build request of protocol.py; StepError for every way it can fail."""
    options = request["options"]
    device = Cuda().use(list(options.get("compute_capability") or []))
    trt = import_tensorrt()
    logger = make_logger(trt, events)
    plugins = load_plugins(trt, logger, folder, options.get("plugins") or [])
    events.phase("parsing")
    builder = make_builder(trt, logger)
    network = builder.create_network(_network_flags(trt, options))
    parser = parse(trt, network, logger, inside(folder, request["model"]))
    config = _configure(trt, builder, network, logger, options, plugins)
    watch(trt, config, events)
    started = time.time()
    plan = _build(builder, network, config)
    if plan is None:
        raise failure("build-failed", "the builder gave no engine", logger.errors)
    answer = built(trt, network, plan, started, request, folder, events)
    answer["details"]["device"] = device
    del parser  # the network borrows from it until here
    return answer


def make_builder(trt: Any, logger: Any) -> Any:
    """A builder; where CUDA does not start, pybind turns the null pointer into a TypeError."""
    try:
        return trt.Builder(logger)
    except TypeError as error:
        raise failure("no-device", "TensorRT did not start", logger.errors or [str(error)]) from error


def _network_flags(trt: Any, options: Dict[str, Any]) -> int:
    """Bits of NetworkDefinitionCreationFlag: explicit batch to 10.x, strong typing on request (9.0 to 10.x: a flag)."""
    known = trt.NetworkDefinitionCreationFlag
    flags = 0
    if hasattr(known, "EXPLICIT_BATCH"):  # gone in 11, where nothing else is left
        flags |= 1 << int(known.EXPLICIT_BATCH)
    if options.get("strongly_typed"):
        if not hasattr(known, "STRONGLY_TYPED"):
            raise StepError("bad-request", "TensorRT {} has no strongly typed networks".format(trt.__version__))
        flags |= 1 << int(known.STRONGLY_TYPED)
    return flags


def _configure(trt: Any, builder: Any, network: Any, logger: Any, options: Dict[str, Any], plugins: List[str]) -> Any:
    config = builder.create_builder_config()
    add_profiles(builder, network, config, logger, options.get("profiles") or [])
    if not options.get("strongly_typed"):
        _set_precision(trt, network, config, options.get("precision", "fp32"))
    set_flag(trt, config, "TF32", bool(options.get("tf32", True)))
    if options.get("workspace") is not None:
        _set_workspace(trt, config, int(options["workspace"]))
    if options.get("optimization_level") is not None:
        if not hasattr(config, "builder_optimization_level"):
            raise _too_old(trt, "optimization level", "8.6")
        config.builder_optimization_level = int(options["optimization_level"])
    _set_compatibility(trt, config, options, plugins)
    return config


def _set_precision(trt: Any, network: Any, config: Any, precision: str) -> None:
    """Allow a lower precision by builder flag; where flags are gone (11.x) only a model of that precision gives it."""
    if precision == "fp32":
        return
    name = _PRECISION_FLAGS[precision]
    if not set_flag(trt, config, name, True):
        text = "TensorRT {} has no builder flag for {}: convert the model first and build strongly typed"
        raise StepError("bad-request", text.format(trt.__version__, precision))
    if precision in _QUANTIZED and not _has_quantization(network):
        text = "precision {} needs a model with QuantizeLinear and DequantizeLinear nodes, this one has none"
        raise StepError("build-failed", text.format(precision), {"fix": "quantize the model first, or choose fp16"})


def _has_quantization(network: Any) -> bool:
    kinds = (enum_name(network.get_layer(index).type) for index in range(network.num_layers))
    return any(kind in ("QUANTIZE", "DEQUANTIZE") for kind in kinds)


def _set_workspace(trt: Any, config: Any, size: int) -> None:
    if hasattr(config, "set_memory_pool_limit"):  # 8.4 and newer
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, size)
    else:
        config.max_workspace_size = size


def _set_compatibility(trt: Any, config: Any, options: Dict[str, Any], plugins: List[str]) -> None:
    level = options.get("hardware_compatibility", "none")
    if level != "none":
        if not hasattr(trt, "HardwareCompatibilityLevel"):
            raise _too_old(trt, "hardware compatibility", "8.6")
        if not hasattr(trt.HardwareCompatibilityLevel, level.upper()):
            raise _too_old(trt, "hardware compatibility {}".format(level), "10.9")
        config.hardware_compatibility_level = getattr(trt.HardwareCompatibilityLevel, level.upper())
    if options.get("version_compatible"):
        if not set_flag(trt, config, "VERSION_COMPATIBLE", True):
            raise _too_old(trt, "version compatible plans", "8.6")
        if plugins:
            config.plugins_to_serialize = plugins


def _too_old(trt: Any, thing: str, since: str) -> StepError:
    return StepError("bad-request", "TensorRT {} has no {} (since {})".format(trt.__version__, thing, since))


def _build(builder: Any, network: Any, config: Any) -> Any:
    """The serialized engine, None when the builder failed (its log says why)."""
    if hasattr(builder, "build_serialized_network"):  # 8.0 and newer
        return builder.build_serialized_network(network, config)
    engine = builder.build_engine(network, config)
    return None if engine is None else engine.serialize()
