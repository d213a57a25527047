"""The cgroup tree of one node: its version, its layout, and the path and text of each knob of each group."""

from __future__ import annotations

import msgspec

from koord.host.cgroup.codec import Codec
from koord.host.cgroup.knob import KNOBS, Area, Knob, Place, Support
from koord.host.cgroup.layout import Layout
from koord.host.fault import Fault, lacking, malformed
from koord.host.host import Host


class File(msgspec.Struct, frozen=True):
    """One knob of one group. `dir` is relative to the cgroup root ("" is the root), or names a resctrl group."""

    knob: str
    dir: str = ""


class Tree:
    """Access to all knobs of a node."""
    def __init__(self, host: Host, version: int, layout: Layout) -> None:
        self.host = host
        self.version = version
        self.layout = layout
        self._areas = {
            Area.CGROUP: host.paths.cgroup,
            Area.PROC: host.paths.proc,
            Area.SYS: host.paths.sys,
            Area.RESCTRL: f"{host.paths.sys_fs}/resctrl",
        }

    def place(self, knob: str) -> Place | None:
        """Return the knob's file in this version; None when it does not exist."""
        return KNOBS[knob].place(self.version)

    def codec(self, knob: str) -> Codec | None:
        place = self.place(knob)
        return None if place is None else place.codec

    def path(self, file: File) -> str | None:
        """Return the full path, whether the file exists or not; None when this version has no such knob."""
        knob = KNOBS[file.knob]
        place = knob.place(self.version)
        return None if place is None else self._join(knob, place, file.dir)

    def folder(self, file: File) -> str | None:
        path = self.path(file)
        return None if path is None else path.rpartition("/")[0]

    def group(self, subsystem: str, group: str) -> str:
        """Return the directory of a group: below its controller on cgroup v1, below the root on v2."""
        return "/".join(filter(None, (self._areas[Area.CGROUP], subsystem if self.version == 1 else "", group)))

    def read(self, knob: str, group: str = "") -> str | Fault:
        """Return the text of a knob's file; on cgroup v1 from the unified tree where only that has it."""
        path = self.path(File(knob, group))
        if path is None:
            return lacking(knob, f"cgroup v{self.version} has no such file")
        text = self.host.read(path)
        place = self.place(knob)
        if isinstance(text, Fault) and text.vanished and place is not None and place.also:
            other = self.host.read("/".join(filter(None, (self._areas[Area.CGROUP], place.also, group, place.file))))
            return text if isinstance(other, Fault) else other
        return text

    def value(self, knob: str, group: str = "", key: str = "") -> str | Fault:
        """Return the knob's value in cgroup v1's terms; `key` names the device or feature of files that hold many."""
        text = self.read(knob, group)
        codec = self.codec(knob)
        if isinstance(text, Fault) or codec is None:
            return text
        field = codec.pick(text, key)
        if field is None:
            return malformed(self.path(File(knob, group)) or knob, f"unexpected text {text[:80]!r}")
        return codec.decode(field)

    def supported(self, knob: str, group: str = "") -> bool:
        """Return whether the file exists, checked where the knob's support says."""
        place = self.place(knob)
        if place is None:
            return False
        if place.support is Support.ALWAYS:
            return True
        where = {Support.HERE: group, Support.KUBEPODS: self.layout.kubepods, Support.ROOT: ""}[place.support]
        path = self.path(File(knob, where))
        found = path is not None and self.host.exists(path)
        if not found and place.also:
            return self.host.exists(f"{self._areas[Area.CGROUP]}/{place.also}/{where}/{place.file}")
        return found

    def mounted(self, knob: str) -> bool:
        """Return whether the file system or controller of the knob is mounted at all."""
        place = self.place(knob)
        area = KNOBS[knob].area
        if place is None:
            return False
        root = self._areas[area]
        return self.host.is_folder(f"{root}/{place.subsystem}" if place.subsystem else root)

    def children(self, group: str, subsystem: str = "cpu") -> list[str] | Fault:
        """Return the groups directly below, as paths relative to the cgroup root."""
        names = self.host.folders(self.group(subsystem, group))
        return names if isinstance(names, Fault) else [f"{group}/{name}" if group else name for name in names]

    def descend(self, group: str, depth: int, subsystem: str = "cpu") -> list[str]:
        """Return the group and all below it down to a depth, parents first. Groups that vanish meanwhile are left out.

        """
        level = [group]
        found = [group]
        for _ in range(depth):
            below: list[str] = []
            for one in level:
                children = self.children(one, subsystem)
                if not isinstance(children, Fault):
                    below += children
            found += below
            level = below
        return found

    def _join(self, knob: Knob, place: Place, group: str) -> str:
        # net_cls has no version 2: such nodes keep its version 1 folder
        subsystem = place.subsystem if knob.area is Area.CGROUP else ""
        return "/".join(filter(None, (self._areas[knob.area], subsystem, group, place.file)))
