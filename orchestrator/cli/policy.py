"""``enginefarm policy``: hold targets, engines and runners against the organisation's rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from orchestrator.errors import Where
    from orchestrator.publish.policy import Policy
    from orchestrator.publish.policy_check import Checker

app = typer.Typer(no_args_is_help=True, help="Hold targets, engines and runners against a policy.")

_Policy = Annotated[Path | None, typer.Option("--policy", metavar="FILE", help="Default: the project's policy.yaml, else the one shipped.")]


@app.command("show")
def show_command(policy: _Policy = None) -> None:
    """Print the policy that holds here."""
    chosen = _load(policy)
    typer.echo(chosen.path.read_text(encoding="utf-8"), nl=False)


@app.command("check")
def check_command(
    policy: _Policy = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", "-t", help="Targets to check: names, globs, label:NAME. Default: all.")
    ] = None,
    manifest: Annotated[
        list[Path] | None, typer.Option("--manifest", metavar="PATH", help="Also engines: a manifest, or a folder.")
    ] = None,
    runners: Annotated[bool, typer.Option("--runners", help="Also the configured runners, by what they find on their hosts.")] = False,
    runners_file: Annotated[
        Path | None, typer.Option("--runners-file", envvar="ENGINEFARM_RUNNERS", metavar="FILE", help="runners.yaml to use.")
    ] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Write the findings as SARIF.")] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write the findings as JUnit XML.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (enginefarm.policy/1).")] = False,
) -> None:
    """Check targets, and with --manifest and --runners engines and hosts too. Exit code 6 when anything breaks a rule."""
    import datetime as dt
    import json

    from orchestrator.errors import Exit
    from orchestrator.publish import policy_output
    from orchestrator.publish.policy_check import Checker
    from orchestrator.report.text import safe

    chosen = _load(policy)
    checker = Checker(chosen, dt.datetime.now(dt.timezone.utc))
    checker.exceptions()
    _targets(checker, target or [])
    for path in manifest or ():
        _manifest(checker, path)
    if runners:
        _runners(checker, runners_file)
    if sarif is not None:
        _write(sarif, json.dumps(policy_output.sarif(checker.findings), indent=2).encode() + b"\n")
    if junit is not None:
        _write(junit, policy_output.junit(checker.subjects, checker.findings))
    if as_json:
        typer.echo(json.dumps(policy_output.as_json(chosen, checker.subjects, checker.findings), indent=2, ensure_ascii=False))
    else:
        for line in policy_output.lines(checker.findings):
            typer.echo(safe(line))
        broken = len({id(finding.subject) for finding in checker.findings})
        typer.echo(f"{len(checker.subjects)} checked against {_shown(chosen)}, {broken} break it, {len(checker.findings)} findings")
    raise typer.Exit(int(Exit.REFUSED if checker.findings else Exit.OK))


@app.command("test")
def cases_command(cases: Annotated[Path, typer.Argument(help="YAML file with cases.")], policy: _Policy = None) -> None:
    """Run the cases of a file against the policy: each names a thing and the codes that must be found. Exit code 1 when one fails."""
    import datetime as dt

    from orchestrator.errors import Exit
    from orchestrator.publish.policy_cases import load_cases, run_case
    from orchestrator.report.text import safe

    chosen = _load(policy)
    now = dt.datetime.now(dt.timezone.utc)
    results = [run_case(chosen, case, now) for case in load_cases(cases)]
    for result in results:
        wanted, found = (", ".join(codes) or "nothing" for codes in (result.case.expect, result.found))
        state = "ok    " if result.ok else "FAILED"
        told = "" if result.ok else f": expected {wanted}, found {found}"
        typer.echo(safe(f"{state} {result.case.where} {result.case.name}{told}"))
    failed = sum(not result.ok for result in results)
    typer.echo(f"{len(results)} cases of {_shown(chosen)}, {failed} failed")
    raise typer.Exit(int(Exit.FAILED if failed else Exit.OK))


def _load(policy: Path | None) -> Policy:
    from orchestrator.cli.settings import load_settings
    from orchestrator.publish.policy import find_policy, load_policy

    return load_policy(policy or find_policy(load_settings(Path.cwd()).project))


def _shown(policy: Policy) -> str:
    from orchestrator.matrix.yaml_reader import display
    from orchestrator.publish.policy import DEFAULT

    return "the policy that ships with enginefarm" if policy.path == DEFAULT else display(policy.path)


def _write(path: Path, data: bytes) -> None:
    from orchestrator.portable.worker.files import write_whole

    write_whole(str(path), [data])


def _targets(checker: Checker, selectors: list[str]) -> None:
    from orchestrator.cli.settings import load_settings
    from orchestrator.cli.targets import project_matrix
    from orchestrator.errors import Where
    from orchestrator.images.lock import lock_file, pinned, read_lock

    lock = read_lock(lock_file(load_settings(Path.cwd()).project))
    for effective in project_matrix().select(selectors):
        target, sources = effective.target, effective.sources
        home = sources["name"].where or Where(target=target.name)

        def place(name: str, sources: dict[str, Any] = sources, home: Where = home) -> Where:
            source = sources.get(name)
            return (source.where if source else None) or home

        locked = target.image is None or "@sha256:" in target.image or pinned(lock, target) is not None
        checker.target(target.name, target.model_dump(mode="json"), place, locked=locked)


def _manifest(checker: Checker, path: Path) -> None:
    from orchestrator.artifacts.manifest import read_manifest
    from orchestrator.artifacts.store import LATEST, follow_latest
    from orchestrator.errors import EMPTY_SELECTION, EnginefarmError, Where
    from orchestrator.matrix.yaml_reader import display
    from orchestrator.publish.policy_check import record_places

    files = sorted(path.rglob(LATEST)) if path.is_dir() else [path]
    if not files:
        raise EnginefarmError(EMPTY_SELECTION, "no manifest in this folder", where=Where(file=str(path)), fix="give a <model>_v<N>.json")
    for file in map(follow_latest, files):
        manifest = read_manifest(file)
        unsigned = _unsigned(checker, file)
        text = file.read_text(encoding="utf-8")
        for record in manifest.engines:
            name = f"{record.target} of {manifest.model.name} v{manifest.model.version}"
            place = record_places(text, display(file), record.target)
            checker.engine(name, record.model_dump(mode="json"), manifest.created_at, place, unsigned=unsigned)


def _unsigned(checker: Checker, manifest: Path) -> str | None:
    """What is wrong with a manifest's signature; None when a trusted key signed it, or when the policy does not ask."""
    from orchestrator.errors import SIGNATURE_REFUSED, EnginefarmError
    from orchestrator.publish.signing import opened_manifest, signed_by

    if not checker.rules.signature:
        return None
    try:
        signed_by(opened_manifest(manifest), checker.policy.keys)
    except EnginefarmError as error:
        if error.kind is not SIGNATURE_REFUSED:
            raise
        return error.why or error.what
    return None


def _runners(checker: Checker, file: Path | None) -> None:
    from orchestrator.cli.settings import load_settings
    from orchestrator.errors import Where
    from orchestrator.matrix.yaml_reader import Mapping, read_file
    from orchestrator.runners.load import load_runners

    named = load_settings(Path.cwd()).values.get("runners")
    path = file or (Path(named) if named else None)
    places: dict[str, Where] = {}
    if path is not None:
        root = read_file(path).root
        listed = root.entries.get("runners") if root else None
        places = {name: key.where for name, key in listed.keys.items()} if isinstance(listed, Mapping) else {}
    for runner in load_runners(path):
        checker.runner(runner.name, runner.host(), places.get(runner.name, Where()))
