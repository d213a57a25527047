"""This module parses what pods demand from requests, labels and annotations: amounts, bound CPUs, NUMA nodes."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from koord.api.annotations import numa_topology_spec, resource_spec, scheduling_hint
from koord.api.annotations.codec import Malformed
from koord.api.protocol import (
    A_NUMA_TOPOLOGY_SPEC,
    A_RESERVATION_AFFINITY,
    A_RESERVE_POD,
    A_RESOURCE_SPEC,
    A_RESOURCE_STATUS,
    A_SCHEDULING_HINT,
    A_SCHEDULING_HINT_DEPRECATED,
    L_PRIORITY_CLASS,
    L_QOS_CLASS,
    L_RESERVATION_IGNORED,
    TRUE,
)
from koord.api.qos_class import LSE, LSR
from koord.policy.topology.admission import resolve_exclusive
from koord.policy.topology.binding import Wish, decide_wish, may_bind
from koord.policy.topology.ledger import Allocation, Amounts
from koord.policy.topology.refusal import Short
from koord.policy.topology.status import read_allocation
from koord.scheduler.state.pod import PodInfo
from koord.values.resources import CPU

NAME = "NodeNUMAResource"

_READ = (
    A_RESOURCE_SPEC,
    A_NUMA_TOPOLOGY_SPEC,
    A_RESERVATION_AFFINITY,
    A_SCHEDULING_HINT,
    A_SCHEDULING_HINT_DEPRECATED,
    A_RESERVE_POD,
)
_POLICIES = ", ".join(policy for policy in numa_topology_spec.POLICIES if policy)


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What pods of one class demand. `policy` is the pod's own NUMA policy.

    `needs_reservation`: it must be placed in a matching one; `ignores_reservations`: it may use what
    reservations have left as if it were free. `designated` is a designated allocation that it was given
    earlier, to be given again.
    """

    amounts: Amounts
    wish: Wish
    spec: resource_spec.ResourceSpec | None = None
    policy: str = ""
    exclusive: str = ""
    needs_reservation: bool = False
    ignores: bool = False
    reserves: bool = False  # it is a reserve pod
    promised: Allocation | None = None

    @property
    def plain(self) -> bool:
        """Return whether the plugin has nothing to do, unless the node has a policy for all pods."""
        return not self.wish.binds and not self.policy and self.promised is None


def signature(pod: PodInfo) -> Hashable:
    """Return what is read of a pod beyond its template; None for most pods."""
    labels, annotations = pod.labels, pod.annotations
    if not annotations and L_QOS_CLASS not in labels and L_RESERVATION_IGNORED not in labels:
        return None
    qos = labels.get(L_QOS_CLASS)
    marked = bool(annotations) and not annotations.keys().isdisjoint(_READ)
    if qos not in (LSE, LSR) and not marked and L_RESERVATION_IGNORED not in labels:
        return None
    own = tuple(annotations.get(key) for key in _READ) if marked else ()
    # What was given earlier counts only together with a hint that says so.
    given = annotations.get(A_RESOURCE_STATUS) if marked else None
    return qos, labels.get(L_PRIORITY_CLASS), labels.get(L_RESERVATION_IGNORED), own, given


class Demands:
    """Parses demands, once per pod template and signature."""

    def __init__(self, default_policy: str) -> None:
        self._default_policy = default_policy
        self._memo = f"{NAME} {default_policy}"  # profiles with other arguments read the same shape otherwise

    def of(self, pod: PodInfo) -> Demand | Short:
        memo: dict[Hashable, Demand | Short] | None = pod.shape.memo.get(self._memo)
        if memo is None:
            memo = pod.shape.memo[self._memo] = {}
        key = signature(pod)
        known = memo.get(key)
        if known is None:
            known = memo[key] = _nothing(pod) if key is None else _work_out(pod, self._default_policy)
        return known


def _nothing(pod: PodInfo) -> Demand:
    amounts = pod.shape.requests
    return Demand(amounts=amounts, wish=Wish(cpu_milli=amounts.get(CPU, 0)))


def _work_out(pod: PodInfo, default_policy: str) -> Demand | Short:
    """Parse a demand. A refusal names the annotation, and the field where it can."""
    labels, annotations, amounts = pod.labels, pod.annotations, pod.shape.requests
    spec, numa = resource_spec.parse(annotations), numa_topology_spec.parse(annotations)
    if isinstance(spec, Malformed):
        return Short.finally_(str(spec))
    if isinstance(numa, Malformed):
        return Short.finally_(str(numa))
    policy = "" if numa is None else numa.numa_topology_policy
    if policy not in numa_topology_spec.POLICIES:
        return Short.finally_(f'{A_NUMA_TOPOLOGY_SPEC}: numaTopologyPolicy "{policy}" is not one of {_POLICIES}')
    wish = decide_wish(
        spec,
        amounts.get(CPU, 0),
        eligible=may_bind(labels, pod.shape.spec.priority, ""),
        default_policy=default_policy,
    )
    if isinstance(wish, Short):
        return wish
    return Demand(
        amounts=amounts,
        wish=wish,
        spec=spec,
        policy=policy,
        exclusive=resolve_exclusive(policy, "" if numa is None else numa.single_numa_node_exclusive),
        needs_reservation=A_RESERVATION_AFFINITY in annotations,
        ignores=labels.get(L_RESERVATION_IGNORED) == TRUE,
        reserves=A_RESERVE_POD in annotations,
        promised=_promised(pod),
    )


def _promised(pod: PodInfo) -> Allocation | None:
    if A_RESOURCE_STATUS not in pod.annotations:
        return None
    hint = scheduling_hint.parse(pod.annotations)
    if not isinstance(hint, scheduling_hint.SchedulingHint) or NAME not in hint.extensions:
        return None
    found = read_allocation(pod.annotations)
    return None if isinstance(found, Malformed) else found
