"""Serve Koordinator's summaries of the devices on each node below /apis/v1."""

from __future__ import annotations

from typing import Any

from koord.scheduler.explain.explainer import Explainer
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.device_share.occupancy import NodeDeviceSummary, summarize_node_devices
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply

_PATH = "/plugins/DeviceShare/nodeDeviceSummaries"


def routes(explainer: Explainer) -> tuple[tuple[str, HttpHandler], ...]:
    def sites() -> dict[str, NodeDevices]:
        book = explainer.device_cache()
        return {} if book is None else book.nodes

    def summary(node_devices: NodeDevices) -> NodeDeviceSummary:
        names = {uid: name for uid in node_devices.ledger.allocations if (name := explainer.pod_key(uid)) is not None}
        return summarize_node_devices(node_devices.ledger, names)

    def one(call: HttpCall) -> Any:
        name = call.parameters["name"]
        node_devices = sites().get(name)
        return (
            error_reply(404, f"cannot find node {name}") if node_devices is None else json_reply(summary(node_devices))
        )

    def every(_: HttpCall) -> Any:
        return json_reply({name: summary(node_devices) for name, node_devices in sorted(sites().items())})

    return ((_PATH, every), (f"{_PATH}/:name", one))
