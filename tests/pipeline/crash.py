"""Projects whose runs are forked from a server that has imported the command, so that hundreds of runs take no minutes, and whose steps,
real worker processes, are counted."""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import shutil
import sys
import threading
from collections.abc import Collection
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import NamedTuple

from . import forked
from .conftest import Answer, Project
from .forked import Fate

_TARGET = "name: {name}\ntag: {name}\nbackend: onnxruntime\nprovider: cpu\nplatform: any\n"
TARGETS = {
    "first": _TARGET.format(name="first"),
    "second": _TARGET.format(name="second") + "precision: fp16\n",
    "third": _TARGET.format(name="third") + "tf32: false\n",
}
RUNNERS = "runners:\n  here:\n    python: {python}\n    slots: 2\n"
# notes which step of which target is started, in the project that it is started for, then is the real interpreter; numpy starts no threads
COUNTING = """#!/bin/sh
case "$PWD" in */.enginefarm/*)
  echo "$(sed -n 's/.*"step": "\\([a-z]*\\)".*/\\1/p' request.json) $PWD" >> "${{PWD%%/.enginefarm/*}}/steps.log"
esac
export OPENBLAS_NUM_THREADS=1
exec "{python}" "$@"
"""
_ROOMS = (
    *("artifacts.store", "cli.build", "cli.main", "cli.problems", "cli.screen", "cli.settings", "pipeline.plan", "pipeline.run"),
    *("pipeline.site", "report.jsonlines", "report.lines", "report.summary", "runners.bundle", "store.memo_file", "verdict.compare"),
)
PLAIN = Fate()
# the exit code of a process can be read once, and starting one asks all others for theirs
_ASKING = threading.Lock()
_LIBRARIES = ("filelock", "numpy.random", "onnx", "platformdirs", "sqlite3", "typer", "yaml")


@functools.cache
def server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_LIBRARIES, *(f"orchestrator.{name}" for name in _ROOMS)])
    return context


class ForkedProject(Project):
    """A project whose runs are forked."""

    def start(self, *words: str, fate: Fate = PLAIN, env: dict[str, str] | None = None) -> ForkServerProcess:
        outs = self._outs()
        for out in outs:
            Path(out).write_text("", encoding="utf-8")
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL", "XDG_CACHE_HOME") if name in os.environ}
        # by path: the server does not know how the tests were imported
        job = {"JOB": (str(self.folder), list(words), outs, {**kept, **(env or {})}, tuple(fate))}
        process = server().Process(target=runpy.run_path, args=(forked.__file__, job, "forked"))
        with _ASKING:
            process.start()
        return process

    def end(self, process: ForkServerProcess) -> Answer:
        """Wait for a run that was started; its code is -9 when it was killed."""
        ended = wait([process.sentinel], 120)
        if not ended:
            process.kill()
            wait([process.sentinel])
        with _ASKING:
            code = process.exitcode
        assert ended, f"it did not end:\n{self.said()}"
        assert code is not None
        answer = Answer(code, *(Path(out).read_text(encoding="utf-8") for out in self._outs()))
        assert "Traceback" not in answer.err, answer.err
        return answer

    def run(self, *words: str, env: dict[str, str] | None = None, fate: Fate = PLAIN) -> Answer:
        return self.end(self.start(*words, fate=fate, env=env))

    def forget(self) -> None:
        """Leave nothing of earlier runs but what they know of files that did not change: models, and the runner's interpreter."""
        state = self.folder / ".enginefarm"
        for path in (*state.glob("[!c.]*"), *state.glob("cache/[!m]*"), *self.folder.glob("artifacts")):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def said(self) -> str:
        """What the newest run has said so far."""
        return "".join(Path(out).read_text(encoding="utf-8") for out in reversed(self._outs()))

    def _outs(self) -> tuple[str, str]:
        return str(self.folder / "out"), str(self.folder / "err")


class Started(NamedTuple):
    step: str
    model: str
    target: str


class Crashed(ForkedProject):
    """One on a counting interpreter, which lies in the folder above, as the models do: copies have them too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cache = folder / ".enginefarm/cache"
        self._log = folder / "steps.log"

    def make(self, *targets: str) -> None:
        """Make a project of these targets."""
        interpreter = self.folder.parent / "python3"
        interpreter.write_text(COUNTING.format(python=sys.executable), encoding="utf-8")
        interpreter.chmod(0o755)
        (self.folder / "targets").mkdir(parents=True)
        for name in targets:
            (self.folder / f"targets/{name}.yaml").write_text(TARGETS[name], encoding="utf-8")
        (self.folder / "runners.yaml").write_text(RUNNERS.format(python=interpreter), encoding="utf-8")

    def copy(self, name: str) -> Crashed:
        """A project beside this one, which is just as far."""
        other = Crashed(self.folder.with_name(name))
        shutil.copytree(self.folder, other.folder, symlinks=True, ignore=shutil.ignore_patterns("steps.log", "points"))
        return other

    def start_build(self, *words: str, models: Collection[str] = ("net",), fate: Fate = PLAIN) -> ForkServerProcess:
        # the same for all copies: what is known of the model holds for them too
        paths = [str(self.folder.parent / f"{name}.onnx") for name in models]
        return self.start("build", *paths, "--runners", "runners.yaml", "--progress", "plain", *words, fate=fate)

    def do(self, *words: str, fate: Fate = PLAIN) -> int:
        """Build; the exit code, -9 when it died."""
        return self.end(self.start_build(*words, fate=fate)).code

    def runs(self) -> set[str]:
        return {path.name for path in self.folder.glob(".enginefarm/runs/*")}

    def steps(self, *, but: Collection[str] = (), of: Collection[str] | None = None) -> list[Started]:
        """The steps that were started in this project, but for those of some runs, or only those ``of`` some."""
        if not self._log.exists():
            return []
        found = []
        for line in self._log.read_text(encoding="utf-8").splitlines():
            step, _, place = line.partition(" ")
            run, _, kind, model, target = place.partition("/.enginefarm/runs/")[2].split("/")[:5]
            if kind == "steps" and run not in but and (of is None or run in of):
                found.append(Started(step, model, target))
        return found
