"""``enginefarm build``: options in, engines out. Thin: everything happens in ``pipeline/``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.completion import complete_precisions, complete_progress, complete_targets
from orchestrator.cli.image_options import Allow, Mirror

if TYPE_CHECKING:
    from orchestrator.pipeline.options import BuildOptions


def _env(name: str) -> str:
    return "ENGINEFARM_" + name


def build_command(
    ctx: typer.Context,
    models: Annotated[
        list[Path],
        typer.Argument(
            envvar=_env("MODELS"), metavar="MODEL", readable=False, help="ONNX files, or folders that hold some.", show_default=False
        ),
    ],
    target: Annotated[
        list[str],
        typer.Option(
            "--target",
            "-t",
            envvar=_env("TARGETS"),
            autocompletion=complete_targets,
            help="Target name, glob or label:NAME; repeatable. Default: all.",
        ),
    ] = [],  # noqa: B006  (typer copies it)
    available: Annotated[
        bool, typer.Option("--available", envvar=_env("AVAILABLE"), help="Build what can be built here; implies --allow-unvalidated.")
    ] = False,
    allow_unvalidated: Annotated[
        bool, typer.Option("--allow-unvalidated", envvar=_env("ALLOW_UNVALIDATED"), help="Unvalidated engines do not fail the run.")
    ] = False,
    model_version: Annotated[
        int | None, typer.Option("--model-version", envvar=_env("MODEL_VERSION"), min=1, help="N of NAME_vN_TAG.engine.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", envvar=_env("NAME"), help="Model name in file names.")] = None,
    shape: Annotated[
        list[str], typer.Option("--shape", envvar=_env("SHAPES"), help="INPUT:1x3x224x224 or INPUT:MIN:OPT:MAX; repeatable.")
    ] = [],  # noqa: B006
    precision: Annotated[
        str | None,
        typer.Option("--precision", envvar=_env("PRECISION"), autocompletion=complete_precisions, help="fp32, fp16, bf16, int8 or fp8."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", envvar=_env("JOBS"), min=1, help="Builds at a time. Default: one per core, at most 4, or the engines' slots."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", envvar=_env("OUTPUT"), help="Folder of the engines. Default: artifacts, in the project."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", envvar=_env("FORCE"), help="Build again what is up to date.")] = False,
    no_validate: Annotated[bool, typer.Option("--no-validate", envvar=_env("NO_VALIDATE"), help="Skip the validate steps.")] = False,
    last_failed: Annotated[
        bool, typer.Option("--last-failed", "--lf", envvar=_env("LAST_FAILED"), help="Only what failed or was cut short last time.")
    ] = False,
    exit_first: Annotated[
        bool, typer.Option("--exitfirst/--keep-going", "-x", envvar=_env("EXITFIRST"), help="Stop at the first failure, or go on.")
    ] = False,
    maxfail: Annotated[int | None, typer.Option("--maxfail", envvar=_env("MAXFAIL"), min=1, help="Stop after so many failures.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done (enginefarm plan); build nothing.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="With --dry-run: exit with 10 when there is something to do.")] = False,
    memory: Annotated[str | None, typer.Option("--memory", envvar=_env("MEMORY"), help='Memory limit of each step, e.g. "8 GiB".')] = None,
    build_timeout: Annotated[
        float | None, typer.Option("--build-timeout", envvar=_env("BUILD_TIMEOUT"), min=0.1, help="Seconds a build step may take.")
    ] = None,
    validate_timeout: Annotated[
        float | None, typer.Option("--validate-timeout", envvar=_env("VALIDATE_TIMEOUT"), min=0.1, help="Seconds a validate step may take.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", envvar=_env("CACHE"), help="Folder of the cache. Default: .enginefarm/cache, in the project.")
    ] = None,
    runners: Annotated[Path | None, typer.Option("--runners", envvar=_env("RUNNERS"), help="runners.yaml to use.")] = None,
    python: Annotated[str | None, typer.Option("--python", envvar=_env("PYTHON"), help="Interpreter of the local runner.")] = None,
    locked: Annotated[
        bool, typer.Option("--locked", envvar=_env("LOCKED"), help="Only images whose digest is in targets/targets.lock (else exit 5).")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", envvar=_env("OFFLINE"), help="Ask no registry; images must be on the engine.")
    ] = False,
    allow: Allow = None,
    mirror: Mirror = None,
    quiet: Annotated[int, typer.Option("--quiet", "-q", count=True, show_default=False, help="Only failures and the result.")] = 0,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, show_default=False, help="Phases and warnings; twice: every log line.")
    ] = 0,
    progress: Annotated[
        str,
        typer.Option(
            "--progress",
            envvar=_env("PROGRESS"),
            autocompletion=complete_progress,
            help="auto, tty, plain or json (JSON lines on standard error).",
        ),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")] = False,
) -> None:
    """Build engines of ONNX models for the targets of the matrix, and check them."""
    given = dict(locals())
    options = options_of(ctx, given)
    if dry_run:
        from orchestrator.cli.plan import show

        return show(options, as_json, verbose - quiet, exit_code=exit_code)
    if exit_code:
        from orchestrator.errors import USAGE, EnginefarmError

        raise EnginefarmError(USAGE, "--exit-code is of plans", fix="give --dry-run too, or use `enginefarm plan`")
    raise typer.Exit(_run(options, progress, verbose - quiet, as_json))


def options_of(ctx: typer.Context, given: dict[str, Any]) -> BuildOptions:
    """The options of a build, from the command line, the environment and enginefarm.yaml; raises EnginefarmError for bad values."""
    from orchestrator.cli.settings import load_settings
    from orchestrator.cli.values import PROGRESS, check_choice, parse_shapes, parse_size
    from orchestrator.matrix.schema import PRECISIONS
    from orchestrator.pipeline.options import BuildOptions
    from orchestrator.pipeline.prepare import in_ci

    check_choice("--progress", given.get("progress", "auto"), PROGRESS)
    check_choice("--precision", given["precision"], PRECISIONS)
    settings = load_settings(Path.cwd())
    home = _home(settings.project)
    state = home / ".enginefarm"
    return BuildOptions(
        project=settings.project,
        model_folders=tuple(Path(name) for name in settings.default_map["build"].get("models", ()) if Path(name).is_dir()),
        models=tuple(given["models"]),
        targets=tuple(given["target"]),
        output=given["output"] or home / "artifacts",
        state=state,
        cache=given["cache"] or state / "cache",
        available=given["available"],
        allow_unvalidated=given["allow_unvalidated"],
        version=given["model_version"],
        name=given["name"],
        shapes=parse_shapes(given["shape"]),
        precision=given["precision"],
        jobs=given["jobs"],
        force=given["force"],
        validate=not given["no_validate"],
        max_failures=1 if given.get("exit_first") else given.get("maxfail"),
        last_failed=given["last_failed"],
        memory=parse_size("--memory", given["memory"]),
        build_timeout=given["build_timeout"],
        validate_timeout=given["validate_timeout"],
        runners=given["runners"],
        python=given["python"],
        locked=given["locked"],
        offline=given["offline"],
        allow=tuple(given["allow"] or ()),
        mirrors=tuple(given["mirror"] or ()),
        ci=in_ci(),
        weak=_from_settings(ctx, {"target": "targets", "precision": "precision", "shape": "shapes"}),
    )


def _home(project: Path) -> Path:
    """The project's folder as seen from here: relative where it is this folder, so that messages and manifests stay short and portable."""
    return Path() if project == Path.cwd() else Path(os.path.relpath(project))


def _from_settings(ctx: typer.Context, parameters: dict[str, str]) -> frozenset[str]:
    """Names of the values that come from enginefarm.yaml, not from the command line or the environment."""
    sources = {name: ctx.get_parameter_source(parameter) for parameter, name in parameters.items()}
    return frozenset(name for name, source in sources.items() if source is not None and source.name == "DEFAULT_MAP")


def _run(options: BuildOptions, progress: str, verbosity: int, as_json: bool) -> int:
    import json

    from orchestrator.cli.screen import emit, print_lines, progress_view, stop_on_signals, width
    from orchestrator.events import Bus
    from orchestrator.pipeline.run import run_build
    from orchestrator.report import summary
    from orchestrator.runners.base import Cancel

    cancel = Cancel()
    with stop_on_signals(cancel, quiet=progress == "json"), progress_view(progress, verbosity) as view:
        result = run_build(options, Bus(view), cancel)
    if as_json:
        emit(json.dumps(summary.as_json(result), indent=2, ensure_ascii=False) + "\n")
    else:
        _show_problems(result, progress)
        print_lines(summary.table(result, width(), ["enginefarm", *sys.argv[1:]]))
    return int(result.exit)


def _show_problems(result: Any, progress: str) -> None:
    """Each failed build in full, before the table, so that the last screen holds both."""
    from orchestrator.cli.problems import render
    from orchestrator.pipeline.run import merge_problems

    if progress == "json":
        return
    for problem in merge_problems(result):
        sys.stderr.write("\n" + "\n".join(render(problem)) + "\n")
    sys.stderr.flush()
