"""Errors as people read them, and the exit code they give. The only catcher of errors in the program."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from orchestrator.errors import USAGE, EnginefarmError, Exit, flatten
from orchestrator.report.text import safe

# the option parser's errors: typer brings its own copy of click, older ones import it, and only this is public of both
PROBLEMS_SCHEMA = "enginefarm.problems/0"

ParserError: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def render(error: EnginefarmError) -> list[str]:
    """One problem as lines: what, where, why, what to do, log."""
    lines = [f"error[{error.kind.code}]: {safe(error.what)}"]
    if error.where is not None and str(error.where):
        lines.append(f"  --> {safe(str(error.where))}")
    for label, text in (("why", error.why), ("fix", error.fix), ("log", error.log)):
        if text:
            first, *rest = safe(text).splitlines() or [""]
            lines += [f"  {label}: {first}", *(f"       {line}" for line in rest)]
    return lines


class Reporter:
    """Runs a command and turns whatever it raises into text on standard error and an exit code."""

    def __init__(self) -> None:
        self.debug = False
        self.as_json = False
        self.words: tuple[str, ...] = ()

    def prepare(self, words: Sequence[str]) -> None:
        """Read the options that decide how even a usage error is shown."""
        self.debug = "--debug" in words or os.environ.get("ENGINEFARM_DEBUG", "") not in ("", "0")
        # what follows `--` is no option
        self.words = tuple(itertools.takewhile(lambda word: word != "--", words))
        self.as_json = _progress(self.words) == "json"

    def guard(self, command: Callable[[], Any]) -> int:
        try:
            _refuse_empty_paths(self.words)
            code = command()
            # here a full disk is still an error with words; while Python ends it would not be
            sys.stdout.flush()
        except EnginefarmError as error:
            return self.show(error)
        except ParserError as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                sys.stderr.write(error.format_message() + "\n")
                return Exit.USAGE
            return self.show(_usage(error))
        except (typer.Abort, KeyboardInterrupt):
            sys.stderr.write("interrupted\n")
            return Exit.INTERRUPTED
        except OSError as error:
            return self._os_error(error)
        except SystemExit as end:
            # typer ends without a word for any broken pipe; that of our own readers is no error (cli/streams.py), so it is another's
            if isinstance(end.__context__, BrokenPipeError):
                return self._os_error(end.__context__)
            raise
        except Exception as error:  # noqa: BLE001  (the process edge: an unexpected error becomes exit 70 and a report)
            return self._bug(error)
        return int(code) if isinstance(code, int) else Exit.OK

    def show(self, error: EnginefarmError) -> int:
        """Print every problem of ``error``; returns the exit code."""
        problems = flatten(error)
        for problem in problems:
            if self.as_json:
                sys.stderr.write(json.dumps({"event": "error", **problem.as_dict()}, ensure_ascii=False) + "\n")
            else:
                sys.stderr.write("\n".join(render(problem)) + "\n")
        if len(problems) > 1 and not self.as_json:
            sys.stderr.write(f"{len(problems)} problems\n")
        if "--json" in self.words:
            answer = {"schema": PROBLEMS_SCHEMA, "exit_code": int(error.exit), "problems": [problem.as_dict() for problem in problems]}
            sys.stdout.write(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
        if self.debug:
            traceback.print_exception(error)
        return error.exit

    def _os_error(self, error: OSError) -> int:
        from orchestrator.errors import DISK

        try:
            Path.cwd()
        except OSError:
            error = OSError(error.errno, "the current folder is gone", ".")
        place = f" {error.filename}" if error.filename else ""
        fix = "go to a folder that is there" if error.filename == "." else "check the path, its rights and the free space"
        wrapped = EnginefarmError(DISK, f"cannot use{place}: {error.strerror or error}", fix=fix)
        if self.debug:
            traceback.print_exception(error)
        return self.show(wrapped)

    def _bug(self, error: Exception) -> int:
        if self.debug:
            traceback.print_exception(error)
        else:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(frame.filename)}:{frame.lineno}"  # noqa: PTH119  (a name for people, not a path to use)
            sys.stderr.write(f"error[EF700]: internal bug: {type(error).__name__}: {safe(str(error))} at {where}\n")
            sys.stderr.write("  fix: run again with --debug in front (`enginefarm --debug ...`) and report what it prints\n")
        return Exit.INTERNAL


def _progress(words: Sequence[str]) -> str | None:
    """``--progress`` as it will be read: command line, environment, enginefarm.yaml; errors that come before must look alike."""
    given = [word.partition("=")[2] for word in words if word.startswith("--progress=")]
    given += [value for word, value in itertools.pairwise(words) if word == "--progress"]
    if given:
        return given[-1]
    if "build" not in words:
        return None
    if os.environ.get("ENGINEFARM_PROGRESS"):
        return os.environ["ENGINEFARM_PROGRESS"]
    from orchestrator.cli.settings import find_settings, load_settings

    try:
        # usually there is none, and then nothing heavy is imported
        found = find_settings(Path.cwd()) is not None
        return load_settings(Path.cwd()).values.get("progress") if found else None
    except (EnginefarmError, OSError):
        # the command meets it too, and says so
        return None


def _refuse_empty_paths(words: Sequence[str]) -> None:
    """An empty path is the current folder to Python: a variable that was not set must not mean every model, or scatter engines there."""
    pairs = list(itertools.pairwise(words))
    if {"build", "plan"} & {*words[:2]} and any(not word and not before.startswith("-") for before, word in pairs):
        raise EnginefarmError(USAGE, "a model's name is empty", fix="name a file or a folder (the current one is .)")
    if "--output=" in words or any(option in ("--output", "-o") and not value for option, value in pairs):
        raise EnginefarmError(USAGE, "--output is empty", fix="name a folder: --output artifacts (the current one is --output .)")


def _usage(error: Any) -> EnginefarmError:
    """A usage error of the option parser, with suggestions for misspelt names."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "enginefarm"
    fix = f"see `{command} --help`"
    message = str(error.format_message()).split("\n")[0].split(" Did you mean")[0].split(" (Possible options")[0].rstrip(".")
    known: list[str] = []
    wanted = getattr(error, "option_name", None)
    if wanted is not None and context is not None:
        known = [name for parameter in context.command.params for name in parameter.opts]
    elif context is not None and message.startswith("No such command") and "'" in message:
        wanted, known = message.split("'")[1], list(context.command.commands)
    close = difflib.get_close_matches(wanted, known, n=3) if wanted else []
    if close:
        fix = f"did you mean {' or '.join(close)}? {fix}"
    return EnginefarmError(USAGE, message[:1].lower() + message[1:], fix=fix)
