"""Build this node's Device: accelerators and network cards, where they are attached, whether they are healthy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import combinations
from types import MappingProxyType

import msgspec

from koord.api.annotations.device_codecs import (
    GPU_PARTITION_HONOR,
    GPU_PARTITION_PREFER,
    NVLINK,
    GPUPartition,
    dump_gpu_partition_table,
)
from koord.api.koordinator.protocol import (
    A_GPU_PARTITIONS,
    L_GPU_DRIVER_VERSION,
    L_GPU_MODEL,
    L_GPU_PARTITION_POLICY,
    L_GPU_VENDOR,
)
from koord.api.koordinator.resource_name import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.api.koordinator.resource_name import RDMA as RDMA_RESOURCE
from koord.api.koordinator.scheduling import (
    GPU,
    HEALTHY,
    RDMA,
    DeviceInfo,
    DeviceTopology,
    VirtualFunction,
    VirtualFunctionGroup,
)
from koord.api.kubernetes.meta import Condition
from koord.api.model import ResourceList
from koord.host.hardware import LOST, GpuCard, GpuHealth, GpuInventory, PciLocation, RdmaCard, Xpu
from koord.koordlet.reporters.builders.reclaimable import bytes_quantity
from koord.values.go_format import parse_decimal_int

MANAGED_LABELS = (L_GPU_VENDOR, L_GPU_MODEL, L_GPU_DRIVER_VERSION, L_GPU_PARTITION_POLICY)
MANAGED_ANNOTATIONS = (A_GPU_PARTITIONS,)
_WHOLE = {"gpu-core": GPU_CORE, "gpu-memory": GPU_MEMORY}
_PARTITION_SIZES = (2, 4, 8)
MIG_ENABLED = "nvidia.com/mig.enabled"  # label of a card; the instances have one label for each profile
# Nobody gets the whole of a card that is divided: CUDA would use one instance of it, which another pod may have.
_DIVIDED = GpuHealth(
    False, "MigEnabled", "the card is divided by MIG; NVIDIA's device plugin gives its instances to pods"
)


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """All of the Device that this agent is responsible for. Keys that are absent are to be absent there."""

    devices: tuple[DeviceInfo, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


def build_device_report(
    xpus: Sequence[Xpu],
    cards: Sequence[RdmaCard],
    before: Sequence[DeviceInfo],
    now_s: float,
    gpus: GpuInventory = GpuInventory(),  # noqa: B008 - a frozen value
    places: Mapping[str, PciLocation] = MappingProxyType({}),
) -> DeviceReport:
    """Build the Device. `before` is what was reported last: a condition that did not change keeps its time. `places`
    are those of NVIDIA cards by uuid.

    Accelerators that a vendor describes in files take precedence over what NVML reports.
    """
    now = datetime.fromtimestamp(now_s, UTC).replace(microsecond=0)
    known = {(one.type, one.minor): one.conditions for one in before}
    devices = [_xpu(one, now) for one in xpus] + [_card(one) for one in cards]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    if gpus.cards and not xpus:
        devices += [_gpu(card, places.get(card.uuid), gpus.health.get(card.uuid), now) for card in gpus.cards]
        devices += _unidentified(gpus, before, now)
        models = {card.model for card in gpus.cards}
        model = models.pop().removeprefix("NVIDIA ").replace(" ", "-") if len(models) == 1 else ""
        labels = {L_GPU_VENDOR: "nvidia", L_GPU_MODEL: model, L_GPU_DRIVER_VERSION: gpus.driver}
        linked = nvlink_partitions(gpus.cards)
        if linked:
            labels[L_GPU_PARTITION_POLICY] = GPU_PARTITION_PREFER
            annotations[A_GPU_PARTITIONS] = dump_gpu_partition_table(linked)
    devices = [_keep_transition_times(one, known) for one in devices]
    devices.sort(key=lambda one: (one.type, one.minor or 0))
    if xpus:
        first = xpus[0]
        labels = {L_GPU_VENDOR: first.vendor, L_GPU_MODEL: first.model}
        if first.topology is not None and first.topology.p2p_links:
            labels[L_GPU_PARTITION_POLICY] = (
                GPU_PARTITION_HONOR if first.topology.must_honor_partition else GPU_PARTITION_PREFER
            )
            annotations[A_GPU_PARTITIONS] = dump_gpu_partition_table(gpu_partitions(xpus))
    return DeviceReport(
        devices=tuple(devices), labels={name: text for name, text in labels.items() if text}, annotations=annotations
    )


def gpu_partitions(xpus: Sequence[Xpu]) -> dict[int, tuple[GPUPartition, ...]]:
    """Return the groups of linked accelerators by size, each group once however many of its members name it."""
    found: dict[tuple[int, ...], GPUPartition] = {}
    for one in xpus:
        for link in () if one.topology is None else one.topology.p2p_links:
            if not link.peer_minor or not link.type:
                continue
            peers = [parse_decimal_int(text.strip()) for text in link.peer_minor.split(",")]
            minors = tuple(sorted({int(one.minor), *(peer for peer in peers if peer is not None)}))
            found.setdefault(minors, GPUPartition(minors=minors, gpu_link_type=link.type, allocation_score=1))
    by_size: dict[int, list[GPUPartition]] = {}
    for minors in sorted(found):
        by_size.setdefault(len(minors), []).append(found[minors])
    return {size: tuple(listed) for size, listed in sorted(by_size.items())}


def nvlink_partitions(cards: Sequence[GpuCard]) -> dict[int, tuple[GPUPartition, ...]]:
    """Return the groups of cards that NVLinks join directly, by size: all pairs of a group are linked. Cards that are
    joined only through others are one group. The score is 1 for the groups of a size whose weakest pair has the most
    links, 2 for the next: schedulers try the lowest score first.

    Behind switches every group is as good as another: there is nothing to tell.
    """
    if any(card.switch_links for card in cards):
        return {}
    minors = {card.address: card.minor for card in cards if not card.mig_enabled}
    links = {
        (card.minor, minors[address]): count
        for card in cards
        for address, count in card.links.items()
        if address in minors and card.address in minors
    }
    by_size: dict[int, dict[tuple[int, ...], int]] = {}  # with the links of the weakest pair
    for component in _components(sorted(minors.values()), links):
        for size in {*_PARTITION_SIZES, len(component)}:
            for group in combinations(component, size) if size > 1 else ():
                weakest = min(links.get(pair, 0) for pair in combinations(group, 2))
                if weakest or group == component:
                    by_size.setdefault(size, {})[group] = weakest
    if by_size:
        by_size[1] = dict.fromkeys(((minor,) for minor in minors.values()), 0)  # for pods that ask for one card
    return {size: _ranked(by_size[size]) for size in sorted(by_size)}


def _ranked(groups: Mapping[tuple[int, ...], int]) -> tuple[GPUPartition, ...]:
    ranks = {links: rank for rank, links in enumerate(sorted(set(groups.values()), reverse=True), 1)}
    return tuple(
        GPUPartition(minors=group, gpu_link_type=NVLINK, allocation_score=ranks[groups[group]])
        for group in sorted(groups)
    )


def _components(minors: Sequence[int], links: Mapping[tuple[int, int], int]) -> list[tuple[int, ...]]:
    """Return the sets of cards that are joined, directly or through others."""
    left, found = set(minors), []
    while left:
        reached, todo = set[int](), {min(left)}
        while todo:
            reached |= todo
            todo = {there for here, there in links if here in todo} - reached
        left -= reached
        found.append(tuple(sorted(reached)))
    return found


def _unidentified(gpus: GpuInventory, before: Sequence[DeviceInfo], now: datetime) -> list[DeviceInfo]:
    """Return the cards that were reported earlier and are among those that do not say who they are."""
    if not gpus.unidentified:
        return []
    present = {card.uuid for card in gpus.cards}
    return [
        msgspec.structs.replace(one, health=False, conditions=(_condition(False, LOST.code, LOST.message, now),))
        for one in before
        if one.type == GPU and one.id not in present
    ]


def _xpu(one: Xpu, now: datetime) -> DeviceInfo:
    resources: ResourceList = {_WHOLE.get(name, name): amount for name, amount in one.resources.items()}
    topology, status = one.topology, one.status
    return DeviceInfo(
        type=GPU,
        id=one.uuid,
        minor=int(one.minor),
        health=status is None or status.healthy,
        resources=resources | {GPU_MEMORY_RATIO: "100"},
        topology=None
        if topology is None
        else DeviceTopology(
            socket_id=-1,
            node_id=(parse_decimal_int(topology.node_id) or 0) if topology.node_id else -1,
            pcie_id=topology.pcie_id,
            bus_id=topology.bus_id,
        ),
        conditions=()
        if status is None
        else (
            _condition(True, "", "", now)
            if status.healthy
            else _condition(False, status.err_code, status.err_message, now),
        ),
    )


def _condition(healthy: bool, code: str, message: str, now: datetime) -> Condition:
    reason = code or ("DeviceHealthy" if healthy else "Unknown")
    message = message or ("device is healthy" if healthy else "device is unhealthy")
    return Condition(
        type=HEALTHY, status="True" if healthy else "False", reason=reason, message=message, last_transition_time=now
    )


def _keep_transition_times(
    device: DeviceInfo, known: Mapping[tuple[str, int | None], tuple[Condition, ...]]
) -> DeviceInfo:
    before = {one.type: one for one in known.get((device.type, device.minor), ())}

    def settle(one: Condition) -> Condition:
        old = before.get(one.type)
        if old is None or old.status != one.status:
            return one
        return msgspec.structs.replace(one, last_transition_time=old.last_transition_time)

    return msgspec.structs.replace(device, conditions=tuple(settle(one) for one in device.conditions))


def _gpu(card: GpuCard, place: PciLocation | None, health: GpuHealth | None, now: datetime) -> DeviceInfo:
    if card.mig_enabled and (health is None or health.healthy):
        health = _DIVIDED
    return DeviceInfo(
        type=GPU,
        labels=_mig_labels(card),
        id=card.uuid,
        minor=card.minor,
        health=health is None or health.healthy,
        resources={GPU_CORE: "100", GPU_MEMORY: bytes_quantity(card.total_bytes), GPU_MEMORY_RATIO: "100"},
        topology=DeviceTopology(socket_id=-1, node_id=place.numa, pcie_id=place.root, bus_id=card.address)
        if place is not None and place.root
        else None,
        conditions=() if health is None else (_condition(health.healthy, health.code, health.message, now),),
    )


def _mig_labels(card: GpuCard) -> dict[str, str]:
    """Return labels as NVIDIA's feature discovery writes them, but of one card: `+me` becomes `.me`."""
    if not card.mig_enabled:
        return {}
    profiles = Counter(one.profile.replace("+", ".") for one in card.mig_instances)
    return {MIG_ENABLED: "true", **{f"nvidia.com/mig-{name}.count": str(n) for name, n in sorted(profiles.items())}}


def _card(one: RdmaCard) -> DeviceInfo:
    functions = tuple(VirtualFunction(minor=-1, bus_id=address) for address in sorted(one.virtual_functions))
    return DeviceInfo(
        type=RDMA,
        id=one.address,
        minor=one.minor,
        health=one.healthy,
        resources={RDMA_RESOURCE: "100"},
        topology=DeviceTopology(socket_id=-1, node_id=one.location.numa, pcie_id=one.location.root, bus_id=one.address),
        vf_groups=(VirtualFunctionGroup(vfs=functions),) if functions else (),
    )
