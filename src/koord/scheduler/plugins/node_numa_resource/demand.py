"""This module parses what pods demand from requests, labels and annotations: amounts, bound CPUs, NUMA nodes."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from koord.api.annotations import cpu_codecs, pod_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator import protocol
from koord.api.koordinator.protocol import LSE, LSR
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.plugins.node_numa_resource.cpu_binding import CpuBindRequest, decide_bind_request, is_bind_eligible
from koord.scheduler.plugins.node_numa_resource.ledger import Amounts, NumaAllocation, parse_allocation
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_manager import resolve_exclusive_policy
from koord.values.resources import CPU

PLUGIN_NAME = "NodeNUMAResource"

_READ_ANNOTATIONS = (
    protocol.A_RESOURCE_SPEC,
    protocol.A_NUMA_TOPOLOGY_SPEC,
    protocol.A_RESERVATION_AFFINITY,
    protocol.A_SCHEDULING_HINT,
    protocol.A_SCHEDULING_HINT_DEPRECATED,
    protocol.A_RESERVE_POD,
)
_POLICIES = ", ".join(policy for policy in cpu_codecs.NUMA_TOPOLOGY_POLICIES if policy)


class NumaDemand(msgspec.Struct, frozen=True, kw_only=True):
    """NumaDemand is what pods of one class demand. `policy` is the pod's own NUMA policy.

    `needs_reservation`: it must be placed in a matching one; `ignores_reservations`: it may use what
    reservations have left as if it were free. `designated` is a designated allocation that it was given
    earlier, to be given again.
    """

    amounts: Amounts
    wish: CpuBindRequest
    spec: cpu_codecs.ResourceSpec | None = None
    policy: str = ""
    exclusive: str = ""
    needs_reservation: bool = False
    ignores_reservations: bool = False
    is_reserve_pod: bool = False  # it is a reserve pod
    designated: NumaAllocation | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether the plugin has nothing to do, unless the node has a policy for all pods."""
        return not self.wish.binds and not self.policy and self.designated is None


def signature(pod: PodInfo) -> Hashable:
    """Return what is read of a pod beyond its template; None for most pods."""
    labels, annotations = pod.labels, pod.annotations
    if not annotations and protocol.L_QOS_CLASS not in labels and protocol.L_RESERVATION_IGNORED not in labels:
        return None
    qos = labels.get(protocol.L_QOS_CLASS)
    marked = bool(annotations) and not annotations.keys().isdisjoint(_READ_ANNOTATIONS)
    if qos not in (LSE, LSR) and not marked and protocol.L_RESERVATION_IGNORED not in labels:
        return None
    own = tuple(annotations.get(key) for key in _READ_ANNOTATIONS) if marked else ()
    # What was given earlier counts only together with a hint that says so.
    given = annotations.get(protocol.A_RESOURCE_STATUS) if marked else None
    return qos, labels.get(protocol.L_PRIORITY_CLASS), labels.get(protocol.L_RESERVATION_IGNORED), own, given


class NumaDemandParser:
    """Parses demands, once per pod template and signature."""

    def __init__(self, default_policy: str) -> None:
        self._default_policy = default_policy
        self._memo = f"{PLUGIN_NAME} {default_policy}"  # profiles with other arguments read the same shape otherwise

    def parse(self, pod: PodInfo) -> NumaDemand | NumaRefusal:
        memo: dict[Hashable, NumaDemand | NumaRefusal] | None = pod.shape.memo.get(self._memo)
        if memo is None:
            memo = pod.shape.memo[self._memo] = {}
        key = signature(pod)
        known = memo.get(key)
        if known is None:
            known = memo[key] = _plain_demand(pod) if key is None else _parse_demand(pod, self._default_policy)
        return known


def _plain_demand(pod: PodInfo) -> NumaDemand:
    amounts = pod.shape.requests
    return NumaDemand(amounts=amounts, wish=CpuBindRequest(cpu_milli=amounts.get(CPU, 0)))


def _parse_demand(pod: PodInfo, default_policy: str) -> NumaDemand | NumaRefusal:
    """Parse a demand. A refusal names the annotation, and the field where it can."""
    labels, annotations, amounts = pod.labels, pod.annotations, pod.shape.requests
    spec, numa = cpu_codecs.parse_resource_spec(annotations), cpu_codecs.parse_numa_topology_spec(annotations)
    if isinstance(spec, MalformedAnnotation):
        return NumaRefusal.unresolvable(str(spec))
    if isinstance(numa, MalformedAnnotation):
        return NumaRefusal.unresolvable(str(numa))
    policy = "" if numa is None else numa.numa_topology_policy
    if policy not in cpu_codecs.NUMA_TOPOLOGY_POLICIES:
        return NumaRefusal.unresolvable(
            f'{protocol.A_NUMA_TOPOLOGY_SPEC}: numaTopologyPolicy "{policy}" is not one of {_POLICIES}'
        )
    wish = decide_bind_request(
        spec,
        amounts.get(CPU, 0),
        eligible=is_bind_eligible(labels, pod.shape.spec.priority, ""),
        default_policy=default_policy,
    )
    if isinstance(wish, NumaRefusal):
        return wish
    return NumaDemand(
        amounts=amounts,
        wish=wish,
        spec=spec,
        policy=policy,
        exclusive=resolve_exclusive_policy(policy, "" if numa is None else numa.single_numa_node_exclusive),
        needs_reservation=protocol.A_RESERVATION_AFFINITY in annotations,
        ignores_reservations=labels.get(protocol.L_RESERVATION_IGNORED) == protocol.TRUE,
        is_reserve_pod=protocol.A_RESERVE_POD in annotations,
        designated=_designated_allocation(pod),
    )


def _designated_allocation(pod: PodInfo) -> NumaAllocation | None:
    if protocol.A_RESOURCE_STATUS not in pod.annotations:
        return None
    hint = pod_codecs.parse_scheduling_hint(pod.annotations)
    if not isinstance(hint, pod_codecs.PodSchedulingHint) or PLUGIN_NAME not in hint.extensions:
        return None
    found = parse_allocation(pod.annotations)
    return None if isinstance(found, MalformedAnnotation) else found
