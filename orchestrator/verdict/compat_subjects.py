"""Engines and hosts out of what people name: files, manifests, folders, the matrix; targets, runners, host descriptions."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.artifacts.entry import ENGINE_SUFFIXES, contradicted, engine_facts
from orchestrator.artifacts.files import read_regular
from orchestrator.artifacts.manifest import EngineRecord, Manifest, read_manifest
from orchestrator.artifacts.names import parse_engine_file
from orchestrator.artifacts.store import LATEST, follow_latest
from orchestrator.errors import (
    CONFIG_VALUE,
    DIGEST_MISMATCH,
    DISK,
    EMPTY_SELECTION,
    ENGINE_UNREADABLE,
    USAGE,
    EnginefarmError,
    Where,
    raise_all,
)
from orchestrator.matrix.schema import Target
from orchestrator.portable.facts import images, loads, plan_header, support
from orchestrator.portable.facts.loads_view import said
from orchestrator.portable.runtime.errors import Refusal
from orchestrator.portable.runtime.files import Expected, check, diagnose
from orchestrator.portable.worker.protocol import HOST_SCHEMA
from orchestrator.runners.base import Runner
from orchestrator.verdict.compat import EngineSubject, HostSubject

MATRIX = "matrix"
THIS = "this"
ALL = "all"
_MANIFEST = re.compile(r"_v\d+\.json$")
_MOST_BYTES = 4 << 20  # of a host description


# --- engines ---


def engines_from(paths: Iterable[Path], targets: Iterable[Target]) -> list[EngineSubject]:
    """Engines by file, by manifest or by folder; ``matrix`` (when no file has that name) means what every target would build.

    Raises EnginefarmError with every path that cannot be used, EMPTY_SELECTION when nothing is left.
    """
    found: list[EngineSubject] = []
    problems: list[EnginefarmError] = []
    chosen = list(paths)
    for path in chosen:
        if str(path) == MATRIX and not path.exists():
            found += [_of_target(target) for target in targets]
            continue
        try:
            found += _from_path(path)
        except EnginefarmError as error:
            problems.append(error)
        except OSError as error:
            where = Where(file=str(path))
            problems.append(EnginefarmError(DISK, "the file cannot be read", where=where, why=error.strerror, fix="check the path"))
    raise_all(problems)
    if not found:
        named = ", ".join(map(str, chosen))
        raise EnginefarmError(EMPTY_SELECTION, f"no engine in {named}", fix="give engine files, a manifest, a folder of them, or: matrix")
    return _named_once(found)


def _from_path(path: Path) -> list[EngineSubject]:
    if path.is_dir():
        latest = sorted(path.rglob(LATEST))
        return [engine for item in latest for engine in _from_path(item)] if latest else _from_folder(path)
    if path.exists() and not path.is_file():
        raise EnginefarmError(DISK, "this is no regular file", where=Where(file=str(path)), fix="give an engine, a manifest or a folder")
    if path.suffix == ".json":
        manifest = follow_latest(path)
        return _from_manifest(manifest, read_manifest(manifest))
    facts = engine_facts(path)
    raise_all(problem for problem in facts.problems if problem.kind is DIGEST_MISMATCH)
    record = facts.entry.record if facts.entry else None
    engine = loads.engine_of(record.model_dump(mode="json") if record else None, facts.header)
    notes = tuple(_note(problem) for problem in facts.problems if not engine.get("problems") and _about_name(problem, path))
    folder = facts.entry.path.parent if facts.entry else path.parent
    return [EngineSubject(path.name, engine, path, record, _plugins(record, folder), notes)]


def _from_folder(folder: Path) -> list[EngineSubject]:
    """Engines of the manifests in a folder, and every other file there that is an engine by its content or by its name."""
    files = sorted(item for item in folder.iterdir() if item.is_file() and not item.name.startswith("."))
    manifests = [item for item in files if _MANIFEST.search(item.name)]
    found = [engine for item in manifests for engine in _from_path(item)]
    named = {engine.file for engine in found}
    return found + [engine for item in files if item not in named and _is_engine(item) for engine in _from_path(item)]


def _is_engine(path: Path) -> bool:
    by_name = path.suffix.lower() in ENGINE_SUFFIXES or parse_engine_file(path.name) is not None
    return by_name or bool(plan_header.read(str(path))["kind"] != "not-a-plan")


def _about_name(problem: EnginefarmError, path: Path) -> bool:
    """Not the problem that an ONNX file is no plan, unless its name says that it is one."""
    return problem.kind is not ENGINE_UNREADABLE or path.suffix.lower() in ENGINE_SUFFIXES


def _note(problem: EnginefarmError) -> dict[str, Any]:
    """A rule that warns of a name: the engine loads as what it is, and whoever goes by the name takes it for something else."""
    text = f"{problem.what}: {problem.why}" if problem.why else problem.what
    return said("name", loads.WARNING, text, "", "measured", "the file's own content", problem.fix or "")


def _from_manifest(path: Path, manifest: Manifest) -> list[EngineSubject]:
    """All engines of a manifest that have a file; files that are here are held against their digests."""
    found = []
    for record in manifest.engines:
        if record.file is None:
            continue
        file = path.parent / record.file
        here = file if file.is_file() else None
        header = plan_header.read(str(file)) if here else None
        engine = loads.engine_of(record.model_dump(mode="json"), header)
        notes: tuple[dict[str, Any], ...] = ()
        if header is not None:
            changed = _changed(file, record, manifest)
            if changed is not None:
                engine["problems"] = [changed, *engine.get("problems", ())]
            said_by = f"{path.name} for target {record.target}"
            contradiction = contradicted(file, header, record.backend, record.compute_capability, said_by)
            notes = (_note(contradiction),) if contradiction and changed is None else ()
        found.append(EngineSubject(record.file, engine, here, record, _plugins(record, path.parent), notes))
    return found


def _changed(file: Path, record: EngineRecord, manifest: Manifest) -> dict[str, str] | None:
    """What is wrong with a file that is not the one of its record, as a problem of plan_header.read."""
    expected = Expected(str(file), str(record.digest), record.size_bytes)
    try:
        check(expected)
    except Refusal as refusal:
        others = [other for other in manifest.engines if other.file is not None and other.file != record.file]
        found = diagnose(expected, [Expected(str(file.with_name(str(o.file))), str(o.digest), o.size_bytes) for o in others])
        text = "; ".join(part for part in (refusal.why, found) if part)
        return {"kind": refusal.kind or "corrupt-engine", "text": text, "fix": refusal.fix}
    return None


def _plugins(record: EngineRecord | None, folder: Path) -> dict[str, Path]:
    return {name: folder / Path(name).name for name in record.plugins} if record else {}


def _of_target(target: Target) -> EngineSubject:
    """The engine that a target would build, as far as the target and the facts about its image say."""
    version, cuda = _versions(target)
    facts: dict[str, Any] = {
        "target": target.name,
        "backend": target.backend,
        "backend_version": version,
        "provider": target.provider,
        "compute_capability": list(target.compute_capability),
        "hardware_compatibility": target.hardware_compatibility,
        "version_compatible": target.version_compatible,
        "platform": target.platform,
        "cuda": cuda,
        "image": target.image,
        "plugins": list(target.plugins),
    }
    if target.gpu:
        gpus = [{"name": target.gpu, "compute_capability": name} for name in target.compute_capability]
        facts["built_on"] = {"gpus": gpus}
    return EngineSubject(target.name, facts)


def _versions(target: Target) -> tuple[str | None, str | None]:
    """Version of the backend and its CUDA: the target's, written out by what is known of its image."""
    if target.backend == "tensorrt-rtx":
        return target.tensorrt_rtx, target.cuda
    image = images.image_facts(target.image) if target.image else None
    exact = image["tensorrt"] if image else None
    version = exact if exact and (target.tensorrt is None or _extends(exact, target.tensorrt)) else target.tensorrt
    return version, target.cuda or (image["cuda"] if image else None)


def _extends(exact: str, short: str) -> bool:
    return exact == short or exact.startswith(short + ".")


def _named_once(engines: Sequence[EngineSubject]) -> list[EngineSubject]:
    """Names that occur once; the same file named twice is one engine."""
    seen: dict[str, EngineSubject] = {}
    for engine in engines:
        if engine.name not in seen:
            seen[engine.name] = engine
        elif engine.file != seen[engine.name].file:
            name = f"{engine.file}" if engine.file else f"{engine.name} ({len(seen)})"
            seen[name] = replace(engine, name=name)
    return list(seen.values())


# --- hosts ---


def host_of_target(target: Target) -> HostSubject:
    """A host as a target describes it: its GPU, its image, and a driver that runs the image's CUDA. Nothing is invented: what the
    target leaves open (GPU model, memory, the exact driver) is not known."""
    version, cuda = _versions(target)
    floors = support.minimum_driver(cuda) if cuda else {}
    floor = floors.get("minor") or floors.get("full")
    jetson = target.jetpack is not None or any("jetson" in label for label in target.labels)
    backend: dict[str, Any] = {"version": version, "cuda": cuda}
    if target.backend == "onnxruntime":
        backend = {"providers": ["cuda", "cpu"] if target.provider == "cuda" else ["cpu"]}
    installed = {name: {"error": "not installed"} for name in ("tensorrt", "tensorrt-rtx")} | {target.backend: backend}
    base: dict[str, Any] = {
        "schema": HOST_SCHEMA,
        "platform": None if target.platform == "any" else target.platform,
        "driver": {"version": None, "minimum": floor} if floor and not jetson else None,
        "jetson": {"l4t": None, "jetpack": None, "model": None} if jetson else None,
        "container": target.image is not None,
        "image": target.image,
        "backends": installed,
    }
    if target.backend == "onnxruntime" and target.provider != "cuda":
        return HostSubject(target.name, "target", ({**base, "gpus": []},))
    gpus = [{"index": 0, "name": target.gpu, "compute_capability": name, "memory_bytes": None} for name in target.compute_capability]
    return HostSubject(target.name, "target", tuple({**base, "gpus": [gpu]} for gpu in gpus) or ({**base, "gpus": None},))


def host_of_runner(runner: Runner) -> HostSubject:
    """A runner as it describes itself. Raises EnginefarmError (RUNNER_BROKEN) when it cannot be asked."""
    return HostSubject(runner.name, "runner", (runner.host(),), runner)


def read_host(path: Path) -> dict[str, Any]:
    """A host description (``enginefarm doctor --save``, ``worker.pyz probe``), also inside ``enginefarm doctor --json``.

    Raises EnginefarmError (CONFIG_VALUE).
    """

    def unusable(why: str | None) -> EnginefarmError:
        fix = "write one with: enginefarm doctor --save host.json (there: python3 worker.pyz probe > host.json)"
        return EnginefarmError(CONFIG_VALUE, "host description cannot be used", where=Where(file=str(path)), why=why, fix=fix)

    try:
        raw = read_regular(path, _MOST_BYTES)
        host = json.loads(raw) if len(raw) <= _MOST_BYTES else None
    except OSError as error:
        raise unusable(error.strerror) from error
    except (ValueError, RecursionError) as error:
        raise unusable(f"it is not JSON: {error}") from error
    host = host.get("host", host) if isinstance(host, dict) else None
    if not isinstance(host, dict) or host.get("schema") != HOST_SCHEMA:
        raise unusable(f"it is no {HOST_SCHEMA}")
    return host


def hosts_from(
    words: Sequence[str], targets: Mapping[str, Target], runners: Callable[[], Sequence[Runner]], local: Callable[[], Runner]
) -> list[HostSubject]:
    """Hosts by name: ``this``, ``all`` (every runner and every target), a runner, a target, or a file with a description.

    ``runners`` and ``local`` are asked only when a word needs them. Raises EnginefarmError with every word that means nothing.
    """
    found: dict[str, HostSubject] = {}
    problems: list[EnginefarmError] = []
    for word in (part for text in words for part in text.split(",") if part):
        for host in _hosts_or_problem(word, targets, runners, local, problems):
            found.setdefault(host.name, host)
    raise_all(problems)
    return list(found.values())


def _hosts_or_problem(
    word: str,
    targets: Mapping[str, Target],
    runners: Callable[[], Sequence[Runner]],
    local: Callable[[], Runner],
    problems: list[EnginefarmError],
) -> list[HostSubject]:
    try:
        return _hosts(word, targets, runners, local)
    except EnginefarmError as error:
        problems.append(error)
        return []


def _hosts(
    word: str, targets: Mapping[str, Target], runners: Callable[[], Sequence[Runner]], local: Callable[[], Runner]
) -> list[HostSubject]:
    if word == THIS:
        return [HostSubject(THIS, "runner", (local().host(),), local())]
    if word == ALL:
        return [*(host_of_runner(runner) for runner in runners()), *map(host_of_target, targets.values())]
    if word.endswith(".json") or Path(word).is_file():
        return [HostSubject(word, "file", (read_host(Path(word)),))]
    if word in targets:
        return [host_of_target(targets[word])]
    known = {runner.name: runner for runner in runners()}
    if word in known:
        return [host_of_runner(known[word])]
    names = [THIS, ALL, *known, *targets]
    close = difflib.get_close_matches(word, names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"name a target, a runner ({', '.join(known)}), this, all, or a host.json"
    raise EnginefarmError(USAGE, f"--on {word!r} is no host", fix=hint)
