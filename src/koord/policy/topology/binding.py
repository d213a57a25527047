"""Decide whether a pod's CPUs are bound, how many and by which policy: for the pod alone, then for the pod on a node.

"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import node_numa
from koord.api.annotations.resource_spec import DEFAULT, FULL_PCPUS, SPREAD_BY_PCPUS, ResourceSpec
from koord.api.qos_class import LSE, LSR, PROD
from koord.policy.qos.classes import priority_class_with_default, qos_raw
from koord.policy.topology.amplification import amplify
from koord.policy.topology.cpu_topology import Invalid
from koord.policy.topology.ledger import Ledger
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.refusal import (
    BIND_POLICY_CONFLICT,
    CPUS_NOT_WHOLE,
    INSUFFICIENT_AMPLIFIED_CPU,
    INVALID_CPU_TOPOLOGY,
    INVALID_RATIO,
    NOT_WHOLE_CORES,
    Short,
)

_BINDING = (FULL_PCPUS, SPREAD_BY_PCPUS)
_BY_NODE_POLICY = {node_numa.FULL_PCPUS_ONLY: FULL_PCPUS, node_numa.SPREAD_BY_PCPUS: SPREAD_BY_PCPUS}


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the pod requests by itself. `binds` is False for a pod that only a node's policy would bind."""

    cpu_milli: int
    binds: bool = False
    required: str = ""
    preferred: str = ""
    exclusive: str = ""

    @property
    def count(self) -> int:
        return self.cpu_milli // 1000


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """A number of CPUs to bind by this policy on this node. `required`: the policy must be met, not just preferred."""

    count: int
    policy: str
    required: bool
    exclusive: str = ""

    @property
    def must(self) -> str:
        return self.policy if self.required else ""


def may_bind(labels: Mapping[str, str], priority: int | None, kube_qos: str) -> bool:
    """Return whether the pod is an LSE or LSR pod of the prod class, by its label; Guaranteed alone does not count."""
    return qos_raw(labels) in (LSE, LSR) and priority_class_with_default(labels, priority, kube_qos) == PROD


def decide_wish(spec: ResourceSpec | None, cpu_milli: int, *, eligible: bool, default_policy: str) -> Wish | Short:
    """Decide what the pod requests. `default_policy` applies where the pod says nothing or Default; empty leaves it
    unbound.
    """
    plain = Wish(cpu_milli=cpu_milli)
    if not eligible:
        return plain
    given = spec or ResourceSpec()
    required = default_policy if given.required_cpu_bind_policy == DEFAULT else given.required_cpu_bind_policy
    preferred = given.preferred_cpu_bind_policy
    policy = required or (default_policy if preferred in ("", DEFAULT) else preferred)
    if policy not in _BINDING:
        return plain
    if cpu_milli % 1000:
        return Short.finally_(CPUS_NOT_WHOLE)
    if cpu_milli <= 0:
        return plain
    exclusive = given.preferred_cpu_exclusive_policy
    return Wish(cpu_milli=cpu_milli, binds=True, required=required, preferred=policy, exclusive=exclusive)


def decide_binding(wish: Wish, node: NodeTopology) -> Binding | Short | None:
    """Decide the binding on this node; None when CPUs are not bound here. A node policy binds every pod that requests
    cpu.
    """
    forced = _BY_NODE_POLICY.get(node.bind_policy, "")
    if not wish.binds:
        if wish.cpu_milli == 0 or not forced:
            return None
        if wish.cpu_milli % 1000:
            return Short.finally_(CPUS_NOT_WHOLE)
    policy = wish.required or forced or wish.preferred
    return Binding(count=wish.count, policy=policy, required=bool(wish.required or forced), exclusive=wish.exclusive)


def check_binding(wish: Wish, binding: Binding, node: NodeTopology) -> Short | None:
    """Check everything that can be refused before CPUs are examined."""
    if isinstance(node.cpu, Invalid):
        return Short.finally_(INVALID_CPU_TOPOLOGY)
    must = _BY_NODE_POLICY.get(node.bind_policy, "") or wish.required
    if wish.required and wish.required != must:
        return Short.finally_(BIND_POLICY_CONFLICT)
    if must == FULL_PCPUS and binding.count % node.cpu.per_core:
        return Short.finally_(NOT_WHOLE_CORES)
    return None


def check_amplified(
    wish: Wish, node: NodeTopology, ledger: Ledger, *, binds: bool, requested_milli: int, allocatable_milli: int
) -> Short | None:
    """Check cpu on an amplified node, where a bound CPU counts for the ratio: the pod's own and those held already."""
    if wish.cpu_milli <= 0:
        return None
    if node.ratio_fault:
        return Short.finally_(INVALID_RATIO)
    ratio = node.node_ratio
    if ratio is None or ratio <= 1:
        return None
    ask = amplify(wish.cpu_milli, ratio) if binds else wish.cpu_milli
    taken = amplified_requested(ledger, ratio, requested_milli, guarded=True)
    return Short.of(INSUFFICIENT_AMPLIFIED_CPU) if ask > allocatable_milli - taken else None


def amplified_requested(ledger: Ledger, ratio: float, requested_milli: int, *, guarded: bool) -> int:
    """Return the requested cpu with bound CPUs amplified.

    `guarded` leaves the sum alone when it is less than the bound CPUs, as on a stale node. Without a topology
    bound CPUs do not count: no pod can have been bound by it.
    """
    bound = 1000 * ledger.held.held.bit_count()
    if not bound or ledger.topology is None or (guarded and requested_milli < bound):
        return requested_milli
    return requested_milli - bound + amplify(bound, ratio)


def completed_spec(spec: ResourceSpec | None, binding: Binding) -> ResourceSpec:
    """Return the pod's annotation with the applied policy filled in where the pod left it open, for the node agent to
    read.
    """
    given = spec or ResourceSpec()
    required, preferred = given.required_cpu_bind_policy, given.preferred_cpu_bind_policy
    if binding.required and required in ("", DEFAULT):
        required = binding.policy
    if preferred == DEFAULT:
        preferred = binding.policy
    if not required and not preferred:
        preferred = binding.policy
    return msgspec.structs.replace(given, required_cpu_bind_policy=required, preferred_cpu_bind_policy=preferred)
