"""The command ``enginefarm``: puts the groups together and is the only place that turns errors into text and exit codes."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.problems import Reporter

EXIT_CODES = """Exit codes: 0 all asked for is good; 1 a build or validation failed; 2 usage, configuration, bad model;
3 a required target has no runner or stayed unvalidated; 4 infrastructure; 5 a generated file is stale; 6 refused by verification;
70 internal bug; 130/143 interrupted."""

# name -> module in cli/ and what it brings: the function of a command, or the Typer app of a group; in the order of --help
COMMANDS = {
    "build": "build:build_command",
    "plan": "plan:plan_command",
    "inspect": "inspect:inspect_command",
    "repro": "repro:repro_command",
    "compat": "compat:compat_command",
    "doctor": "doctor:doctor_command",
    "select": "select:select_command",
    "keygen": "sign:keygen_command",
    "sign": "sign:sign_command",
    "verify": "sign:verify_command",
    "explain": "explain:explain_command",
    "runs": "runs:runs_command",
    "logs": "logs:logs_command",
    "history": "history:history_command",
    "init": "init:init_command",
    "version": "version:version_command",
}
GROUPS = {name: f"{name}:app" for name in ("targets", "images", "policy", "cache", "runtime", "runners")} | {"targets": "targets_lock:app"}
REPORTER = Reporter()


def _print_version(wanted: bool) -> None:
    if wanted:
        from orchestrator import __version__

        typer.echo(f"enginefarm {__version__}")
        raise typer.Exit


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


def make_app(only: str | None = None) -> typer.Typer:
    """The command line; with the name of a command, ``only`` that one: to make all ready takes longer than most of them run."""
    app = typer.Typer(
        name="enginefarm",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=EXIT_CODES,
    )
    app.callback()(main)
    for name, place in COMMANDS.items():
        if only in (None, name):
            app.command(name)(_brought(place))
    for name, place in GROUPS.items():
        if only in (None, name):
            app.add_typer(_brought(place), name=name)
    return app


def _brought(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"orchestrator.cli.{module}"), name)


def _called(words: list[str]) -> str | None:
    """The command that ``words`` call, when nothing but it can be needed: neither help, nor a suggestion, nor a shell's completion."""
    first = next((word for word in words if word != "--debug"), "")
    return first if (first in COMMANDS or first in GROUPS) and "_ENGINEFARM_COMPLETE" not in os.environ else None


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the command; ends the process with the documented exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    REPORTER.prepare(words)
    sys.exit(REPORTER.guard(lambda: _invoke(words)))


def _invoke(words: list[str]) -> Any:
    return make_app(_called(words))(args=words, prog_name="enginefarm", standalone_mode=False)
