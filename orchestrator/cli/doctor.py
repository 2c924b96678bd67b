"""``enginefarm doctor``: what this machine is, and what is wrong with it. The worker's probe and its rules, no collector of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_SECONDS = 180.0
_COLOURS = {"ok": "passed", "info": "skipped", "warning": "self-consistent", "error": "failed"}


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (enginefarm.doctor/1).")] = False,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write the host description, for compat --on FILE.")] = None,
    host: Annotated[Path | None, typer.Option("--host", metavar="FILE", help="Judge a saved host description, not this machine.")] = None,
    python: Annotated[
        str | None, typer.Option("--python", envvar="ENGINEFARM_PYTHON", help="Interpreter whose packages are looked at.")
    ] = None,
) -> None:
    """Examine this machine: GPUs, drivers, TensorRT and CUDA libraries, containers, JetPack, space.

    Exit codes: 0 nothing is wrong (warnings too), 4 something does not work.
    """
    import json

    from orchestrator.cli.screen import print_lines
    from orchestrator.portable.worker import doctor

    answer = _saved(host) if host is not None else _this_machine(python)
    if save is not None:
        from orchestrator.portable.worker.files import write_json

        write_json(str(save), answer["host"])
    if as_json:
        typer.echo(json.dumps(answer, indent=2, ensure_ascii=False, sort_keys=True))
    else:
        print_lines([(line, _COLOURS.get(level, level)) for line, level in doctor.lines(answer["findings"])])
    raise typer.Exit(doctor.exit_code(answer["findings"]))


def _saved(path: Path) -> dict[str, Any]:
    from orchestrator.errors import CONFIG_VALUE, EnginefarmError, Where
    from orchestrator.portable.worker import doctor
    from orchestrator.verdict.compat_subjects import read_host

    try:
        return doctor.report(read_host(path))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # a file that people may have edited
        why = f"{type(error).__name__}: {error}"
        fix = "write it again with: enginefarm doctor --save host.json"
        raise EnginefarmError(CONFIG_VALUE, "the host description is damaged", where=Where(file=str(path)), why=why, fix=fix) from error


def _this_machine(python: str | None) -> dict[str, Any]:
    """Run the worker's doctor in a process of its own, with the interpreter that builds would use here."""
    import json
    import os
    import subprocess
    import sys

    from orchestrator.errors import RUNNER_BROKEN, EnginefarmError
    from orchestrator.runners.bundle import worker_pyz

    program = python or sys.executable
    fix = f"check that `{program} --version` says 3.6 or newer"
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    try:
        done = subprocess.run(
            [program, "-I", worker_pyz(), "doctor", "--json"], capture_output=True, timeout=_SECONDS, check=False, env=environment
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise EnginefarmError(RUNNER_BROKEN, f"{program} did not answer in {_SECONDS:.0f} s", fix="see what hangs: nvidia-smi") from error
    except (OSError, ValueError) as error:
        raise EnginefarmError(RUNNER_BROKEN, f"{program} cannot examine this machine", why=str(error), fix=fix) from error
    return answer
