"""A history and run folders as builds leave them, and the command over them: in this process, or on a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator import events
from orchestrator.cli.main import run as run_command
from orchestrator.pipeline.history import History
from orchestrator.pipeline.runfolder import RunFolder

ENGINEFARM = [sys.executable, "-c", "from orchestrator.cli.entry import run; run()"]


LOG = b"reading \xff\x00 the model\r\n\x1b]0;owned\x07done\n"


class Answer(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


Call = Callable[..., Answer]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Call:
    """Run ``enginefarm ...`` in this test's folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            run_command(list(arguments))
        out, err = capsysbinary.readouterr()
        assert b"Traceback" not in err
        code = ended.value.code
        assert isinstance(code, int)
        return Answer(code, out, err.decode())

    return run


class Past:
    """Makes runs as builds leave them: rows in the history, logs in the run folders."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / ".enginefarm"
        self.history = History(self.state / "history.db", command=["build", "lane.onnx"])
        self.alive: list[RunFolder] = []
        self.at = 1_800_000_000.0

    def start(self, run: str, *builds: tuple[str, str]) -> RunFolder:
        folder = RunFolder(self.state / "runs" / run, run)
        self.history(events.RunStarted(run=run, builds=len(builds), folder=str(folder.folder), at=self.at))
        self.history.planned((model, 2, target) for model, target in builds)
        self.alive.append(folder)
        return folder

    def build(
        self, model: str, target: str, status: str = "passed", *, seconds: float = 4.0, log: bytes = LOG, cached: bool = False
    ) -> None:
        """One build of the newest run; its log is that of the build step."""
        names = {"model": model, "target": target, "at": self.at}
        if not cached:
            logs = self.alive[-1].logs / model
            logs.mkdir(exist_ok=True)
            (logs / f"{target}.build.log").write_bytes(log)
            self.history(events.StepStarted(step="build", runner="local", **names))  # type: ignore[arg-type]
            self.history(events.StepFinished(step="build", ok=status != "failed", seconds=seconds, **names))  # type: ignore[arg-type]
        problem = {"code": "EF302"} if status == "failed" else None
        self.history(
            events.BuildFinished(status=status, detail="", seconds=seconds, cached=cached, problem=problem, size_bytes=910_000, **names)  # type: ignore[arg-type]
        )
        self.at += 60

    def end(self, code: int = 0, **counts: int) -> None:
        folder = self.alive.pop()
        folder.close()
        self.history(events.RunFinished(run=folder.id, exit_code=code, counts=counts, manifests=(), seconds=65.0, at=self.at))

    def kill(self) -> None:
        """The folder's lock goes with the process, and nothing else happens."""
        self.history._flush()
        self.alive.pop()._events.close()

    def close(self) -> None:
        for folder in self.alive:
            folder.close()
        self.history.close()


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    past = Past(tmp_path)
    yield past
    past.close()


@pytest.fixture
def four_runs(past: Past) -> Past:
    """A good run, a failed one, a killed one and one that is running."""
    past.start("20260101-000000-aaaaaa", ("lane", "cpu"), ("lane", "rtx-ada"))
    past.build("lane", "cpu")
    past.build("lane", "rtx-ada", "unvalidated")
    past.end(passed=1, unvalidated=1)
    past.start("20260102-000000-bbbbbb", ("lane", "rtx-ada"))
    past.build("lane", "rtx-ada", "failed", log=b"newer\n")
    past.end(1, failed=1)
    past.start("20260103-000000-cccccc", ("lane", "cpu"), ("sign", "cpu"))
    past.build("lane", "cpu", cached=True)
    past.kill()
    past.start("20260104-000000-dddddd", ("sign", "cpu"), ("sign", "rtx-ada"))
    past.build("sign", "cpu")
    past.history._flush()
    return past


def on_terminal(folder: Path, *words: str, columns: int = 200, **environment: str) -> bytes:
    """What the command writes on a terminal of this width; the command has to end well."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **environment}
    process = subprocess.Popen([*ENGINEFARM, *words], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    # Linux ends the reading of a terminal that nobody holds any more with an error
    with contextlib.suppress(OSError):
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert process.wait(timeout=60) == 0, shown
    return shown
