"""The BlkioReconcile strategy: disk limits of best-effort work and of annotated pods, and the disks' cost models.

A block device that cannot be found now keeps its limits, and so do disks that are not mentioned any more: they may be
the same. Where all devices are found, limits that nobody wants any more are removed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import blkio_qos
from koord.api.annotations.codec import Malformed
from koord.api.protocol import A_BLKIO_QOS
from koord.api.slo_strategy import BlkIOQOS, BlockConfig, IOConfig, ResourceQOS, ResourceQOSStrategy
from koord.koordlet.plan import Plan, WriteCgroup
from koord.koordlet.pod import PodView
from koord.koordlet.strategies import file
from koord.koordlet.strategies.disk import DEVICE, POD_VOLUME, VOLUME_GROUP, Disks

OWNER = "BlkioReconcile"
CAUSE = "UpdateBlkIO"
THROTTLES = (file.READ_IOPS, file.READ_BPS, file.WRITE_IOPS, file.WRITE_BPS)
FULL_WEIGHT = 100
_LATENCY_PERCENT, _LATENCY_US = 95, 3000


class BlkioView(msgspec.Struct, frozen=True, kw_only=True):
    """What the strategy observes."""
    strategy: ResourceQOSStrategy | None  # None until a NodeSLO was seen
    disks: Disks = Disks()
    besteffort: str = ""
    root: str = ""  # the top of the blkio hierarchy
    pods: tuple[PodView, ...] = ()
    mounts: Mapping[tuple[str, str], str] = {}  # mount point by a pod's uid and the name of one of its volumes
    supported: frozenset[str] = frozenset(THROTTLES)  # files that this kernel has
    present: Mapping[str, frozenset[str]] = {}  # disks that have settings now, by cgroup


def decide_blkio(seen: BlkioView) -> Plan:
    """Decide the disk limits of all groups."""
    if seen.strategy is None:
        return Plan(why="no NodeSLO was seen yet")
    writes: list[WriteCgroup] = []
    said: list[str] = []
    targets: list[tuple[str, tuple[BlockConfig, ...], PodView | None]] = [
        (seen.besteffort, _enabled(seen.strategy.be_class), None)
    ]
    for pod in seen.pods:
        if pod.phase == "Running" and pod.qos and A_BLKIO_QOS in pod.annotations:
            blocks = _of_pod(pod)
            if isinstance(blocks, Malformed):
                said.append(f"{pod.full_name}: {blocks}")
            else:
                targets.append((pod.group, blocks, pod))
    for group, blocks, owner in targets:
        found, lost = _resolved(seen, blocks, owner)
        said += [f"{group}: {name} is no disk of this node" for name in lost]
        for number, config in found.items():
            writes += _limits(seen, group, number, config)
        stale = () if lost else sorted(seen.present.get(group, frozenset()) - found.keys())
        for number in stale:
            writes += _limits(seen, group, number, IOConfig())
    return Plan(effects=(*writes, *_root(seen, seen.strategy, said)), why="; ".join(said))


def _enabled(block: ResourceQOS | None) -> tuple[BlockConfig, ...]:
    config = None if block is None else block.blkio_qos
    return config.blocks if config is not None and config.enable else ()


def _of_pod(pod: PodView) -> tuple[BlockConfig, ...] | Malformed:
    if not pod.annotations[A_BLKIO_QOS].strip():
        return ()
    own = blkio_qos.parse(pod.annotations)
    return own if isinstance(own, Malformed) else (own or BlkIOQOS()).blocks


def _resolved(
    seen: BlkioView, blocks: tuple[BlockConfig, ...], pod: PodView | None
) -> tuple[dict[str, IOConfig], list[str]]:
    found: dict[str, IOConfig] = {}
    lost: list[str] = []
    for block in blocks:
        number: str | None = None
        if block.type == DEVICE:
            number = seen.disks.of_device(block.name)
        elif block.type == VOLUME_GROUP:
            number = seen.disks.of_volume_group(block.name)
        elif block.type == POD_VOLUME and pod is not None:
            number = seen.disks.of_mount(seen.mounts.get((pod.uid, block.name), ""))
        if number is None:
            lost.append(f"{block.type} {block.name}")
        else:
            found[number] = block.io_cfg
    return found, lost


def _limits(seen: BlkioView, group: str, number: str, config: IOConfig) -> list[WriteCgroup]:
    values = zip(THROTTLES, (config.read_iops, config.read_bps, config.write_iops, config.write_bps), strict=True)
    lines = [(name, f"{number} {value or 0}") for name, value in values]
    lines.append((file.IO_WEIGHT, f"{number} {config.io_weight_percent or FULL_WEIGHT}"))
    return _writes(seen, group, lines)


def _root(seen: BlkioView, strategy: ResourceQOSStrategy, said: list[str]) -> list[WriteCgroup]:
    found, lost = _resolved(seen, _enabled(strategy.cgroup_root), None)
    said += [f"root: {name} is no disk of this node" for name in lost]
    lines: list[tuple[str, str]] = []
    for number, config in found.items():
        lines += [(file.IO_QOS, _cost_qos(number, config)), (file.IO_MODEL, _cost_model(number, config))]
    if not lost:
        stale = sorted(seen.present.get(seen.root, frozenset()) - found.keys())
        lines += [(file.IO_QOS, f"{number} enable=0") for number in stale]
    return _writes(seen, seen.root, lines)


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


def _writes(seen: BlkioView, group: str, lines: list[tuple[str, str]]) -> list[WriteCgroup]:
    """Return the writes of files that this kernel has; a kernel without one of them still gets the others."""
    return [
        WriteCgroup(group=group, file=name, value=line, owner=OWNER, cause=CAUSE, why="as configured")
        for name, line in lines
        if name in seen.supported
    ]
