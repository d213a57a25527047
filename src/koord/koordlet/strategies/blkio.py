"""The BlkioReconcile strategy: disk limits of best-effort work and of annotated pods, and the disks' cost models.

A block device that cannot be found now keeps its limits, and so do disks that are not mentioned any more: they may be
the same. Where all devices are found, limits that nobody wants any more are removed.

On cgroup v1 the kernel compares a process with the limits of its own group alone, not with those of the groups above
it. So there the running containers below a limited group get equal parts of its limits.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import qos_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_BLKIO_QOS
from koord.api.koordinator.slo import BlkIOQOS, BlockConfig, IOConfig, ResourceQOS, ResourceQOSStrategy
from koord.host.cgroup import knob
from koord.host.hardware import BlockDevices
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.machine import DEVICE, POD_VOLUME, VOLUME_GROUP
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan

OWNER = "BlkioReconcile"
CAUSE = "UpdateBlkIO"
FULL_WEIGHT = 100
_LATENCY_PERCENT, _LATENCY_US = 95, 3000


class BlkioView(msgspec.Struct, frozen=True, kw_only=True):
    strategy: ResourceQOSStrategy | None  # None until a NodeSLO was seen
    disks: BlockDevices = BlockDevices()
    besteffort: str = ""
    root: str = ""  # the top of the blkio hierarchy
    pods: tuple[PodMeta, ...] = ()
    mounts: Mapping[tuple[str, str], str] = {}  # mount point by a pod's uid and the name of one of its volumes
    supported: frozenset[str] = frozenset(knob.IO_THROTTLES)  # files that this kernel has
    present: Mapping[str, frozenset[str]] = {}  # disks that have settings now, by cgroup
    inherited: bool = True  # limits of a group hold for the groups below it, as on cgroup v2


def decide_blkio(view: BlkioView) -> StrategyPlan:
    if view.strategy is None:
        return StrategyPlan(why="no NodeSLO was seen yet")
    writes: list[WriteCgroup] = []
    said: list[str] = []
    divided: dict[str, dict[tuple[str, str], int]] = {}  # by container group, then by knob and disk
    targets: list[tuple[str, tuple[BlockConfig, ...], PodMeta | None]] = [
        (view.besteffort, _enabled_blocks(view.strategy.be_class), None)
    ]
    for pod in view.pods:
        if pod.phase == "Running" and pod.qos and A_BLKIO_QOS in pod.annotations:
            blocks = _blocks_of_pod(pod)
            if isinstance(blocks, MalformedAnnotation):
                said.append(f"{pod.full_name}: {blocks}")
            else:
                targets.append((pod.group, blocks, pod))
    for group, blocks, owner in targets:
        found, lost = _resolve_disks(view, blocks, owner)
        said += [f"{group}: {name} is no disk of this node" for name in lost]
        for number, config in found.items():
            writes += _limits(view, group, number, config)
            if not view.inherited:
                _divide(divided, _running_containers(view, owner), number, config)
        stale = () if lost else sorted(view.present.get(group, frozenset()) - found.keys())
        for number in stale:
            writes += _limits(view, group, number, IOConfig())
    for group, limits in divided.items():
        writes += _writes(view, group, [(name, f"{number} {limit}") for (name, number), limit in limits.items()])
    effects = (*writes, *_root(view, view.strategy, said))
    # A disk that cannot be found now is named in `why`, and its limits must stay.
    return StrategyPlan(effects=effects, why="; ".join(said), complete=not said)


def _enabled_blocks(block: ResourceQOS | None) -> tuple[BlockConfig, ...]:
    config = None if block is None else block.blkio_qos
    return config.blocks if config is not None and config.enable else ()


def _blocks_of_pod(pod: PodMeta) -> tuple[BlockConfig, ...] | MalformedAnnotation:
    if not pod.annotations[A_BLKIO_QOS].strip():
        return ()
    own = qos_codecs.parse_blkio_qos(pod.annotations)
    return own if isinstance(own, MalformedAnnotation) else (own or BlkIOQOS()).blocks


def _resolve_disks(
    view: BlkioView, blocks: tuple[BlockConfig, ...], pod: PodMeta | None
) -> tuple[dict[str, IOConfig], list[str]]:
    found: dict[str, IOConfig] = {}
    lost: list[str] = []
    for block in blocks:
        number: str | None = None
        if block.type == DEVICE:
            number = view.disks.number_of_device(block.name)
        elif block.type == VOLUME_GROUP:
            number = view.disks.number_of_volume_group(block.name)
        elif block.type == POD_VOLUME and pod is not None:
            number = view.disks.number_of_mount(view.mounts.get((pod.uid, block.name), ""))
        if number is None:
            lost.append(f"{block.type} {block.name}")
        else:
            found[number] = block.io_cfg
    return found, lost


def _throttles(config: IOConfig) -> list[tuple[str, int]]:
    """Return each knob with its limit; 0 is none."""
    limits = (config.read_iops, config.read_bps, config.write_iops, config.write_bps)
    return [(name, value or 0) for name, value in zip(knob.IO_THROTTLES, limits, strict=True)]


def _limits(view: BlkioView, group: str, number: str, config: IOConfig) -> list[WriteCgroup]:
    lines = [(name, f"{number} {value}") for name, value in _throttles(config)]
    lines.append((knob.IO_WEIGHT, f"{number} {config.io_weight_percent or FULL_WEIGHT}"))
    return _writes(view, group, lines)


def _running_containers(view: BlkioView, owner: PodMeta | None) -> list[str]:
    """Return the groups of the running containers of one pod, or of all best-effort pods."""
    pods = view.pods if owner is None else (owner,)
    return [
        container.group
        for pod in pods
        if owner is not None or pod.group.startswith(f"{view.besteffort}/")
        for container in (*pod.containers, *pod.init_containers)
        if container.running and container.group
    ]


def _divide(
    divided: dict[str, dict[tuple[str, str], int]], containers: list[str], number: str, config: IOConfig
) -> None:
    """Give containers equal parts of the limits of one disk; the smaller part counts where two limits meet."""
    for group in containers:
        for name, limit in _throttles(config):
            if limit:
                part = max(1, limit // len(containers))
                limits = divided.setdefault(group, {})
                limits[name, number] = min(part, limits.get((name, number), part))


def _root(view: BlkioView, strategy: ResourceQOSStrategy, said: list[str]) -> list[WriteCgroup]:
    found, lost = _resolve_disks(view, _enabled_blocks(strategy.cgroup_root), None)
    said += [f"root: {name} is no disk of this node" for name in lost]
    lines: list[tuple[str, str]] = []
    for number, config in found.items():
        lines += [
            (knob.IO_QOS, _cost_qos(number, config)),
            (knob.IO_MODEL, _cost_model(number, config)),
        ]
    if not lost:
        stale = sorted(view.present.get(view.root, frozenset()) - found.keys())
        lines += [(knob.IO_QOS, f"{number} enable=0") for number in stale]
    return _writes(view, view.root, lines)


def _cost_qos(number: str, config: IOConfig) -> str:
    read_percent, write_percent = config.read_latency_percent, config.write_latency_percent
    return (
        f"{number} enable=1 ctrl=user"
        f" rpct={_LATENCY_PERCENT if read_percent is None else read_percent}"
        f" rlat={_LATENCY_US if config.read_latency is None else config.read_latency}"
        f" wpct={_LATENCY_PERCENT if write_percent is None else write_percent}"
        f" wlat={_LATENCY_US if config.write_latency is None else config.write_latency}"
    )


def _cost_model(number: str, config: IOConfig) -> str:
    if not config.enable_user_model:
        return f"{number} ctrl=auto"
    return (
        f"{number} ctrl=user rbps={config.model_read_bps or 0} rseqiops={config.model_read_seq_iops or 0}"
        f" rrandiops={config.model_read_rand_iops or 0} wbps={config.model_write_bps or 0}"
        f" wseqiops={config.model_write_seq_iops or 0} wrandiops={config.model_write_rand_iops or 0}"
    )


def _writes(view: BlkioView, group: str, lines: list[tuple[str, str]]) -> list[WriteCgroup]:
    """Return the writes of files that this kernel has; a kernel without one of them still gets the others."""
    return [
        WriteCgroup(group=group, file=name, value=line, owner=OWNER, cause=CAUSE, why="as configured")
        for name, line in lines
        if name in view.supported
    ]


def observe_blkio(inputs: StrategyInputs) -> BlkioView:
    """Observe the disks, the pods' volumes and the limits that exist now."""
    machine, besteffort = inputs.machine, inputs.machine.shape.besteffort
    groups = [besteffort, *(pod.group for pod in inputs.pods if pod.group)]
    limited = {group: disks for group in ("", *groups) if (disks := machine.limited_disks(group))}
    return BlkioView(
        strategy=inputs.resource_qos_strategy,
        disks=machine.shape.disks,
        besteffort=besteffort,
        root="",
        pods=inputs.pods,
        mounts=inputs.node_inputs.mounts,
        supported=frozenset(name for name in knob.PER_DISK_FILES if machine.has_knob(name)),
        present=limited,
        inherited=machine.shape.cgroup_version == 2,
    )
