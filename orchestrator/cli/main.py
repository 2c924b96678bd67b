"""The command ``enginefarm``: puts the groups together and is the only place that turns errors into text and exit codes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli import (
    build,
    cache,
    compat,
    doctor,
    explain,
    history,
    images,
    init,
    inspect,
    logs,
    policy,
    repro,
    runners,
    runs,
    runtime,
    select,
    sign,
    targets,
    targets_lock,
)
from orchestrator.cli.problems import Reporter

EXIT_CODES = """Exit codes: 0 all asked for is good; 1 a build or validation failed; 2 usage, configuration, bad model;
3 a required target has no runner or stayed unvalidated; 4 infrastructure; 5 a generated file is stale; 6 refused by verification;
70 internal bug; 130/143 interrupted."""

app = typer.Typer(
    name="enginefarm",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from orchestrator import __version__

        typer.echo(f"enginefarm {__version__}")
        raise typer.Exit


@app.callback()
def main(
    ctx: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", envvar="ENGINEFARM_DEBUG", help="Show tracebacks of errors.")] = False,
) -> None:
    """Build, check and name TensorRT engines: one ONNX model, one engine per GPU target."""
    REPORTER.debug = debug
    if ctx.invoked_subcommand in ("build", "plan"):
        from orchestrator.cli.settings import load_settings

        ctx.default_map = load_settings(Path.cwd()).default_map


REPORTER = Reporter()

app.command("build")(build.build_command)
app.command("plan")(build.plan_command)
app.command("inspect")(inspect.inspect_command)
app.command("repro")(repro.repro_command)
app.command("compat")(compat.compat_command)
app.command("doctor")(doctor.doctor_command)
app.command("select")(select.select_command)
app.command("keygen")(sign.keygen_command)
app.command("sign")(sign.sign_command)
app.command("verify")(sign.verify_command)
app.command("explain")(explain.explain_command)
app.command("runs")(runs.runs_command)
app.command("logs")(logs.logs_command)
app.command("history")(history.history_command)
app.command("init")(init.init_command)
targets.app.command("lock")(targets_lock.lock_command)
app.add_typer(targets.app, name="targets")
app.add_typer(images.app, name="images")
app.add_typer(policy.app, name="policy")
app.add_typer(cache.app, name="cache")
app.add_typer(runtime.app, name="runtime")
app.add_typer(runners.app, name="runners")


@app.command("version")
def version_command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the versions of enginefarm, the worker and the backends present here."""
    from orchestrator.cli.version import show

    show(as_json)


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the command; ends the process with the documented exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    REPORTER.prepare(words)
    sys.exit(REPORTER.guard(lambda: _invoke(words)))


def _invoke(words: list[str]) -> Any:
    return app(args=words, prog_name="enginefarm", standalone_mode=False)
