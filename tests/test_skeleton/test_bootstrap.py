"""tools/bootstrap.py as make runs it. Only the installer is a double (a `uv` that makes a real venv and writes down what
it was asked to install), because installing needs a network."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = """#!/bin/sh
# Installs nothing; two at once are an error, as they would be for a real venv.
log={log}
case "$1 $2" in
  "venv "*) echo venv >> "$log"; for last; do :; done; exec {python} -m venv --without-pip "$last" ;;
esac
mkdir {log}.busy || {{ echo "two installs at once" >> "$log"; exit 1; }}
sleep 0.2
rmdir {log}.busy
shift 4
echo "$*" >> "$log"
case "$*" in *"$FAIL"*) [ -z "$FAIL" ] || {{ echo "no route to the index" >&2; exit 1; }} ;; esac
"""


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder.parent / "installed"
        for name in (
            "tools/bootstrap.py",
            "tools/start.py",
            "pyproject.toml",
            *(f"requirements/{g}.txt" for g in ("build", "run", "test", "lint", "lock", "rtx")),
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        self.bin = folder.parent / "bin"
        self.bin.mkdir(exist_ok=True)
        (self.bin / "uv").write_text(UV.format(log=self.log, python=sys.executable))
        (self.bin / "uv").chmod(0o755)

    def start(self, *groups: str, stderr: int = subprocess.PIPE, **env: str) -> subprocess.Popen[str]:
        variables = {**os.environ, "PATH": f"{self.bin}:/usr/bin:/bin", "FAIL": "", **env}
        command = [sys.executable, "tools/bootstrap.py", *groups]
        return subprocess.Popen(command, cwd=self.folder, env=variables, stdout=subprocess.PIPE, stderr=stderr, text=True)

    def run(self, *groups: str, **env: str) -> tuple[int, str]:
        process = self.start(*groups, **env)
        out, err = process.communicate(timeout=120)
        assert out == "", "standard output belongs to the command that make runs next"
        return process.returncode, err

    def installed(self) -> list[str]:
        """What was installed since the last call, in short."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.removeprefix("--quiet ").removeprefix("--require-hashes -r ").split(" --editable ")[0] for line in lines]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a checkout")


@pytest.fixture
def tool(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("tools/bootstrap.py")


PROJECT = "--no-deps --no-build-isolation"
RUN = ["venv", "requirements/build.txt", "requirements/run.txt", PROJECT]


def test_the_first_call_makes_all_and_the_second_starts_nothing(checkout: Checkout) -> None:
    code, said = checkout.run("run")
    assert (code, checkout.installed()) == (0, RUN)
    assert "making .venv" in said
    assert checkout.run("run") == (0, "")
    assert checkout.installed() == []


def test_size_and_licence_are_said_before_tensorrt_rtx_is_fetched(checkout: Checkout, tool: ModuleType) -> None:
    if obstacle := tool.rtx_obstacle(tool.describe_python(sys.executable)):
        pytest.skip(obstacle)
    code, said = checkout.run("run", "rtx")
    assert code == 0
    assert checkout.installed() == [*RUN, "requirements/rtx.txt"]
    assert "95 MB download, 228 MB installed, NVIDIA proprietary licence; skip with ENGINEFARM_RTX=0" in said


def test_the_large_fetch_shows_its_progress_on_a_terminal_and_is_quiet_in_a_log(checkout: Checkout, tool: ModuleType) -> None:
    if obstacle := tool.rtx_obstacle(tool.describe_python(sys.executable)):
        pytest.skip(obstacle)
    assert checkout.run("run", "rtx")[0] == 0
    fetch = "--require-hashes -r requirements/rtx.txt"
    assert checkout.log.read_text().splitlines()[-1] == f"--quiet {fetch}"
    (checkout.folder / ".venv/.enginefarm-rtx").unlink()
    ours, theirs = pty.openpty()
    assert checkout.start("run", "rtx", stderr=theirs).wait(timeout=120) == 0
    os.close(theirs)
    os.close(ours)
    assert checkout.log.read_text().splitlines()[-1] == fetch


def test_tensorrt_rtx_can_be_left_out(checkout: Checkout) -> None:
    code, said = checkout.run("run", "rtx", ENGINEFARM_RTX="0")
    assert (code, checkout.installed()) == (0, RUN)
    assert "RTX" not in said


def test_a_failed_fetch_of_tensorrt_rtx_is_no_obstacle_and_is_tried_again(checkout: Checkout) -> None:
    code, said = checkout.run("run", "rtx", FAIL="rtx.txt")
    assert code == 0
    assert "could not be fetched (see above): going on without it, cpu target only; the next make tries again" in said
    checkout.installed()
    assert checkout.run("run", "rtx")[0] == 0
    assert checkout.installed() == ["requirements/rtx.txt"]
    assert checkout.run("run", "rtx") == (0, "")


def test_a_failed_install_is_infrastructure_and_is_tried_again(checkout: Checkout) -> None:
    code, said = checkout.run("run", FAIL="run.txt")
    assert code == 4
    assert "the packages of requirements/run.txt could not be installed" in said
    checkout.installed()
    assert checkout.run("run")[0] == 0
    assert checkout.installed() == ["requirements/run.txt", PROJECT]


def test_changed_pins_install_that_group_only(checkout: Checkout) -> None:
    checkout.run("run")
    checkout.installed()
    with (checkout.folder / "requirements/run.txt").open("a") as file:
        file.write("# changed\n")
    assert checkout.run("run")[0] == 0
    assert checkout.installed() == ["requirements/run.txt"]


def test_a_group_serves_the_groups_it_contains(checkout: Checkout) -> None:
    assert checkout.run("test")[0] == 0
    assert checkout.installed() == ["venv", "requirements/build.txt", "requirements/test.txt", PROJECT]
    assert checkout.run("run") == (0, "")


def test_a_moved_checkout_gets_a_new_venv(checkout: Checkout, tmp_path: Path) -> None:
    checkout.run("run")
    checkout.installed()
    checkout.folder = checkout.folder.rename(tmp_path / "moved")
    assert checkout.run("run")[0] == 0
    assert checkout.installed() == RUN


def test_a_vanished_base_python_gets_a_new_venv(checkout: Checkout) -> None:
    checkout.run("run")
    checkout.installed()
    python = checkout.folder / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    assert checkout.run("run")[0] == 0
    assert checkout.installed() == RUN


def test_a_base_python_of_another_version_gets_a_new_venv(checkout: Checkout) -> None:
    checkout.run("run")
    checkout.installed()
    config = checkout.folder / ".venv/pyvenv.cfg"
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    config.write_text(config.read_text().replace(f"version = {ours}", "version = 3.42"))
    assert checkout.run("run")[0] == 0
    assert checkout.installed() == RUN


def test_a_python_that_was_asked_for_gets_a_venv_of_its_own(checkout: Checkout) -> None:
    checkout.run("run")
    assert checkout.run("run", EF_PYTHON=sys.executable) == (0, "")
    # as if the venv had been made with a Python 3.42
    (checkout.folder / ".venv/pyvenv.cfg").write_text("version = 3.42.0\n")
    other = checkout.folder.parent / "python3.42"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    python = checkout.folder / ".venv/bin/python"
    python.unlink()
    python.symlink_to(other)
    checkout.installed()
    assert checkout.run("run")[0] == 0
    assert checkout.installed() == RUN[1:]
    assert checkout.run("run", EF_PYTHON=sys.executable)[0] == 0
    assert checkout.installed() == RUN
    assert f"version = {sys.version_info[0]}.{sys.version_info[1]}" in (checkout.folder / ".venv/pyvenv.cfg").read_text()


def test_an_interrupted_creation_is_started_over(checkout: Checkout) -> None:
    (checkout.folder / ".venv/bin").mkdir(parents=True)
    (checkout.folder / ".venv/.enginefarm-making").touch()
    assert checkout.run("run")[0] == 0
    assert checkout.installed() == RUN


def test_a_folder_that_is_no_venv_is_left_alone(checkout: Checkout) -> None:
    (checkout.folder / ".venv").mkdir()
    (checkout.folder / ".venv/thesis.txt").write_text("mine")
    code, said = checkout.run("run")
    assert code == 4
    assert "is not a virtual environment: move it away" in said
    assert (checkout.folder / ".venv/thesis.txt").read_text() == "mine"


def test_two_at_once_install_once(checkout: Checkout) -> None:
    both = [checkout.start("run", "test"), checkout.start("run", "test")]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert checkout.installed() == ["venv", "requirements/build.txt", "requirements/test.txt", PROJECT]
    assert sum("waiting for another make" in text for text in said) <= 1


def test_an_unknown_group_is_usage(checkout: Checkout) -> None:
    assert checkout.run("tests") == (2, "usage: bootstrap.py {run,rtx,test,lint,lock,bench}...\n")
    assert checkout.run() == (2, "usage: bootstrap.py {run,rtx,test,lint,lock,bench}...\n")


@pytest.mark.parametrize(
    ("python", "obstacle"),
    [
        ("linux x86_64 glibc-2.28 cpython 3 10", ""),
        ("linux x86_64 glibc-2.41 cpython 3 14", ""),
        ("darwin arm64 other-libc cpython 3 12", "no wheel for darwin arm64"),
        ("linux aarch64 glibc-2.36 cpython 3 12", "no wheel for linux aarch64"),
        ("linux 32-bit glibc-2.36 cpython 3 12", "no wheel for linux 32-bit"),
        ("linux x86_64 other-libc cpython 3 12", "it needs glibc 2.28 or newer, and here is other-libc"),
        ("linux x86_64 glibc-2.27 cpython 3 12", "it needs glibc 2.28 or newer, and here is glibc-2.27"),
        ("linux x86_64 glibc-2.36 cpython 3 15", "no wheel for cpython 3.15"),
        ("linux x86_64 glibc-2.36 cpython-freethreaded 3 14", "no wheel for cpython-freethreaded 3.14"),
        ("linux x86_64 glibc-2.36 pypy 3 11", "no wheel for pypy 3.11"),
    ],
)
def test_where_the_wheel_does_not_exist_the_reason_is_named(tool: ModuleType, python: str, obstacle: str) -> None:
    assert tool.rtx_obstacle(python) == obstacle


def test_this_python_describes_itself(tool: ModuleType) -> None:
    system, machine, _libc, implementation, major, minor = tool.describe_python(sys.executable).split()
    assert (system, implementation, int(major), int(minor)) == (sys.platform, sys.implementation.name, *sys.version_info[:2])
    assert machine == os.uname().machine


def test_a_missing_wheel_is_said_in_one_line_each_time(checkout: Checkout) -> None:
    path = checkout.folder / "tools/bootstrap.py"
    path.write_text(path.read_text().replace("NEWEST_RTX = (3, 14)", "NEWEST_RTX = (3, 9)"))
    for _ in range(2):
        code, said = checkout.run("run", "rtx")
        assert code == 0
        (line,) = [line for line in said.splitlines() if "RTX" in line]
        assert line.startswith("enginefarm: TensorRT-RTX is left out (no wheel for cpython 3.")
        assert line.endswith("the rtx targets have no runner here, the cpu target has")
    assert "requirements/rtx.txt" not in checkout.installed()


def test_without_ensurepip_the_apt_line_is_printed(tool: ModuleType, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho 3.11\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(tool.SetupError) as caught:
        tool.check_ensurepip(str(python))
    assert "sudo apt-get install python3.11-venv" in str(caught.value)
    tool.check_ensurepip(sys.executable)


@pytest.mark.interpreters
@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9"])
def test_an_old_python_says_so(version: str, checkout: Checkout, tmp_path: Path) -> None:
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(versions.glob(f"{version}.*/bin/python3"))
    if not found:
        pytest.skip(f"no Python {version} under {versions}")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [str(found[0]), "tools/bootstrap.py", "run"],
        cwd=checkout.folder,
        env={"PATH": str(empty)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 4
    assert f"Python 3.10 or newer is needed, and {found[0]} is {version}." in done.stderr
    assert "sudo apt-get install python3.12 python3.12-venv" in done.stderr
    assert not (checkout.folder / ".venv").exists()
