"""Reads the matrix: built-in targets < the project's targets/ < model YAML < command line."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator import resources
from orchestrator.errors import CONFIG_SYNTAX, CONFIG_VALUE, TARGET_CONFLICT, TARGET_UNKNOWN, EnginefarmError, Where, raise_all
from orchestrator.matrix import axes, rules
from orchestrator.matrix.axes import Checked, ExcludedCell
from orchestrator.matrix.binder import CLOSE, Binder
from orchestrator.matrix.layers import AXIS, EffectiveTarget, Source, Value, Values, overlay, partial, sources_of, validate
from orchestrator.matrix.model_config import LoadedModelConfig, apply_model, find_model_config, load_model_config
from orchestrator.matrix.schema import Target, TargetFile
from orchestrator.matrix.select import Matrix, sort_targets
from orchestrator.matrix.shapes import parse_shape_option
from orchestrator.matrix.yaml_reader import EMPTY, Mapping, display, read_file
from orchestrator.matrix.yaml_syntax import short

__all__ = [
    "EffectiveTarget",
    "ExcludedCell",
    "LoadedModelConfig",
    "Matrix",
    "Source",
    "apply_model",
    "find_model_config",
    "load_files",
    "load_matrix",
    "load_model_config",
    "parse_shape_option",
]

_SUFFIXES = (".yaml", ".yml")
_NOT_INHERITED = ("name", "tag", "description", "extends", *axes.FIELDS)
_RESERVED_TAG_ENDS = (".unvalidated", ".engine", ".onnx")


@dataclass
class _File:
    """One target file: ``values`` without the fields that could not be read (``broken``)."""

    name: str
    path: Path
    layer: str
    values: Values = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    readable: bool = True

    @property
    def extends(self) -> str | None:
        said = self.values.get("extends")
        return None if said is None else said.value

    @property
    def home(self) -> Where:
        return Where(file=display(self.path), line=1, column=1)


@dataclass
class _Row:
    """One target being put together from its files and the target it extends, or one cell of it."""

    name: str
    home: Where
    values: Values
    broken: set[str]
    cell_of: str | None = None


def load_matrix(project: Path | None = None) -> Matrix:
    """All targets: the built-in ones, and those of ``project``/targets over them (unless that is the built-in folder itself).

    A project file with a built-in's name overrides it field by field; another name is a new target, which may say ``extends: NAME``.
    Raises EnginefarmError with every problem of every file.
    """
    folder = None if project is None else project / "targets"
    return _load(_folder(resources.builtin_targets()), _folder(folder) if folder is not None and _is_second_layer(folder) else [])


def load_files(paths: Iterable[Path]) -> Matrix:
    """The built-in targets with these files over them, as if they lay in a project's targets/. Raises as :func:`load_matrix`."""
    builtin = resources.builtin_targets()
    chosen = list(paths)
    return _load(_folder(builtin), [path for path in chosen if path.absolute().parent.resolve() != builtin.resolve()])


def _is_second_layer(folder: Path) -> bool:
    builtin = resources.builtin_targets()
    return folder.is_dir() and not (builtin.is_dir() and folder.samefile(builtin))


def _folder(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and not path.name.startswith("."))
    except OSError as error:
        name = display(folder)
        raise EnginefarmError(CONFIG_SYNTAX, f"{name} cannot be read: {error.strerror}", where=Where(file=name)) from error


def _load(builtin: list[Path], project: list[Path]) -> Matrix:
    problems: list[EnginefarmError] = []
    files = [_read(path, layer, problems) for layer, paths in (("built-in", builtin), ("project", project)) for path in paths]
    problems += _same_file_names(files)
    rows = _compose(files, problems)
    targets: list[EffectiveTarget] = []
    excluded: list[ExcludedCell] = []
    tagged: list[_Row] = []
    for row in rows.values():
        if axes.forks(row.values) or row.broken & {*axes.FIELDS}:
            tagged += _finish_cells(row, problems, targets, excluded)
        else:
            tagged.append(row)
            targets += _finish(row, problems)
    problems += _shared_names(rows, tagged)
    problems += _shared_tags(tagged)
    raise_all(problems)
    return Matrix(sort_targets({row.target.name: row for row in targets}), sort_targets({cell.name: cell for cell in excluded}))


def _read(path: Path, layer: str, problems: list[EnginefarmError]) -> _File:
    name = path.name[: -len(path.suffix)]
    file = _File(name, path, layer)
    document = read_file(path)
    problems += [_empty_target(path, name)] if document.empty else document.problems
    if document.root is None:
        file.readable = False
        return file
    binder = Binder()
    forked = axes.read_axes(document.root, layer, binder)
    entries = {key: node for key, node in document.root.entries.items() if key not in axes.FIELDS}
    bound = binder.fields(Mapping(entries, document.root.keys, document.root.where), TargetFile)
    problems += binder.problems
    file.broken = binder.broken
    file.values = {key: Value(_beside(path, key, item.value), Source(layer, item.where)) for key, item in bound.items()} | forked
    said = file.values.get("name")
    if said is not None and said.value != name:
        fix = f"write name: {name}, or rename the file to {said.value}{path.suffix}"
        what = f'the file is called {short(path.name)}, the target "{short(str(said.value))}"'
        problems.append(EnginefarmError(CONFIG_VALUE, what, where=said.source.where, why="both must be the same", fix=fix))
        file.broken.add("name")
    return file


def _empty_target(path: Path, name: str) -> EnginefarmError:
    fix = f"write at least name: {name}, tag: {name}, and backend: or extends: (the target to start from)"
    return EnginefarmError(CONFIG_SYNTAX, EMPTY, where=Where(file=display(path), line=1, column=1), fix=fix)


def _beside(path: Path, key: str, value: object) -> object:
    """Samples and plugins are relative to the file that names them."""
    if key in ("samples", "plugins") and isinstance(value, tuple):
        return tuple(str(path.parent / item) for item in value)
    return value


def _compose(files: list[_File], problems: list[EnginefarmError]) -> dict[str, _Row]:
    rows: dict[str, _Row] = {}
    unreadable = {file.name for file in files if not file.readable}
    extending: dict[str, _File] = {}
    for file in files:
        if file.name in rows:
            row = rows[file.name]
            if file.extends and file.layer == "project":
                problems.append(_extends_and_overrides(file))
            # a field that is wrong here must not hide behind the one below it
            rows[file.name] = _Row(row.name, file.home, overlay(row.values, file.values), row.broken | file.broken)
        elif file.readable:
            rows[file.name] = _Row(file.name, file.home, file.values, file.broken)
            extending |= {file.name: file} if file.extends else {}
    for name in list(extending):
        _inherit(name, rows, extending, unreadable, problems, ())
    return {name: row for name, row in rows.items() if name not in unreadable}


def _extends_and_overrides(file: _File) -> EnginefarmError:
    source = file.values.pop("extends").source
    return EnginefarmError(
        TARGET_CONFLICT,
        f"{file.name} is a built-in target: this file changes it and cannot start from another one",
        where=source.where,
        fix="remove extends, or give the file and the target a new name",
    )


def _inherit(
    name: str,
    rows: dict[str, _Row],
    extending: dict[str, _File],
    unreadable: set[str],
    problems: list[EnginefarmError],
    chain: tuple[str, ...],
) -> None:
    """Lay the target over the one it extends, after that one was completed."""
    if name not in extending:
        return
    row = rows[name]
    base = str(row.values["extends"].value)
    where = row.values["extends"].source.where
    if base in (*chain, name):
        del extending[name]
        loop = " extends ".join([*chain[chain.index(base) :], name, base] if base in chain else [name, base])
        problems.append(
            EnginefarmError(TARGET_CONFLICT, f"targets extend each other: {loop}", where=where, fix="remove one of the extends lines")
        )
        row.broken.update(Target.model_fields)
        return
    if base not in rows:
        del extending[name]
        row.broken.update(Target.model_fields)
        if base not in unreadable:
            # the second: a cell of a target that forks
            close = difflib.get_close_matches(base, rows, n=5, cutoff=CLOSE) or [name for name in rows if base.startswith(f"{name}-")]
            fix = f"did you mean {' or '.join(close)}?" if close else "see them with: enginefarm targets list"
            problems.append(EnginefarmError(TARGET_UNKNOWN, f'no target is called "{short(base)}"', where=where, fix=fix))
        return
    _inherit(base, rows, extending, unreadable, problems, (*chain, name))
    if name not in extending:
        return  # found to be part of a loop further up
    del extending[name]
    layer = f"extends {base}"
    inherited = {
        key: Value(item.value, Source(layer, item.source.where))
        for key, item in rows[base].values.items()
        if key.split(".", 1)[0] not in _NOT_INHERITED
    }
    row.values = overlay(inherited, row.values)
    row.broken |= (
        rows[base].broken - set(_NOT_INHERITED) - {key.split(".")[0] for key in row.values if row.values[key].source.layer != layer}
    )


def _finish(row: _Row, problems: list[EnginefarmError]) -> list[EffectiveTarget]:
    """The effective target, or nothing with its problems told."""
    axes.expand(row.name, row.values, problems)  # exclusions without axes
    effective, wrong = _check(replace(row, values=axes.plain(row.values)))
    problems += wrong
    return [] if effective is None else [effective]


def _finish_cells(row: _Row, problems: list[EnginefarmError], targets: list[EffectiveTarget], excluded: list[ExcludedCell]) -> list[_Row]:
    """Adds the cells of a target, which is none itself; its axes may be broken, then only the rest is looked at. Returns them as rows."""
    cells = [] if row.broken & {*axes.FIELDS} else axes.expand(row.name, row.values, problems)
    if not cells:
        # what the axes would have set is not known
        unsure = row.broken | {"precision", "shapes"}
        problems += _check(_Row(row.name, row.home, axes.plain(row.values), unsure))[1]
        return []
    made = [_Row(cell.name, row.home, cell.values, set(row.broken), row.name) for cell in cells]
    checked = [Checked(cell, *_check(part)) for cell, part in zip(cells, made, strict=True)]
    kept, out = axes.sort_out(row.name, checked, problems)
    targets += kept
    excluded += out
    return made


def _check(row: _Row) -> tuple[EffectiveTarget | None, list[EnginefarmError]]:
    """The effective target, or None, and all that is wrong with it."""
    already = bool(row.broken)
    target, problems = validate(row.values, row.name, row.home, row.broken)
    sources = sources_of(row.values)
    # every field broken: it extends something that is missing, which was told
    if set(Target.model_fields) <= row.broken:
        return None, problems
    problems += rules.check(target or partial(row.values, row.broken), sources, row.home, frozenset(row.broken))
    problems += _tag_ends(row)
    return None if target is None or already else EffectiveTarget(target, sources, row.values, row.cell_of), problems


def _tag_ends(row: _Row) -> list[EnginefarmError]:
    tag = row.values.get("tag")
    end = next((end for end in _RESERVED_TAG_ENDS if tag is not None and str(tag.value).endswith(end)), None)
    if tag is None or end is None or "tag" in row.broken:
        return []
    what = f'tag cannot end in "{end}"'
    return [
        EnginefarmError(
            CONFIG_VALUE, what, where=tag.source.where, why="engine files end in it for another reason", fix="choose another tag"
        )
    ]


def _shared_names(targets: Iterable[str], rows: Iterable[_Row]) -> list[EnginefarmError]:
    """Cells that are called like another target, or like a cell of another one."""
    taken = {name: f"the target {name}" for name in targets}
    problems = []
    for row in rows:
        if row.cell_of is None:
            continue
        if row.name in taken:
            where = next(item.source.where for item in row.values.values() if item.source.layer == AXIS)
            what = f'"{row.name}" is the name of two targets'
            why = f"a cell of {row.cell_of} and {taken[row.name]}"
            place = replace(where or row.home, target=row.cell_of)
            problems.append(EnginefarmError(TARGET_CONFLICT, what, where=place, why=why, fix="rename one of them"))
        taken.setdefault(row.name, f"a cell of {row.cell_of}")
    return problems


def _shared_tags(rows: Iterable[_Row]) -> list[EnginefarmError]:
    """Two targets whose engines would have one file name, on a case-insensitive disk too."""
    by_tag: dict[str, list[_Row]] = defaultdict(list)
    for row in rows:
        if "tag" in row.values:
            by_tag[str(row.values["tag"].value).casefold()].append(row)
    problems = []
    for first, *others in by_tag.values():
        for other in others:
            tag, first_tag = other.values["tag"], first.values["tag"]
            same = tag.value == first_tag.value
            why = f"so says {first.name} at {first_tag.source.where}"
            if not same:
                why += f'; "{short(str(first_tag.value))}" and "{short(str(tag.value))}" are the same file on a case-insensitive disk'
            where = Where(**{**vars(tag.source.where or other.home), "target": other.name})
            what = f'tag "{short(str(tag.value))}" is taken'
            problems.append(EnginefarmError(TARGET_CONFLICT, what, where=where, why=why, fix="give each target its own tag"))
    return problems


def _same_file_names(files: list[_File]) -> list[EnginefarmError]:
    """SM86.yaml and sm86.yaml, or a.yaml and a.yml, in one layer."""
    seen: dict[tuple[str, str], _File] = {}
    problems = []
    for file in files:
        first = seen.setdefault((file.layer, file.name.casefold()), file)
        if first is not file:
            same = first.name == file.name
            why = "both name one target" if same else "they are the same file on a case-insensitive disk"
            what = f"{short(file.path.name)} and {short(first.path.name)} are both there"
            problems.append(
                EnginefarmError(TARGET_CONFLICT if same else CONFIG_SYNTAX, what, where=file.home, why=why, fix="remove or rename one")
            )
    return problems
