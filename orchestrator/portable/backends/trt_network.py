"""From an ONNX file to a built plan: the parts of a build step that TensorRT and TensorRT-RTX share."""

import os
import re
import time
from typing import Any, Dict, List

from ..worker.errors import StepError, printable, quoted
from ..worker.events import Events
from ..worker.files import chunks_of, inside, write_whole
from .trt_common import clean, dtype_name, enum_name, failure

_REPORTED_PROBLEMS = 20


def parse(trt: Any, network: Any, logger: Any, path: str, *, takes_plugins: bool = True) -> Any:
    """Parse the ONNX file into ``network``; gives the parser, which must outlive the build.

    StepError unsupported-op or parse-failed with details ``node``, ``op``, ``text`` and ``problems`` (all of them), for an operator
    also ``fix``.
    """
    parser = trt.OnnxParser(network, logger)
    if hasattr(parser, "parse_from_file"):
        parsed = parser.parse_from_file(path)
    else:
        with open(path, "rb") as file:
            parsed = parser.parse(file.read())
    if not parsed:
        raise _parse_error(parser, logger, takes_plugins)
    if network.num_outputs == 0:  # an empty file, and a web page, parse without complaint
        raise StepError("parse-failed", "the file holds no network: the parser found no outputs in it")
    return parser


def _parse_error(parser: Any, logger: Any, takes_plugins: bool) -> StepError:
    problems = [_problem(parser.get_error(index)) for index in range(min(parser.num_errors, _REPORTED_PROBLEMS))]
    if not problems:
        return failure("parse-failed", "the parser refused the model", logger.errors)
    first = next((problem for problem in problems if problem["unsupported"]), problems[0])
    details = {"node": first["node"], "op": first["op"], "text": first["text"], "problems": problems}
    if not first["unsupported"]:
        return StepError("parse-failed", "the parser refused the model: " + _at(first), details, logger.errors)
    return StepError("unsupported-op", _at(first), dict(details, fix=_operator_fix(first, takes_plugins)), logger.errors)


def _operator_fix(problem: Dict[str, Any], takes_plugins: bool) -> str:
    """What to do about an operator. The parser asks for a plugin for those that no one knows, and for some of ONNX's own (NonZero)."""
    custom = re.search(r"plugin not found", problem["text"], re.IGNORECASE) is not None
    ways = ["name the library that has it in `plugins:` of the target"] if takes_plugins and problem["needs_plugin"] else []
    ways += [] if custom else ["build the model for ONNX Runtime (--target cpu)"]
    return ", or ".join([*ways, "export the model without this operator"])


def _problem(error: Any) -> Dict[str, Any]:
    code = enum_name(error.code())
    text = clean(error.desc())
    if text == "false":  # the operator checkers refuse without a word
        text = "the parser does not support it"
    needs_plugin = re.search("plugin", text, re.IGNORECASE) is not None
    return {
        "code": code,
        "node": printable(error.node_name(), 200) if hasattr(error, "node_name") else "",
        "op": printable(error.node_operator(), 200) if hasattr(error, "node_operator") else "",
        "index": error.node(),
        "text": text,
        "unsupported": code.startswith("UNSUPPORTED_NODE") or needs_plugin,
        "needs_plugin": needs_plugin,
    }


def _at(problem: Dict[str, Any]) -> str:
    op, node, index = problem["op"], problem["node"], problem["index"]
    place = "operator {}".format(op) if op else ""
    if node:
        place += " at node {}".format(quoted(node)) if place else "node {}".format(quoted(node))
    elif index is not None and index >= 0:
        place += " at node number {}".format(index) if place else "node number {}".format(index)
    return "{}: {}".format(place, problem["text"]) if place else str(problem["text"])


def signature(network: Any) -> List[Dict[str, Any]]:
    """Inputs, then outputs, of a parsed network; a dynamic dimension is -1."""
    tensors = [("input", network.get_input(index)) for index in range(network.num_inputs)]
    tensors += [("output", network.get_output(index)) for index in range(network.num_outputs)]
    return [_described(mode, tensor) for mode, tensor in tensors]


def _described(mode: str, tensor: Any) -> Dict[str, Any]:
    return {"name": tensor.name, "mode": mode, "dtype": dtype_name(tensor.dtype), "shape": _dims(tensor)}


def _dims(tensor: Any) -> List[int]:
    try:
        return [int(dim) for dim in tensor.shape]
    except ValueError:  # before the build, a rank that depends on data has no length
        return []


def add_profiles(builder: Any, network: Any, config: Any, logger: Any, profiles: List[Dict[str, Any]]) -> None:
    """Add optimization profiles. For an input that carries a shape, min, opt and max are its values.

    A dynamic input without a profile, an unknown input and a refused profile are StepErrors (build-failed): the
    builder itself says nothing about unknown names and drops a refused profile.
    """
    inputs = {tensor.name: tensor for tensor in (network.get_input(index) for index in range(network.num_inputs))}
    needy = [name for name, tensor in inputs.items() if tensor.is_shape_tensor or -1 in _dims(tensor)]
    for profile_inputs in profiles or ([{}] if needy else []):
        unknown = sorted(set(profile_inputs) - set(inputs))
        missing = [name for name in needy if name not in profile_inputs]
        if unknown or missing:
            raise StepError("build-failed", _profile_gap(unknown, missing, sorted(inputs)))
        profile = builder.create_optimization_profile()
        for name, dims in sorted(profile_inputs.items()):
            set_dims = profile.set_shape_input if inputs[name].is_shape_tensor else profile.set_shape
            set_dims(name, tuple(dims["min"]), tuple(dims["opt"]), tuple(dims["max"]))
        if config.add_optimization_profile(profile) < 0:
            raise failure("build-failed", "the optimization profile is refused", logger.errors)


def _profile_gap(unknown: List[str], missing: List[str], inputs: List[str]) -> str:
    if unknown:
        return "the profile names {}, the model's inputs are {}".format(_listed(unknown), _listed(inputs))
    return "no optimization profile for the dynamic input{} {}".format("s" * (len(missing) > 1), _listed(missing))


def _listed(names: List[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def watch(trt: Any, config: Any, events: Events) -> None:
    """Turn the builder's phases into events, where the release has a progress monitor (9.0 and newer).

    Phases below the second level repeat per node and are left out. Steps are not proportional to time: ignored.
    """
    if not hasattr(trt, "IProgressMonitor"):
        events.phase("building")
        return

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.depth: Dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: Any, num_steps: int) -> None:  # noqa: ARG002
            depth = self.depth.get(parent_phase, -1) + 1
            self.depth[phase_name] = depth
            if depth <= 2:
                events.phase(phase_name)

        def phase_finish(self, phase_name: str) -> None:
            self.depth.pop(phase_name, None)

        def step_complete(self, phase_name: str, step: int) -> bool:  # noqa: ARG002
            return True  # anything else, None too, cancels the build

    config.progress_monitor = Monitor()


def set_flag(trt: Any, config: Any, name: str, wanted: bool) -> bool:
    """Set or clear a builder flag by name; False when this release has no such flag."""
    if not hasattr(trt.BuilderFlag, name):
        return False
    flag = getattr(trt.BuilderFlag, name)
    if wanted:
        config.set_flag(flag)
    else:
        config.clear_flag(flag)
    return True


def write_plan(folder: str, file: str, plan: Any) -> Dict[str, Any]:
    """Write the serialized engine; gives the result's ``engine``."""
    path = inside(folder, file)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    size, digest = write_whole(path, chunks_of(plan))
    return {"file": file, "size_bytes": size, "sha256": digest}


def built(trt: Any, network: Any, plan: Any, started: float, request: Dict[str, Any], folder: str, events: Any) -> Dict[str, Any]:
    """Write ``plan`` and answer the build request; ``started`` is time.time() when the builder began. ``details`` holds the layers."""
    seconds = time.time() - started
    events.phase("writing")
    return {
        "engine": write_plan(folder, request["engine"], plan),
        "backend_version": trt.__version__,
        "io": signature(network),
        "build_seconds": round(seconds, 3),
        "details": {"layers": network.num_layers},
    }
