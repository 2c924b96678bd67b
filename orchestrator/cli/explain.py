"""``enginefarm explain``: from a log to what went wrong, with the figures the right way round; or what a code means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import BinaryIO

Pairs = list[tuple[str, str]]
"""Label and text of each line; an empty label continues the one above, "#" is a heading."""

NOT_LOGS = {"tensorrt-plan", "rtx-plan", "zip", "torch-zip", "onnx-like", "pickle"}
HEAD = 512
CODE = re.compile(r"EF\d{3}", re.IGNORECASE)


def explain_command(
    log: Annotated[
        str, typer.Argument(metavar="LOG|-|CODE|KIND", help="A log, - for standard input, a code such as EF801, or a kind of failure.")
    ] = "-",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: causes, best first.")] = False,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only causes of this kind.")] = None,
) -> None:
    """Say what a log's failure is: cause, figures, what to do, the lines that show it.

    Reads logs of any size from TensorRT, ONNX Runtime, CUDA, Docker, registries and CI. Ends with 0 when the log could be
    read, whatever it says.
    """
    from orchestrator.cli.values import check_choice
    from orchestrator.portable.facts.failures import catalogue

    kinds = sorted(catalogue().kinds)
    check_choice("--kind", kind, kinds)
    if log != "-" and not Path(log).exists() and (CODE.fullmatch(log) or log in kinds):
        _show(_of_kind(log) if log in kinds else _of_code(log.upper()), as_json)
        return
    answer = _read(log)
    if kind is not None:
        answer["causes"] = [cause for cause in answer["causes"] if cause["kind"] == kind]
    _show((answer, _told(answer, kind)), as_json)


def _show(found: tuple[Mapping[str, Any], Pairs], as_json: bool) -> None:
    import json
    import shutil
    import sys

    from orchestrator.report.text import hang, safe

    fields, pairs = found
    if as_json:
        typer.echo(json.dumps(fields, indent=2, ensure_ascii=False))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for label, text in pairs:
        if label == "#":
            typer.echo(safe(text))
        else:
            typer.echo("\n".join(hang(f"  {label}", safe(text), None if label.startswith("line ") else width, 12)))


def _read(name: str) -> dict[str, Any]:
    """The explanation of a file or of standard input; raises EnginefarmError(USAGE) for what is no log."""
    from orchestrator.portable.facts.explain import explain

    with _opened(name) as stream:
        return explain(stream)


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    import contextlib
    import gzip
    import sys

    from orchestrator.errors import USAGE, EnginefarmError, Where
    from orchestrator.portable.facts.file_kind import sniff

    if name == "-":
        if sys.stdin.isatty():
            raise EnginefarmError(
                USAGE, "no log given", fix="enginefarm explain build.log, or pipe a log into it: ... 2>&1 | enginefarm explain"
            )
        return contextlib.nullcontext(sys.stdin.buffer)
    path = Path(name)
    if path.is_fifo():
        return path.open("rb")  # what a shell makes of <(...)
    if not path.is_file():
        if path.exists() and not path.is_dir():
            raise EnginefarmError(USAGE, f"{name} is no regular file", fix="name a log, or pipe it in: ... | enginefarm explain")
        raise EnginefarmError(USAGE, f"{name}: {'a folder, not a log' if path.is_dir() else 'no such file'}", fix=_meant(path))
    with path.open("rb") as stream:
        kind = sniff(stream.read(HEAD), path.stat().st_size)
    if kind["kind"] in NOT_LOGS:
        what = kind["text"].split(",")[0].split(":")[0]
        raise EnginefarmError(USAGE, f"this is {what}, not a log", where=Where(file=name), fix=f"enginefarm inspect {name}")
    # mypy: GzipFile reads bytes as BinaryIO does
    return gzip.open(path) if kind["kind"] == "gzip" else path.open("rb")  # type: ignore[return-value]


def _meant(path: Path) -> str:
    import difflib

    from orchestrator.portable.facts.failures import catalogue

    folder = path if path.is_dir() else path.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    if path.is_dir():
        names = [name for name in names if name.endswith((".log", ".txt"))]
        return f"give one of its logs: {', '.join(sorted(names)[:3])}" if names else "give a log"
    close = difflib.get_close_matches(path.name, [*names, *catalogue().kinds, *catalogue().entries], n=1)
    return (
        f"did you mean {close[0]}?" if close else "give a log, - for standard input, a code or a kind (docs/troubleshooting.md lists them)"
    )


def _told(answer: Mapping[str, Any], kind: str | None) -> Pairs:
    """The explanation for people."""
    pairs: Pairs = []
    if answer["mixed"]:
        sources = sorted({cause["source"] for cause in answer["causes"] if cause.get("source")})
        pairs.append(("#", f"the log mixes the output of {', '.join(sources) if sources else 'several runs'}; each cause names its own"))
    for number, cause in enumerate(answer["causes"], 1):
        pairs += _cause(number, cause)
    if not answer["causes"]:
        only = f" of kind {kind}" if kind else ""
        pairs.append(("#", f"nothing in {answer['lines']} line{'' if answer['lines'] == 1 else 's'} is a known failure{only}"))
        pairs += [(f"line {line['line']}", line["text"]) for line in answer["unknown"]]
        if answer["unknown"]:
            pairs.append(("", "(looks like an error and is in no catalogue)"))
    if answer["harmless"]:
        pairs.append(("#", "seen and not blamed:"))
        pairs += [(f"line {item['line']}", f"{item['sentence']} ({item['code']}{_times(item)})") for item in answer["harmless"]]
    return pairs


def _cause(number: int, cause: Mapping[str, Any]) -> Pairs:
    source = f" [{cause['source']}]" if cause.get("source") else ""
    pairs = [("#", f"{number}. {cause['kind']} ({cause['code']}, {cause['confidence']}){source}"), ("", cause["sentence"])]
    pairs.append(("fix:", cause["fix"]))
    pairs += [(f"line {line['line']}", line["text"]) for line in cause["evidence"]]
    if cause["count"] > len(cause["evidence"]):
        pairs.append(("", f"seen {cause['count']} times"))
    pairs += [("then:", f"{item['sentence']} (line {item['line']}{_times(item)})") for item in cause["consequences"]]
    pairs += [("or:", f"{item['kind']}, when {item['when']}") for item in cause.get("or", ())]
    return pairs


def _times(item: Mapping[str, Any]) -> str:
    return f", {item['count']} times" if item["count"] > 1 else ""


def _of_kind(kind: str) -> tuple[Mapping[str, Any], Pairs]:
    from orchestrator.portable.facts.failures import catalogue

    known = catalogue()
    entries = [entry for entry in known.of_kind(kind) if entry.role in ("cause", "warning", "harmless")]
    fields = {"kind": kind, **known.kinds[kind], "codes": [entry.code for entry in entries]}
    pairs = [("#", kind), ("", known.kinds[kind]["means"]), ("fix:", known.kinds[kind]["fix"])]
    return fields, pairs + [(entry.code, entry.sentences[-1]) for entry in entries]


def _of_code(code: str) -> tuple[Mapping[str, Any], Pairs]:
    """What a code of the catalogue or of enginefarm's own errors means; raises EnginefarmError(USAGE) for no code."""
    import difflib

    from orchestrator import errors
    from orchestrator.portable.facts.failures import catalogue

    known = catalogue()
    own = {kind.code: kind for kind in vars(errors).values() if isinstance(kind, errors.Kind)}
    if code in own:
        kind = own[code]
        fields: dict[str, Any] = {"code": code, "title": kind.title, "exit": int(kind.exit)}
        return fields, [("#", f"{code}: {kind.title}"), ("", f"an error of enginefarm itself; ends with exit code {int(kind.exit)}")]
    if code not in known.entries:
        close: Sequence[str] = difflib.get_close_matches(code, [*own, *known.entries], n=3)
        raise errors.EnginefarmError(
            errors.USAGE, f"{code} is no known code", fix=f"did you mean {', '.join(close)}?" if close else "see docs/troubleshooting.md"
        )
    entry = known.entries[code]
    fields = {"code": code, "kind": entry.kind, "says": list(entry.sentences), "fix": entry.fix, "since": entry.since, "or": entry.others}
    pairs = [("#", f"{code}: {entry.kind or entry.role}")]
    if entry.kind:
        pairs.append(("", known.kinds[entry.kind]["means"]))
    pairs += [("says:" if first else "", text) for first, text in _first(entry.sentences)]
    pairs += [("fix:", entry.fix)] if entry.fix else []
    pairs += [("since:", entry.since)] if entry.since else []
    return fields, pairs + [("or:", f"{kind}, when {when}") for kind, when in entry.others.items()]


def _first(texts: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Each text, and whether it is the first; placeholders of figures in angle brackets."""
    for index, text in enumerate(texts):
        yield index == 0, re.sub(r"\{(\w+)\}", r"<\1>", text)
