"""Decide whether a pod's CPUs are bound, how many and by which policy: for the pod alone, then on a node."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import cpu_codecs
from koord.api.annotations.cpu_codecs import (
    CPU_BIND_DEFAULT,
    CPU_BIND_FULL_PCPUS,
    CPU_BIND_SPREAD_BY_PCPUS,
    ResourceSpec,
)
from koord.api.koordinator.protocol import LSE, LSR, PROD
from koord.policy.qos import priority_class_with_default, qos_raw
from koord.scheduler.plugins.node_numa_resource.cpu_topology import InvalidCpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import Amounts, NumaLedger, ZoneAmounts
from koord.scheduler.plugins.node_numa_resource.refusal import (
    BIND_POLICY_CONFLICT,
    CPUS_NOT_WHOLE,
    INSUFFICIENT_AMPLIFIED_CPU,
    INVALID_CPU_TOPOLOGY,
    INVALID_RATIO,
    NOT_WHOLE_CORES,
    NumaRefusal,
)
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions, amplify, amplify_cpu

_BIND_POLICIES = (CPU_BIND_FULL_PCPUS, CPU_BIND_SPREAD_BY_PCPUS)
_POLICY_OF_NODE_POLICY = {
    cpu_codecs.NODE_BIND_FULL_PCPUS_ONLY: CPU_BIND_FULL_PCPUS,
    cpu_codecs.NODE_BIND_SPREAD_BY_PCPUS: CPU_BIND_SPREAD_BY_PCPUS,
}


class CpuBindRequest(msgspec.Struct, frozen=True, kw_only=True):
    """CpuBindRequest is what the pod itself requests. `binds` is False for one that only a node's policy would bind."""

    cpu_milli: int
    binds: bool = False
    required: str = ""
    preferred: str = ""
    exclusive: str = ""

    @property
    def count(self) -> int:
        return self.cpu_milli // 1000


class CpuBinding(msgspec.Struct, frozen=True, kw_only=True):
    """A number of CPUs to bind by this policy on this node. `required`: the policy must be met, not just preferred."""

    count: int
    policy: str
    required: bool
    exclusive: str = ""

    @property
    def required_policy(self) -> str:
        return self.policy if self.required else ""


def is_bind_eligible(labels: Mapping[str, str], priority: int | None, kube_qos: str) -> bool:
    """Return whether the pod is an LSE or LSR pod of the prod class, by its label; Guaranteed alone does not count."""
    return qos_raw(labels) in (LSE, LSR) and priority_class_with_default(labels, priority, kube_qos) == PROD


def decide_bind_request(
    spec: ResourceSpec | None, cpu_milli: int, *, eligible: bool, default_policy: str
) -> CpuBindRequest | NumaRefusal:
    """Decide what the pod requests. `default_policy` is for a pod with none or Default; empty leaves it unbound."""
    plain = CpuBindRequest(cpu_milli=cpu_milli)
    if not eligible:
        return plain
    given = spec or ResourceSpec()
    required = default_policy if given.required_cpu_bind_policy == CPU_BIND_DEFAULT else given.required_cpu_bind_policy
    preferred = given.preferred_cpu_bind_policy
    policy = required or (default_policy if preferred in ("", CPU_BIND_DEFAULT) else preferred)
    if policy not in _BIND_POLICIES:
        return plain
    if cpu_milli % 1000:
        return NumaRefusal.unresolvable(CPUS_NOT_WHOLE)
    if cpu_milli <= 0:
        return plain
    exclusive = given.preferred_cpu_exclusive_policy
    return CpuBindRequest(cpu_milli=cpu_milli, binds=True, required=required, preferred=policy, exclusive=exclusive)


def decide_binding(bind_request: CpuBindRequest, node: TopologyOptions) -> CpuBinding | NumaRefusal | None:
    """Decide the binding on this node, None for none. A node policy binds every pod that requests cpu."""
    forced = _POLICY_OF_NODE_POLICY.get(node.bind_policy, "")
    if not bind_request.binds:
        if bind_request.cpu_milli == 0 or not forced:
            return None
        if bind_request.cpu_milli % 1000:
            return NumaRefusal.unresolvable(CPUS_NOT_WHOLE)
    policy = bind_request.required or forced or bind_request.preferred
    return CpuBinding(
        count=bind_request.count,
        policy=policy,
        required=bool(bind_request.required or forced),
        exclusive=bind_request.exclusive,
    )


def check_binding(bind_request: CpuBindRequest, binding: CpuBinding, node: TopologyOptions) -> NumaRefusal | None:
    """Check everything that can be refused before CPUs are examined."""
    if isinstance(node.cpu, InvalidCpuTopology):
        return NumaRefusal.unresolvable(INVALID_CPU_TOPOLOGY)
    must = _POLICY_OF_NODE_POLICY.get(node.bind_policy, "") or bind_request.required
    if bind_request.required and bind_request.required != must:
        return NumaRefusal.unresolvable(BIND_POLICY_CONFLICT)
    if must == CPU_BIND_FULL_PCPUS and binding.count % node.cpu.per_core:
        return NumaRefusal.unresolvable(NOT_WHOLE_CORES)
    return None


def check_amplified_cpu(
    bind_request: CpuBindRequest,
    node: TopologyOptions,
    ledger: NumaLedger,
    *,
    binds: bool,
    requested_milli: int,
    allocatable_milli: int,
) -> NumaRefusal | None:
    """Check cpu on an amplified node, where a bound CPU counts for the ratio: the pod's own and those held already."""
    if bind_request.cpu_milli <= 0:
        return None
    if node.ratio_error:
        return NumaRefusal.unresolvable(INVALID_RATIO)
    ratio = node.node_ratio
    if ratio is None or ratio <= 1:
        return None
    ask = amplify(bind_request.cpu_milli, ratio) if binds else bind_request.cpu_milli
    taken = amplified_requested(ledger, ratio, requested_milli, guarded=True)
    return NumaRefusal.unschedulable(INSUFFICIENT_AMPLIFIED_CPU) if ask > allocatable_milli - taken else None


def amplified_requested(ledger: NumaLedger, ratio: float, requested_milli: int, *, guarded: bool) -> int:
    """Return the requested cpu with bound CPUs amplified.

    `guarded` leaves the sum alone when it is less than the bound CPUs, as on a stale node. Without a topology
    bound CPUs do not count: no pod can have been bound by it.
    """
    bound = 1000 * ledger.refcounts.referenced.bit_count()
    if not bound or ledger.topology is None or (guarded and requested_milli < bound):
        return requested_milli
    return requested_milli - bound + amplify(bound, ratio)


def complete_resource_spec(spec: ResourceSpec | None, binding: CpuBinding) -> ResourceSpec:
    """Return the pod's annotation with the applied policy filled in where it was open, for the node agent."""
    given = spec or ResourceSpec()
    required, preferred = given.required_cpu_bind_policy, given.preferred_cpu_bind_policy
    if binding.required and required in ("", CPU_BIND_DEFAULT):
        required = binding.policy
    if preferred == CPU_BIND_DEFAULT:
        preferred = binding.policy
    if not required and not preferred:
        preferred = binding.policy
    return msgspec.structs.replace(given, required_cpu_bind_policy=required, preferred_cpu_bind_policy=preferred)


class NumaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's request on one node. `amounts` are as the pod states them: milli-cores of cpu, whole units of
    all else.

    `preferred` CPUs are held by reservations for the pod: one reference of them is released for it, and they
    are taken first. Designated CPUs are taken first too, but only if they are free. `reusable` are amounts by
    NUMA node that the pod may use although they are held; a confined request may use nothing else.
    """

    amounts: Amounts
    binding: CpuBinding | None = None
    preferred: int = 0
    designated_cpus: int = 0
    reusable: ZoneAmounts = {}
    confined_to: ZoneAmounts = {}

    @property
    def required_policy(self) -> str:
        return "" if self.binding is None else self.binding.required_policy

    def amplified_amounts(self, node: TopologyOptions) -> Mapping[str, int]:
        """Return what the pod takes off an amplified node: bound CPUs are physical ones."""
        return self.amounts if self.binding is None else amplify_cpu(self.amounts, node.ratio)
