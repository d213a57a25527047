"""Serve what a running scheduler says about itself, as routes below /apis/v1 of its own ports."""

from __future__ import annotations

from typing import Any

from koord.scheduler.explain.explainer import Explainer
from koord.scheduler.plugins.coscheduling import http as coscheduling_http
from koord.scheduler.plugins.device_share import http as device_share_http
from koord.scheduler.plugins.elastic_quota import http as elastic_quota_http
from koord.scheduler.plugins.node_numa_resource import http as node_numa_resource_http
from koord.scheduler.plugins.reservation import http as reservation_http
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply

POD_PATH = "/explain/pods/:namespace/:name"


def explain_routes(explainer: Explainer) -> tuple[tuple[str, HttpHandler], ...]:
    def pod(call: HttpCall) -> Any:
        namespace, name = call.parameters["namespace"], call.parameters["name"]
        found = explainer.pod(namespace, name)
        return json_reply(found) if found is not None else error_reply(404, f"cannot find pod {namespace}/{name}")

    def node(call: HttpCall) -> Any:
        name = call.parameters["nodeName"]
        found = explainer.node(name)
        return json_reply(found) if found is not None else error_reply(404, f"cannot find node {name}")

    def evictions(call: HttpCall) -> Any:
        found = explainer.evictions(call.first_value("namespace") or "", call.first_value("name") or "")
        return json_reply({"evictions": found})

    own = (
        (POD_PATH, pod),
        ("/explain/queue", lambda _: json_reply(explainer.queue())),
        ("/nodes/:nodeName", node),
        ("/evictions", evictions),
    )
    parts = (elastic_quota_http, device_share_http, reservation_http, node_numa_resource_http, coscheduling_http)
    return own + tuple(route for part in parts for route in part.routes(explainer))
