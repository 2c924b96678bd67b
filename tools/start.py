"""The first thing that make runs: `python3 tools/start.py GOAL GROUP...`; says what is wrong before anything is installed.

Python 2.7 syntax, so that any Python can say that it is too old where it would say SyntaxError. The rest needs Python 3.6:
from_make.py reads the variables of the call, bootstrap.py makes .venv.
"""

import os
import sys

INFRASTRUCTURE, USAGE = 4, 2  # exit codes, as in the table of README.md
OLDEST = (3, 10)
ABLE_TO_LOOK = (3, 6)  # bootstrap.py finds a newer Python on PATH, when none was asked for


def too_old(name):
    # type: (str) -> str
    """What is said of a Python that cannot make the venv."""
    needed, here = (".".join(str(part) for part in version[:2]) for version in (OLDEST, sys.version_info))
    return (
        "Python " + needed + " or newer is needed, and " + name + " is " + here + ".\n"
        "  Debian, Ubuntu: sudo apt-get install python3.12 python3.12-venv   (or the newest 3.x your release has)\n"
        "  macOS:          brew install python@3.12\n"
        "  then:           make PYTHON=python3.12 ..."
    )


def main(goal, groups):
    # type: (str, list[str]) -> int
    asked = os.environ.get("EF_PYTHON", "")  # set when PYTHON was given to make
    if sys.version_info < ABLE_TO_LOOK or (asked and sys.version_info < OLDEST):
        sys.stderr.write("enginefarm: " + too_old("PYTHON=" + asked if asked else sys.executable) + "\n")
        return INFRASTRUCTURE
    import bootstrap
    import from_make

    problem = from_make.check(goal, os.environ)
    if problem:
        sys.stderr.write(problem + "\n")
        return USAGE
    return bootstrap.main(groups)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
