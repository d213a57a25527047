"""Names of the cgroups of QoS classes, pods and containers below the cgroup root, for both drivers and any prefix.

A kubelet with `--cgroup-root` (kind starts it with /kubelet) puts its tree below other groups, and the systemd driver
then repeats their names: kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice.
"""

from __future__ import annotations

import msgspec

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.api.koordinator.slo import HostApplicationSpec

SYSTEMD, CGROUPFS = "systemd", "cgroupfs"
_CRI_O, _CRI_O_PREFIX = "cri-o", "crio-"
_SCOPE = {"docker": "docker", "containerd": "cri-containerd", "pouch": "pouch", _CRI_O: "crio"}
_TIER = {GUARANTEED: "", BURSTABLE: "burstable", BEST_EFFORT: "besteffort"}
_HOST_APP = {"LSE": "host-latency-sensitive", "LSR": "host-latency-sensitive", "LS": "host-latency-sensitive"}
_HOST_APP["BE"] = "host-best-effort"


class CgroupLayout(msgspec.Struct, frozen=True):
    """The naming scheme of one node. `prefix` names the groups above kubepods, outermost first."""

    driver: str
    prefix: tuple[str, ...] = ()

    @property
    def kubepods(self) -> str:
        return self.qos_dir(GUARANTEED)

    def qos_dir(self, kube_qos: str) -> str:
        """Return the group of a Kubernetes QoS class; Guaranteed pods live directly in the group of all pods."""
        return self._path(("kubepods", *filter(None, (_TIER[kube_qos],))))

    def pod_dir(self, kube_qos: str, uid: str) -> str:
        if self.driver == CGROUPFS:
            return f"{self.qos_dir(kube_qos)}/pod{uid}"
        above = self.qos_dir(kube_qos)
        stem = above.rpartition("/")[2].removesuffix(".slice")
        return f"{above}/{stem}-pod{uid.replace('-', '_')}.slice"

    def group_of_parent(self, cgroup_parent: str) -> str:
        """Return the group of a sandbox by the cgroup_parent of CRI.

        The kubelet with the systemd driver gives the name of the slice alone, and the name tells where it lies.
        """
        path = cgroup_parent.strip("/")
        if self.driver == CGROUPFS or "/" in path or not path.endswith(".slice"):
            return path
        names = tuple(path.removesuffix(".slice").split("-"))
        return _slices(names) if all(names) else path

    def container_dir(self, pod_dir: str, container_id: str) -> str | None:
        """Return the group of `<runtime>://<id>`; None when the runtime is unknown or the id is empty."""
        name = self.container_name(container_id)
        return None if name is None else f"{pod_dir}/{name}"

    def container_name(self, container_id: str) -> str | None:
        runtime, found, plain = container_id.partition("://")
        if not found or not plain or runtime not in _SCOPE:
            return None
        if self.driver == CGROUPFS:  # where only CRI-O has a name of its own
            return f"{_CRI_O_PREFIX}{plain}" if runtime == _CRI_O else plain
        return f"{_SCOPE[runtime]}-{plain}.scope"

    def pod_uid_of_dir(self, name: str) -> str | None:
        """Return the pod's UID from the last part of its path. Under systemd the dashes of the UID are restored."""
        if self.driver == CGROUPFS:
            return name[3:] if name.startswith("pod") and len(name) > 3 else None
        stem, dot, kind = name.rpartition(".")
        if not dot or kind != "slice":
            return None
        above, found, uid = stem.partition("-pod")
        known = {self.qos_dir(tier).rpartition("/")[2].removesuffix(".slice") for tier in _TIER}
        return uid.replace("_", "-") if found and uid and above in known else None

    def container_id_of_dir(self, name: str) -> str | None:
        """Return the plain container id from the last part of its path; None for groups that are no containers."""
        if self.driver == CGROUPFS:
            return name.removeprefix(_CRI_O_PREFIX) or None
        stem, dot, kind = name.rpartition(".")
        if not dot:  # CRI-O makes groups without a scope for its monitor and for sandboxes
            return (name.removeprefix(_CRI_O_PREFIX) or None) if name.startswith(_CRI_O_PREFIX) else None
        for scope in _SCOPE.values():
            if kind == "scope" and stem.startswith(f"{scope}-"):
                return stem.removeprefix(f"{scope}-") or None
        return None

    def host_application_dir(self, one: HostApplicationSpec) -> str:
        """Return the group of a host application: where its cgroupPath says, else by its QoS class."""
        path = one.cgroup_path
        if path is None:
            return "/".join(filter(None, (_HOST_APP.get(one.qos, ""), one.name)))
        above = {
            "Kubepods": self.kubepods,
            "KubepodsBurstable": self.qos_dir(BURSTABLE),
            "KubepodsBesteffort": self.qos_dir(BEST_EFFORT),
        }.get(path.base, "")
        return "/".join(filter(None, (above, path.parent_dir.strip("/"), path.relative_path.strip("/"))))

    def _path(self, names: tuple[str, ...]) -> str:
        names = (*self.prefix, *names)
        if self.driver == CGROUPFS:
            return "/".join(names)
        return _slices(names)


def _slices(names: tuple[str, ...]) -> str:
    """Return the path of a slice. Its name tells the whole path, one dash per level."""
    return "/".join(f"{'-'.join(names[: depth + 1])}.slice" for depth in range(len(names)))


def kube_qos_of_path(path: str) -> str:
    return BEST_EFFORT if "besteffort" in path else BURSTABLE if "burstable" in path else GUARANTEED
