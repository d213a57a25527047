"""Detect the cgroup version and layout of this node, and say what was tried when they cannot be determined.

The kubelet's cgroup driver and root are read from its process and its config file as a last resort.
"""

from __future__ import annotations

import msgspec

from koord.host.cgroup.layout import CGROUPFS, SYSTEMD
from koord.host.fault import Fault, lacking
from koord.host.host import Host

_LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp


class Kubelet(msgspec.Struct, frozen=True):
    """How this node's kubelet was started."""
    pid: int
    driver: str
    root: tuple[str, ...]
    how: str


def kubelet_settings(host: Host, port: int | None = None) -> Kubelet | Fault:
    """Find the kubelet by the process that listens on its port (k3s embeds it in another program), else by name."""
    pid = (_listener(host, port) if port else None) or _by_name(host)
    if pid is None:
        return lacking(host.paths.proc, f"no process named kubelet{f' or listening on port {port}' if port else ''}")
    arguments = _arguments(host, pid)
    if isinstance(arguments, Fault):
        return arguments
    driver, root = arguments.get("cgroup-driver"), arguments.get("cgroup-root")
    how = f"--cgroup-driver={driver}" if driver else "no cgroup driver flag"
    file = arguments.get("config")
    if file is not None:
        settings = _config(host, pid, file)
        if isinstance(settings, Fault):
            return settings
        how = how if driver else f"config {file}"
        driver = driver or settings.get("cgroupDriver")
        root = root or settings.get("cgroupRoot")
    names = tuple(filter(None, (root or "").split("/")))
    return Kubelet(pid, SYSTEMD if driver == SYSTEMD else CGROUPFS, names, how)


def _arguments(host: Host, pid: int) -> dict[str, str] | Fault:
    text = host.read(f"{host.paths.proc}/{pid}/cmdline")
    if isinstance(text, Fault):
        return text
    words = text.rstrip("\0").split("\0")
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""]):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = value if equals else "" if after.startswith("--") else after
    return found


def _config(host: Host, pid: int, file: str) -> dict[str, str] | Fault:
    # The file is read through the process's own root: a kubelet may run in a container or a chroot.
    folder = f"{host.paths.proc}/{pid}/{'root' if file.startswith('/') else 'cwd'}"
    text = host.read(f"{folder}/{file.lstrip('/')}")
    if isinstance(text, Fault):
        return text
    pairs = (line.partition(":") for line in text.splitlines() if line[:1] not in (" ", "#", "-"))
    return {name.strip(): value.split(" #")[0].strip().strip("\"'") for name, colon, value in pairs if colon}


def _by_name(host: Host) -> int | None:
    for pid in _pids(host):
        name = host.read(f"{host.paths.proc}/{pid}/comm")
        if not isinstance(name, Fault) and name.strip() == "kubelet":
            return pid
    return None


def _listener(host: Host, port: int) -> int | None:
    sockets: set[str] = set()
    for table in ("tcp", "tcp6"):
        text = host.read(f"{host.paths.proc}/1/net/{table}")
        for line in [] if isinstance(text, Fault) else text.splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTEN and words[1].rpartition(":")[2] == f"{port:04X}":
                sockets.add(f"socket:[{words[9]}]")
    for pid in _pids(host) if sockets else ():
        folder = f"{host.paths.proc}/{pid}/fd"
        descriptors = host.names(folder)
        for name in [] if isinstance(descriptors, Fault) else descriptors:
            if host.link(f"{folder}/{name}") in sockets:
                return pid
    return None


def _pids(host: Host) -> list[int]:
    names = host.names(host.paths.proc)
    return [] if isinstance(names, Fault) else sorted(int(name) for name in names if name.isdecimal())
