"""Serve Koordinator's summaries of the devices on each node below /apis/v1."""

from __future__ import annotations

from typing import Any

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.device_share.occupancy import NodeDeviceSummary, summarize_node_devices
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply

_PATH = "/plugins/DeviceShare/nodeDeviceSummaries"


def routes(cache: NodeDeviceCache | None, state: ClusterState) -> tuple[tuple[str, HttpHandler], ...]:
    """Build the routes; `cache` is None when no profile allocates devices."""

    def summary(node_devices: NodeDevices) -> NodeDeviceSummary:
        placed = ((uid, state.placed_pod(uid)) for uid in node_devices.ledger.allocations)
        return summarize_node_devices(node_devices.ledger, {uid: pod.key for uid, pod in placed if pod is not None})

    def one(call: HttpCall) -> Any:
        name = call.parameters["name"]
        node_devices = cache.nodes.get(name) if cache is not None else None
        return (
            error_reply(404, f"cannot find node {name}") if node_devices is None else json_reply(summary(node_devices))
        )

    def every(_: HttpCall) -> Any:
        nodes = cache.nodes if cache is not None else {}
        return json_reply({name: summary(node_devices) for name, node_devices in sorted(nodes.items())})

    return ((_PATH, every), (f"{_PATH}/:name", one))
