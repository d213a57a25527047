"""Find out which cgroup version and layout this node has, and say what was looked for when it cannot be told."""

from __future__ import annotations

import msgspec

from koord.host.cgroup.layout import CGROUPFS, SYSTEMD, Layout
from koord.host.cgroup.tree import Tree
from koord.host.fault import Fault
from koord.host.host import Host
from koord.host.kubelet import kubelet_settings

# kind starts its kubelet with --cgroup-root=/kubelet.
_USUAL = (
    Layout(SYSTEMD),
    Layout(CGROUPFS),
    Layout(SYSTEMD, ("kubelet",)),
    Layout(CGROUPFS, ("kubelet",)),
)
_SEARCH_DEPTH = 3
_MOST_FOLDERS = 2_000  # a search must not walk a machine with a hundred thousand groups


class Found(msgspec.Struct, frozen=True):
    """A layout, and how it was found."""
    layout: Layout
    how: str


class Undetected(msgspec.Struct, frozen=True):
    """No layout could be determined: every path that was tried, for the operator to compare with the node."""

    looked_at: tuple[str, ...]

    def __str__(self) -> str:
        return "cannot tell the cgroup layout of this node; looked for: " + "; ".join(self.looked_at)


def cgroup_version(host: Host) -> int:
    """Return 2 when the root itself is a cgroup2 file system, whose root alone has cgroup.controllers; else 1."""
    return 2 if host.exists(f"{host.paths.cgroup}/cgroup.controllers") else 1


def detect(host: Host, kubelet_port: int | None = None) -> Found | Undetected:
    """Detect the layout: from directories that exist, from a search for them, or from how the kubelet was started."""
    version = cgroup_version(host)
    base = host.paths.cgroup if version == 2 else f"{host.paths.cgroup}/cpu"
    looked: list[str] = []
    for layout in _USUAL:
        path = f"{base}/{layout.kubepods}"
        if host.is_folder(path):
            return Found(layout, f"found {path}")
        looked.append(path)
    searched = _search(host, base)
    if len(searched) == 1:
        return Found(searched[0], f"found {base}/{searched[0].kubepods}")
    if searched:
        names = ", ".join(layout.kubepods for layout in searched)
        looked.append(f"one group of all pods below {base}, but there are several: {names}")
    else:
        looked.append(f"kubepods or *kubepods.slice down to {_SEARCH_DEPTH} levels below {base}")
    kubelet = kubelet_settings(host, kubelet_port)
    if isinstance(kubelet, Fault):
        looked.append(f"a running kubelet ({kubelet})")
        return Undetected(tuple(looked))
    return Found(Layout(kubelet.driver, kubelet.root), f"the kubelet (pid {kubelet.pid}) runs with {kubelet.how}")


def layout_named(kubepods: str) -> Layout | None:
    """Return the layout in which the group of all pods has this path; None when no layout has."""
    *names, last = kubepods.strip("/").split("/")
    layout = _layout(tuple(names), last)
    return layout if layout is not None and layout.kubepods == kubepods.strip("/") else None


def open_tree(host: Host, kubelet_port: int | None = None, kubepods: str = "") -> Tree | Undetected:
    """Return the cgroup tree. Where the operator names `kubepods`, the group of all pods, nothing is searched."""
    if kubepods:
        layout = layout_named(kubepods)
        path = f"{host.paths.cgroup if cgroup_version(host) == 2 else f'{host.paths.cgroup}/cpu'}/{kubepods.strip('/')}"
        if layout is None or not host.is_folder(path):
            return Undetected((path,))
        return Tree(host, cgroup_version(host), layout)
    found = detect(host, kubelet_port)
    return found if isinstance(found, Undetected) else Tree(host, cgroup_version(host), found.layout)


def _search(host: Host, base: str) -> list[Layout]:
    found: list[Layout] = []
    level: list[tuple[str, ...]] = [()]
    seen = 0
    for _ in range(_SEARCH_DEPTH + 1):
        below: list[tuple[str, ...]] = []
        for names in level:
            folders = host.folders("/".join((base, *names)))
            for name in [] if isinstance(folders, Fault) else folders:
                seen += 1
                if seen > _MOST_FOLDERS:
                    return found
                layout = _layout(names, name)
                if layout is not None and layout.kubepods == "/".join((*names, name)):
                    found.append(layout)
                else:
                    below.append((*names, name))
        level = below
    return found


def _layout(names: tuple[str, ...], name: str) -> Layout | None:
    if name == "kubepods":
        return Layout(CGROUPFS, names)
    if name == "kubepods.slice" or name.endswith("-kubepods.slice"):
        stem = name.removesuffix("kubepods.slice").rstrip("-")
        return Layout(SYSTEMD, tuple(filter(None, stem.split("-"))))
    return None
