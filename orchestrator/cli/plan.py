"""``enginefarm plan``, the same as ``build --dry-run``: what a build would do, on standard output."""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.build import build_command, options_of

if TYPE_CHECKING:
    from orchestrator.pipeline.options import BuildOptions

WORK_TO_DO = 10  # Exit code with --exit-code
_ONLY_RUNNING = ("exit_first", "maxfail", "dry_run", "verbose", "progress")
_ExitCode = Annotated[bool, typer.Option("--exit-code", help=f"Exit with {WORK_TO_DO} when there is something to do.")]


def plan_command(ctx: typer.Context, **given: Any) -> None:
    """Say what a build would do and why: which input changed, where it would run, how long it takes, what has to be pulled."""
    show(options_of(ctx, given), given["as_json"], -given["quiet"], exit_code=given["exit_code"])


def show(options: BuildOptions, as_json: bool, verbosity: int, *, exit_code: bool) -> None:
    """Print the plan; raises typer.Exit when there is something to do and ``exit_code`` asks for that."""
    from orchestrator.cli.screen import width
    from orchestrator.events import Bus
    from orchestrator.pipeline.plan import make_plan
    from orchestrator.report.lines import Lines
    from orchestrator.report.plan import plan_lines

    plan = make_plan(options, Bus(Lines(sys.stderr, verbosity)))
    if as_json:
        sys.stdout.write(json.dumps(plan.as_dict(), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("".join(line + "\n" for line in plan_lines(plan, width())))
    if exit_code and plan.work:
        raise typer.Exit(WORK_TO_DO)


def _parameters() -> list[inspect.Parameter]:
    """Those of a build, but for what only matters while something runs."""
    found = inspect.signature(build_command, eval_str=True).parameters  # Typer looks for Annotated there
    kept = [parameter for name, parameter in found.items() if name not in _ONLY_RUNNING]
    return [parameter.replace(annotation=_ExitCode) if parameter.name == "exit_code" else parameter for parameter in kept]


_PARAMETERS = _parameters()
plan_command.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
plan_command.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}
