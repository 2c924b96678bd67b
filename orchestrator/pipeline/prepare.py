"""From what was asked to what can be done: models read and named, targets resolved, every (model, target) placed.

Everything that is wrong with the request is found here, before the first build starts.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.artifacts.names import check_model_name, model_name
from orchestrator.artifacts.versions import VersionChoice, choose_version
from orchestrator.errors import (
    CONFIG_VALUE,
    EMPTY_SELECTION,
    MODEL_MISSING,
    NAME_INVALID,
    NAME_TAKEN,
    PRECISION_IMPOSSIBLE,
    TARGET_IMPOSSIBLE,
    USAGE,
    EnginefarmError,
    Where,
    flatten,
    raise_all,
)
from orchestrator.farm.local import NOWHERE, Farm, Placement
from orchestrator.matrix.load import EffectiveTarget, LoadedModelConfig, Matrix, apply_model, find_model_config
from orchestrator.matrix.schema import Profile, Target
from orchestrator.models.model import Model
from orchestrator.models.profiles import resolve_profiles
from orchestrator.pipeline.beside import beside_each_other, usable_cpus
from orchestrator.pipeline.known import read_model, recall_model
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.staging import Staging
from orchestrator.portable.facts import version as versions
from orchestrator.store.memo import Memo

CARRIED = ("bf16", "int8", "fp8")


@dataclass(frozen=True)
class PreparedModel:
    """One model of the run; ``staged()`` gives the private folder with ``model.onnx`` and its external data.
    ``fallback``: file and digest of the TorchScript that the model's YAML names."""

    name: str
    model: Model
    staged: Staging
    config: LoadedModelConfig | None
    version: VersionChoice
    fallback: dict[str, str] | None = None


@dataclass(frozen=True)
class PreparedBuild:
    """One (model, target): ``refusal`` says why nothing is built, when nothing is; ``excluded``: it is a cell that nobody asked for by
    itself, so that leaving it out is no failure."""

    model: PreparedModel
    effective: EffectiveTarget
    profiles: dict[str, Profile]
    placement: Placement
    refusal: EnginefarmError | None = None
    excluded: bool = False


@dataclass(frozen=True)
class Prepared:
    builds: tuple[PreparedBuild, ...]
    notes: tuple[tuple[str, str], ...]  # (model, text)
    warnings: tuple[tuple[str, str], ...]


def _natural(path: Path) -> list[Any]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", path.as_posix())]


def find_models(arguments: Sequence[Path], folders: Sequence[Path] = ()) -> list[tuple[Path, Path | None]]:
    """(model file, models folder or None) for each argument, each name of a file once; a folder stands for every ``*.onnx`` below it.

    ``folders`` are the models folders that enginefarm.yaml names: a file below one is named by its path in it, as when the folder is given.
    """
    found: list[tuple[Path, Path | None]] = []
    problems: list[EnginefarmError] = []
    for argument in arguments:
        if not argument.is_dir():
            root = next((folder for folder in folders if _real(folder) in _real(argument).parents), None)
            found.append((argument, root))
            continue
        below = sorted((path for path in argument.rglob("*.onnx") if not path.is_dir()), key=_natural)
        visible = [path for path in below if not any(part.startswith(".") for part in path.relative_to(argument).parts)]
        if not visible:
            problems.append(
                EnginefarmError(MODEL_MISSING, f"no .onnx file below {argument}", fix="give a model file or a folder that holds some")
            )
        found += [(path, argument) for path in visible]
    problems += [problem for path, _ in found if (problem := _not_text(path)) is not None]
    raise_all(problems)
    unique: dict[str, tuple[Path, Path | None]] = {}
    for path, root in found:
        unique.setdefault(os.path.abspath(path), (path, root))  # noqa: PTH100  (as it is named: links stay)
    return list(unique.values())


def _real(path: Path) -> Path:
    """Without links; unlike ``Path.resolve`` of older Pythons it takes links that lead to each other."""
    return Path(os.path.realpath(path))


def _not_text(path: Path) -> EnginefarmError | None:
    """A path whose bytes are no UTF-8 cannot be written into a manifest."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return EnginefarmError(NAME_INVALID, f"the path {str(path)!a} is not UTF-8", fix="rename the file or folder")
    return None


def _name(options: BuildOptions, path: Path, root: Path | None, config: LoadedModelConfig | None) -> str:
    name = model_name(path, root=root, config_name=config.config.name if config else None, option=options.name)
    return check_model_name(name)


def _fallback(config: LoadedModelConfig | None, memo: Memo) -> dict[str, str] | None:
    """File and digest of what a service may fall back to; raises EnginefarmError where the YAML names a file that is not there."""
    if config is None or config.config.fallback is None:
        return None
    named = config.config.fallback
    path = config.resolve(named)
    if not path.is_file():
        place = config.positions.get("fallback")
        raise EnginefarmError(
            CONFIG_VALUE, f"fallback: there is no file {named}", where=place, fix=f"paths are relative to {config.path.name}"
        )
    return {"file": path.name, "digest": memo.digest(path)}


_Read = Callable[[], Model]


def _readers(options: BuildOptions, files: Sequence[Path], stages: Path, memo: Memo, *, plan: bool) -> list[_Read]:
    """For each file a call that gives its model, or raises EnginefarmError. New ones are read beside each other: a child looks at each."""
    known = [recall_model(memo, path, deep=not plan) for path in files]
    new = [number for number, model in enumerate(known) if model is None]

    def read(number: int) -> Model:
        # what is new will most likely be built: it is copied while it is hashed, so that it is read once
        return read_model(memo, files[number], stage=None if plan else stages / f"model-{number}", deep=not plan)

    reads: list[_Read] = [partial(read, number) for number in new]
    readers = dict(zip(new, beside_each_other(reads, options.jobs or usable_cpus()) if len(new) > 1 else reads, strict=True))
    found: list[_Read] = []
    for number, model in enumerate(known):
        found.append(readers[number] if model is None else partial(_itself, model))
    return found


def _itself(model: Model) -> Model:
    return model


def _prepare_model(options: BuildOptions, path: Path, root: Path | None, read: _Read, stage: Path, memo: Memo) -> PreparedModel:
    config = find_model_config(path)
    fallback = _fallback(config, memo)
    name = _name(options, path, root, config)
    model = read()
    version = choose_version(options.output, name, model.digest, model, requested=options.version, ci=options.ci)
    return PreparedModel(name=name, model=model, staged=Staging(model, stage), config=config, version=version, fallback=fallback)


def prepare_models(options: BuildOptions, stages: Path, memo: Memo, *, plan: bool = False) -> list[PreparedModel]:
    """Read, name and version every model; all problems of all models at once. ``stages`` takes private copies of new ones."""
    files = find_models(options.models, options.model_folders)
    if options.name is not None and len(files) > 1:
        raise EnginefarmError(USAGE, f"--name names one model, but {len(files)} were given", fix="name each in its YAML: name: ...")
    readers = _readers(options, [path for path, _ in files], stages, memo, plan=plan)
    prepared: list[PreparedModel] = []
    problems: list[EnginefarmError] = []
    for number, ((path, root), read) in enumerate(zip(files, readers, strict=True)):
        try:
            prepared.append(_prepare_model(options, path, root, read, stages / f"model-{number}", memo))
        except EnginefarmError as error:  # noqa: PERF203  (all models' problems at once)
            problems += flatten(error)
    problems += _same_names(prepared)
    raise_all(problems)
    return prepared


def _same_names(models: Sequence[PreparedModel]) -> list[EnginefarmError]:
    problems = []
    seen: dict[str, PreparedModel] = {}
    for model in models:
        other = seen.setdefault(model.name.casefold(), model)
        if other is not model:
            problems.append(
                EnginefarmError(
                    NAME_TAKEN,
                    f"{model.model.path} and {other.model.path} would both be named {model.name!r}",
                    fix="give one of them another name in its YAML: name: ...",
                )
            )
    return problems


def _excluded(model: PreparedModel, row: EffectiveTarget, refusal: EnginefarmError) -> PreparedBuild:
    return PreparedBuild(model, row, {}, NOWHERE, refusal=refusal, excluded=row.cell_of is not None)


def _whole_targets(builds: Sequence[PreparedBuild]) -> list[EnginefarmError]:
    """A target all of whose cells are impossible for a model is one that cannot be built."""
    cells: dict[tuple[str, str], list[PreparedBuild]] = {}
    for build in builds:
        if build.effective.cell_of is not None:
            cells.setdefault((build.model.name, build.effective.cell_of), []).append(build)
    hopeless = [group[0].refusal for group in cells.values() if all(build.excluded for build in group)]
    return [refusal for refusal in hopeless if refusal is not None]


class _Resolve:
    """Targets for models. What does not hang on the model is done once per target, whatever the number of models."""

    def __init__(self, options: BuildOptions, farm: Farm) -> None:
        self._options = options
        self._farm = farm
        self._rows: dict[Any, EffectiveTarget | EnginefarmError] = {}
        self._places: dict[int, Placement | EnginefarmError] = {}
        self._profiles: dict[Any, tuple[dict[str, Profile], tuple[str, ...]]] = {}

    def build(self, model: PreparedModel, row: EffectiveTarget) -> tuple[PreparedBuild, tuple[str, ...]]:
        available = self._options.available
        try:
            effective = self._effective(model, row)
            _check_backend_takes(model, effective)
        except EnginefarmError as error:
            # a cell that cannot be says so; the target has others
            if error.kind not in (TARGET_IMPOSSIBLE, PRECISION_IMPOSSIBLE) or not (available or row.cell_of is not None):
                raise
            return _excluded(model, row, error), ()
        profiles, notes = self._resolved(model, effective)
        place = self._place(effective)
        if isinstance(place, EnginefarmError):
            # an image that cannot be had is no reason against the other targets, when what can be built is asked for
            if not available:
                raise place
            return PreparedBuild(model, effective, profiles, NOWHERE, refusal=place), notes
        return PreparedBuild(model, effective, profiles, place), notes

    def _effective(self, model: PreparedModel, row: EffectiveTarget) -> EffectiveTarget:
        config = model.config
        key = (id(row), None if config is None else config.path)
        found = self._rows.get(key)
        if found is None:
            try:
                found = apply_model(row, config, self._options.overrides(config.config if config else None))
            except EnginefarmError as error:
                found = error
            self._rows[key] = found
        if isinstance(found, EnginefarmError):
            raise found
        return found

    def _resolved(self, model: PreparedModel, effective: EffectiveTarget) -> tuple[dict[str, Profile], tuple[str, ...]]:
        source = str(model.config.path) if model.config else str(model.model.path)
        key = (id(effective.target.shapes), model.model.inputs)
        if key not in self._profiles:
            self._profiles[key] = resolve_profiles(model.model, effective.target.shapes, source=source, places=_shape_places(effective))
        return self._profiles[key]

    def _place(self, effective: EffectiveTarget) -> Placement | EnginefarmError:
        """``effective`` stays alive as long as this object: its id names it."""
        key = id(effective)
        if key not in self._places:
            try:
                self._places[key] = self._farm.place(effective.target)
            except EnginefarmError as error:
                self._places[key] = error
        return self._places[key]


def _shape_places(effective: EffectiveTarget) -> dict[str, Where]:
    """Where the profile of each input is written, for those that are in a file."""
    found = {}
    for field, source in effective.sources.items():
        head, _, name = field.partition(".")
        if head == "shapes" and name and source.where is not None:
            found[name] = replace(source.where, target=effective.target.name)
    return found


def strongly_typed(target: Target) -> bool:
    """Whether the backend takes precision from the graph alone (docs/facts/precisions.yaml)."""
    if target.backend != "tensorrt":
        return True
    return target.tensorrt is not None and versions.compare(target.tensorrt, "11") >= 0


def rewritten_to(model: Model, target: Target) -> str | None:
    """The precision that the ONNX is rewritten to for ``target``; None when it gets the model as given."""
    precision = target.precision if strongly_typed(target) else "fp32"
    unnamed = model.placeholder_dims and target.backend != "onnxruntime"
    has_it = precision in ("fp32", *CARRIED) or model.float_weights == {precision.replace("fp", "float")}
    return None if has_it and not unnamed else precision


def _check_backend_takes(model: PreparedModel, effective: EffectiveTarget) -> None:
    """Raise TARGET_IMPOSSIBLE when the model has what no TensorRT takes (string tensors, sequences, ...), PRECISION_IMPOSSIBLE when
    the precision would have to be in the model and is not."""
    target = effective.target
    if target.precision in CARRIED and strongly_typed(target):
        from orchestrator.models.convert import require_carried

        require_carried(model.model, target.precision, where(model, target.name))
    blockers = model.model.gpu_blockers
    if blockers and target.backend != "onnxruntime":
        raise EnginefarmError(
            TARGET_IMPOSSIBLE,
            f"no TensorRT engine of this model can exist: {blockers[0]}",
            where=where(model, target.name),
            why="; ".join(blockers[1:]) or None,
            fix="build the onnxruntime targets only, or export the model without it",
        )


def prepare(options: BuildOptions, matrix: Matrix, farm: Farm, stages: Path, memo: Memo, *, plan: bool = False) -> Prepared:
    """Everything the run will do. Raises EnginefarmError for whatever is wrong with the request.

    With ``plan`` nothing will be built: models are not copied, and weights are not looked at beyond their digest.
    """
    builds: list[PreparedBuild] = []
    notes: dict[tuple[str, str], None] = {}
    problems: list[EnginefarmError] = []
    models = prepare_models(options, stages, memo, plan=plan)
    resolve = _Resolve(options, farm)
    given = options.cells()
    for model in models:
        reported: set[tuple[object, ...]] = set()
        with _in_its_yaml(model, "targets"):
            selectors = options.selectors(model.config.config if model.config else None)
            rows = matrix.select(selectors, given)
            builds += [_excluded(model, cell.effective, cell.refusal) for cell in matrix.excluded(selectors, given)]
        for row in rows:
            try:
                build, said = resolve.build(model, row)
            except EnginefarmError as error:
                # one message for a problem that every target has
                fresh = [problem for problem in flatten(error) if _said_at(problem) not in reported]
                reported |= {_said_at(problem) for problem in fresh}
                problems += fresh
                continue
            builds.append(build)
            notes |= {(model.name, text): None for text in said}
    raise_all(problems or ([] if options.available else _whole_targets(builds)))
    if not builds:
        raise EnginefarmError(EMPTY_SELECTION, "no target is selected", fix="see `enginefarm targets list`")
    warnings = tuple((model.name, text) for model in models for text in model.model.warnings)
    return Prepared(tuple(builds), tuple(notes), warnings)


@contextlib.contextmanager
def _in_its_yaml(model: PreparedModel, field: str) -> Iterator[None]:
    """A problem that has no place of its own has that of ``field`` in the model's YAML, when it is there."""
    try:
        yield
    except EnginefarmError as error:
        place = model.config.positions.get(field) if model.config else None
        for problem in flatten(error):
            problem.where = problem.where or place
        raise


def _said_at(problem: EnginefarmError) -> tuple[object, ...]:
    """What makes two problems one, whatever target has it."""
    where = problem.where
    return (problem.what, *((where.file, where.line, where.column) if where else ()))


def in_ci() -> bool:
    """Whether a CI system runs this: every common one sets ``CI``."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def where(model: PreparedModel, target: str) -> Where:
    return Where(file=str(model.model.path), target=target)
