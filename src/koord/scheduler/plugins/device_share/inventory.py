"""The devices of a node as its Device object lists them, validated: every unusable field is named.

GPUs are grouped by NUMA node and PCIe switch: the tree in which a pod's cards are kept close together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from koord.api.annotations import device_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import DEVICE_TOPOLOGY_SCOPES, GPU_PARTITION_HONOR, GPUPartitionTable
from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.protocol import A_GPU_PARTITIONS, L_GPU_MODEL, L_GPU_VENDOR
from koord.api.koordinator.resource_name import DEPRECATED_DEVICES, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.scheduler.plugins.device_share.device_amounts import Amounts
from koord.values import resources as vector
from koord.values.quantity import QuantityError

KNOWN_TYPES = (wire.GPU, wire.RDMA, wire.FPGA)
FULL_CARD_PERCENT = 100  # percents of one card
MAX_MINOR = 4095  # sets of minors are bit masks: a wild number must not make them huge
_UNKNOWN_NUMA = -1  # the API's value for a device that belongs to no NUMA node

NODE = DEVICE_TOPOLOGY_SCOPES["Node"]
NUMA_NODE = DEVICE_TOPOLOGY_SCOPES["NUMANode"]
PCIE = DEVICE_TOPOLOGY_SCOPES["PCIe"]


class GpuTreeNode(msgspec.Struct, frozen=True):
    level: int
    minors: tuple[int, ...]
    mask: int
    children: tuple[GpuTreeNode, ...] = ()


class GpuLocation(msgspec.Struct, frozen=True):
    minor: int
    numa: int | None  # None: unknown
    pcie: str


def build_gpu_tree(places: Iterable[GpuLocation]) -> GpuTreeNode:
    """Build the GPU tree. Children are ordered by id; an unknown NUMA node comes first."""
    zones: dict[int, dict[str, list[int]]] = {}
    for place in places:
        zone = -1 if place.numa is None else place.numa
        zones.setdefault(zone, {}).setdefault(place.pcie, []).append(place.minor)
    children = tuple(
        _tree_node(NUMA_NODE, tuple(_tree_node(PCIE, (), switches[pcie]) for pcie in sorted(switches)))
        for _, switches in sorted(zones.items())
    )
    return _tree_node(NODE, children)


def _tree_node(level: int, children: tuple[GpuTreeNode, ...], minors: Iterable[int] = ()) -> GpuTreeNode:
    found = sorted(minors) if not children else sorted(m for child in children for m in child.minors)
    mask = 0
    for minor in found:
        mask |= 1 << minor
    return GpuTreeNode(level, tuple(found), mask, children)


class GpuSearchResult(msgspec.Struct, frozen=True):
    minors: tuple[int, ...]
    depth: int
    used_scopes: int  # scopes on the way down that hold used cards: fuller ones are preferred
    score: int


class GpuSearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A search for GPUs. `fitting`: the cards that could each serve one instance with scores, 0 for whole cards."""

    count: int
    fitting: Mapping[int, int]
    used: int  # mask of the cards in use
    required: int = 0  # the level at which the cards must still be together
    included: int = 0  # mask of the cards that must be among them


def search_gpu_tree(scope: GpuTreeNode, sought: GpuSearchQuery) -> GpuSearchResult | None:
    """Find GPUs: the deepest subtree wins, then the one whose surroundings are used most, then the best score."""
    return _search(scope, sought, 0, 0)


def _search(scope: GpuTreeNode, sought: GpuSearchQuery, depth: int, not_empty: int) -> GpuSearchResult | None:
    if len(scope.minors) < sought.count or sought.included & ~scope.mask:
        return None
    depth += 1
    if scope.mask & sought.used:
        not_empty += 1
    best: GpuSearchResult | None = None
    for child in scope.children:
        found = _search(child, sought, depth, not_empty)
        if found is not None and (best is None or _rank(found) > _rank(best)):
            best = found
    if best is not None or sought.required > scope.level:
        return best
    fitting = sought.fitting
    here = [minor for minor in scope.minors if minor in fitting]
    if sought.included:
        bound = [minor for minor in scope.minors if sought.included >> minor & 1]
        if len(bound) > sought.count or any(minor not in fitting for minor in bound):
            return None
        here = bound + [minor for minor in here if minor not in bound]
    if len(here) < sought.count:
        return None
    if sought.count == 1:
        chosen = here[0] if sought.included else max(here, key=lambda minor: (fitting[minor], -minor))
        return GpuSearchResult((chosen,), depth, not_empty, fitting[chosen])
    return GpuSearchResult(tuple(sorted(here[: sought.count])), depth, not_empty, 0)


def _rank(found: GpuSearchResult) -> tuple[int, int, int]:
    return found.depth, found.used_scopes, found.score


def largest_fitting_group(scope: GpuTreeNode, fitting: Mapping[int, int], level: int) -> int:
    """Return the largest number of fitting cards that one group of the level holds."""
    if scope.level >= level:
        return sum(minor in fitting for minor in scope.minors)
    return max((largest_fitting_group(child, fitting, level) for child in scope.children), default=0)


class DeviceProblem(msgspec.Struct, frozen=True):
    """A field of the Device object that cannot be used as it stands."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class CardVirtualFunction(msgspec.Struct, frozen=True):
    """A virtual function (SR-IOV VF) of a network card."""

    bus_id: str
    minor: int
    labels: Mapping[str, str]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One device of a node. An unhealthy device has no resources."""

    type: str
    minor: int
    id: str = ""
    healthy: bool = True
    total: dict[str, int] = {}
    labels: dict[str, str] = {}
    placed: bool = False  # whether its topology is known at all
    numa: int | None = None
    pcie: str | None = None
    virtual_functions: tuple[CardVirtualFunction, ...] = ()  # by bus id

    def with_both_memory_units(self, share: Amounts) -> Amounts:
        """Return a GPU share stated both in bytes and in percent, so that either unit counts against the other."""
        memory = self.total.get(GPU_MEMORY, 0)
        if self.type != wire.GPU or not memory:
            return share
        if GPU_MEMORY_RATIO in share:
            return (
                share
                if GPU_MEMORY in share
                else {**share, GPU_MEMORY: share[GPU_MEMORY_RATIO] * memory // FULL_CARD_PERCENT}
            )
        if GPU_MEMORY in share:
            return {**share, GPU_MEMORY_RATIO: share[GPU_MEMORY] * FULL_CARD_PERCENT // memory}
        return share


class DeviceInventory(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    cards: Mapping[str, Mapping[int, Card]] = {}  # type -> minor, ascending
    partitions: GPUPartitionTable | None = None
    honors_partitions: bool = False
    vendor: str = ""
    model: str = ""
    has_planned_secondary_devices: bool = (
        False  # network cards are laid out to match the GPUs and never run short before them
    )
    zones: tuple[int, ...] = ()  # NUMA nodes that have devices
    tree: GpuTreeNode | None = None  # None unless the topology of every GPU is known
    problems: tuple[DeviceProblem, ...] = ()

    def of_type(self, device_type: str) -> Mapping[int, Card]:
        return self.cards.get(device_type, {})


def build_inventory(device: wire.Device) -> DeviceInventory:
    problems: list[DeviceProblem] = []
    cards: dict[str, dict[int, Card]] = {}
    for index, info in enumerate(device.spec.devices):
        path = f"spec.devices[{index}]"
        if info.minor is None:
            problems.append(DeviceProblem(f"{path}.minor", "Required value"))
            continue
        if not 0 <= info.minor <= MAX_MINOR:
            problems.append(DeviceProblem(f"{path}.minor", f"must be between 0 and {MAX_MINOR}"))
            continue
        if info.minor in cards.get(info.type, {}):
            problems.append(DeviceProblem(f"{path}.minor", f"Duplicate value: {info.minor}"))
            continue
        if info.type not in KNOWN_TYPES:
            problems.append(DeviceProblem(f"{path}.type", f"Unsupported value: {info.type!r}"))
        cards.setdefault(info.type, {})[info.minor] = _card(info, info.minor, path, problems)
    ordered = {kind: dict(sorted(minors.items())) for kind, minors in sorted(cards.items())}
    labels = device.metadata.labels
    return DeviceInventory(
        node=device.metadata.name,
        cards=ordered,
        partitions=_usable_partitions(device, ordered.get(wire.GPU, {}), problems),
        honors_partitions=device_codecs.node_gpu_partition_policy(labels) == GPU_PARTITION_HONOR,
        vendor=labels.get(L_GPU_VENDOR, ""),
        model=labels.get(L_GPU_MODEL, ""),
        has_planned_secondary_devices=device_codecs.parse_secondary_device_well_planned(labels) is True,
        zones=tuple(sorted({c.numa for minors in ordered.values() for c in minors.values() if c.numa is not None})),
        tree=_gpu_tree(ordered.get(wire.GPU, {})),
        problems=tuple(problems),
    )


def mark_all_unhealthy(inventory: DeviceInventory) -> DeviceInventory:
    """Mark all devices unhealthy as the Device object is gone: no more is allocated, existing use is known."""
    cards = {
        kind: {minor: msgspec.structs.replace(card, healthy=False, total={}) for minor, card in minors.items()}
        for kind, minors in inventory.cards.items()
    }
    gone = DeviceProblem("metadata.deletionTimestamp", "the Device object is gone: no device is given until it returns")
    return msgspec.structs.replace(inventory, cards=cards, problems=(gone,))


def _card(info: wire.DeviceInfo, minor: int, path: str, problems: list[DeviceProblem]) -> Card:
    total: dict[str, int] = {}
    healthy = info.health
    if healthy:
        try:
            listed = vector.to_units(vector.parse(info.resources))
            total = {name: amount for name, amount in _with_current_names(listed).items() if amount > 0}
        except QuantityError as error:
            problems.append(DeviceProblem(f"{path}.resources", str(error)))
            healthy = False
    else:
        problems.append(DeviceProblem(f"{path}.health", "the device is unhealthy"))
    place = info.topology
    if place is None:
        problems.append(DeviceProblem(f"{path}.topology", "Required value"))
    elif not place.pcie_id:
        problems.append(DeviceProblem(f"{path}.topology.pcieID", "Required value"))
    return Card(
        type=info.type,
        minor=minor,
        id=info.id,
        healthy=healthy,
        total=total,
        labels=info.labels,
        placed=place is not None,
        numa=None if place is None or place.node_id == _UNKNOWN_NUMA else place.node_id,
        pcie=(place.pcie_id or None) if place is not None else None,
        virtual_functions=tuple(sorted(_virtual_functions(info, path, problems), key=lambda f: f.bus_id)),
    )


def _with_current_names(amounts: Mapping[str, int]) -> dict[str, int]:
    result = dict(amounts)
    for old, new in DEPRECATED_DEVICES.items():
        if old in result and new not in result:
            result[new] = result.pop(old)
    return result


def _virtual_functions(
    info: wire.DeviceInfo, path: str, problems: list[DeviceProblem]
) -> Iterator[CardVirtualFunction]:
    seen: set[str] = set()
    for number, group in enumerate(info.vf_groups):
        for index, function in enumerate(group.vfs):
            field = f"{path}.vfGroups[{number}].vfs[{index}].busID"
            if not function.bus_id:
                problems.append(DeviceProblem(field, "Required value"))
            elif function.bus_id in seen:
                problems.append(DeviceProblem(field, f"Duplicate value: {function.bus_id}"))
            else:
                seen.add(function.bus_id)
                yield CardVirtualFunction(function.bus_id, function.minor, group.labels)


def _usable_partitions(
    device: wire.Device, gpus: Mapping[int, Card], problems: list[DeviceProblem]
) -> GPUPartitionTable | None:
    field = f"metadata.annotations[{A_GPU_PARTITIONS}]"
    table = device_codecs.parse_gpu_partition_table(device.metadata.annotations)
    if isinstance(table, MalformedAnnotation):
        problems.append(DeviceProblem(field, table.reason))
        return None
    if table is None:
        return None
    usable: GPUPartitionTable = {}
    for size, partitions in table.items():
        kept = []
        for partition in partitions:
            unknown = [minor for minor in partition.minors if minor not in gpus]
            if unknown:
                problems.append(
                    DeviceProblem(field, f"partition {list(partition.minors)} of {size}: no such GPU {unknown}")
                )
            elif len(set(partition.minors)) != size:  # it would give a pod more or fewer cards than it asks for
                problems.append(DeviceProblem(field, f"partition {list(partition.minors)} is listed under {size}"))
            else:
                kept.append(partition)
        usable[size] = tuple(kept)
    return usable


def _gpu_tree(gpus: Mapping[int, Card]) -> GpuTreeNode | None:
    if not gpus or not all(card.placed for card in gpus.values()):
        return None
    return build_gpu_tree(GpuLocation(card.minor, card.numa, card.pcie or "") for card in gpus.values())
