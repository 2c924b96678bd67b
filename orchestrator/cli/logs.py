"""``enginefarm logs``: the whole log of a build's steps, of past runs and of those that are running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from orchestrator.cli.completion import complete_logs, complete_runs

if TYPE_CHECKING:
    from orchestrator.errors import EnginefarmError
    from orchestrator.pipeline.history import History
    from orchestrator.pipeline.history_logs import RunLogs, StepLog

CHUNK = 1 << 16
POLL_SECONDS = 0.2
BUILD_HELP = "MODEL/TARGET, a target, or a beginning that means only one."


def logs_command(
    build: Annotated[str, typer.Argument(metavar="BUILD", help=BUILD_HELP, autocompletion=complete_logs)],
    step: Annotated[str | None, typer.Option("--step", help="build or validate. Default: all that ran.", show_default=False)] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="ID", help="A run, or how its id begins. Default: the newest.", autocompletion=complete_runs),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows, until the build ends.")] = False,
    path: Annotated[bool, typer.Option("--path", help="Print where the logs are, not what they say.")] = False,
) -> None:
    """Print the logs of a build's steps, whole, in the order in which they ran."""
    from orchestrator.cli.runs import open_history, state_folder
    from orchestrator.cli.values import check_choice

    check_choice("--step", step, ("build", "validate"))
    history = open_history()
    logs, name = _find(build, run, state_folder(), history if follow else None, history)
    if path:
        found = _wanted(logs, name, step)
        typer.echo("\n".join(str(log.path) for log in found))
    elif follow:
        _Printer(sys.stdout.buffer).follow(logs.folder, name, step, lambda: _ended(history, logs.run, name))
    else:
        printer = _Printer(sys.stdout.buffer)
        wanted = _wanted(logs, name, step)
        for log in wanted:
            printer.print(log)
        if not any(log.path.stat().st_size for log in wanted):
            typer.echo("its steps printed nothing", err=True)


def _find(build: str, run: str | None, state: Path, waiting: History | None, history: History | None) -> tuple[RunLogs, str]:
    """The run and the build that are meant; ``waiting`` adds builds that have no log yet. Raises EnginefarmError(EMPTY_SELECTION)."""
    from orchestrator.cli.runs import meant
    from orchestrator.errors import EMPTY_SELECTION, EnginefarmError
    from orchestrator.pipeline.history_logs import matching, read_logs, run_folders

    folders = run_folders(state)
    known = [folder.name for folder in folders]
    if run is not None:
        folders = [folder for folder in folders if folder.name.startswith(run)]
        if len({folder.name for folder in folders}) != 1:
            what = f'"{run}" begins the ids of {len(folders)} runs' if folders else f'no run "{run}" is kept here'
            fix = "give more of the id: see enginefarm runs" if folders else meant(run, known)
            raise EnginefarmError(EMPTY_SELECTION, what, fix=fix)
    found = [read_logs(folder) for folder in folders]
    for row in waiting.runs(len(known)) if waiting else ():
        for logs in found:
            if logs.run == row.id and row.state == "running":
                logs.builds.update({f"{model}/{target}": () for model, target in row.pending if f"{model}/{target}" not in logs.builds})
    builds = list(dict.fromkeys(name for logs in found for name in logs.builds))
    names = matching(build, builds)
    if len(names) != 1:
        raise _not_one(build, names, builds, history)
    return next(logs for logs in found if names[0] in logs.builds), names[0]


def _not_one(build: str, names: list[str], builds: list[str], history: History | None) -> EnginefarmError:
    from orchestrator.cli.runs import meant
    from orchestrator.errors import EMPTY_SELECTION, EnginefarmError
    from orchestrator.pipeline.history_logs import matching

    if names:
        what = f'"{build}" means {len(names)} builds'
        return EnginefarmError(EMPTY_SELECTION, what, fix=f"name one: {', '.join(sorted(names)[:5])}{', ...' if len(names) > 5 else ''}")
    rows = [row for model, target in _pairs(history, build, matching) for row in history.of_pair(model, target, 1)] if history else []
    why = None
    if rows:
        newest = max(rows, key=lambda row: row.ended_at)
        how = "was reused" if newest.cached else f"ended {newest.status}"
        why = f"{newest.model}/{newest.target} {how} in run {newest.run}; steps that run leave logs, and the newest runs are kept"
    close = meant(build, [*builds, *dict.fromkeys(name.rpartition("/")[2] for name in builds)])
    return EnginefarmError(EMPTY_SELECTION, f'no log of a build "{build}" is kept here', why=why, fix=close)


def _pairs(history: History, build: str, matching: Callable[[str, list[str]], list[str]]) -> list[tuple[str, str]]:
    models, targets = history.names()
    found = matching(build, [f"{model}/{target}" for model in models for target in targets])
    return [(name.rpartition("/")[0], name.rpartition("/")[2]) for name in found[:20]]


def _wanted(logs: RunLogs, name: str, step: str | None) -> list[StepLog]:
    """Raises EnginefarmError(EMPTY_SELECTION) when the step did not run."""
    from orchestrator.errors import EMPTY_SELECTION, EnginefarmError

    found = [log for log in logs.builds[name] if step in (None, log.step)]
    if not found:
        ran = ", ".join(dict.fromkeys(log.step for log in logs.builds[name]))
        raise EnginefarmError(EMPTY_SELECTION, f"{name} has no log of a {step} step in run {logs.run}", fix=f"it has: {ran}")
    return found


def _ended(history: History | None, run: str, name: str) -> bool:
    model, _, target = name.rpartition("/")
    return history is not None and any(row.run == run for row in history.of_pair(model, target, 3))


class _Printer:
    """Copies logs to standard output: as they are, but on a terminal nothing of them may drive it."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output
        self._terminal = output.isatty()
        self._done: dict[tuple[str, int], int] = {}

    def print(self, log: StepLog) -> None:
        """What of ``log`` was not printed yet, in bounded memory."""
        tries = [attempt for step, attempt in self._done if step == log.step]
        key = log.step, log.attempt or max(tries, default=1)
        try:
            with log.path.open("rb") as stream:
                stream.seek(self._done.get(key, 0))
                while chunk := stream.read(CHUNK):
                    self._done[key] = stream.tell()
                    self._output.write(self._shown(chunk))
        except FileNotFoundError:
            # a run that ends moves its logs: the next look finds the kept one
            return
        self._output.flush()

    def _shown(self, chunk: bytes) -> bytes:
        if not self._terminal:
            return chunk
        from orchestrator.report.text import safe

        return safe(chunk.decode("utf-8", "replace")).encode()

    def follow(self, folder: Path, name: str, step: str | None, ended: Callable[[], bool]) -> None:
        """Until the build or its run has ended, or nobody reads any more."""
        import time

        from orchestrator.pipeline.history_logs import read_logs

        while True:
            # asked first: what was written before the end is then seen by this look
            logs = read_logs(folder)
            over = not logs.running or ended()
            for log in read_logs(folder).builds.get(name, ()):
                if step in (None, log.step):
                    self.print(log)
            if over or self._nobody_reads():
                return
            time.sleep(POLL_SECONDS)

    def _nobody_reads(self) -> bool:
        import select

        poll = select.poll()
        poll.register(self._output.fileno(), 0)
        return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))
