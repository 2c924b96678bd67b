"""Which targets can exist: contradictions inside one row, and what NVIDIA's releases do not support.

Each rule names the fields that it reads, so that it stays silent when one of them is already reported as wrong. What the facts
do not know is never refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.errors import TARGET_CONFLICT, TARGET_IMPOSSIBLE, EnginefarmError, Kind, Where
from orchestrator.matrix.layers import Source
from orchestrator.matrix.schema import Target
from orchestrator.portable.facts import capability, support, version


@dataclass(frozen=True)
class Finding:
    """A problem at ``field``; ``names_layer`` asks to say which layer set the field."""

    field: str
    kind: Kind
    what: str
    why: str | None = None
    fix: str | None = None
    names_layer: bool = False


Rule = Callable[[Target], Iterator[Finding]]
_RULES: list[tuple[tuple[str, ...], Rule]] = []


def _reads(*fields: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.append((fields, rule))
        return rule

    return register


def check(target: Target, sources: dict[str, Source], home: Where, broken: frozenset[str] = frozenset()) -> list[EnginefarmError]:
    """Every problem of one target; rules that read a ``broken`` field are skipped. ``home`` is the place for what stands nowhere."""
    problems = []
    for fields, rule in _RULES:
        if broken.isdisjoint(fields):
            problems += [_at(finding, target, sources, home) for finding in rule(target)]
    return problems


def _at(finding: Finding, target: Target, sources: dict[str, Source], home: Where) -> EnginefarmError:
    source = sources.get(finding.field)
    place = (source.where if source else None) or home
    where = Where(file=place.file, line=place.line, column=place.column, target=getattr(target, "name", None))
    what = finding.what
    if finding.names_layer and source is not None and source.where is not None:
        what += f" (set by {source})"
    return EnginefarmError(finding.kind, what, where=where, why=finding.why, fix=finding.fix)


def _is_cpu(target: Target) -> bool:
    return target.backend == "onnxruntime" and target.provider == "cpu"


# field -> backends that take it; other backends must leave it at its default
_BACKENDS_OF = {
    "provider": ("onnxruntime",),
    "tensorrt": ("tensorrt",),
    "tensorrt_from": ("tensorrt",),
    "tensorrt_rtx": ("tensorrt-rtx",),
    "hardware_compatibility": ("tensorrt",),
    "version_compatible": ("tensorrt",),  # RTX plans never load in another release: docs/facts/rtx.yaml
    "plugins": ("tensorrt",),
    "jetpack": ("tensorrt",),
    "workspace": ("tensorrt", "tensorrt-rtx"),
    "optimization_level": ("tensorrt", "tensorrt-rtx"),
}


@_reads("backend", *_BACKENDS_OF)
def fields_fit_the_backend(target: Target) -> Iterator[Finding]:
    for field, backends in _BACKENDS_OF.items():
        if target.backend not in backends and getattr(target, field) != Target.model_fields[field].default:
            fix = (
                "use tensorrt_rtx for the version of TensorRT-RTX"
                if field == "tensorrt" and target.backend == "tensorrt-rtx"
                else "remove the line"
            )
            yield Finding(
                field, TARGET_CONFLICT, f"{field} means nothing to backend {target.backend}", f"it is for {' and '.join(backends)}", fix
            )


@_reads("backend", "provider", "compute_capability", "cuda", "gpu")
def onnxruntime_provider(target: Target) -> Iterator[Finding]:
    if target.backend != "onnxruntime":
        return
    if target.provider is None:
        yield Finding("backend", TARGET_CONFLICT, "backend onnxruntime needs a provider", None, "add provider: cpu, or provider: cuda")
    elif target.provider == "cuda" and not target.compute_capability:
        why = "a GPU target says which GPUs it is for"
        yield Finding(
            "provider", TARGET_CONFLICT, "compute_capability is missing", why, 'add a line like compute_capability: ["8.0", "8.6"]'
        )
    elif target.provider == "cpu":
        for field in ("compute_capability", "cuda", "gpu"):
            if getattr(target, field):
                yield Finding(
                    field, TARGET_CONFLICT, f"{field} means nothing to the CPU provider", None, "remove the line, or say provider: cuda"
                )


@_reads("backend", "compute_capability")
def gpu_backends_need_a_capability(target: Target) -> Iterator[Finding]:
    if target.backend != "onnxruntime" and not target.compute_capability:
        why = "an engine is bound to the GPUs it is built for"
        yield Finding("backend", TARGET_CONFLICT, "compute_capability is missing", why, 'add a line like compute_capability: "8.6"')
    repeated = sorted({name for name in target.compute_capability if target.compute_capability.count(name) > 1})
    if repeated:
        yield Finding(
            "compute_capability", TARGET_CONFLICT, f"{', '.join(repeated)} is given twice", None, "name each compute capability once"
        )


@_reads("backend", "tensorrt", "image", "platform")
def tensorrt_basics(target: Target) -> Iterator[Finding]:
    if target.backend != "tensorrt":
        return
    if target.tensorrt is None and target.image is None:
        why = "engines load only in the version they were built with"
        yield Finding("backend", TARGET_CONFLICT, "neither tensorrt nor image is given", why, 'add a line like tensorrt: "8.6.1"')
    if target.platform == "any":
        yield Finding(
            "platform",
            TARGET_CONFLICT,
            "an engine is for one platform, not for any",
            None,
            "add platform: linux/amd64, or platform: linux/arm64",
        )


@_reads("backend", "compute_capability", "hardware_compatibility")
def one_capability_or_a_level(target: Target) -> Iterator[Finding]:
    if target.backend != "tensorrt":
        return
    given = target.compute_capability
    listed = " and ".join(given)
    if len(given) > 1 and target.hardware_compatibility == "none":
        yield Finding(
            "compute_capability",
            TARGET_CONFLICT,
            f"one TensorRT engine cannot be for {listed}",
            "without a hardware compatibility level an engine runs on exactly one compute capability",
            "make one target for each, or add hardware_compatibility: ampere_plus (8.0 and newer, slower)",
        )
    if len(given) > 1 and target.hardware_compatibility == "same_compute_capability":
        why = "this level spans GPU models of one compute capability"
        yield Finding(
            "compute_capability", TARGET_CONFLICT, f"same_compute_capability cannot span {listed}", why, "name one compute capability"
        )


@_reads("backend", "compute_capability", "hardware_compatibility", "tensorrt", "jetpack")
def hardware_level_exists(target: Target) -> Iterator[Finding]:
    # versions and capabilities: docs/facts/engine_rules.yaml
    level = target.hardware_compatibility
    if target.backend != "tensorrt" or level == "none":
        return
    first, lowest = ("8.6", "8.0") if level == "ampere_plus" else ("10.9", "7.5")
    if target.tensorrt is not None and version.compare(target.tensorrt, first) < 0:
        what = f"TensorRT {target.tensorrt} has no hardware compatibility level {level}"
        yield Finding(
            "hardware_compatibility", TARGET_IMPOSSIBLE, what, f"it came with TensorRT {first}", "remove the line, or use a newer TensorRT"
        )
    older = [name for name in target.compute_capability if capability.key(name) < capability.key(lowest)]
    if older:
        yield Finding(
            "hardware_compatibility",
            TARGET_IMPOSSIBLE,
            f"{level} does not reach {', '.join(older)}",
            f"it starts at {lowest}",
            "remove the line",
        )
    if _is_jetson(target):
        why = "hardware compatibility levels do not exist on JetPack"
        yield Finding("hardware_compatibility", TARGET_IMPOSSIBLE, f"{level} cannot be had on a Jetson", why, "remove the line")


@_reads("backend", "compute_capability", "tensorrt", "version_compatible")
def version_compatible_exists(target: Target) -> Iterator[Finding]:
    # docs/facts/engine_rules.yaml; refused on DRIVE, which is no target here, and not on JetPack
    if target.backend != "tensorrt" or not target.version_compatible:
        return
    if target.tensorrt is not None and version.compare(target.tensorrt, "8.6") < 0:
        what = f"TensorRT {target.tensorrt} has no version compatible engines"
        yield Finding(
            "version_compatible", TARGET_IMPOSSIBLE, what, "they came with TensorRT 8.6", "remove the line, or use a newer TensorRT"
        )
    older = [name for name in target.compute_capability if capability.key(name) < (7, 0)]
    if older:
        what = f"version compatible engines cannot be for {', '.join(older)}"
        yield Finding("version_compatible", TARGET_IMPOSSIBLE, what, "they need Volta (7.0) or newer", "remove the line")


@_reads("backend", "optimization_level", "tensorrt")
def optimization_level_exists(target: Target) -> Iterator[Finding]:
    # docs/facts/tensorrt_api.yaml
    if target.backend != "tensorrt" or target.optimization_level is None or target.tensorrt is None:
        return
    if version.compare(target.tensorrt, "8.6") < 0:
        what = f"TensorRT {target.tensorrt} has no builder optimization level"
        yield Finding("optimization_level", TARGET_IMPOSSIBLE, what, "it came with TensorRT 8.6", "remove the line")


@_reads("backend", "tensorrt", "compute_capability")
def tensorrt_knows_the_gpu(target: Target) -> Iterator[Finding]:
    if target.backend != "tensorrt" or target.tensorrt is None:
        return
    for name in target.compute_capability:
        answer = support.tensorrt_supports(target.tensorrt, name)
        if answer.verdict == "no":
            yield Finding(
                "compute_capability",
                TARGET_IMPOSSIBLE,
                f"TensorRT {target.tensorrt} builds nothing for {name}",
                _told(answer),
                "take another image or GPU",
            )


@_reads("backend", "tensorrt_rtx", "compute_capability", "platform")
def rtx_can_target(target: Target) -> Iterator[Finding]:
    if target.backend != "tensorrt-rtx":
        return
    if target.platform != "linux/amd64":
        yield Finding("platform", TARGET_CONFLICT, f"TensorRT-RTX cannot be had for {target.platform}", None, "add platform: linux/amd64")
    release = target.tensorrt_rtx
    known = support.rtx_capabilities(release or "99")  # no release given: what the newest known one targets
    named = f"TensorRT-RTX {release}" if release else "TensorRT-RTX"
    if not known:
        yield Finding(
            "tensorrt_rtx", TARGET_IMPOSSIBLE, f"{named} cannot be had without a GPU", "it is older than 1.4", 'use tensorrt_rtx: "1.7"'
        )
        return
    for name in target.compute_capability:
        if name not in known:
            why = f"it targets {', '.join(known)}"
            yield Finding(
                "compute_capability", TARGET_IMPOSSIBLE, f"{named} cannot target {name}", why, "use backend: tensorrt for this GPU"
            )


@_reads("backend", "provider", "tensorrt", "tensorrt_rtx", "compute_capability", "precision")
def hardware_has_the_precision(target: Target) -> Iterator[Finding]:
    release = target.tensorrt if target.backend == "tensorrt" else target.tensorrt_rtx
    for name in target.compute_capability or (("",) if _is_cpu(target) else ()):
        answer = support.precision_supported(target.precision, name, target.backend, release)
        if answer.verdict == "no":
            device = f"compute capability {name}" if name else "the CPU provider"
            what = f"precision {target.precision} cannot be had on {device}"
            yield Finding("precision", TARGET_IMPOSSIBLE, what, _told(answer), "use precision: fp16 or fp32", names_layer=True)


def _is_jetson(target: Target) -> bool:
    return target.jetpack is not None or any(capability.is_jetson(name) for name in target.compute_capability)


@_reads("jetpack", "platform", "compute_capability", "tensorrt_from", "backend")
def jetson_is_arm(target: Target) -> Iterator[Finding]:
    if target.backend == "tensorrt" and _is_jetson(target) and target.platform == "linux/amd64":
        field = "jetpack" if target.jetpack is not None else "compute_capability"
        yield Finding(field, TARGET_CONFLICT, "a Jetson is never linux/amd64", None, "say platform: linux/arm64")
    discrete = [name for name in target.compute_capability if not capability.is_jetson(name)]
    if target.jetpack is not None and discrete:
        yield Finding(
            "jetpack",
            TARGET_CONFLICT,
            f"no Jetson has compute capability {', '.join(discrete)}",
            None,
            "remove jetpack, or name a Jetson's",
        )
    if target.backend == "tensorrt" and target.tensorrt_from == "host" and target.platform != "linux/arm64":
        why = "only JetPack 4 mounts TensorRT from the host"
        yield Finding("tensorrt_from", TARGET_CONFLICT, "tensorrt_from: host is for Jetson devices", why, "say tensorrt_from: image")


_REFERENCE = re.compile(
    r"^(?:[a-zA-Z0-9.-]+(?::[0-9]{1,5})?/)?[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?$"
)


@_reads("image")
def image_reference_is_one(target: Target) -> Iterator[Finding]:
    if target.image is None:
        return
    match = _REFERENCE.match(target.image)
    if not match:
        fix = "write registry/name:tag without a scheme, like nvcr.io/nvidia/tensorrt:23.09-py3"
        yield Finding("image", TARGET_CONFLICT, f'"{target.image}" is not an image reference', None, fix)
    elif not (match["tag"] or match["digest"]):
        yield Finding(
            "image", TARGET_CONFLICT, f'"{target.image}" has no tag', "it would mean latest, whatever that is on the day", "add a tag"
        )
    problem = support.image_problem(target.image)
    if problem:
        yield Finding("image", TARGET_IMPOSSIBLE, problem[0], None, problem[1])


@_reads("image", "backend", "tensorrt", "tensorrt_from", "cuda", "platform", "compute_capability")
def image_holds_what_is_said(target: Target) -> Iterator[Finding]:
    facts = support.image_facts(target.image) if target.image is not None else None
    if target.image is None or facts is None:
        return
    source = f"by {facts['source']}"
    from_image = target.backend == "tensorrt" and target.tensorrt_from == "image"
    holds = facts.get("tensorrt_arm64") if target.platform == "linux/arm64" and facts.get("tensorrt_arm64") else facts["tensorrt"]
    for field, given, known in (("tensorrt", target.tensorrt if from_image else None, holds), ("cuda", target.cuda, facts["cuda"])):
        if given is not None and known is not None and not version.matches(given, known):
            label = "TensorRT" if field == "tensorrt" else "CUDA"
            what = f"{target.image} holds {label} {known}, not {given}"
            yield Finding(field, TARGET_CONFLICT, what, source, f'write {field}: "{known}", or take another image')
    if target.backend == "tensorrt" and facts["tensorrt_from"] != "none" and facts["tensorrt_from"] != target.tensorrt_from:
        what = f"{target.image} takes TensorRT from the {facts['tensorrt_from']}, not from the {target.tensorrt_from}"
        yield Finding("tensorrt_from", TARGET_CONFLICT, what, source, f"write tensorrt_from: {facts['tensorrt_from']}")
    if facts["platforms"] and target.platform != "any" and target.platform not in facts["platforms"]:
        what = f"{target.image} has no {target.platform} variant"
        yield Finding("platform", TARGET_CONFLICT, what, source, f"it is published for {', '.join(facts['platforms'])}")
    for name in target.compute_capability:
        answer = support.image_supports(target.image, name)
        if answer.verdict == "no":
            what = f"{target.image} cannot be used for compute capability {name}"
            yield Finding("image", TARGET_IMPOSSIBLE, what, _told(answer), "take an image for this GPU")


def _told(answer: support.Answer) -> str:
    return f"{answer.reason} ({answer.source}, {answer.confidence})"
