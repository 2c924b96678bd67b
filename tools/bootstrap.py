"""Makes or refreshes .venv for make: `python3 tools/bootstrap.py GROUP...` with groups run, rtx, test, lint, lock, bench.

Standard library only and Python 3.6 syntax: an old python3 can still find a newer one. make starts it through start.py.
Each group is one file of hashed pins in requirements/. A stamp in .venv holds what a group was installed from; when
nothing changed, nothing is started. ENGINEFARM_RTX=0 leaves TensorRT-RTX out, ENGINEFARM_UV=0 uses pip though uv is there.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from typing import Dict, List, Optional, Tuple

Version = Tuple[int, int]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
MAKING = os.path.join(VENV, ".enginefarm-making")

INFRASTRUCTURE = 4  # exit code, as in the table of README.md
OLDEST = (3, 10)
NEWEST_RTX = (3, 14)  # newest CPython with a bindings wheel of 1.7.1.116

# A group's file also pins everything of the groups it contains, so that one install serves them all.
CONTAINS: Dict[str, Tuple[str, ...]] = {
    "run": (),
    "test": ("run",),
    "lint": ("test", "run"),
    "lock": (),
    "bench": (),
    "build": (),
    "rtx": (),
}
RTX_NOTICE = "NVIDIA TensorRT-RTX 1.7.1.116: 95 MB download, 228 MB installed, NVIDIA proprietary licence; skip with ENGINEFARM_RTX=0"


class SetupError(Exception):
    """Something that the user has to settle; the text says what and how."""


def say(text: str) -> None:
    sys.stderr.write("enginefarm: " + text + "\n")
    sys.stderr.flush()


def uv() -> Optional[str]:
    """Path of uv, or None when it is not to be used."""
    return None if os.environ.get("ENGINEFARM_UV") == "0" else shutil.which("uv")


def run(arguments: List[str]) -> int:
    """Exit code of a command; settings that would install outside the venv are kept from it."""
    outside = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in outside}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    return subprocess.call(arguments, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr)


# --- interpreter and venv ---------------------------------------------------------------------------------------


def newer_python() -> Optional[str]:
    """A Python on PATH that is new enough, newest first, or None."""
    for minor in range(19, OLDEST[1] - 1, -1):
        found = shutil.which("python3.%d" % minor)
        # a pyenv shim is on PATH for versions that are not switched on, too
        if found and subprocess.call([found, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0:
            return found
    return None


def choose_python() -> Optional[str]:
    """The interpreter the venv is made with; None leaves the choice to uv."""
    if sys.version_info >= OLDEST:
        return sys.executable
    found = newer_python()
    if found or uv():
        return found
    from start import too_old

    raise SetupError(too_old(sys.executable))


def venv_version() -> Optional[Version]:
    """Python version of the venv as (major, minor), or None when it cannot be used as it is."""
    try:
        with open(os.path.join(VENV, "pyvenv.cfg")) as file:
            match = re.search(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", file.read(), re.MULTILINE)
    except OSError:
        return None
    if os.path.exists(MAKING) or not os.path.exists(VENV_PYTHON) or match is None:
        return None
    version = (int(match.group(1)), int(match.group(2)))
    # After an upgrade of the base Python the link leads to another version than the one the packages were installed for.
    base = re.search(r"python(\d+)\.(\d+)$", os.path.realpath(VENV_PYTHON))
    if version < OLDEST or (base and (int(base.group(1)), int(base.group(2))) != version):
        return None
    if not uv() and not os.path.isdir(os.path.join(VENV, "lib", "python%d.%d" % version, "site-packages", "pip")):
        return None
    # A Python that was asked for by name is what the venv shall have.
    if os.environ.get("EF_PYTHON") and version != sys.version_info[:2]:
        return None
    return version


def make_venv() -> None:
    """A new .venv; what is there is removed, if it is a venv."""
    python = choose_python()
    if os.path.isdir(VENV) and os.listdir(VENV) and not os.path.exists(MAKING) and not os.path.exists(os.path.join(VENV, "pyvenv.cfg")):
        raise SetupError("%s is there and is not a virtual environment: move it away, then run make again" % VENV)
    if os.path.lexists(VENV):
        shutil.rmtree(VENV) if os.path.isdir(VENV) and not os.path.islink(VENV) else os.unlink(VENV)
    installer = uv()
    if not installer:
        check_ensurepip(str(python))
    say("making .venv with %s%s" % (python or "a Python from uv", " and uv" if installer else ""))
    os.mkdir(VENV)
    with open(MAKING, "w"):
        pass  # an interrupted creation is recognised by this file and started over
    if installer:
        code = run([installer, "venv", "--quiet", "--allow-existing", "--no-project", "--python", python or ">=3.10", VENV])
    else:
        code = run([str(python), "-m", "venv", VENV])
    if code:
        raise SetupError("the virtual environment could not be made (see above)")
    os.unlink(MAKING)


def check_ensurepip(python: str) -> None:
    """Debian ships `venv` without what it needs; its own message comes late and leaves half a venv behind."""
    probe = "import sys, importlib.util as u; print('%d.%d' % sys.version_info[:2]); sys.exit(0 if u.find_spec('ensurepip') else 1)"
    answer = subprocess.run([python, "-c", probe], stdout=subprocess.PIPE)
    if answer.returncode:
        version = answer.stdout.decode().strip() or "3"
        raise SetupError(
            "%s cannot make virtual environments (no ensurepip).\n  Debian, Ubuntu: sudo apt-get install python%s-venv" % (python, version)
        )


# --- groups -----------------------------------------------------------------------------------------------------


def digest(*names: str) -> str:
    """sha256 over the named files of the project; a missing one counts as empty."""
    total = hashlib.sha256()
    for name in names:
        path = os.path.join(ROOT, name)
        content = b""
        if os.path.exists(path):
            with open(path, "rb") as file:
                content = file.read()
        total.update(("%s %d\n" % (name, len(content))).encode() + content)
    return total.hexdigest()


def key(group: str, version: Version) -> str:
    """What the group's stamp must say: a moved checkout, another Python or other pins make a new key."""
    if group == "project":
        source = digest("pyproject.toml", "hatch_build.py", "orchestrator/__init__.py")
    else:
        source = digest("requirements/%s.txt" % group)
    return "%s %d.%d %s" % (source, version[0], version[1], ROOT)


def stamp_path(group: str) -> str:
    return os.path.join(VENV, ".enginefarm-" + group)


def stamp_note(group: str, version: Version) -> Optional[str]:
    """None when the group must be (re)installed, else the stamp's note: "" or why the group was left out."""
    try:
        with open(stamp_path(group)) as file:
            lines = file.read().split("\n")
    except OSError:
        return None
    return "\n".join(lines[1:]).strip() if lines[0] == key(group, version) else None


def write_stamp(group: str, version: Version, note: str = "") -> None:
    temporary = stamp_path(group) + ".new"
    with open(temporary, "w") as file:
        file.write(key(group, version) + "\n" + note)
    os.rename(temporary, stamp_path(group))


def install(arguments: List[str], quiet: bool = True) -> int:
    """Exit code of an install into the venv."""
    installer = uv()
    if installer:
        return run([installer, "pip", "install", "--python", VENV_PYTHON] + (["--quiet"] if quiet else []) + arguments)
    return run([VENV_PYTHON, "-m", "pip", "install"] + (["-qq"] if quiet else []) + arguments)


def install_group(group: str, version: Version) -> None:
    pins = os.path.join("requirements", group + ".txt")
    say("installing %s (once; later calls skip this)" % pins)
    if install(["--require-hashes", "-r", pins]):
        raise SetupError("the packages of %s could not be installed (see above): is the package index reachable?" % pins)
    for name in (group,) + CONTAINS[group]:
        write_stamp(name, version)


def install_project(version: Version) -> None:
    if install(["--no-deps", "--no-build-isolation", "--editable", ROOT]):
        raise SetupError("enginefarm itself could not be installed into .venv (see above)")
    write_stamp("project", version)


def describe_python(python: str) -> str:
    """ "<system> <machine> <libc> <implementation> <major> <minor>" of an interpreter."""
    probe = (
        "import os, platform, struct, sys, sysconfig\n"
        "try: libc = os.confstr('CS_GNU_LIBC_VERSION') or ''\n"
        "except (AttributeError, ValueError, OSError): libc = ''\n"
        "print(sys.platform, platform.machine() if struct.calcsize('P') == 8 else '32-bit', libc.replace(' ', '-') or 'other-libc',\n"
        "      sys.implementation.name + ('-freethreaded' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''), *sys.version_info[:2])"
    )
    return subprocess.run([python, "-I", "-c", probe], stdout=subprocess.PIPE, check=True).stdout.decode().strip()


def rtx_obstacle(description: str) -> str:
    """Why no TensorRT-RTX wheel fits the described interpreter, or "" when one does.

    The wheels of 1.7.1.116 are manylinux_2_28_x86_64 for CPython up to 3.14.
    """
    system, machine, libc, implementation, major, minor = description.split()
    glibc = re.match(r"glibc-(\d+)\.(\d+)", libc)
    if system != "linux" or machine != "x86_64":
        return "no wheel for %s %s" % (system, machine)
    if not glibc or (int(glibc.group(1)), int(glibc.group(2))) < (2, 28):
        return "it needs glibc 2.28 or newer, and here is %s" % libc
    if implementation != "cpython" or not OLDEST <= (int(major), int(minor)) <= NEWEST_RTX:
        return "no wheel for %s %s.%s" % (implementation, major, minor)
    return ""


def install_rtx(version: Version) -> None:
    """TensorRT-RTX, or a stamp that says why not; a fetch that failed leaves no stamp and is tried again next time."""
    obstacle = rtx_obstacle(describe_python(VENV_PYTHON))
    if obstacle:
        write_stamp("rtx", version, "TensorRT-RTX is left out (%s): the rtx targets have no runner here, the cpu target has" % obstacle)
        return
    say(RTX_NOTICE)
    # minutes on a slow line: whoever watches wants the progress, a log does not
    if install(["--require-hashes", "-r", os.path.join("requirements", "rtx.txt")], quiet=not sys.stderr.isatty()):
        say("TensorRT-RTX could not be fetched (see above): going on without it, cpu target only; the next make tries again")
        return
    write_stamp("rtx", version)


# --- main -------------------------------------------------------------------------------------------------------


def missing(groups: List[str]) -> Tuple[Optional[Version], List[str]]:
    """(version, groups to install in order); version None means that the venv itself has to be made."""
    version = venv_version()
    if version is None:
        return None, groups
    return version, [group for group in groups if stamp_note(group, version) is None]


def set_up(groups: List[str]) -> Version:
    """Install under a lock: two makes at once must not install into one venv."""
    os.makedirs(os.path.join(ROOT, ".enginefarm"), exist_ok=True)
    with open(os.path.join(ROOT, ".enginefarm", "bootstrap.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another make that is setting up .venv")
            fcntl.flock(lock, fcntl.LOCK_EX)
        version, todo = missing(groups)
        # A venv that this checkout did not stamp (moved, copied) has scripts that lead elsewhere.
        if version is not None and "project" in todo and moved():
            version = None
        if version is None:
            make_venv()
            version, todo = missing(groups)
        if version is None:
            raise SetupError(".venv was made and is not usable; remove it and say which Python this is: %s" % VENV_PYTHON)
        for group in todo:
            if stamp_note(group, version) is not None:
                continue  # came with a group that contains it
            if group == "rtx":
                install_rtx(version)
            elif group == "project":
                install_project(version)
            else:
                install_group(group, version)
        return version


def moved() -> bool:
    """True when the venv was made for another place: its scripts start with that place's interpreter."""
    try:
        with open(stamp_path("project")) as file:
            return file.readline().rstrip("\n").split(" ", 2)[2:] != [ROOT]
    except OSError:
        return False


def wanted(arguments: List[str]) -> List[str]:
    groups = [group for group in arguments if group != "rtx" or os.environ.get("ENGINEFARM_RTX") != "0"]
    # Containing groups first: test.txt also holds run.txt's pins.
    groups.sort(key=lambda group: -len(CONTAINS[group]))
    return ["build"] + [group for group in groups if group != "rtx"] + ["project"] + [group for group in groups if group == "rtx"]


def main(arguments: List[str]) -> int:
    unknown = [group for group in arguments if group not in CONTAINS or group == "build"]
    if unknown or not arguments:
        sys.stderr.write("usage: bootstrap.py {run,rtx,test,lint,lock,bench}...\n")
        return 2
    groups = wanted(arguments)
    try:
        version, todo = missing(groups)
        if version is None or todo:
            version = set_up(groups)
    except SetupError as error:
        say(str(error))
        return INFRASTRUCTURE
    except KeyboardInterrupt:
        return 130
    note = stamp_note("rtx", version) if "rtx" in groups else ""
    if note:
        say(note)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
