"""How a build behaves towards the one who runs it: on terminals of any kind, in pipes, and when it is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Project

Net = Callable[..., Path]
BUILD = ("build", "net.onnx", "-t", "cpu")
# the reference takes long: time to stop the run in the middle
SLOW = ("build", "quick.onnx", "net.onnx", "-t", "cpu", "-j", "1")
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


class Terminal:
    """A command on a pseudo-terminal, which standard error is and, with ``both``, standard output too."""

    def __init__(self, project: Project, *words: str, columns: int = 100, both: bool = True, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *words],
            cwd=project.folder,
            env={**os.environ, "TERM": "xterm", **environment},
            stdin=theirs,
            stdout=theirs if both else subprocess.PIPE,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = b""

    def until(self, pattern: bytes) -> None:
        while not re.search(pattern, self.shown):
            assert self._read(), self.shown.decode()

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._ours)
        assert b"Traceback" not in self.shown
        return self.process.wait(timeout=60)

    def _read(self) -> bool:
        try:
            chunk = os.read(self._ours, 65536)
        except OSError:  # Linux: nobody holds the other end any more
            return False
        self.shown += chunk
        return bool(chunk)


def plain(project: Project, *words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "orchestrator", *words]
    return subprocess.run(command, cwd=project.folder, env={**os.environ, **environment}, capture_output=True, check=True)


def test_a_terminal_shows_what_runs_and_keeps_what_ended(project: Project, net: Net) -> None:
    net()
    terminal = Terminal(project, *BUILD)
    assert terminal.end() == 0
    assert terminal.shown.index(b"0 of 1 done") < terminal.shown.index(b"+ net cpu built in") < terminal.shown.index(b"1 passed in")
    assert COLOUR.search(terminal.shown)
    assert terminal.shown.rindex(b"\x1b[?25h") > terminal.shown.rindex(b"\x1b[?25l"), "the cursor is shown again"


def test_a_narrow_terminal_gets_no_line_that_is_too_long(project: Project, net: Net) -> None:
    net()
    terminal = Terminal(project, *BUILD, columns=40)
    assert terminal.end() == 0
    result = CONTROL.sub(b"", terminal.shown.rpartition(b"\x1b[?25h")[2]).decode().splitlines()
    assert result[-1].startswith("1 passed in")
    too_long = [line for line in result if len(line) > 40]
    assert [line.split(":")[0] for line in too_long] == ["manifest"], "a path stays whole, to be copied"


@pytest.mark.parametrize(
    ("environment", "control", "colour"),
    [({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False), ({"CI": "true"}, False, True)],
)
def test_a_terminal_is_believed_about_what_it_can(
    project: Project, net: Net, environment: dict[str, str], control: bool, colour: bool
) -> None:
    net()
    terminal = Terminal(project, *BUILD, "--model-version", "1", **environment)
    assert terminal.end() == 0
    assert bool(CONTROL.search(COLOUR.sub(b"", terminal.shown))) == control
    assert bool(COLOUR.search(terminal.shown)) == colour
    assert b"+ net cpu built in" in terminal.shown


@pytest.mark.parametrize(
    ("environment", "colour"), [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)]
)
def test_without_a_terminal_there_are_lines_and_colour_only_when_forced(
    project: Project, net: Net, environment: dict[str, str], colour: bool
) -> None:
    net()
    done = plain(project, *BUILD, **environment)
    assert not CONTROL.search(COLOUR.sub(b"", done.stdout + done.stderr))
    assert bool(COLOUR.search(done.stdout)) == colour
    lines = done.stderr.decode().splitlines()
    assert [line for line in lines if line.startswith("+ net cpu built in")]
    assert done.stdout.decode().splitlines()[-1].startswith("1 passed in")


def test_json_is_all_that_standard_output_gets_and_progress_goes_on_elsewhere(project: Project, net: Net) -> None:
    net()
    terminal = Terminal(project, *BUILD, "--json", both=False)
    assert terminal.process.stdout is not None
    out = terminal.process.stdout.read()
    assert terminal.end() == 0
    assert json.loads(out)["counts"] == {"passed": 1}
    assert b"0 of 1 done" in terminal.shown


def test_a_reader_that_goes_away_ends_no_build_and_hears_nothing(project: Project, net: Net) -> None:
    net()
    command = [sys.executable, "-m", "orchestrator", *BUILD]
    script = '"$@" 2>error | true; echo ${PIPESTATUS[0]}'
    done = subprocess.run(["bash", "-c", script, "bash", *command], cwd=project.folder, capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    assert "roken pipe" not in (project.folder / "error").read_text()
    assert project.engines() == ["net_v1_cpu.onnx"]


def slow_project(net: Net) -> None:
    net("quick.onnx", dims=(1, 3, 8, 8))
    net("net.onnx", dims=(8, 3, 512, 512))


def left_running(project: Project) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(entry.joinpath("cwd").readlink()).startswith(str(project.folder)):
                found.append((entry / "cmdline").read_text(errors="replace"))
    return found


def until_nothing_runs(project: Project) -> bool:
    deadline = time.monotonic() + 20
    while left_running(project) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left_running(project)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see what is left running")
def test_ctrl_c_says_so_at_once_and_keeps_what_ended(project: Project, net: Net) -> None:
    slow_project(net)
    terminal = Terminal(project, *SLOW)
    terminal.until(rb"net cpu +reference")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    after = CONTROL.sub(b"", terminal.shown[terminal.shown.index(b"stopping: ") :])
    assert b" built in " not in after, "nothing goes on after it was told to stop"
    assert b"interrupted: net cpu" in after
    assert b"1 passed, 1 interrupted in" in after
    assert until_nothing_runs(project)
    assert project.engines("quick") == ["quick_v1_cpu.onnx"]
    (run,) = project.run("runs", "--json").json["runs"]
    assert (run["state"], run["pending"]) == ("interrupted", [{"model": "net", "target": "cpu"}])


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see what is left running")
def test_ctrl_c_twice_ends_at_once_leaves_nothing_running_and_gives_the_cursor_back(project: Project, net: Net) -> None:
    slow_project(net)
    terminal = Terminal(project, *SLOW)
    terminal.until(rb"net cpu +reference")
    # stopped in between, so that the first one cannot have ended the run before the second comes
    terminal.process.send_signal(signal.SIGSTOP)
    terminal.process.send_signal(signal.SIGINT)
    terminal.process.send_signal(signal.SIGTERM)
    terminal.process.send_signal(signal.SIGCONT)
    assert terminal.end() in (130, 143)
    assert terminal.shown.rindex(b"\x1b[?25h") > terminal.shown.rindex(b"\x1b[?25l")
    assert b"interrupted:" not in terminal.shown, "it did not wait for anything"
    assert until_nothing_runs(project)


def test_a_run_that_is_killed_is_listed_as_killed_with_what_it_had_done(project: Project, net: Net) -> None:
    slow_project(net)
    terminal = Terminal(project, *SLOW)
    terminal.until(rb"net cpu +reference")
    os.killpg(terminal.process.pid, signal.SIGKILL)
    terminal.end()
    (run,) = project.run("runs", "--json").json["runs"]
    assert (run["state"], run["counts"], run["pending"]) == ("killed", {"passed": 1}, [{"model": "net", "target": "cpu"}])
    assert run["command"] == list(SLOW)
    assert project.run("logs", "quick/cpu", "--path").code == 0


def test_ctrl_c_before_anything_is_built_says_so(project: Project, net: Net) -> None:
    net()
    # an interpreter that never says what it is
    asked = project.folder / "asked"
    python = project.folder / "python"
    python.write_text(f"#!/bin/sh\ntouch '{asked}'\nexec sleep 60\n")
    python.chmod(0o755)
    terminal = Terminal(project, *BUILD, "--python", str(python))
    deadline = time.monotonic() + 60
    while not asked.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert b"stopped before anything was built" in terminal.shown
