"""Probe what this node's kernel supports: every knob, whether it works here, and how that is known.

Cgroup files are probed by writing their own value, which changes nothing. Files of the whole machine are only read:
some of them act on every write.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import msgspec

from koord.api.koordinator.protocol import BEST_EFFORT
from koord.host import core_sched, perf, resctrl, tc
from koord.host.cgroup.codec import DeviceNumberCodec, IoCostCodec
from koord.host.cgroup.knob import (
    CPU_BURST,
    CPU_IDLE,
    CPU_QUOTA,
    CPU_SHARES,
    KNOBS,
    CgroupFile,
    Knob,
    KnobFile,
    KnobRoot,
    KnobSupport,
)
from koord.host.cgroup.tree import CgroupTree
from koord.host.filesystem import Host
from koord.host.hardware import TIME_SLICE, Capability, CapabilityState
from koord.host.io_error import IoError, unsupported

_PROBE_GROUP = "koord-probe"


def probe_capabilities(
    tree: CgroupTree, *, probe: bool = True, check_tc: Callable[[], IoError | None] = tc.check_supported
) -> list[Capability]:
    """Return one row per knob and feature. Without `probe` nothing is written, and existing files count as working.

    `check_tc` is for those who cannot wait for a program, and asked before.
    """
    rows = [_row(tree, knob, probe) for knob in KNOBS.values()]
    if probe:
        rows = [_with_burst(tree, row) if row.knob == CPU_BURST else row for row in rows]
    for name, io_error in (
        ("perf_event", perf.available()),
        ("kidled", check_kidled(tree.host)),
        ("resctrl", resctrl.check_supported(tree.host)),
        ("core_sched", core_sched.check_supported(tree.host)),
        (TIME_SLICE, core_sched.check_time_slices(tree.host)),
        ("tc", check_tc()),
    ):
        rows.append(_feature(name, io_error))
    return rows


def kidled_folder(host: Host) -> str:
    return f"{host.paths.sys}/kernel/mm/kidled"


def check_kidled(host: Host) -> IoError | None:
    """Return None when both of kidled's files exist."""
    for name in ("scan_period_in_seconds", "use_hierarchy"):
        path = f"{kidled_folder(host)}/{name}"
        if not host.exists(path):
            return unsupported(path, "this kernel has no kidled")
    return None


def burst_above_quota(tree: CgroupTree) -> bool | IoError:
    """Return whether the kernel accepts a burst above the quota (vendors' do), probed in a group of ours."""
    group = f"{tree.layout.kubepods}/{_PROBE_GROUP}"
    folder = tree.group_path("cpu", group)
    io_error = tree.host.make_folder(folder)
    if io_error is not None:
        return io_error
    try:
        for knob, value in ((CPU_QUOTA, "10000"), (CPU_BURST, "20000")):
            refused = tree.host.write(tree.path(CgroupFile(knob, group)) or "", value)
            if refused is not None:
                return False if knob == CPU_BURST and refused.code == "EINVAL" else refused
        return True
    finally:
        tree.host.remove_folder(folder)


def _row(tree: CgroupTree, knob: Knob, probe: bool) -> Capability:
    version = tree.version if knob.root is KnobRoot.CGROUP else 0
    knob_file = knob.knob_file(tree.version)
    if knob_file is None:
        return Capability(knob.name, version, CapabilityState.OFF, f"cgroup v{tree.version} has no such file")
    if not tree.is_mounted(knob.name):
        return Capability(
            knob.name, version, CapabilityState.OFF, f"{knob_file.subsystem or knob.root.value} is not mounted"
        )
    group = _group(tree, knob, knob_file)
    path = tree.path(CgroupFile(knob.name, group)) or ""
    if not tree.host.exists(path):
        if knob_file.fallback_tree and not isinstance(tree.read(knob.name, group), IoError):
            return Capability(
                knob.name,
                version,
                CapabilityState.DEGRADED,
                f"no {path}; read from the {knob_file.fallback_tree} tree instead",
            )
        return Capability(knob.name, version, CapabilityState.OFF, f"no {path}")
    text = tree.host.read(path)
    if isinstance(text, IoError):
        return Capability(knob.name, version, CapabilityState.REJECTED, str(text), text.code)
    if not knob_file.writable:
        return Capability(knob.name, version, CapabilityState.SUPPORTED, f"read {path}")
    if knob.root is not KnobRoot.CGROUP or not probe or isinstance(knob_file.codec, DeviceNumberCodec | IoCostCodec):
        if not tree.host.writable(path):
            return Capability(knob.name, version, CapabilityState.REJECTED, f"{path} is not writable for us", "EACCES")
        return Capability(knob.name, version, CapabilityState.SUPPORTED, f"found {path}, not tried")
    return _tried(tree, knob.name, knob_file, group, path, text)


def _tried(tree: CgroupTree, knob: str, knob_file: KnobFile, group: str, path: str, text: str) -> Capability:
    field = knob_file.codec.extract(text, "")
    if field is None:
        return Capability(knob, tree.version, CapabilityState.REJECTED, f"{path} holds {text[:40]!r}")
    refused = tree.host.write(path, knob_file.codec.render(text, "", field))
    if refused is None:
        return Capability(
            knob, tree.version, CapabilityState.SUPPORTED, f"{path} took its own value {field or 'nothing'}"
        )
    if knob == CPU_SHARES and tree.value(CPU_IDLE, group) == "1":
        return Capability(
            knob, tree.version, CapabilityState.DEGRADED, "the group is idle and has no shares", refused.code
        )
    return Capability(
        knob, tree.version, CapabilityState.REJECTED, f"{refused}, with its own value {field!r}", refused.code
    )


def _with_burst(tree: CgroupTree, row: Capability) -> Capability:
    if row.state is not CapabilityState.SUPPORTED or burst_above_quota(tree) is not False:
        return row
    return msgspec.structs.replace(
        row, state=CapabilityState.DEGRADED, how=f"{row.how}; not above the quota", errno="EINVAL"
    )


def _group(tree: CgroupTree, knob: Knob, knob_file: KnobFile) -> str:
    if knob.root is not KnobRoot.CGROUP or knob_file.support is KnobSupport.ROOT:
        return ""
    return tree.layout.qos_dir(BEST_EFFORT)


def _feature(name: str, io_error: IoError | None) -> Capability:
    if io_error is None:
        return Capability(name, 0, CapabilityState.SUPPORTED, "tried")
    refused = io_error.errno in (errno.EACCES, errno.EPERM)  # any other errno is a kernel or a machine without it
    return Capability(
        name,
        0,
        CapabilityState.REJECTED if refused else CapabilityState.OFF,
        str(io_error),
        io_error.code if io_error.errno else "",
    )
