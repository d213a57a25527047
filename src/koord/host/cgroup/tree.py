"""The cgroup tree of one node: its version, its layout, and the path and text of each knob of each group."""

from __future__ import annotations

from koord.host.cgroup.codec import FileCodec
from koord.host.cgroup.knob import KNOBS, CgroupFile, Knob, KnobFile, KnobRoot, KnobSupport
from koord.host.cgroup.layout import CgroupLayout
from koord.host.filesystem import Host
from koord.host.io_error import IoError, malformed, unsupported


class CgroupTree:
    """Access to all knobs of a node."""

    def __init__(self, host: Host, version: int, layout: CgroupLayout) -> None:
        self.host = host
        self.version = version
        self.layout = layout
        self._areas = {
            KnobRoot.CGROUP: host.paths.cgroup,
            KnobRoot.PROC: host.paths.proc,
            KnobRoot.SYS: host.paths.sys,
            KnobRoot.RESCTRL: f"{host.paths.sys_fs}/resctrl",
        }

    def knob_file(self, knob: str) -> KnobFile | None:
        """Return the knob's file in this version; None when it does not exist."""
        return KNOBS[knob].knob_file(self.version)

    def codec(self, knob: str) -> FileCodec | None:
        knob_file = self.knob_file(knob)
        return None if knob_file is None else knob_file.codec

    def path(self, file: CgroupFile) -> str | None:
        """Return the full path, whether the file exists or not; None when this version has no such knob."""
        knob = KNOBS[file.knob]
        knob_file = knob.knob_file(self.version)
        return None if knob_file is None else self._join(knob, knob_file, file.dir)

    def folder(self, file: CgroupFile) -> str | None:
        path = self.path(file)
        return None if path is None else path.rpartition("/")[0]

    def group_path(self, subsystem: str, group: str) -> str:
        """Return the directory of a group: below its controller on cgroup v1, below the root on v2."""
        return "/".join(filter(None, (self._areas[KnobRoot.CGROUP], subsystem if self.version == 1 else "", group)))

    def read(self, knob: str, group: str = "") -> str | IoError:
        """Return the text of a knob's file; on cgroup v1 from the unified tree where only that has it."""
        path = self.path(CgroupFile(knob, group))
        if path is None:
            return unsupported(knob, f"cgroup v{self.version} has no such file")
        text = self.host.read(path)
        knob_file = self.knob_file(knob)
        if isinstance(text, IoError) and text.vanished and knob_file is not None and knob_file.fallback_tree:
            other = self.host.read(
                "/".join(filter(None, (self._areas[KnobRoot.CGROUP], knob_file.fallback_tree, group, knob_file.file)))
            )
            return text if isinstance(other, IoError) else other
        return text

    def value(self, knob: str, group: str = "", key: str = "") -> str | IoError:
        """Return the knob's value in cgroup v1's terms; `key` names the device or feature of files that hold many."""
        text = self.read(knob, group)
        codec = self.codec(knob)
        if isinstance(text, IoError) or codec is None:
            return text
        field = codec.extract(text, key)
        if field is None:
            return malformed(self.path(CgroupFile(knob, group)) or knob, f"unexpected text {text[:80]!r}")
        return codec.decode(field)

    def is_supported(self, knob: str, group: str = "") -> bool:
        """Return whether the file exists, checked where the knob's support says."""
        knob_file = self.knob_file(knob)
        if knob_file is None:
            return False
        if knob_file.support is KnobSupport.ALWAYS:
            return True
        where = {KnobSupport.HERE: group, KnobSupport.KUBEPODS: self.layout.kubepods, KnobSupport.ROOT: ""}[
            knob_file.support
        ]
        path = self.path(CgroupFile(knob, where))
        found = path is not None and self.host.exists(path)
        if not found and knob_file.fallback_tree:
            return self.host.exists(
                f"{self._areas[KnobRoot.CGROUP]}/{knob_file.fallback_tree}/{where}/{knob_file.file}"
            )
        return found

    def is_mounted(self, knob: str) -> bool:
        """Return whether the file system or controller of the knob is mounted at all."""
        knob_file = self.knob_file(knob)
        area = KNOBS[knob].root
        if knob_file is None:
            return False
        root = self._areas[area]
        return self.host.is_folder(f"{root}/{knob_file.subsystem}" if knob_file.subsystem else root)

    def children(self, group: str, subsystem: str = "cpu") -> list[str] | IoError:
        """Return the groups directly below, as paths relative to the cgroup root."""
        names = self.host.list_folders(self.group_path(subsystem, group))
        return names if isinstance(names, IoError) else [f"{group}/{name}" if group else name for name in names]

    def _join(self, knob: Knob, knob_file: KnobFile, group: str) -> str:
        # net_cls has no version 2: such nodes keep its version 1 folder
        subsystem = knob_file.subsystem if knob.root is KnobRoot.CGROUP else ""
        return "/".join(filter(None, (self._areas[knob.root], subsystem, group, knob_file.file)))
