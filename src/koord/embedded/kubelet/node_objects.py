"""Build the API objects of one simulated node as its kubelet would write them: Node, status conditions, Lease. Pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from koord.api.model import to_dict
from koord.embedded.kubelet.node_profile import (
    EVICTION_MEMORY_BYTES,
    NodeHardware,
    SimulatedPool,
    stable_uuid,
    whole_units,
)
from koord.values import timestamp
from koord.values.quantity import Format, Quantity

KUBELET_VERSION = "v1.35.0"
LEASE_NAMESPACE = "kube-node-lease"
LEASE_DURATION_S = 40
POOL_LABEL = "sim.koord.sh/pool"

# Condition type -> (reason while false, message while false, reason while true, message while true)
_PRESSURE_TEXTS = {
    "MemoryPressure": (
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
        "KubeletHasInsufficientMemory",
        "kubelet has insufficient memory available",
    ),
    "DiskPressure": (
        "KubeletHasNoDiskPressure",
        "kubelet has no disk pressure",
        "KubeletHasDiskPressure",
        "kubelet has disk pressure",
    ),
    "PIDPressure": (
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
        "KubeletHasInsufficientPID",
        "kubelet has insufficient PID available",
    ),
}
PRESSURES = tuple(_PRESSURE_TEXTS)


class SimulatedNodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The fixed facts of one simulated node."""

    name: str
    pool: SimulatedPool
    number: int
    address: str
    pod_cidr: str
    hardware: NodeHardware


def rfc3339_seconds(moment: float) -> str:
    return _rfc3339_second(math.floor(moment))


@functools.lru_cache(maxsize=4096)
def _rfc3339_second(moment: int) -> str:
    return timestamp.unix_text(moment)


def node_capacity(pool: SimulatedPool) -> dict[str, str]:
    listed: dict[str, str] = {
        "cpu": str(Quantity.parse(pool.cpu)),
        "ephemeral-storage": str(Quantity.parse(pool.ephemeral_storage)),
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": str(Quantity.parse(pool.memory)),
        "pods": str(pool.pods),
    }
    if pool.gpus is not None and not pool.gpus.driver:
        listed[pool.gpus.resource] = str(pool.gpus.count)
    return listed | {name: str(Quantity.parse(amount)) for name, amount in pool.resources.items()}


def node_allocatable(pool: SimulatedPool) -> dict[str, str]:
    """Return capacity less what is reserved, the eviction thresholds and, of memory, the huge pages."""
    listed = node_capacity(pool)
    huge = sum(_huge_bytes(name, Quantity.parse(amount)) for name, amount in listed.items())
    memory = whole_units(pool.memory) - whole_units(pool.reserved.memory) - EVICTION_MEMORY_BYTES - huge
    storage = whole_units(pool.ephemeral_storage) * 9 // 10 - whole_units(pool.reserved.ephemeral_storage)
    return listed | {
        "cpu": str(Quantity.parse(pool.cpu) - Quantity.parse(pool.reserved.cpu)),
        "memory": str(Quantity.from_value(max(memory, 0), Format.BINARY_SI)),
        "ephemeral-storage": str(Quantity.from_value(max(storage, 0))),
    }


def _huge_bytes(name: str, amount: Quantity) -> int:
    return amount.value() if name.startswith("hugepages-") else 0


def node_labels(machine: SimulatedNodeSpec) -> dict[str, str]:
    pool = machine.pool
    found = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": machine.name,
        "kubernetes.io/os": "linux",
        POOL_LABEL: pool.name,
    }
    if pool.zones:
        found["topology.kubernetes.io/zone"] = pool.zones[machine.number % len(pool.zones)]
    if pool.region:
        found["topology.kubernetes.io/region"] = pool.region
    if pool.instance_type:
        found["node.kubernetes.io/instance-type"] = pool.instance_type
    return found | pool.labels


def node_object(machine: SimulatedNodeSpec, now: float) -> dict[str, Any]:
    pool = machine.pool
    spec: dict[str, Any] = {"podCIDR": machine.pod_cidr, "podCIDRs": [machine.pod_cidr]}
    if pool.taints:
        spec["taints"] = [to_dict(taint) for taint in pool.taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": machine.name,
            "labels": node_labels(machine),
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"} | pool.annotations,
        },
        "spec": spec,
        "status": node_status(machine, now),
    }


def node_status(machine: SimulatedNodeSpec, now: float) -> dict[str, Any]:
    """Return the whole status that a kubelet writes for its node when it starts."""
    addresses = [{"type": "InternalIP", "address": machine.address}, {"type": "Hostname", "address": machine.name}]
    return {
        "capacity": node_capacity(machine.pool),
        "allocatable": node_allocatable(machine.pool),
        "conditions": node_conditions(now, now),
        "addresses": addresses,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "machineID": stable_uuid("machine", machine.name).replace("-", ""),
            "systemUUID": stable_uuid("system", machine.name),
            "bootID": stable_uuid("boot", machine.name),
            "kernelVersion": "6.12.0",
            "osImage": "Simulated Linux",
            "containerRuntimeVersion": "simulated://1.0.0",
            "kubeletVersion": KUBELET_VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    }


def node_conditions(
    now: float, since: float, pressures: Mapping[str, tuple[bool, float]] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the node conditions. `since` is the kubelet's start; `pressures` are those that changed later."""
    found = []
    stamp = rfc3339_seconds(now)
    for type, (calm, calm_text, tense, tense_text) in _PRESSURE_TEXTS.items():
        pressed, began = pressures.get(type, (False, since))
        found.append(
            {
                "type": type,
                "status": "True" if pressed else "False",
                "lastHeartbeatTime": stamp,
                "lastTransitionTime": rfc3339_seconds(began),
                "reason": tense if pressed else calm,
                "message": tense_text if pressed else calm_text,
            }
        )
    ready = {
        "type": "Ready",
        "status": "True",
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": rfc3339_seconds(since),
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    return [*found, ready]


def lease_object(name: str, node_uid: str, now: float) -> dict[str, Any]:
    """Return the Lease of a node, owned by its Node so that it is deleted with it."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_DURATION_S,
            "renewTime": timestamp.unix_micro_text(now),
        },
    }
