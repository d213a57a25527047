"""Serve who holds which CPUs and NUMA resources of a node below /apis/v1, assumed pods included."""

from __future__ import annotations

from typing import Any

from koord.policy.topology.occupancy import Occupancy, Tenant, occupancy
from koord.scheduler.explain.live import Explainer
from koord.scheduler.plugins.node_numa_resource import NodeNUMAResource
from koord.scheduler.state.node import NodeInfo
from koord.telemetry.routing import Call, Handler, json, trouble

PATH = "/plugins/NodeNUMAResource/nodes/:nodeName"


def routes(explainer: Explainer) -> tuple[tuple[str, Handler], ...]:
    def node(call: Call) -> Any:
        name = call.parameters["nodeName"]
        plugin, info = explainer.plugin(NodeNUMAResource), explainer.info(name)
        if plugin is None or info is None:
            return trouble(404, f"cannot find node {name}")
        return json(seen(plugin, info))

    return ((PATH, node),)


def seen(plugin: NodeNUMAResource, info: NodeInfo) -> Occupancy:
    """Return the occupancy of a node as the scheduler's cache has it."""
    site = plugin.judge.sites.of(info)
    tenants = []
    for uid, entry in plugin.books.book(site, info.name).entries.items():
        pod = info.pods.get(uid)
        if pod is not None:
            name = pod.name if pod.reserve else pod.key
            tenants.append(
                Tenant(uid=uid, name=name, given=entry.given, reservation=pod.reserve, lives_in=entry.lives_in)
            )
    for uid, flaw in plugin.books.unread.items():
        if (pod := info.pods.get(uid)) is not None:
            tenants.append(Tenant(uid=uid, name=pod.key, given=flaw))
    return occupancy(info.name, site.topology, tenants)
