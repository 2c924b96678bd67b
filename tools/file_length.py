"""Part of `make lint`: no Python file of the repository may have more than 400 lines; a longer one is split by subject."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST = 400
# in a CI container the checkout may belong to another user, and git asks to be told that this is meant
LIST = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--", "*.py"]


def main() -> int:
    done = subprocess.run(LIST, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode or not done.stdout:
        print("the repository's files cannot be listed: this check needs git and a checkout")
        return 1
    long = []
    for name in filter(None, done.stdout.split("\0")):
        path = ROOT / name
        lines = len(path.read_bytes().splitlines()) if path.is_file() else 0  # a deleted file is listed until the commit
        if lines > MOST:
            long.append(f"{name}: {lines} lines, {lines - MOST} more than {MOST}")
    if long:
        print("\n".join(long))
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
