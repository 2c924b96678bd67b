"""``enginefarm logs``: a build's log by its name, printed or followed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.pipeline.runfolder import RunFolder

from .conftest import ENGINEFARM, LOG, Call, Past, on_terminal


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
    log = folder.work / "steps" / "lane" / "cpu" / step / "worker.log"
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
