"""``enginefarm runs``, ``logs`` and ``history``: over a history and run folders as builds leave them."""

from __future__ import annotations

import contextlib
import fcntl
import json
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
from orchestrator.cli import completion
from orchestrator.cli.main import run as run_command
from orchestrator.matrix.load import load_matrix
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


# runs


def test_runs_are_listed_newest_first_with_how_they_ended(four_runs: Past, call: Call) -> None:
    answer = call("runs")
    assert answer.code == 0
    head, *lines = answer.lines
    assert head.split() == ["RUN", "STATE", "STARTED", "TOOK", "RESULT", "COMMAND"]
    state, result = head.index("STATE"), head.index("RESULT")
    assert [(line[: state - 2], line[state : head.index("STARTED")].strip()) for line in lines] == [
        ("20260104-000000-dddddd", "running"),
        ("20260103-000000-cccccc", "killed"),
        ("20260102-000000-bbbbbb", "failed (exit 1)"),
        ("20260101-000000-aaaaaa", "done"),
    ]
    assert [line[result : head.index("COMMAND")].strip() for line in lines] == [
        "1 passed, 1 to do",
        "1 passed, 1 not ended",
        "1 failed",
        "1 passed, 1 unvalidated",
    ]
    assert {line[head.index("COMMAND") :] for line in lines} == {"enginefarm build lane.onnx"}
    assert len(call("runs", "-n", "2").lines) == 3


def test_runs_as_json(four_runs: Past, call: Call) -> None:
    answer = json.loads(call("runs", "--json").out)
    assert answer["schema"] == "enginefarm.runs/1"
    running, killed, failed, done = answer["runs"]
    assert (running["state"], running["pid"], running["pending"]) == ("running", os.getpid(), [])
    assert (killed["state"], killed["finished_at"], killed["pending"]) == ("killed", None, [{"model": "sign", "target": "cpu"}])
    assert (failed["exit_code"], failed["counts"]) == (1, {"failed": 1})
    assert (done["seconds"], "pid" in done, done["command"]) == (65.0, False, ["build", "lane.onnx"])


@pytest.mark.parametrize("words", [("runs",), ("runs", "--json")])
def test_without_a_history_there_is_nothing_to_list_and_nothing_is_made(tmp_path: Path, call: Call, words: tuple[str, ...]) -> None:
    answer = call(*words)
    assert answer.code == 0
    assert answer.out == b"" if len(words) == 1 else json.loads(answer.out)["runs"] == []
    assert list(tmp_path.iterdir()) == []


def test_the_project_is_found_from_a_folder_below_it(four_runs: Past, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "enginefarm.yaml").write_text("# nothing\n")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    assert len(call("runs").lines) == 5
    assert call("logs", "lane/cpu", "--path").out == b"../.enginefarm/runs/20260101-000000-aaaaaa/logs/lane/cpu.build.log\n"


def test_a_damaged_history_is_exit_4_for_who_looks(four_runs: Past, call: Call) -> None:
    four_runs.history.close()
    (four_runs.state / "history.db").write_bytes(b"nothing of the kind" * 100)
    answer = call("runs")
    assert (answer.code, answer.out) == (4, b"")
    assert "error[EF403]: .enginefarm/history.db is damaged" in answer.err


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        (200, ["RUN", "STATE", "STARTED", "TOOK", "RESULT", "COMMAND"]),
        (95, ["RUN", "STATE", "STARTED", "TOOK", "RESULT"]),
        (75, ["RUN", "STATE", "TOOK", "RESULT"]),
        (40, ["RUN", "STATE"]),
    ],
)
def test_a_table_fits_its_terminal(four_runs: Past, tmp_path: Path, columns: int, kept: list[str]) -> None:
    lines = on_terminal(tmp_path, "runs", columns=columns, NO_COLOR="1").decode().splitlines()
    assert lines[0].split() == kept
    assert len(lines) == 5
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("columns", [120, 40])
def test_a_past_fits_its_terminal(four_runs: Past, tmp_path: Path, columns: int) -> None:
    lines = on_terminal(tmp_path, "history", "rtx-ada", columns=columns, NO_COLOR="1").decode().splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": "", "TERM": "vt100"}, True)],
)
def test_colour_on_a_terminal(four_runs: Past, tmp_path: Path, environment: dict[str, str], coloured: bool) -> None:
    assert (b"\x1b[1;31m20260102" in on_terminal(tmp_path, "runs", **environment)) == coloured


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)]
)
def test_colour_in_a_pipe(four_runs: Past, tmp_path: Path, environment: dict[str, str], coloured: bool) -> None:
    done = subprocess.run([*ENGINEFARM, "runs"], cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, check=True)
    assert (b"\x1b[" in done.stdout) == coloured
    assert done.stderr == b""


# logs


@pytest.mark.parametrize("name", ["lane/rtx-ada", "lane/rtx", "rtx-ada", "rtx"])
def test_a_build_is_named_by_pair_target_or_beginning_and_its_newest_log_is_printed(four_runs: Past, call: Call, name: str) -> None:
    answer = call("logs", name)
    assert (answer.code, answer.out, answer.err) == (0, b"newer\n", "")


def test_a_log_is_printed_byte_for_byte_and_may_be_of_an_older_run(four_runs: Past, call: Call) -> None:
    assert call("logs", "lane/rtx-ada", "--run", "20260101").out == LOG
    assert call("logs", "lane/cpu").out == LOG


def test_steps_are_printed_in_their_order_or_one_by_name(past: Past, call: Call) -> None:
    folder = past.start("r1", ("lane", "cpu"))
    past.build("lane", "cpu", log=b"built\n")
    (folder.logs / "lane" / "cpu.validate.log").write_bytes(b"validated\n")
    (folder.logs / "lane" / "cpu.traceback").write_bytes(b"surprise\n")
    past.end()
    assert call("logs", "cpu").out == b"built\nvalidated\nsurprise\n"
    assert call("logs", "cpu", "--step", "validate").out == b"validated\n"
    assert [Path(line).name for line in call("logs", "cpu", "--path").lines] == ["cpu.build.log", "cpu.validate.log", "cpu.traceback"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rtx-adda",), "did you mean rtx-ada"),
        (("cpu",), "name one: lane/cpu, sign/cpu"),
        (("lane/cpu", "--run", "20260102"), "lane/cpu was reused in run 20260103-000000-cccccc"),
        (("lane/cpu", "--run", "2026"), "begins the ids of 4 runs"),
        (("lane/cpu", "--run", "nope"), 'no run "nope" is kept here'),
        (("lane/cpu", "--step", "validate"), "it has: build"),
        (("lane/cpu", "--step", "bild"), "did you mean build?"),
    ],
)
def test_a_build_that_has_no_log_is_exit_2_and_says_what_there_is(four_runs: Past, call: Call, words: tuple[str, ...], said: str) -> None:
    answer = call("logs", *words)
    assert (answer.code, answer.out) == (2, b"")
    assert said in answer.err


def test_on_a_terminal_a_log_drives_nothing(four_runs: Past, tmp_path: Path) -> None:
    shown = on_terminal(tmp_path, "logs", "lane/cpu")
    assert b"\x1b" not in shown
    assert b"\\x1b]0;owned\\x07done" in shown


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_reader_that_goes_away_ends_the_printing_quietly(past: Past, tmp_path: Path, follow: tuple[str, ...]) -> None:
    past.start("r1", ("lane", "cpu"), ("lane", "x"))
    past.build("lane", "x", log=b"line\n" * 1_000_000)
    command = '"$@" | head -1; echo ${PIPESTATUS[0]}'
    words = ["bash", "-c", command, "bash", *ENGINEFARM, "logs", "x", *follow]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("line\n0\n", "")


class Follower:
    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen([*ENGINEFARM, "logs", "-f", *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def live(folder: RunFolder, step: str) -> Path:
    log = folder.work / "lane" / "cpu" / step / "worker.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    return log


def append(log: Path, text: bytes) -> None:
    with log.open("ab") as stream:
        stream.write(text)


def test_following_begins_before_the_build_and_ends_with_it(past: Past, tmp_path: Path) -> None:
    folder = past.start("r1", ("lane", "cpu"), ("lane", "later"))
    past.history._flush()
    follower = Follower(tmp_path, "cpu")
    for step, text in (("build-1", b"one\n"), ("build-1", b"two\n"), ("build-2", b"again\n"), ("validate-1", b"checked\n")):
        append(live(folder, step), text)
        assert follower.line() == text
    past.build("lane", "cpu", log=b"again\n")
    past.history._flush()
    out, err = follower.process.communicate(timeout=60)
    assert (follower.process.returncode, out, err) == (0, b"", b"")


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_following_ends_with_its_run_and_prints_all_of_the_log(past: Past, tmp_path: Path, how: str) -> None:
    folder = past.start("r1", ("lane", "cpu"))
    append(live(folder, "build-1"), b"one\n")
    follower = Follower(tmp_path, "cpu")
    assert follower.line() == b"one\n"
    (folder.logs / "lane").mkdir()
    (folder.logs / "lane" / "cpu.build.log").write_bytes(b"one\ntwo\n")
    if how == "ended":
        past.end()
    else:
        append(live(folder, "build-1"), b"two\n")
        past.kill()
    out, err = follower.process.communicate(timeout=60)
    assert (follower.process.returncode, out, err) == (0, b"two\n", b"")


# history


def seen(call: Call, *words: str) -> tuple[list[str], list[str]]:
    answer = call("history", *words)
    assert answer.code == 0, answer.err
    gap = answer.lines.index("")
    return answer.lines[:gap], answer.lines[gap + 1 :]


def test_the_past_of_a_target_of_a_model_and_of_a_pair(four_runs: Past, call: Call) -> None:
    builds, pairs = seen(call, "rtx-ada")
    assert [line.split()[2:6] for line in builds[1:]] == [["lane", "v2", "rtx-ada", "failed"], ["lane", "v2", "rtx-ada", "unvalidated"]]
    assert builds[1].endswith("EF302")
    assert [line.split() for line in pairs[1:]] == [["lane", "rtx-ada", "never", "4.0s"]]
    builds, pairs = seen(call, "lane")
    assert len(builds) == 5
    assert [line.split()[:2] for line in pairs[1:]] == [["lane", "cpu"], ["lane", "rtx-ada"]]
    builds, _ = seen(call, "lane/cpu")
    assert ["passed, reused" in line for line in builds[1:]] == [True, False]
    builds, _ = seen(call, "lane", "-n", "1")
    assert builds[-1] == "3 older not shown: -n 4"


def test_a_build_that_became_slower_says_so(past: Past, call: Call) -> None:
    past.start("r1")
    for seconds in (4.0, 5.0, 4.0, 4.2, 9.0, 4.1):
        past.build("lane", "cpu", seconds=seconds)
    for seconds in (0.1, 0.1, 0.1, 0.9):
        past.build("tiny", "cpu", seconds=seconds)
    past.end()
    builds, _ = seen(call, "cpu")
    assert [line.split()[6] for line in builds if "slower" in line] == ["9.0s"] or [line for line in builds if "2.2x slower" in line]
    assert len([line for line in builds if "slower" in line]) == 1
    answer = json.loads(call("history", "lane", "--json").out)
    assert answer["schema"] == "enginefarm.history/1"
    assert [build["slower"] for build in answer["builds"]] == [None, pytest.approx(9.0 / 4.1), None, None, None, None]


@pytest.mark.parametrize(
    ("name", "said"), [("rtx-adda", "did you mean rtx-ada?"), ("zzz", "there are cpu, rtx-ada, lane, sign"), ("lane/x", "")]
)
def test_a_past_that_there_is_not_is_exit_2(four_runs: Past, call: Call, name: str, said: str) -> None:
    answer = call("history", name, "--json")
    assert answer.code == 2
    assert said in answer.err
    assert json.loads(answer.out)["problems"][0]["code"] == "EF108"


# completion


def test_the_shell_is_offered_the_targets_of_the_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "mine.yaml").write_text("name: mine\ntag: mine\nextends: cpu\n")
    assert completion.complete_targets("") == sorted(load_matrix(tmp_path).targets)
    assert completion.complete_targets("mi") == ["mine"]
    assert completion.complete_targets("rtx-a") == ["rtx-ada", "rtx-ampere"]
    assert completion.complete_targets("cpu,mi") == ["cpu,mine"]


def test_the_shell_is_offered_cells_and_without_them_at_least_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "mine.yaml").write_text("name: mine\ntag: mine\nextends: cpu\naxes:\n  precision: [fp32, fp16]\n")
    assert completion.complete_targets("mi") == ["mine", "mine-fp16", "mine-fp32"]
    (tmp_path / "targets" / "wrong.yaml").write_text("nonsense: [\n")
    assert completion.complete_targets("mi") == ["mine"]


def test_the_shell_is_offered_what_was_built(four_runs: Past, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completion.complete_history("") == ["cpu", "rtx-ada", "lane", "sign"]
    assert completion.complete_runs("20260102") == ["20260102-000000-bbbbbb"]
    assert completion.complete_logs("lane/") == ["lane/cpu", "lane/rtx-ada"]
    assert completion.complete_logs("r") == ["rtx-ada"]


@pytest.mark.parametrize("content", [b"", b"nothing of the kind" * 100])
def test_a_completion_that_cannot_be_had_is_none_and_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".enginefarm").mkdir()
    (tmp_path / ".enginefarm" / "history.db").write_bytes(content)
    assert completion.complete_history("") == []
    assert completion.complete_runs("") == []


COMPLETE = """
eval "$(enginefarm --show-completion)"
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_enginefarm_completion enginefarm
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("enginefarm hist", ["history"]),
        ("enginefarm history l", ["lane"]),
        ("enginefarm logs sign/", ["sign/cpu"]),
        ("enginefarm logs x --run 20260101", ["20260101-000000-aaaaaa"]),
    ],
)
def test_bash_completes(four_runs: Past, tmp_path: Path, words: str, offered: list[str]) -> None:
    program = tmp_path / "bin" / "enginefarm"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom orchestrator.cli.entry import run\nrun()\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])}
    script = COMPLETE.format(words=words)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == (offered, "")
