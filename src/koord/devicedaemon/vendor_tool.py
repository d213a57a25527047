"""Vendors' command-line tools, run on the host: from a container they are run with the host's root as their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import msgspec

TIMEOUT_S = 30.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/mxdriver/bin:/opt/maca/bin"
# The image has no chroot program. `warnings` is imported by execvp, and cannot be after the change of root.
_CHROOT = (
    "import os, sys, warnings\n"
    "os.chroot(sys.argv[1]); os.chdir('/')\n"
    "try:\n    os.execvp(sys.argv[2], sys.argv[2:])\n"
    "except OSError as error:\n    sys.exit(f'{sys.argv[2]}: {error.strerror}')\n"
)


class ToolFailed(msgspec.Struct, frozen=True):
    """ToolFailed says why a tool gave no usable answer."""

    reason: str

    def __str__(self) -> str:
        return self.reason


RunTool = Callable[..., str | ToolFailed]  # the words of the command to what it printed


class HostTools:
    """HostTools runs the tools of the machine whose root is at `root`."""

    def __init__(self, root: str, timeout_s: float = TIMEOUT_S) -> None:
        self._root = root
        self._timeout_s = timeout_s

    def run(self, *command: str) -> str | ToolFailed:
        """Return what the command printed. One that fails, or does not end in time, is a failure with its words."""
        elsewhere = self._root != "/"
        words = [sys.executable, "-I", "-c", _CHROOT, self._root, *command] if elsewhere else list(command)
        shown = " ".join(command)
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_s,
                env={**os.environ, "PATH": _PATH, "LC_ALL": "C"} if elsewhere else {**os.environ, "LC_ALL": "C"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ToolFailed(f"{shown}: no answer after {self._timeout_s:g} s")
        except OSError as error:
            return ToolFailed(f"{shown}: {error.strerror}")
        text = done.stdout.decode("utf-8", "replace")
        if done.returncode != 0:
            said = (done.stderr.decode("utf-8", "replace").strip() or text.strip())[-500:]
            return ToolFailed(f"{shown}: exit status {done.returncode}: {said}")
        return text
