"""Serve what a running scheduler says about itself, as routes below /apis/v1 of its own ports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from koord.scheduler.explain.explainer import Explainer
from koord.scheduler.framework.profile import find_plugin
from koord.scheduler.plugins.coscheduling import http as coscheduling_http
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.scheduler.plugins.device_share import http as device_share_http
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.elastic_quota import http as elastic_quota_http
from koord.scheduler.plugins.elastic_quota.explain import quota_cache_of
from koord.scheduler.plugins.node_numa_resource import http as node_numa_resource_http
from koord.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koord.scheduler.plugins.reservation import http as reservation_http
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin
from koord.scheduler.scheduler import Scheduler
from koord.telemetry.clock import Clock
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply

POD_PATH = "/explain/pods/:namespace/:name"


def explain_routes(scheduler: Scheduler, clock: Clock) -> tuple[tuple[str, HttpHandler], ...]:
    explainer = Explainer(scheduler, clock)

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

    return (
        (POD_PATH, pod),
        ("/explain/queue", lambda _: json_reply(explainer.queue())),
        ("/nodes/:nodeName", node),
        ("/evictions", evictions),
        *_plugin_routes(scheduler, clock),
    )


def _plugin_routes(scheduler: Scheduler, clock: Clock) -> Iterator[tuple[str, HttpHandler]]:
    profiles, state = tuple(scheduler.profiles.values()), scheduler.state
    devices, reservations = find_plugin(profiles, DeviceShare), find_plugin(profiles, ReservationPlugin)
    yield from elastic_quota_http.routes(quota_cache_of(profiles))
    yield from device_share_http.routes(devices.cache if devices is not None else None, state)
    yield from reservation_http.routes(reservations.cache if reservations is not None else None)
    yield from node_numa_resource_http.routes(find_plugin(profiles, NodeNUMAResource), state)
    yield from coscheduling_http.routes(
        state.derived(GangManager), lambda uid: scheduler.queue.status_of(uid, clock.monotonic())
    )
