"""Loading rules of TensorRT engines: version, version compatibility, compute capability, range of the runtime, CUDA build."""

from typing import List, Optional

from .answer import NO, UNKNOWN, YES
from .capability import is_jetson, key, one_of
from .data import load
from .images import split_reference
from .loads_view import DOES_NOT, LOADS, RULES, WARNING, Case, Engine, Gpu, Host, Rule, fact, model_name, said, same_release
from .support import tensorrt_supports
from .version import compare, parse

_ONE_CHIP = {"10.1", "11.0"}  # CUDA 12.9 and older name Thor 10.1, CUDA 13 names it 11.0


def _crosses(built: str, here: str) -> str:
    """Whether a version compatible engine of release ``built`` loads in release ``here``: "yes", "no" or "unknown"."""
    left, right = parse(built), parse(here)
    for start, goal in fact("version_compatible")["across"]:
        if compare(built, start) == 0 and right[:1] == parse(goal):
            return YES
    if left[0] != right[0]:
        return NO
    if len(left) < 2 or len(right) < 2:
        return UNKNOWN
    return YES if right[1] >= left[1] else NO


def _may_cross(engine: Engine) -> bool:
    """Whether the engine was, or may have been, built version compatible; the flag came with 8.6."""
    if engine.version is None or engine.version_compatible is False:
        return False
    return compare(engine.version, fact("version_compatible")["first"]) >= 0


def _same_image(engine: Engine, host: Host) -> bool:
    if not engine.image or not host.image:
        return False
    return split_reference(engine.image) == split_reference(host.image)


def version(case: Case) -> Optional[Rule]:
    """The release that built the engine must be the one here, to the last number."""
    engine, host, runtime = case.engine, case.host, case.runtime
    if runtime.error is not None or (engine.version is None and engine.serialization is not None):
        return None
    if engine.version is None:
        return said("version", UNKNOWN, "which TensorRT built the engine is not known", fix="give the manifest that lies beside it")
    if runtime.version is None:
        text = "which TensorRT this host has is not known; the engine needs {}".format(engine.version)
        return said("version", UNKNOWN, text, fix="run `enginefarm doctor --save host.json` there and give --on host.json")
    evidence = "engine {}, host {}".format(engine.version, runtime.version)
    same = same_release(engine.version, runtime.version)
    if same == UNKNOWN and _same_image(engine, host):
        return said("version", LOADS, "engine and host take TensorRT from one image, {}".format(host.image), evidence, "inferred")
    if same == YES:
        return said("version", LOADS, "TensorRT {} built it and is here".format(engine.version), evidence)
    if engine.version_compatible and _may_cross(engine):
        return None  # version_compatible() answers
    if same == UNKNOWN:
        text = "built by TensorRT {}, here is {}: all numbers must be equal and not all are known".format(engine.version, runtime.version)
        return said("version", UNKNOWN, text, evidence, fix="ask the host itself: enginefarm doctor --save host.json")
    if engine.version_compatible is None and _may_cross(engine) and _crosses(engine.version, runtime.version) != NO:
        text = "built by TensorRT {}, here is {}: it loads only if it was built version compatible, which its header does not say"
        return said("version", UNKNOWN, text.format(engine.version, runtime.version), evidence, fix="give the manifest that lies beside it")
    text = "built by TensorRT {}, this host has {}: an engine loads only in the release that built it".format(
        engine.version, runtime.version
    )
    fix = "build it again with TensorRT {0}, or run it where TensorRT {1} is".format(runtime.version, engine.version)
    return said("version", DOES_NOT, text, evidence, fix=fix)


def serialization(case: Case) -> Optional[Rule]:
    """Plans of TensorRT 7 and older say no version, only a tag; of newer ones the tag decides which message comes first."""
    engine, runtime = case.engine, case.runtime
    if engine.serialization is None or runtime.version is None:
        return None
    tag = str(engine.serialization)
    if engine.version is None:
        of_tag = fact("old_tags").get(tag)
        text = "a plan of TensorRT 7 or older (serialization tag {}); this host has TensorRT {}".format(tag, runtime.version)
        evidence = "Current Version: ?, Serialized Engine Version: {}".format(tag)
        fix = "build it again with TensorRT {}".format(runtime.version)
        if parse(runtime.version)[0] > 7 or (of_tag and not any(compare(runtime.version, name) == 0 for name in of_tag)):
            return said("serialization", DOES_NOT, text, evidence, "inferred", fix=fix)
        return said("serialization", UNKNOWN, text + ": which 7.x built it cannot be read", evidence, "secondary", fix=fix)
    if engine.version_compatible is not False or same_release(engine.version, runtime.version) != NO:
        return None
    known = load("plan_header")["tensorrt"]["serialization_tags"].get(tag)
    text = "the runtime's first complaint is 'Version tag does not match' or 'expecting library version {} got {}'"
    evidence = "serialization tag {}{}".format(tag, " (seen with {})".format(known) if known else "")
    return said("serialization", DOES_NOT, text.format(runtime.version, engine.version), evidence, "secondary")


def version_compatible(case: Case) -> Optional[Rule]:
    """A version compatible engine: where it may go, and that it brings host code along."""
    engine, host, gpu, runtime = case
    if not engine.version_compatible or engine.version is None or runtime.version is None or not _may_cross(engine):
        return None
    rule, table = "version-compatible", fact("version_compatible")
    evidence = "engine {}, host {}".format(engine.version, runtime.version)
    crosses = _crosses(engine.version, runtime.version)
    text = "a version compatible engine of TensorRT {} ".format(engine.version)
    if crosses == NO:
        fix = "build it with TensorRT {}".format(runtime.version)
        rest = "loads in the same major from its minor on, in 10 when it is of 8.6, and in 11 when it is of 10: not in {}"
        return said(rule, DOES_NOT, text + rest.format(runtime.version), evidence, table["confidence"], fix=fix)
    if gpu is not None and gpu.capability is not None and key(gpu.capability) < key(table["min_capability"]):
        rest = "needs compute capability {} or newer, not {}".format(table["min_capability"], gpu.capability)
        return said(rule, DOES_NOT, text + rest, evidence, table["confidence"], fix="build it without version compatibility")
    if crosses == UNKNOWN:
        rest = "loads from its own minor on; the minor number here is not known ({})".format(runtime.version)
        return said(rule, UNKNOWN, text + rest, evidence, table["confidence"])
    if engine.lean_excluded:
        fix = 'runtime = runtime.load_runtime("libnvinfer_lean.so.{}")'.format(parse(engine.version)[0])
        return said(rule, WARNING, text + "was built without its lean runtime: load that first", evidence, table["confidence"], fix=fix)
    allow = "runtime.engine_host_code_allowed = True"
    if host.host_code is False:
        rest = "brings host code along, and this loader does not allow it"
        return said(rule, DOES_NOT, text + rest, evidence, table["confidence"], fix=allow)
    if host.host_code is None:
        rest = "loads in {} when the loader allows the host code that it brings along".format(runtime.version)
        return said(rule, WARNING, text + rest, evidence, table["confidence"], fix=allow)
    return said(rule, LOADS, text + "loads in {}".format(runtime.version), evidence, table["confidence"])


def _level(engine: Engine, name: str) -> bool:
    """Whether the engine really has this hardware compatibility level: its release must know it."""
    return engine.level == name and engine.version is not None and compare(engine.version, fact(name)["first"]) >= 0


def capability(case: Case) -> Optional[Rule]:
    """The GPU's compute capability must be the engine's, unless a hardware compatibility level was set."""
    engine, gpu = case.engine, case.gpu
    if gpu is None:
        return None
    rule, here, built = "capability", gpu.capability, engine.capabilities
    if not built:
        text = "which compute capability the engine is for is not known: a TensorRT plan does not say it, only a manifest does"
        return said(rule, UNKNOWN, text, fix="give the manifest that lies beside it")
    if here is None:
        text = "the compute capability of {} is not known; the engine needs {}".format(gpu, one_of(built))
        return said(rule, UNKNOWN, text)
    evidence = "engine {}, GPU {}".format(", ".join(built), here)
    if here in built:
        return _same_capability(engine, gpu, here, evidence)
    if _level(engine, "ampere_plus"):
        return _ampere_plus(built, gpu, here, evidence)
    if {here, *built} == _ONE_CHIP:
        text = "10.1 and 11.0 are one chip under two names of CUDA; whether an engine crosses them is not known"
        return said(rule, UNKNOWN, text, evidence, "unsourced", "docs/facts/capabilities.yaml")
    text = "built for compute capability {}, this GPU is {}".format(one_of(built), gpu)
    return said(rule, DOES_NOT, text, evidence, fix="build for a target with compute_capability {}".format(here))


def _same_capability(engine: Engine, gpu: Gpu, here: str, evidence: str) -> Rule:
    rule, text = "capability", "built for compute capability {}, which {} has".format(here, gpu.name or "this GPU")
    same = _level(engine, "same_compute_capability") and not is_jetson(here) and key(here) >= key(fact("same_compute_capability")["min"])
    if same or (_level(engine, "ampere_plus") and not is_jetson(here)):
        return said(rule, LOADS, text + "; other models of it are covered too", evidence)
    if engine.model is None or gpu.name is None:
        return said(rule, LOADS, text + "; whether it was built on this GPU model is not known", evidence)
    if engine.model == model_name(gpu.name):
        return said(rule, LOADS, "built on this GPU model, {}".format(gpu.name), evidence)
    text = "built on another model of this compute capability ({}): slower, and NVIDIA warns of errors".format(engine.model)
    return said(rule, WARNING, text, evidence, "secondary", fix="build it on a {}".format(gpu.name))


def _ampere_plus(built: List[str], gpu: Gpu, here: str, evidence: str) -> Rule:
    rule, table = "capability", fact("ampere_plus")
    fix = "build for a target with compute_capability {}".format(here)
    if is_jetson(here) or any(is_jetson(name) for name in built):
        return said(rule, DOES_NOT, "the level ampere_plus exists on no Jetson; this GPU is {}".format(gpu), evidence, fix=fix)
    if key(here) < key(table["min"]) or any(key(name) < key(table["min"]) for name in built):
        return said(rule, DOES_NOT, "the level ampere_plus needs {} or newer, not {}".format(table["min"], gpu), evidence, fix=fix)
    text = "the level ampere_plus runs on {}, slower than an engine of its own".format(gpu)
    return said(rule, LOADS, text, evidence, table["confidence"])


def supported(case: Case) -> Optional[Rule]:
    """The host's TensorRT must know the host's GPU."""
    engine, gpu, runtime = case.engine, case.gpu, case.runtime
    if gpu is None or gpu.capability is None or runtime.version is None:
        return None
    answer = tensorrt_supports(runtime.version, gpu.capability)
    built = engine.exists and engine.version is not None and same_release(engine.version, runtime.version) == YES
    if answer.verdict == UNKNOWN and built and gpu.capability in engine.capabilities:
        text = "the engine itself shows that TensorRT {} takes compute capability {}".format(runtime.version, gpu.capability)
        return said("tensorrt-range", LOADS, text, answer.reason, "inferred", answer.source)
    verdict = {YES: LOADS, NO: DOES_NOT, UNKNOWN: UNKNOWN}[answer.verdict]
    fix = "take a TensorRT that supports {}".format(gpu.capability) if verdict == DOES_NOT else ""
    return said("tensorrt-range", verdict, answer.reason, "", answer.confidence, answer.source, fix)


def cuda_build(case: Case) -> Optional[Rule]:
    """The CUDA 11 and CUDA 12 builds of one TensorRT share their version number: nothing stops the wrong one at load."""
    engine, runtime = case.engine, case.runtime
    if runtime.error is not None or engine.version is None or runtime.version is None:
        return None
    crossing = same_release(engine.version, runtime.version) == NO
    if crossing and not engine.version_compatible:
        return None  # another release altogether: the version rule said so
    rule, confidence = "cuda-build", fact("cuda_major")["confidence"]
    if engine.cuda is None or runtime.cuda is None:
        whose = "the engine's TensorRT" if engine.cuda is None else "this host's TensorRT"
        text = "which CUDA {} was built with is not known; CUDA 11, 12 and 13 builds of one release are different programs".format(whose)
        fix = "give the manifest" if engine.cuda is None else 'say it in host.json: backends.tensorrt.cuda: "12.2"'
        return said(rule, UNKNOWN, text, "", confidence, fix=fix)
    evidence = "engine CUDA {}, host CUDA {}".format(engine.cuda, runtime.cuda)
    if parse(engine.cuda)[0] == parse(runtime.cuda)[0]:
        return said(rule, LOADS, "both TensorRTs are CUDA {} builds".format(parse(engine.cuda)[0]), evidence, confidence)
    major, other = parse(engine.cuda)[0], parse(runtime.cuda)[0]
    if crossing:
        text = "a CUDA {} build made it and a CUDA {} build is here: not known whether its lean runtime runs in it".format(major, other)
        return said(rule, UNKNOWN, text, evidence, confidence, RULES)
    text = "a CUDA {} build of TensorRT {} made it, here is the CUDA {} build: nothing checks that, it starts and crashes under load"
    fix = "build it again with the CUDA {} build, or run it in {}".format(other, engine.image or "the image that built it")
    return said(rule, DOES_NOT, text.format(major, engine.version, other), evidence, confidence, RULES, fix)
