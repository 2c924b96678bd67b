"""TensorRT-RTX build step: one engine for a list of compute capabilities, on any machine, no GPU needed.

Measured behaviour: docs/facts/rtx.yaml.
"""

import re
import time
from typing import Any, Dict, List, Tuple

from ..worker.errors import StepError, quoted
from ..worker.events import Events
from ..worker.files import inside
from .trt_common import clean, failure, import_rtx, make_logger, telling
from .trt_network import add_profiles, built, parse, set_flag, watch

# the builder's words -> what a compute capability refuses, and what to do
_REFUSALS = (
    (re.compile(r"FP32 GEMM is not supported"), "fp32 matrix products", "precision: fp16 builds for {}"),
    (re.compile(r"HW-specific datatypes: .*\bb16"), "bf16", "precision: fp16 builds for {}"),
    (re.compile(r"HW-specific datatypes: .*fp8"), "fp8", "fp8 needs compute capability 8.9 or newer"),
    (re.compile(r"HW-specific datatypes: .*int4"), "int4", "int4 needs compute capability 8.0 or newer"),
    (re.compile(r"HW-specific datatypes: .*(?:fp4|e2m1)"), "fp4", "fp4 needs compute capability 12.0 or newer"),
)
_OPERATION = re.compile(r"Cannot compile operation '([^']+)'")


def build(request: Dict[str, Any], folder: str, events: Events) -> Dict[str, Any]:
    """Answer a build request of protocol.py; StepError for every way it can fail."""
    trt = import_rtx()
    options = request["options"]
    _refuse_unsupported(options)
    logger = make_logger(trt, events)
    events.phase("parsing")
    builder = trt.Builder(logger)
    network = builder.create_network(0)  # always strongly typed
    parser = parse(trt, network, logger, inside(folder, request["model"]), takes_plugins=False)
    capabilities = list(options["compute_capability"])
    started = time.time()
    plan, errors = _compile(trt, builder, network, logger, options, capabilities, events)
    if plan is None:
        raise _diagnose(trt, builder, network, options, capabilities, errors, logger, events)
    answer = built(trt, network, plan, started, request, folder, events)
    answer["details"]["compute_capability"] = capabilities
    del parser  # the network borrows from it until here
    return answer


def _refuse_unsupported(options: Dict[str, Any]) -> None:
    if not options.get("compute_capability"):
        raise StepError("bad-request", "a TensorRT-RTX build needs at least one compute capability")
    if options.get("plugins"):
        raise StepError("bad-request", "TensorRT-RTX has no plugins")
    if options.get("version_compatible") or options.get("hardware_compatibility", "none") != "none":
        raise StepError("bad-request", "TensorRT-RTX has no version or hardware compatibility: list the capabilities")


def _compile(
    trt: Any,
    builder: Any,
    network: Any,
    logger: Any,
    options: Dict[str, Any],
    capabilities: List[str],
    events: Any,
) -> Tuple[Any, List[str]]:
    """Gives the serialized engine, or None and the error lines of this attempt."""
    del logger.errors[:]
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(capabilities)
    for index, capability in enumerate(capabilities):
        _set_capability(trt, config, capability, index, logger)
    add_profiles(builder, network, config, logger, options.get("profiles") or [])
    set_flag(trt, config, "TF32", bool(options.get("tf32", True)))
    if options.get("workspace") is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(options["workspace"]))
    if options.get("optimization_level") is not None:
        config.builder_optimization_level = int(options["optimization_level"])
    if events is not None:
        watch(trt, config, events)
    plan = builder.build_serialized_network(network, config)
    return plan, list(logger.errors)


def _set_capability(trt: Any, config: Any, capability: str, index: int, logger: Any) -> None:
    member = getattr(trt.ComputeCapability, "SM" + capability.replace(".", ""), None)
    if member is None:
        known = [name[2:-1] + "." + name[-1] for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
        reason = "TensorRT-RTX {} builds for {}".format(trt.__version__, ", ".join(known))
        details = {"capability": capability, "reason": reason, "fix": "use backend tensorrt for other GPUs"}
        message = "TensorRT-RTX has no compute capability {}".format(quoted(capability))
        raise StepError("capability-refused", message, details)
    if not config.set_compute_capability(member, index):
        raise failure("build-failed", "compute capability {} was not accepted".format(capability), logger.errors)


def _diagnose(
    trt: Any,
    builder: Any,
    network: Any,
    options: Dict[str, Any],
    capabilities: List[str],
    errors: List[str],
    logger: Any,
    events: Events,
) -> StepError:
    """Say which capability refuses: a list is built for all of them or for none, and the error need not name one."""
    general = failure("build-failed", "the builder gave no engine", errors)
    if general.kind != "build-failed":
        return general
    alone = {capabilities[0]: errors} if len(capabilities) == 1 else {}
    accepted = []
    for capability in capabilities if len(capabilities) > 1 else []:
        events.phase("finding the refusing capability: {}".format(capability))
        plan, found = _compile(trt, builder, network, logger, options, [capability], None)
        if plan is not None:
            accepted.append(capability)
        else:
            alone[capability] = found
    refusals = {capability: _Refusal(capability, lines) for capability, lines in alone.items()}
    named = [refusal for refusal in refusals.values() if refusal.known or accepted]
    return _refused(named, accepted, telling(errors)) if named else general


class _Refusal:
    """What one capability refuses (``thing``), the builder's own words (``said``) and what helps (``fix``).

    ``known``: the reason is one that belongs to a capability, whatever the other capabilities do.
    """

    def __init__(self, capability: str, errors: List[str]) -> None:
        self.capability = capability
        lines = telling(errors)
        self.said = clean(lines[0]) if lines else "the builder gave no reason"
        self.thing, self.fix, self.known = "the model", "leave {} out of the target".format(capability), False
        for pattern, thing, fix in _REFUSALS:
            line = next((line for line in lines if pattern.search(line)), None)
            if line is not None:
                operation = _OPERATION.search(line)
                self.thing = thing + (" (operation {})".format(quoted(operation.group(1))) if operation else "")
                self.fix, self.said, self.known = fix.format(capability), clean(line), True
                return


def _refused(refusals: List[_Refusal], accepted: List[str], log: List[str]) -> StepError:
    told = "; ".join("{} refuses {}".format(refusal.capability, refusal.thing) for refusal in refusals)
    message = "compute capability " + told
    first = refusals[0]
    fix = first.fix
    if accepted:
        message += "; {} would build".format(" and ".join(accepted))
        fix += ", or leave {} out of the target".format(first.capability) if first.known else ""
    details = {
        "capability": first.capability,
        "reason": first.said,
        "fix": fix,
        "refused": {refusal.capability: refusal.said for refusal in refusals},
        "accepted": accepted,
    }
    return StepError("capability-refused", message, details, log)
