"""The machine that the doctor looks at: files below a root folder and the output of a few commands. Never raises for what it finds."""

import os
import subprocess
import sys
from typing import Dict, List, Optional, Tuple

READ_BYTES = 8 << 20
COMMAND_SECONDS = 20.0


class Machine:
    """``root`` and ``commands`` (command line -> output) stand in for the real ones where a recorded machine is looked at."""

    def __init__(
        self,
        root: str = "/",
        commands: Optional[Dict[str, str]] = None,
        environment: Optional[Dict[str, str]] = None,
        python_path: Optional[List[str]] = None,
    ) -> None:
        self.root = os.path.realpath(root)
        self._commands = commands
        self.environment = dict(os.environ) if environment is None else environment
        self.python_path = [entry or "." for entry in sys.path] if python_path is None else python_path

    def at(self, path: str) -> str:
        """Where ``path`` of the machine lies on this file system."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str:
        """The first megabytes of a file as text; empty when it cannot be read."""
        try:
            with open(self.at(path), "rb") as file:
                return file.read(READ_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def names(self, path: str) -> List[str]:
        """Names in a folder, sorted; none when it cannot be read."""
        try:
            return sorted(os.listdir(self.at(path)))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self.at(path))

    def usable(self, path: str) -> bool:
        """Whether this process may read and write there."""
        return os.access(self.at(path), os.R_OK | os.W_OK)

    def real(self, path: str) -> str:
        """The path with links followed, as the machine sees it."""
        found = os.path.realpath(self.at(path))
        if self.root != "/" and found.startswith(self.root + os.sep):
            return found[len(self.root) :]
        return found

    def space(self, path: str) -> Optional[Tuple[int, int]]:
        """Size and free bytes of the file system that holds ``path``."""
        try:
            found = os.statvfs(self.at(path))
        except OSError:
            return None
        return found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail

    def run(self, *command: str) -> str:
        """What a command prints; empty when it is not there, fails to start or takes too long."""
        if self._commands is not None:
            return self._commands.get(" ".join(command), "")
        try:
            process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:
            return ""
        try:
            return process.communicate(timeout=COMMAND_SECONDS)[0].decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return ""
