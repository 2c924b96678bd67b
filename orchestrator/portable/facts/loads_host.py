"""Loading rules that hold for every backend, and those of TensorRT-RTX and ONNX Runtime."""

from typing import Optional

from .answer import NO, UNKNOWN, YES, Answer
from .capability import key, one_of
from .data import load
from .drivers import driver_check, is_data_center
from .images import image_facts
from .loads_view import (
    DOES_NOT,
    IN_IMAGE,
    LOADS,
    NAMES,
    NOT_INSTALLED,
    WARNING,
    Case,
    Engine,
    Gpu,
    Host,
    Rule,
    fact,
    model_name,
    said,
    same_release,
)
from .version import compare, matches, parse

_RTX = "docs/facts/rtx.yaml"
_NEARLY_FULL = 0.9  # of a GPU's memory: other processes and CUDA itself need some too


def file(case: Case) -> Optional[Rule]:
    """The file must be a whole engine of a kind that is known."""
    engine, gpu = case.engine, case.gpu
    source = "docs/facts/plan_header.yaml"
    if engine.problems:
        first = engine.problems[0]
        return said("file", DOES_NOT, str(first.get("text") or "the file is damaged"), "", "measured", source, str(first.get("fix") or ""))
    if engine.backend not in NAMES:
        return said("file", UNKNOWN, "what kind of engine this is is not known", "", "unsourced", source)
    if engine.safety:
        return said("file", DOES_NOT, "a safety engine is for DRIVE's safety runtime, not for the standard one", "", "unsourced")
    if engine.dla and (gpu is None or gpu.capability not in engine.capabilities):
        return said("file", DOES_NOT, "an engine with DLA parts needs the same chip with its DLA", "", "unsourced")
    if engine.stripped:
        fix = "refit the weights after loading (OnnxParserRefitter)"
        return said("file", WARNING, "a stripped engine loads and computes nothing useful until its weights are back", fix=fix)
    return None


def validation(case: Case) -> Optional[Rule]:
    """What the farm found out about the engine."""
    engine, gpu = case.engine, case.gpu
    source = "the manifest"
    if engine.status == "failed":
        return said("validation", DOES_NOT, "it failed validation: loaders refuse it", "", "measured", source, "build it again")
    if engine.status in ("unvalidated", "skipped"):
        text = "nothing has checked what it computes: the loader refuses it unless allow_unvalidated is set"
        return said("validation", WARNING, text, "", "measured", source, "validate it on such a host: enginefarm build --target ...")
    if engine.status not in ("passed", "self-consistent"):
        return None
    here = gpu is not None and gpu.name is not None and engine.device is not None and model_name(gpu.name) in model_name(engine.device)
    where = " on this GPU model" if here else (" on {}".format(engine.device) if engine.device else "")
    return said("validation", LOADS, "{} validation{}".format(engine.status, where), "", "measured", source)


def platform(case: Case) -> Optional[Rule]:
    """Operating system and CPU must be the engine's."""
    engine, host = case.engine, case.host
    rule, wanted = "platform", engine.platform
    if wanted is None and engine.backend == "tensorrt" and engine.platform_tag is not None:
        wanted = fact("platform_tag").get(str(engine.platform_tag))
    if wanted == "any":
        return said(rule, LOADS, "the file is for any platform", "", "measured", "docs/facts/onnxruntime.yaml")
    if wanted is None:
        return said(rule, UNKNOWN, "which platform the engine is for is not known", fix="give the manifest that lies beside it")
    if host.platform is None:
        return said(rule, UNKNOWN, "the platform of this host is not known; the engine needs {}".format(wanted))
    evidence = "engine {}, host {}".format(wanted, host.platform)
    if wanted == host.platform:
        return said(rule, LOADS, "both are {}".format(wanted), evidence)
    if engine.backend == "tensorrt-rtx":
        text = "made for {}, this host is {}: a TensorRT-RTX engine names no platform and no one tried this".format(wanted, host.platform)
        return said(rule, UNKNOWN, text, evidence, "measured", _RTX)
    if engine.backend == "onnxruntime":
        text = "the target names {}, this host is {}; the file is plain ONNX".format(wanted, host.platform)
        return said(rule, WARNING, text, evidence, "measured", "docs/facts/onnxruntime.yaml")
    text = "built for {}, this host is {}".format(wanted, host.platform)
    return said(rule, DOES_NOT, text, evidence, fix="build it for {}".format(host.platform))


def has_gpu(case: Case) -> Optional[Rule]:
    """There must be a GPU."""
    host, gpu = case.host, case.gpu
    if gpu is not None:
        return said("gpu", LOADS, "runs on {}".format(gpu), "", "measured", "the host description")
    if host.gpu_problem:
        return said("gpu", UNKNOWN, "the GPUs of this host could not be read: {}".format(host.gpu_problem), "", "measured", "the host")
    if host.gpus is None:
        return said("gpu", UNKNOWN, "whether this host has an NVIDIA GPU is not known", "", "unsourced", "the host description")
    fix = "run it where such a GPU is; on a machine that has one see `enginefarm doctor`"
    return said("gpu", DOES_NOT, "no NVIDIA GPU here", "", "measured", "the host description", fix)


def backend(case: Case) -> Optional[Rule]:
    """What runs the engine must be installed; TensorRT and TensorRT-RTX never load each other's engines."""
    engine, host = case.engine, case.host
    if engine.backend not in NAMES:
        return None
    rule, name, runtime = "backend", NAMES[engine.backend], case.runtime
    wanted = " ".join([name, engine.version or ""]).strip()
    if runtime.error == IN_IMAGE:
        return said(rule, UNKNOWN, "{} comes with an image here, and the engine names none".format(name), "", "unsourced", "the host")
    if runtime.error is not None:
        state = "is not installed here" if runtime.error == NOT_INSTALLED else "does not import here ({})".format(runtime.error)
        other = {"tensorrt": "tensorrt-rtx", "tensorrt-rtx": "tensorrt"}.get(engine.backend, "")
        found = host.backends.get(other)
        if isinstance(found, dict) and "version" in found:
            state += "; {} {} is, and never loads engines of {}".format(NAMES[other], found["version"], name)
        fix = "run it in {}".format(engine.image) if engine.image else "install {}".format(wanted)
        return said(rule, DOES_NOT, "{} {}".format(name, state), runtime.error, "measured", "the host description", fix)
    if runtime.version is None and not isinstance(host.backends.get(engine.backend), dict):
        text = "whether {} is installed here is not known".format(name)
        return said(rule, UNKNOWN, text, "", "unsourced", "the host description")
    text = "{} {} is here{}".format(name, runtime.version or "", ", " + runtime.note if runtime.note else "")
    return said(rule, LOADS, text, "", "measured" if not runtime.note else "inferred", "the host description")


def driver(case: Case) -> Optional[Rule]:
    """The driver must run the CUDA of what loads the engine. A Jetson has no driver of its own; without a GPU nothing needs one."""
    engine, host, gpu = case.engine, case.host, case.gpu
    runtime = case.runtime
    if host.jetson is not None or gpu is None or runtime.error is not None:
        return None
    rule, source = "driver", "docs/facts/drivers.yaml"
    cuda = runtime.cuda or engine.cuda
    have = host.driver or host.driver_minimum
    if cuda is None:
        text = "which CUDA {} needs here is not known".format(NAMES[engine.backend or ""])
        return said(rule, UNKNOWN, text, "driver {}".format(have or "not known"), "unsourced", source)
    if have is None:
        return said(
            rule, UNKNOWN, "the driver of this host is not known; CUDA {} needs one that runs it".format(cuda), "", "unsourced", source
        )
    answer = _driver_answer(engine, host, gpu, cuda, have)
    evidence = "driver {}{}, CUDA {}".format(have, "" if host.driver else " or newer", cuda)
    if answer.verdict == YES:
        full = "in full" in answer.reason
        fix = "" if full else "a newer driver lifts the limits"
        return said(rule, LOADS if full else WARNING, answer.reason, evidence, answer.confidence, source, fix)
    if answer.verdict == NO and host.driver is None:
        text = "the driver there is {} or newer, and {}".format(have, answer.reason)
        return said(rule, UNKNOWN, text, evidence, answer.confidence, source)
    verdict = DOES_NOT if answer.verdict == NO else UNKNOWN
    fix = "install a newer driver, or build with an older CUDA" if verdict == DOES_NOT else "give the host's GPU and image"
    return said(rule, verdict, answer.reason, evidence, answer.confidence, source, fix)


def _driver_answer(engine: Engine, host: Host, gpu: Gpu, cuda: str, have: str) -> Answer:
    # the compat package is inside the image: it helps only what runs in a container
    image = host.image or engine.image if host.container else None
    facts = image_facts(image) if image else None
    branches = facts["driver_datacenter"] if facts else None
    return driver_check(have, cuda, is_data_center(gpu.name) if gpu.name else None, branches)


def plugins(case: Case) -> Optional[Rule]:
    """Every plugin must be registered before the engine is loaded."""
    engine, host = case.engine, case.host
    rule = "plugins"
    if engine.backend != "tensorrt" or engine.plugins == []:
        return None
    if engine.plugins is None:
        text = "whether it needs plugins is not known"
        return said(rule, UNKNOWN, text, "", fix="give the manifest that lies beside it") if engine.exists else None
    runtime = case.runtime
    if engine.version and runtime.version and parse(engine.version)[0] != parse(runtime.version)[0]:
        text = "its plugins were built for TensorRT {}, here is TensorRT {}".format(parse(engine.version)[0], parse(runtime.version)[0])
        return said(rule, DOES_NOT, text, ", ".join(engine.plugins), "inferred", fix="build the plugins for the TensorRT that is here")
    names = ", ".join(engine.plugins)
    if host.plugins is None:
        fix = "; ".join('ctypes.CDLL("{}")'.format(name) for name in engine.plugins)
        return said(rule, WARNING, "its plugins must be loaded first: {}".format(names), names, fix=fix)
    missing = [name for name in engine.plugins if name not in host.plugins and engine.digests.get(name) not in host.plugins]
    if missing:
        text = "plugins that it needs are not here: {}".format(", ".join(missing))
        return said(rule, DOES_NOT, text, names, fix="copy {} to the host and load it before the engine".format(", ".join(missing)))
    return said(rule, LOADS, "its plugins are here: {}".format(names), names)


def memory(case: Case) -> Optional[Rule]:
    """Weights and context must fit into the GPU's memory. Where it is not known how much that is, this rule does not refuse."""
    engine, gpu = case.engine, case.gpu
    if gpu is None or engine.size is None:
        return None
    needed = engine.size + (engine.device_memory or 0)
    rule, confidence = "memory", "inferred"
    text = "needs at least {:.0f} MB".format(needed / 1e6)
    text += "" if engine.device_memory is not None else "; what its context needs besides is not known"
    if gpu.memory is None:
        return said(rule, LOADS, text + "; the GPU's memory is not known", "", confidence)
    text = "{}, the GPU has {:.0f} MB".format(text, gpu.memory / 1e6)
    evidence = "{} of {} bytes".format(needed, gpu.memory)
    if needed > gpu.memory:
        return said(rule, DOES_NOT, text, evidence, confidence, fix="take a GPU with more memory, or a smaller precision")
    if needed > gpu.memory * _NEARLY_FULL:
        return said(rule, WARNING, text + ": little is left", evidence, confidence, fix="keep other programs off this GPU")
    return said(rule, LOADS, text, evidence, confidence)


# --- TensorRT-RTX ---


def _only_release(version: str) -> str:
    """All numbers of a release that is written short, where the package index holds just one that fits."""
    known = [name for row in load("rtx")["releases"] for name in row["versions"] if matches(name, version)]
    return known[0] if len(known) == 1 and len(parse(version)) < 4 else version


def rtx_release(case: Case) -> Optional[Rule]:
    """TensorRT-RTX loads only engines of its own release."""
    engine = case.engine
    runtime, rule = case.runtime, "version"
    if runtime.error is not None:
        return None
    if engine.version is None or runtime.version is None:
        whose = "built the engine" if engine.version is None else "this host has"
        return said(rule, UNKNOWN, "which TensorRT-RTX {} is not known".format(whose), "", "nvidia_document", _RTX)
    built, here = _only_release(engine.version), _only_release(runtime.version)
    same = same_release(built, here, parts=4)
    evidence = "engine {}, host {}".format(engine.version, runtime.version)
    if same == YES:
        return said(rule, LOADS, "TensorRT-RTX {} built it and is here".format(built), evidence, "nvidia_document", _RTX)
    text = "built by TensorRT-RTX {}, this host has {}".format(engine.version, runtime.version)
    if same == UNKNOWN:
        return said(rule, UNKNOWN, text + ": not all numbers are known", evidence, "nvidia_document", _RTX)
    fix = "install tensorrt-rtx {}, or build it again with {}".format(engine.version, runtime.version)
    return said(rule, DOES_NOT, text + ": no engine crosses releases", evidence, "nvidia_document", _RTX, fix)


def rtx_capability(case: Case) -> Optional[Rule]:
    """The engine lists the capabilities that it holds; GPUs newer than all known ones run it through PTX."""
    engine, gpu = case.engine, case.gpu
    if gpu is None:
        return None
    rule, here = "capability", gpu.capability
    if here is None or not engine.capabilities:
        whose = "the GPU has" if here is None else "the engine is for"
        return said(rule, UNKNOWN, "which compute capability {} is not known".format(whose), "", "unsourced", _RTX)
    evidence = "engine {}, GPU {}".format(", ".join(engine.capabilities), here)
    if here in engine.capabilities:
        return said(rule, LOADS, "the engine holds code for {}".format(here), evidence, "nvidia_document", _RTX)
    newest = fact("rtx_ptx_above")
    if key(here) > key(newest["capability"]):
        text = "{} is newer than {}: it runs through PTX, slower".format(here, newest["capability"])
        return said(rule, WARNING, text, evidence, newest["confidence"], fix="build it with a TensorRT-RTX that knows {}".format(here))
    never = here in load("rtx")["never"]
    fix = "TensorRT-RTX knows no {}: use backend tensorrt or onnxruntime".format(here) if never else "name {} in the target".format(here)
    text = "it holds code for {}, this GPU is {}".format(one_of(engine.capabilities), gpu)
    return said(rule, DOES_NOT, text, evidence, "measured", _RTX, fix)


# --- ONNX Runtime ---


def ort_version(case: Case) -> Optional[Rule]:
    """A newer ONNX Runtime reads what an older one wrote; the other way round is not promised."""
    engine = case.engine
    runtime, rule, source = case.runtime, "version", "docs/facts/onnxruntime.yaml"
    if runtime.error is not None or runtime.version is None or engine.version is None:
        return None
    evidence = "engine {}, host {}".format(engine.version, runtime.version)
    if compare(runtime.version, engine.version) >= 0:
        return said(
            rule, LOADS, "ONNX Runtime {} reads what {} wrote".format(runtime.version, engine.version), evidence, "unsourced", source
        )
    text = "written by ONNX Runtime {}, here is the older {}: it may not know all operators".format(engine.version, runtime.version)
    return said(rule, UNKNOWN, text, evidence, "unsourced", source, "pip install 'onnxruntime>={}'".format(engine.version))


def ort_provider(case: Case) -> Optional[Rule]:
    """The execution provider must be in this ONNX Runtime; ONNX Runtime compiles nothing for a compute capability."""
    engine = case.engine
    runtime, rule, source = case.runtime, "provider", "docs/facts/onnxruntime.yaml"
    wanted = engine.provider or "cpu"
    if runtime.error is not None or runtime.version is None:
        return None
    if not runtime.providers:
        text = "which providers this ONNX Runtime has is not known"
        return None if wanted == "cpu" else said(rule, UNKNOWN, text, "", "unsourced", source)
    if wanted not in runtime.providers:
        text = "this ONNX Runtime has no {} provider".format(wanted.upper())
        return said(rule, DOES_NOT, text, ", ".join(runtime.providers), "measured", source, "pip install onnxruntime-gpu")
    return said(rule, LOADS, "its {} provider is here".format(wanted.upper()), ", ".join(runtime.providers), "measured", source)


def ort_capability(case: Case) -> Optional[Rule]:
    """Whether the target names this GPU."""
    engine, gpu = case.engine, case.gpu
    if gpu is None or not engine.capabilities:
        return None
    rule, source = "capability", "docs/facts/onnxruntime.yaml"
    evidence = "target {}, GPU {}".format(", ".join(engine.capabilities), gpu.capability or "not known")
    if gpu.capability in engine.capabilities:
        return said(rule, LOADS, "the target names {}".format(gpu.capability), evidence, "measured", source)
    return said(rule, UNKNOWN, "the target does not name {}: no one said it runs there".format(gpu), evidence, "unsourced", source)
