"""The machine's file systems: where they are mounted, and the few file operations that all readers are made of.

What a text means is left to the readers. Nothing here creates a file: a cgroup file that does not exist must stay so.
"""

from __future__ import annotations

import msgspec


class Paths(msgspec.Struct, frozen=True, kw_only=True):
    """The mount points without a trailing slash. The defaults are those of an agent that runs on the machine itself."""

    cgroup: str = "/sys/fs/cgroup"
    proc: str = "/proc"
    sys: str = "/sys"
    sys_fs: str = "/sys/fs"
    var_run: str = "/var/run"
    run: str = "/run"
    kubelet: str = "/var/lib/kubelet"
    hooks: str = "/etc/runtime/hookserver.d"

    def under(self, root: str) -> Paths:
        """Return the same paths below another root."""
        return Paths(**{name: root.rstrip("/") + getattr(self, name) for name in self.__struct_fields__})


# What the chart mounts into the agent's pod.
DAEMONSET = Paths(
    cgroup="/host-cgroup",
    sys="/host-sys",
    sys_fs="/host-sys-fs",
    var_run="/host-var-run",
    run="/host-run",
    hooks="/host-etc-hookserver",
)


def trimmed(paths: Paths) -> Paths:
    """Return the paths as flags give them (`/host-cgroup/`), without trailing slashes."""
    return Paths(**{name: getattr(paths, name).rstrip("/") or "/" for name in paths.__struct_fields__})
