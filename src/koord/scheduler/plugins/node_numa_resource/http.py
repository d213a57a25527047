"""Serve who holds which CPUs and NUMA resources of a node below /apis/v1, assumed pods included."""

from __future__ import annotations

from typing import Any

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.plugins.node_numa_resource.occupancy import CpuOccupancy, CpuOccupant, cpu_occupancy
from koord.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply

PATH = "/plugins/NodeNUMAResource/nodes/:nodeName"


def routes(plugin: NodeNUMAResource | None, state: ClusterState) -> tuple[tuple[str, HttpHandler], ...]:
    def node(call: HttpCall) -> Any:
        name = call.parameters["nodeName"]
        info = state.node(name)
        if plugin is None or info is None:
            return error_reply(404, f"cannot find node {name}")
        return json_reply(node_occupancy(plugin, info))

    return ((PATH, node),)


def node_occupancy(plugin: NodeNUMAResource, info: NodeInfo) -> CpuOccupancy:
    """Return the occupancy of a node as the scheduler's cache has it."""
    profile = plugin.evaluator.profiles.for_node(info)
    tenants = []
    for uid, entry in plugin.cache.node_allocation(profile, info.name).pods.items():
        pod = info.pods.get(uid)
        if pod is not None:
            name = pod.name if pod.is_reserve_pod else pod.key
            tenants.append(
                CpuOccupant(
                    uid=uid,
                    name=name,
                    given=entry.allocation,
                    reservation=pod.is_reserve_pod,
                    lives_in=entry.reservation_uid,
                )
            )
    for uid, flaw in plugin.cache.unreadable.items():
        if (pod := info.pods.get(uid)) is not None:
            tenants.append(CpuOccupant(uid=uid, name=pod.key, given=flaw))
    return cpu_occupancy(info.name, profile.topology, tenants)
