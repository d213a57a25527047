"""Serve what a running scheduler says about itself and explains, as routes below /apis/v1 of its own ports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import msgspec

from koord.policy.eviction import EvictionRecord
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.configuration.config_file import effective_configuration
from koord.scheduler.explain.report import PermitWait, PodReport, PodReportInputs, report_attempt, report_pod
from koord.scheduler.framework.profile import find_plugin
from koord.scheduler.plugins.coscheduling import http as coscheduling_http
from koord.scheduler.plugins.coscheduling.explain import awaited_members
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling
from koord.scheduler.plugins.device_share import http as device_share_http
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.elastic_quota import http as elastic_quota_http
from koord.scheduler.plugins.elastic_quota.explain import quota_cache_of
from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koord.scheduler.plugins.node_numa_resource import http as node_numa_resource_http
from koord.scheduler.plugins.node_numa_resource.plugin import NodeNUMAResource
from koord.scheduler.plugins.reservation import http as reservation_http
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin
from koord.scheduler.scheduler import Scheduler
from koord.scheduler.waiting_pods import WaitingPod
from koord.telemetry.clock import Clock
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply
from koord.values.resources import materialise, to_wire

POD_PATH = "/explain/pods/:namespace/:name"
LOAD_PATH = "/plugins/LoadAwareScheduling/node/:nodeName"
CONFIGURATION_PATH = "/explain/configuration"


@runtime_checkable
class RouteProvider(Protocol):
    """A plugin of any package that serves something: paths below /apis/v1/plugins/NAME, answered to GET."""

    def routes(self) -> Iterable[tuple[str, HttpHandler]]: ...


class Explainer:
    """Read the state of a running scheduler for reports."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock

    def pod(self, namespace: str, name: str) -> PodReport | None:
        """Report a pod; None when the watch shows no such pod."""
        scheduler = self._scheduler
        pod = scheduler.event_handlers.pods.get(namespace, name)
        if pod is None:
            return None
        uid, now = pod.metadata.uid, self._clock.monotonic()
        queue_status = scheduler.queue.status_of(uid, now)
        attempt = scheduler.attempt_log.get(uid)
        waiting_pod = scheduler.waiting_pods.get(uid)
        last = None
        if attempt is not None:
            last = report_attempt(
                attempt.number, attempt.at, attempt.took_s, attempt.result, attempt.message, attempt.decision
            )
        asleep = queue_status is not None and queue_status.part in ("unschedulable", "gated")
        return report_pod(
            PodReportInputs(
                pod=pod,
                served_schedulers=tuple(sorted(scheduler.profiles)),
                now=now,
                queue_status=queue_status,
                attempt=last,
                waiting=self._permit_wait(waiting_pod, now) if waiting_pod is not None else None,
                ahead=scheduler.queue.ahead_of(uid),
                wakes_on=self._wakes_on(pod.spec.scheduler_name, queue_status.rejected_by)
                if asleep and queue_status
                else (),
            )
        )

    def _permit_wait(self, waiting_pod: WaitingPod, now: float) -> PermitWait:
        plugins, waits_for = waiting_pod.pending_plugins, ""
        if Coscheduling.name in plugins:
            waits_for = awaited_members(self._scheduler.state.derived(GangManager), waiting_pod.pod.uid)
        return PermitWait(
            waiting_pod.node_name, plugins, waits_for, now - waiting_pod.since, waiting_pod.deadline - now
        )

    def _wakes_on(self, profile: str, plugins: tuple[str, ...]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for plugin in self._scheduler.profiles[profile].plugins():
            if plugin.name in plugins:
                found |= {
                    f"{event.kind} {event.action}{f' of {event.part}' if event.part else ''}": None
                    for event in plugin.wakes_on
                }
        return tuple(sorted(found))

    def configuration(self) -> dict[str, Any]:
        """Return the effective configuration and the feature gates, for a what-if to decide with."""
        config = self._scheduler.completed_config
        return {"configuration": effective_configuration(config), "featureGates": dict(config.gates)}

    def queue(self) -> dict[str, Any]:
        """Report the queue, the longest waiting pods first, bounded for any cluster."""
        now = self._clock.monotonic()
        pods = [self._scheduler.queue.status_of(queued.uid, now) for queued in self._scheduler.queue.pods()]
        listed = sorted((p for p in pods if p is not None), key=lambda p: p.queued_at)[:1000]
        return {"counts": self._scheduler.queue.counts(), "pods": msgspec.to_builtins(listed)}

    def node(self, name: str) -> dict[str, Any] | None:
        """Describe a node as Koordinator's service does; None when there is no such node."""
        info = self._scheduler.state.node(name)
        return _node(info) if info is not None else None

    def evictions(self, namespace: str = "", name: str = "") -> list[EvictionRecord]:
        """Return the evictions by this scheduler, newest first, of all pods or of that namespace or name."""
        return self._scheduler.evictor.ledger.records(namespace, name)


def _node(info: NodeInfo) -> dict[str, Any]:
    allocatable = {**info.allocatable, "pods": info.allowed_pods}
    requested = {**info.requested, "pods": len(info.pods)}
    remaining = {name: amount - requested.get(name, 0) for name, amount in allocatable.items()}
    ports: dict[str, list[str]] = {}
    for protocol, address, port in sorted(info.ports):
        ports.setdefault(address, []).append(f"{protocol}/{port}")
    images = info.node.status.images if info.node is not None else ()
    return {
        "node": info.name,
        "pods": sorted(pod.key for pod in info.pods.values()),
        "podsWithAffinity": sorted(p.key for p in info.pods.values() if p.shape.spec.affinity is not None),
        "podsWithRequiredAntiAffinity": sorted(p.key for p in info.pods.values() if _keeps_others_away(p.shape.spec)),
        "usedPorts": ports,
        "requested": to_wire(materialise(requested)),
        "nonZeroRequested": to_wire(materialise({"cpu": info.nonzero_cpu, "memory": info.nonzero_memory})),
        "remaining": to_wire(materialise(remaining)),
        "allocatable": to_wire(materialise(allocatable)),
        "imageStates": {name: image.size_bytes for image in images for name in image.names},
    }


def _keeps_others_away(spec: Any) -> bool:
    anti = spec.affinity.pod_anti_affinity if spec.affinity is not None else None
    return anti is not None and bool(anti.required_during_scheduling_ignored_during_execution)


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
        (CONFIGURATION_PATH, lambda _: json_reply(explainer.configuration())),
        ("/nodes/:nodeName", node),
        ("/evictions", evictions),
        *_plugin_routes(scheduler, clock),
    )


def _plugin_routes(scheduler: Scheduler, clock: Clock) -> Iterator[tuple[str, HttpHandler]]:
    profiles, state = tuple(scheduler.profiles.values()), scheduler.state
    for plugin in scheduler.distinct_plugins():
        if isinstance(plugin, RouteProvider):
            for path, handler in plugin.routes():
                yield f"/plugins/{plugin.name}{path}", handler
    devices, reservations = find_plugin(profiles, DeviceShare), find_plugin(profiles, ReservationPlugin)
    yield from elastic_quota_http.routes(quota_cache_of(profiles))
    yield from device_share_http.routes(devices.cache if devices is not None else None, state)
    yield from reservation_http.routes(reservations.cache if reservations is not None else None)
    load_aware = find_plugin(profiles, LoadAwareScheduling)
    if load_aware is not None:
        yield LOAD_PATH, lambda call: json_reply(load_aware.summary(call.parameters["nodeName"]))
    yield from node_numa_resource_http.routes(find_plugin(profiles, NodeNUMAResource), state)
    yield from coscheduling_http.routes(
        state.derived(GangManager), lambda uid: scheduler.queue.status_of(uid, clock.monotonic())
    )
