"""Serve what a running scheduler says about itself, as routes below /apis/v1 of its own ports."""

from __future__ import annotations

from typing import Any

from koord.scheduler.explain import device_service, gang_service, numa_service, quota_service, reservation_service
from koord.scheduler.explain.live import Explainer
from koord.telemetry.routing import Call, Handler, json, trouble

POD = "/explain/pods/:namespace/:name"


def routes(explainer: Explainer) -> tuple[tuple[str, Handler], ...]:
    def pod(call: Call) -> Any:
        namespace, name = call.parameters["namespace"], call.parameters["name"]
        found = explainer.pod(namespace, name)
        return json(found) if found is not None else trouble(404, f"cannot find pod {namespace}/{name}")

    def node(call: Call) -> Any:
        name = call.parameters["nodeName"]
        found = explainer.node(name)
        return json(found) if found is not None else trouble(404, f"cannot find node {name}")

    own = ((POD, pod), ("/explain/queue", lambda _: json(explainer.queue())), ("/nodes/:nodeName", node))
    parts = (quota_service, device_service, reservation_service, numa_service, gang_service)
    return own + tuple(route for part in parts for route in part.routes(explainer))
