"""How a node's CPU and memory are divided between prod, mid and batch pods: requested, used and lent. Pure.

Free pods use the same leftovers as batch pods and are counted with them. Amounts are milli-cores and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import cast

import msgspec

from koord.api.pod import PodSpec
from koord.api.pod_resources import pod_requests
from koord.api.qos_class import BATCH, FREE, MID
from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, CPU, MEMORY, MID_CPU, MID_MEMORY
from koord.policy.colocation.amount import Compute
from koord.policy.colocation.wire import Node, NodeMetric, Pod, share_of
from koord.values.quantity import Quantity, QuantityError

_ROOMS = {CPU: (CPU, MID_CPU, BATCH_CPU), MEMORY: (MEMORY, MID_MEMORY, BATCH_MEMORY)}
TOTAL = "TOTAL"  # no node can have this name
_HOLDING = ("Running", "Pending")


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """One tier. `room` is what its pods may request on the node: allocatable, or what is lent."""

    room: int = 0
    requested: int = 0
    used: int = 0

    def __add__(self, other: Tier) -> Tier:
        return Tier(
            room=self.room + other.room, requested=self.requested + other.requested, used=self.used + other.used
        )


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The tiers of one resource."""

    capacity: int = 0
    used: int = 0  # by everything on the node
    prod: Tier = Tier()
    mid: Tier = Tier()
    batch: Tier = Tier()

    def __add__(self, other: Share) -> Share:
        return Share(
            capacity=self.capacity + other.capacity,
            used=self.used + other.used,
            prod=self.prod + other.prod,
            mid=self.mid + other.mid,
            batch=self.batch + other.batch,
        )


class NodeShare(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cpu: Share = Share()
    memory: Share = Share()
    reported: datetime | None = None  # None: nothing is known of its use


def share(node: Node, pods: Iterable[Pod], metric: NodeMetric | None) -> NodeShare:
    """Return the tier usage of a node; `pods` are those on the node."""
    tiers: dict[tuple[str, str], str] = {}
    asked: dict[tuple[str, str], int] = {}  # (tier, resource)
    for pod in pods:
        if pod.status.phase not in _HOLDING:
            continue
        tier = _tier(share_of(pod).priority_class)
        tiers[pod.metadata.namespace, pod.metadata.name] = tier
        requests = pod_requests(cast(PodSpec, pod.spec))
        for resource, names in _ROOMS.items():
            amount = requests.get(names[_PLACE[tier]], 0)
            asked[tier, resource] = asked.get((tier, resource), 0) + amount
    used, total, at = _used(metric, tiers)

    def of(resource: str, whole: int) -> Share:
        prod, mid, batch = (
            Tier(
                room=_listed(node.status.allocatable.get(_ROOMS[resource][place]), resource if not place else ""),
                requested=asked.get((tier, resource), 0),
                used=_part(used.get(tier), resource),
            )
            for tier, place in _PLACE.items()
        )
        return Share(capacity=whole, used=_part(total, resource), prod=prod, mid=mid, batch=batch)

    capacity = node.status.capacity
    return NodeShare(
        name=node.metadata.name,
        cpu=of(CPU, _listed(capacity.get(CPU), CPU)),
        memory=of(MEMORY, _listed(capacity.get(MEMORY), MEMORY)),
        reported=at,
    )


def total(shares: Sequence[NodeShare]) -> NodeShare:
    cpu, memory = Share(), Share()
    for one in shares:
        cpu, memory = cpu + one.cpu, memory + one.memory
    return NodeShare(name=TOTAL, cpu=cpu, memory=memory)


_PLACE = {"prod": 0, "mid": 1, "batch": 2}


def _tier(priority_class: str) -> str:
    if priority_class in (BATCH, FREE):
        return "batch"
    return "mid" if priority_class == MID else "prod"


def _used(
    metric: NodeMetric | None, tiers: dict[tuple[str, str], str]
) -> tuple[dict[str, Compute], Compute | None, datetime | None]:
    """Return usage by tier and of the node; an unreadable report counts as none."""
    if metric is None or metric.status.update_time is None or metric.status.node_metric is None:
        return {}, None, None
    used: dict[str, Compute] = {}
    try:
        for sample in metric.status.pods_metric:
            tier = tiers.get((sample.namespace, sample.name)) or _tier(sample.priority)
            used[tier] = used.get(tier, Compute()) + Compute.of(sample.pod_usage.resources)
        whole = Compute.of(metric.status.node_metric.node_usage.resources)
    except QuantityError:
        return {}, None, None
    return used, whole, metric.status.update_time


def _part(amount: Compute | None, resource: str) -> int:
    if amount is None:
        return 0
    return amount.cpu.milli_value() if resource == CPU else amount.memory.value()


def _listed(text: str | int | float | None, resource: str) -> int:
    """Parse an amount; batch-cpu and mid-cpu are in milli-cores as written."""
    if text is None:
        return 0
    quantity = Quantity.parse(text)
    return quantity.milli_value() if resource == CPU else quantity.value()
