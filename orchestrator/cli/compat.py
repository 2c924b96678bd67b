"""``enginefarm compat``: which engine loads on which host, without a GPU; with --try it is really loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.completion import complete_hosts

if TYPE_CHECKING:
    from orchestrator.runners.base import Runner
    from orchestrator.verdict.compat import EngineSubject, HostSubject, Trial


def compat_command(
    engines: Annotated[
        list[Path],
        typer.Argument(help='Engine files, manifests, folders of them, or "matrix": what every target builds.', show_default=False),
    ],
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on", metavar="HOST", autocompletion=complete_hosts, help="A target, a runner, this, all, or a host.json. Default: this."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (enginefarm.compat/1).")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the grid as one HTML file.")] = None,
    really: Annotated[
        bool, typer.Option("--try", help="Also load, run and soak each engine on each runner, in a process of its own.")
    ] = False,
    soak: Annotated[float, typer.Option("--soak", min=0.0, help="Seconds that --try keeps an engine running.")] = 2.0,
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds that one trial may take.")] = 300.0,
    logs: Annotated[Path, typer.Option("--logs", metavar="DIR", help="Where --try keeps what an engine that did not run has said.")] = Path(
        ".enginefarm/compat"
    ),
    runners: Annotated[Path | None, typer.Option("--runners", envvar="ENGINEFARM_RUNNERS", help="runners.yaml to use.")] = None,
    python: Annotated[
        str | None, typer.Option("--python", envvar="ENGINEFARM_PYTHON", help="Interpreter of this machine's runner.")
    ] = None,
) -> None:
    """Say which engine loads on which host and why, without a GPU.

    Exit codes: 0 everything loads (a warning is a yes), 1 something does not load or a trial contradicts the rules,
    3 nothing is refused and something is unknown.
    """
    import json

    from orchestrator.cli.targets import project_matrix
    from orchestrator.verdict.compat import as_json as json_of
    from orchestrator.verdict.compat import exit_code, grid
    from orchestrator.verdict.compat_subjects import engines_from, hosts_from

    targets = {name: effective.target for name, effective in project_matrix().targets.items()}
    subjects = engines_from(engines, targets.values())
    places = hosts_from(on or ["this"], targets, lambda: _runners(runners, python), lambda: _local(python))
    trials = _try(subjects, places, logs, soak, timeout) if really else None
    found = grid(subjects, places, trials)
    if html is not None:
        from orchestrator.portable.worker.files import write_whole
        from orchestrator.report.compat import compat_html

        write_whole(str(html), [compat_html(found).encode()])
    if as_json:
        typer.echo(json.dumps(json_of(found), indent=2, ensure_ascii=False))
    else:
        import shutil
        import sys

        from orchestrator.cli.screen import print_lines
        from orchestrator.report.compat import compat_lines

        width = shutil.get_terminal_size((140, 24)).columns if sys.stdout.isatty() else 140
        print_lines(compat_lines(found, width))
    raise typer.Exit(int(exit_code(found.pairs)))


def _configured(runners: Path | None, python: str | None) -> Path | None:
    """The file of runners: the option, else what enginefarm.yaml names."""
    from orchestrator.cli.settings import load_settings

    if runners is not None or python is not None:
        return runners
    named = load_settings(Path.cwd()).values.get("runners")
    return Path(named) if named else None


def _runners(runners: Path | None, python: str | None) -> Sequence[Runner]:
    from orchestrator.runners.load import load_runners

    return load_runners(_configured(runners, python), python)


def _local(python: str | None) -> Runner:
    """A runner on this machine's own interpreter, whatever the configuration names."""
    import sys

    from orchestrator.runners.load import load_runners

    key = python or sys.executable
    if key not in _LOCAL:
        _LOCAL[key] = load_runners(None, key)[0]
    return _LOCAL[key]


_LOCAL: dict[str, Runner] = {}


def _try(
    engines: Sequence[EngineSubject], hosts: Sequence[HostSubject], logs: Path, soak: float, timeout: float
) -> dict[tuple[str, str], Trial]:
    """Trials of every engine on every host that is a runner."""
    from orchestrator.cli.screen import stop_on_signals
    from orchestrator.errors import USAGE, EnginefarmError
    from orchestrator.runners.base import Cancel, Cancelled
    from orchestrator.verdict.compat import Trial, judge_pair
    from orchestrator.verdict.compat_try import try_engine

    if not any(host.runner for host in hosts):
        raise EnginefarmError(USAGE, "--try needs a runner", fix="name one with --on RUNNER, or take this machine: --on this")
    cancel = Cancel()
    trials: dict[tuple[str, str], Trial] = {}
    with stop_on_signals(cancel, quiet=False):
        for host in hosts:
            for engine in engines if host.runner else ():
                verdict = judge_pair(engine, host)["verdict"]
                try:
                    trial = try_engine(engine, _given(host), verdict, cancel, logs=logs, soak_seconds=soak, timeout_seconds=timeout)
                except Cancelled:
                    raise typer.Exit(128 + (cancel.stopped_by or 2)) from None
                except EnginefarmError as error:
                    trial = Trial("not tried", f"the runner does not work: {error.what}")
                trials[engine.name, host.name] = trial
    return trials


def _given(host: HostSubject) -> Runner:
    assert host.runner is not None  # noqa: S101  (only hosts with a runner are tried)
    return host.runner
