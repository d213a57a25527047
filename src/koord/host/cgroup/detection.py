"""Detect the cgroup version and layout of this node, and say what was tried when they cannot be determined.

The kubelet's cgroup driver and root are read from its process and its config file as a last resort.
"""

from __future__ import annotations

import msgspec

from koord.host.cgroup.layout import CGROUPFS, SYSTEMD, CgroupLayout
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.host.io_error import IoError, unsupported

_LISTEN = "0A"  # the state of a listening socket in /proc/net/tcp


class KubeletProcess(msgspec.Struct, frozen=True):
    pid: int
    driver: str
    root: tuple[str, ...]
    how: str


def find_kubelet(host: Host, port: int | None = None) -> KubeletProcess | IoError:
    """Find the kubelet by the process that listens on its port (k3s embeds it in another program), else by name."""
    pid = (_listener(host, port) if port else None) or _by_name(host)
    if pid is None:
        return unsupported(
            host.paths.proc, f"no process named kubelet{f' or listening on port {port}' if port else ''}"
        )
    arguments = _arguments(host, pid)
    if isinstance(arguments, IoError):
        return arguments
    driver, root = arguments.get("cgroup-driver"), arguments.get("cgroup-root")
    how = f"--cgroup-driver={driver}" if driver else "no cgroup driver flag"
    file = arguments.get("config")
    if file is not None:
        settings = _config(host, pid, file)
        if isinstance(settings, IoError):
            return settings
        how = how if driver else f"config {file}"
        driver = driver or settings.get("cgroupDriver")
        root = root or settings.get("cgroupRoot")
    names = tuple(filter(None, (root or "").split("/")))
    return KubeletProcess(pid, SYSTEMD if driver == SYSTEMD else CGROUPFS, names, how)


def _arguments(host: Host, pid: int) -> dict[str, str] | IoError:
    text = host.read(f"{host.paths.proc}/{pid}/cmdline")
    if isinstance(text, IoError):
        return text
    words = text.rstrip("\0").split("\0")
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""]):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found[name] = value if equals else "" if after.startswith("--") else after
    return found


def _config(host: Host, pid: int, file: str) -> dict[str, str] | IoError:
    # The file is read through the process's own root: a kubelet may run in a container or a chroot.
    folder = f"{host.paths.proc}/{pid}/{'root' if file.startswith('/') else 'cwd'}"
    text = host.read(f"{folder}/{file.lstrip('/')}")
    if isinstance(text, IoError):
        return text
    pairs = (line.partition(":") for line in text.splitlines() if line[:1] not in (" ", "#", "-"))
    return {name.strip(): value.split(" #")[0].strip().strip("\"'") for name, colon, value in pairs if colon}


def _by_name(host: Host) -> int | None:
    for pid in _pids(host):
        name = host.read(f"{host.paths.proc}/{pid}/comm")
        if not isinstance(name, IoError) and name.strip() == "kubelet":
            return pid
    return None


def _listener(host: Host, port: int) -> int | None:
    sockets: set[str] = set()
    for table in ("tcp", "tcp6"):
        text = host.read(f"{host.paths.proc}/1/net/{table}")
        for line in [] if isinstance(text, IoError) else text.splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTEN and words[1].rpartition(":")[2] == f"{port:04X}":
                sockets.add(f"socket:[{words[9]}]")
    for pid in _pids(host) if sockets else ():
        folder = f"{host.paths.proc}/{pid}/fd"
        descriptors = host.list_names(folder)
        for name in [] if isinstance(descriptors, IoError) else descriptors:
            if host.read_link(f"{folder}/{name}") in sockets:
                return pid
    return None


def _pids(host: Host) -> list[int]:
    names = host.list_names(host.paths.proc)
    return [] if isinstance(names, IoError) else sorted(int(name) for name in names if name.isdecimal())


# kind starts its kubelet with --cgroup-root=/kubelet.
_COMMON_LAYOUTS = (
    CgroupLayout(SYSTEMD),
    CgroupLayout(CGROUPFS),
    CgroupLayout(SYSTEMD, ("kubelet",)),
    CgroupLayout(CGROUPFS, ("kubelet",)),
)
_SEARCH_DEPTH = 3
_MOST_FOLDERS = 2_000  # a search must not walk a machine with a hundred thousand groups


class DetectedLayout(msgspec.Struct, frozen=True):
    layout: CgroupLayout
    how: str


class LayoutNotDetected(msgspec.Struct, frozen=True):
    """No layout could be determined: every path that was tried, for the operator to compare with the node."""

    looked_at: tuple[str, ...]

    def __str__(self) -> str:
        return "cannot tell the cgroup layout of this node; looked for: " + "; ".join(self.looked_at)


def cgroup_version(host: Host) -> int:
    """Return 2 when the root itself is a cgroup2 file system, whose root alone has cgroup.controllers; else 1."""
    return 2 if host.exists(f"{host.paths.cgroup}/cgroup.controllers") else 1


def detect_layout(host: Host, kubelet_port: int | None = None) -> DetectedLayout | LayoutNotDetected:
    """Detect the layout: from directories that exist, from a search for them, or from how the kubelet was started."""
    version = cgroup_version(host)
    base = host.paths.cgroup if version == 2 else f"{host.paths.cgroup}/cpu"
    looked: list[str] = []
    for layout in _COMMON_LAYOUTS:
        path = f"{base}/{layout.kubepods}"
        if host.is_folder(path):
            return DetectedLayout(layout, f"found {path}")
        looked.append(path)
    searched = _search(host, base)
    if len(searched) == 1:
        return DetectedLayout(searched[0], f"found {base}/{searched[0].kubepods}")
    if searched:
        names = ", ".join(layout.kubepods for layout in searched)
        looked.append(f"one group of all pods below {base}, but there are several: {names}")
    else:
        looked.append(f"kubepods or *kubepods.slice down to {_SEARCH_DEPTH} levels below {base}")
    kubelet = find_kubelet(host, kubelet_port)
    if isinstance(kubelet, IoError):
        looked.append(f"a running kubelet ({kubelet})")
        return LayoutNotDetected(tuple(looked))
    return DetectedLayout(
        CgroupLayout(kubelet.driver, kubelet.root), f"the kubelet (pid {kubelet.pid}) runs with {kubelet.how}"
    )


def layout_of_kubepods_path(kubepods: str) -> CgroupLayout | None:
    """Return the layout in which the group of all pods has this path; None when no layout has."""
    *names, last = kubepods.strip("/").split("/")
    layout = _layout_of_dir(tuple(names), last)
    return layout if layout is not None and layout.kubepods == kubepods.strip("/") else None


def open_tree(host: Host, kubelet_port: int | None = None, kubepods: str = "") -> CgroupTree | LayoutNotDetected:
    """Return the cgroup tree. Where the operator names `kubepods`, the group of all pods, nothing is searched."""
    if kubepods:
        layout = layout_of_kubepods_path(kubepods)
        path = f"{host.paths.cgroup if cgroup_version(host) == 2 else f'{host.paths.cgroup}/cpu'}/{kubepods.strip('/')}"
        if layout is None or not host.is_folder(path):
            return LayoutNotDetected((path,))
        return CgroupTree(host, cgroup_version(host), layout)
    found = detect_layout(host, kubelet_port)
    return found if isinstance(found, LayoutNotDetected) else CgroupTree(host, cgroup_version(host), found.layout)


def _search(host: Host, base: str) -> list[CgroupLayout]:
    found: list[CgroupLayout] = []
    level: list[tuple[str, ...]] = [()]
    seen = 0
    for _ in range(_SEARCH_DEPTH + 1):
        below: list[tuple[str, ...]] = []
        for names in level:
            folders = host.list_folders("/".join((base, *names)))
            for name in [] if isinstance(folders, IoError) else folders:
                seen += 1
                if seen > _MOST_FOLDERS:
                    return found
                layout = _layout_of_dir(names, name)
                if layout is not None and layout.kubepods == "/".join((*names, name)):
                    found.append(layout)
                else:
                    below.append((*names, name))
        level = below
    return found


def _layout_of_dir(names: tuple[str, ...], name: str) -> CgroupLayout | None:
    if name == "kubepods":
        return CgroupLayout(CGROUPFS, names)
    if name == "kubepods.slice" or name.endswith("-kubepods.slice"):
        stem = name.removesuffix("kubepods.slice").rstrip("-")
        return CgroupLayout(SYSTEMD, tuple(filter(None, stem.split("-"))))
    return None
