"""Probe what this node's kernel supports: every knob, whether it works here, and how that is known.

Cgroup files are probed by writing their own value, which changes nothing. Files of the whole machine are only read:
some of them act on every write.
"""

from __future__ import annotations

import enum
import errno

import msgspec

from koord.api.qos_class import BEST_EFFORT
from koord.host import perf, resctrl
from koord.host.cgroup.device_codec import DeviceNumber, DeviceSettings
from koord.host.cgroup.knob import CPU_BURST, CPU_IDLE, CPU_QUOTA, CPU_SHARES, KNOBS, Area, Knob, Place, Support
from koord.host.cgroup.tree import File, Tree
from koord.host.cold_memory import kidled
from koord.host.fault import Fault

_PROBE_GROUP = "koord-probe"


class State(enum.Enum):
    """Whether a knob works on this node."""
    SUPPORTED = "supported"
    DEGRADED = "degraded"  # works with a difference that `how` explains
    OFF = "off"  # not there
    REJECTED = "rejected"  # there, but it refuses


class Capability(msgspec.Struct, frozen=True):
    """Whether one knob or feature works. `version` is that of the cgroup tree, 0 for what has none."""

    knob: str
    version: int
    state: State
    how: str
    errno: str = ""


def capabilities(tree: Tree, *, probe: bool = True) -> list[Capability]:
    """Return one row per knob and feature. Without `probe` nothing is written, and existing files count as working."""
    rows = [_row(tree, knob, probe) for knob in KNOBS.values()]
    if probe:
        rows = [_with_burst(tree, row) if row.knob == CPU_BURST else row for row in rows]
    for name, fault in (
        ("perf_event", perf.available()),
        ("kidled", kidled(tree.host)),
        ("resctrl", resctrl.supported(tree.host)),
    ):
        rows.append(_feature(name, fault))
    return rows


def burst_above_quota(tree: Tree) -> bool | Fault:
    """Return whether the kernel accepts a burst above the quota (vendors' do, mainline does not),
    probed in a group of ours.
    """
    group = f"{tree.layout.kubepods}/{_PROBE_GROUP}"
    folder = tree.group("cpu", group)
    fault = tree.host.make_folder(folder)
    if fault is not None:
        return fault
    try:
        for knob, value in ((CPU_QUOTA, "10000"), (CPU_BURST, "20000")):
            refused = tree.host.write(tree.path(File(knob, group)) or "", value)
            if refused is not None:
                return False if knob == CPU_BURST and refused.code == "EINVAL" else refused
        return True
    finally:
        tree.host.remove_folder(folder)


def _row(tree: Tree, knob: Knob, probe: bool) -> Capability:
    version = tree.version if knob.area is Area.CGROUP else 0
    place = knob.place(tree.version)
    if place is None:
        return Capability(knob.name, version, State.OFF, f"cgroup v{tree.version} has no such file")
    if not tree.mounted(knob.name):
        return Capability(knob.name, version, State.OFF, f"{place.subsystem or knob.area.value} is not mounted")
    group = _group(tree, knob, place)
    path = tree.path(File(knob.name, group)) or ""
    if not tree.host.exists(path):
        if place.also and not isinstance(tree.read(knob.name, group), Fault):
            return Capability(knob.name, version, State.DEGRADED, f"no {path}; read from the {place.also} tree instead")
        return Capability(knob.name, version, State.OFF, f"no {path}")
    text = tree.host.read(path)
    if isinstance(text, Fault):
        return Capability(knob.name, version, State.REJECTED, str(text), text.code)
    if not place.writable:
        return Capability(knob.name, version, State.SUPPORTED, f"read {path}")
    if knob.area is not Area.CGROUP or not probe or isinstance(place.codec, DeviceNumber | DeviceSettings):
        if not tree.host.writable(path):
            return Capability(knob.name, version, State.REJECTED, f"{path} is not writable for us", "EACCES")
        return Capability(knob.name, version, State.SUPPORTED, f"found {path}, not tried")
    return _tried(tree, knob.name, place, group, path, text)


def _tried(tree: Tree, knob: str, place: Place, group: str, path: str, text: str) -> Capability:
    field = place.codec.pick(text, "")
    if field is None:
        return Capability(knob, tree.version, State.REJECTED, f"{path} holds {text[:40]!r}")
    refused = tree.host.write(path, place.codec.line(text, "", field))
    if refused is None:
        return Capability(knob, tree.version, State.SUPPORTED, f"{path} took its own value {field or 'nothing'}")
    if knob == CPU_SHARES and tree.value(CPU_IDLE, group) == "1":
        return Capability(knob, tree.version, State.DEGRADED, "the group is idle and has no shares", refused.code)
    return Capability(knob, tree.version, State.REJECTED, f"{refused}, with its own value {field!r}", refused.code)


def _with_burst(tree: Tree, row: Capability) -> Capability:
    if row.state is not State.SUPPORTED or burst_above_quota(tree) is not False:
        return row
    return msgspec.structs.replace(row, state=State.DEGRADED, how=f"{row.how}; not above the quota", errno="EINVAL")


def _group(tree: Tree, knob: Knob, place: Place) -> str:
    if knob.area is not Area.CGROUP or place.support is Support.ROOT:
        return ""
    return tree.layout.qos_dir(BEST_EFFORT)


def _feature(name: str, fault: Fault | None) -> Capability:
    if fault is None:
        return Capability(name, 0, State.SUPPORTED, "tried")
    refused = fault.errno in (errno.EACCES, errno.EPERM)  # any other errno is a kernel or a machine without it
    return Capability(name, 0, State.REJECTED if refused else State.OFF, str(fault), fault.code if fault.errno else "")
