"""What a run does when builds fail or somebody stops it, and what ``--lf`` makes of it afterwards."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Answer, save_net
from .crash import ForkedProject

NAMES = ("a", "b", "c", "d", "e")
# a build step of a model named in the file `bad` dies; one of a model named in `slow` waits for ever; each start is noted
PYTHON = """#!/bin/sh
folder="${{PWD%%/.enginefarm/*}}"
model=$(echo "$PWD" | sed -n 's|.*/work/steps/\\([a-z]*\\)/[a-z]*/build-.*|\\1|p')
if [ -n "$model" ]; then
  echo "$model" >> "$folder/started"
  if grep -qx "$model" "$folder/bad"; then {death}; fi
  if grep -qx "$model" "$folder/slow"; then exec sleep 600; fi
fi
export OPENBLAS_NUM_THREADS=1
exec "{python}" "$@"
"""


class Five:
    """A project of five models, any of which can be bad; models and interpreter lie above its folder."""

    def __init__(self, folder: Path, *, death: str = 'echo "it broke" >&2; exit 1') -> None:
        self.project = ForkedProject(folder)
        self.folder = folder
        python = folder.parent / "python3"
        python.write_text(PYTHON.format(python=sys.executable, death=death), encoding="utf-8")
        python.chmod(0o755)
        models = [str(folder.parent / f"{name}.onnx") for name in NAMES]
        self.words = ["build", *models, "-t", "cpu", "-j", "1", "--python", str(python), "--progress", "plain"]
        # a build step alone is what can fail here
        self.words += ["--no-validate", "--allow-unvalidated"]
        self.are()

    def are(self, *, bad: str = "", slow: str = "") -> None:
        (self.folder / "bad").write_text("".join(f"{name}\n" for name in bad), encoding="utf-8")
        (self.folder / "slow").write_text("".join(f"{name}\n" for name in slow), encoding="utf-8")

    def run(self, *words: str) -> Answer:
        (self.folder / "started").write_text("", encoding="utf-8")
        return self.project.run(*self.words, "--json", *words)

    def started(self) -> str:
        return "".join((self.folder / "started").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with five models, and in it a project that knows them and has built nothing."""
    folder = tmp_path_factory.mktemp("five")
    for seed, name in enumerate(NAMES):
        save_net(folder / f"{name}.onnx", seed=seed)
    (folder / "base").mkdir()
    five = Five(folder / "base")
    assert five.run().code == 0, five.project.said()
    five.project.forget()
    return five.folder


@pytest.fixture
def five(base: Path, request: pytest.FixtureRequest) -> Iterator[Five]:
    folder = base.with_name(f"five-{abs(hash(request.node.name))}")
    shutil.copytree(base, folder)
    yield Five(folder)
    shutil.rmtree(folder)


def statuses(answer: Answer) -> dict[str, Any]:
    return {model["name"]: build["status"] for model in answer.json["models"] for build in model["builds"]}


def test_a_failure_keeps_no_other_build_from_going_on_and_lf_builds_what_failed(five: Five) -> None:
    five.are(bad="bd")
    answer = five.run()
    assert (answer.code, answer.json["counts"]) == (1, {"unvalidated": 3, "failed": 2})
    assert statuses(answer) == {"a": "unvalidated", "b": "failed", "c": "unvalidated", "d": "failed", "e": "unvalidated"}
    assert five.started() == "abcde"
    five.are(bad="d")
    answer = five.run("--lf")
    assert (answer.code, statuses(answer), five.started()) == (1, {"b": "unvalidated", "d": "failed"}, "bd")
    five.are()
    answer = five.run("--last-failed")
    assert (answer.code, statuses(answer), five.started()) == (0, {"d": "unvalidated"}, "d")
    answer = five.run("--lf")
    assert (answer.code, five.started()) == (2, "")
    assert "nothing of this failed last time" in answer.err


@pytest.mark.parametrize(("words", "failures", "done"), [(("--maxfail", "2"), 2, "abcd"), (("-x",), 1, "ab")])
def test_a_run_stops_after_so_many_failures_and_lf_goes_on_with_what_it_left(
    five: Five, words: tuple[str, ...], failures: int, done: str
) -> None:
    five.are(bad="bd")
    answer = five.run(*words)
    assert answer.code == 1
    assert answer.json["counts"] == {"unvalidated": len(done) - failures, "failed": failures, "interrupted": 5 - len(done)}
    assert five.started() == done
    assert list(five.folder.glob("artifacts/a/v1/*.onnx"))
    five.are()
    left = "".join(name for name in NAMES if name in "bd" or name not in done)
    answer = five.run("--lf")
    assert (answer.code, five.started()) == (0, left)


def test_keep_going_takes_back_what_the_settings_say(five: Five) -> None:
    five.are(bad="a")
    assert five.run("-x", "--keep-going").json["counts"] == {"unvalidated": 4, "failed": 1}


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(five: Five) -> None:
    five.are(slow="c")
    command = [sys.executable, "-m", "orchestrator", *five.words]
    process = subprocess.Popen(command, cwd=five.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "c cpu: build on" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert re.search(r"2 unvalidated, 3 interrupted in", out)
    assert [path.parent.parent.name for path in sorted(five.folder.glob("artifacts/*/v1/*.onnx"))] == ["a", "b"]
    (resume,) = [line for line in out.splitlines() if "enginefarm build" in line]
    five.are()
    (five.folder / "started").write_text("", encoding="utf-8")
    again = shlex.split(resume[resume.index("enginefarm build") :])[1:]
    answer = five.project.run(*again)
    assert answer.code == 0, answer.err
    assert "was cut short: what it finished is taken from the cache" in answer.err
    assert five.started() == "cde"


def test_one_kill_of_a_worker_is_one_failure(five: Five) -> None:
    """A worker that something outside kills is no reason to stop either."""
    five = Five(five.folder, death="kill -9 $$")
    five.are(bad="c")
    answer = five.run()
    assert (answer.code, answer.json["counts"]) == (1, {"unvalidated": 4, "failed": 1})
    assert "SIGKILL" in answer.err
    assert list(five.folder.glob("artifacts/e/v1/*.onnx"))
