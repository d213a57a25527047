"""Convert allocations to and from the annotations of pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.annotations import resource_spec, resource_status
from koord.api.annotations.codec import Malformed
from koord.api.protocol import A_RESOURCE_STATUS
from koord.policy.topology.cpu_topology import CpuTopology, Invalid
from koord.policy.topology.ledger import Allocation, Amounts, Ledger
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.resources import materialise, parse, to_units, to_wire


def read_allocation(annotations: Mapping[str, str]) -> Allocation | Malformed | None:
    """Parse a pod's allocation; None when it has none. A spec that cannot be read requests no exclusivity."""
    status = resource_status.parse(annotations)
    if status is None or isinstance(status, Malformed):
        return status
    try:
        cpus = CPUSet.parse(status.cpuset)
    except CPUSetError as error:
        return Malformed(A_RESOURCE_STATUS, f"cpuset: {error}")
    zones: dict[int, Amounts] = {}
    for entry in status.numa_node_resources:
        amounts = dict(zones.get(entry.node, {}))
        for name, amount in to_units(parse(entry.resources)).items():
            amounts[name] = amounts.get(name, 0) + amount
        zones[entry.node] = {name: amount for name, amount in amounts.items() if amount}
    zones = {number: amounts for number, amounts in sorted(zones.items()) if amounts}
    spec = resource_spec.parse(annotations)
    exclusive = spec.preferred_cpu_exclusive_policy if isinstance(spec, resource_spec.ResourceSpec) else ""
    found = Allocation(cpus=cpus, exclusive=exclusive if cpus.bits else "", zones=zones)
    return None if found.is_empty() else found


def status_of(allocation: Allocation) -> resource_status.ResourceStatus:
    return resource_status.ResourceStatus(
        cpuset=str(allocation.cpus),
        numa_node_resources=tuple(
            resource_status.NUMANodeResource(node=number, resources=dict(to_wire(materialise(amounts))))
            for number, amounts in sorted(allocation.zones.items())
        ),
    )


def rebuilt(
    topology: CpuTopology | Invalid | None, pods: Iterable[tuple[str, Mapping[str, str]]]
) -> tuple[Ledger, dict[str, Malformed]]:
    """Build the ledger from (UID, annotations) of the live pods of a node, and return those that cannot be read, by
    UID.
    """
    ledger, unread = Ledger.over(topology), {}
    for uid, written in pods:
        found = read_allocation(written)
        if isinstance(found, Malformed):
            unread[uid] = found
        elif found is not None:
            ledger = ledger.add(uid, found)
    return ledger, unread
