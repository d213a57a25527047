"""The agent's HTTP endpoints: metrics, audit events, evictions, capabilities, hooks, GPUs and strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.host.audit_log import AuditLog, AuditPageRefused
from koord.host.io_error import IoError
from koord.koordlet.agent_status import ContainersStatus, HooksStatus, InterferenceStatus
from koord.koordlet.gpu_shares import GpusStatus
from koord.koordlet.metrics import KoordletMetrics
from koord.koordlet.reporters.builders.node_conditions import CapabilityRow
from koord.koordlet.strategies.runner import StrategyStatus
from koord.policy.eviction import EvictionLedger
from koord.telemetry import http_routing
from koord.telemetry.clock import Clock
from koord.telemetry.component_server import ComponentServer, HealthCheck, ServiceRoutes
from koord.telemetry.http_routing import HttpCall, HttpReply
from koord.values.go_format import parse_decimal_int

MERGED, INTERNAL, EXTERNAL = "/metrics", "/internal-metrics", "/external-metrics"


class EndpointSources(msgspec.Struct, frozen=True, kw_only=True):
    """EndpointSources holds what the endpoints serve; each callable is called per request."""

    metrics: KoordletMetrics
    ledger: EvictionLedger
    audit_log: AuditLog | None  # None: its gate is off
    capabilities: Callable[[], list[CapabilityRow]]
    strategy_statuses: Callable[[], list[StrategyStatus]]
    hooks: Callable[[], HooksStatus]
    containers: Callable[[str, str], ContainersStatus]  # of a namespace and a pod; empty texts are all
    interference: Callable[[str, str], InterferenceStatus]  # as for containers
    gpus: Callable[[], GpusStatus]
    state: Callable[[], Mapping[str, Any]]
    checks: Mapping[str, HealthCheck]


def build_endpoint(source: EndpointSources, clock: Clock, *, events: bool) -> ComponentServer:
    endpoint = ComponentServer(clock)
    endpoint.metrics((source.metrics.internal, source.metrics.external), MERGED)
    endpoint.metrics((source.metrics.internal,), INTERNAL)
    endpoint.metrics((source.metrics.external,), EXTERNAL)
    endpoint.health("healthz", {})
    endpoint.health("readyz", source.checks)
    if events and source.audit_log is not None:
        log = source.audit_log
        endpoint.routes.add("GET", "/events", lambda call: audit_events_reply(log, call))
    services = ServiceRoutes(endpoint)
    services.add("GET", "/evictions", lambda call: _evictions(source.ledger, call))
    services.add("GET", "/capabilities", lambda _: {"capabilities": source.capabilities()})
    services.add("GET", "/strategies", lambda _: {"strategies": source.strategy_statuses()})
    services.add("GET", "/hooks", lambda _: source.hooks())
    services.add(
        "GET",
        "/containers",
        lambda call: source.containers(call.first_value("namespace") or "", call.first_value("name") or ""),
    )
    services.add(
        "GET",
        "/interference",
        lambda call: source.interference(call.first_value("namespace") or "", call.first_value("name") or ""),
    )
    services.add("GET", "/gpus", lambda _: source.gpus())
    services.add("GET", "/state", lambda _: source.state())
    return endpoint


def audit_events_reply(log: AuditLog, call: HttpCall) -> HttpReply:
    """Answer one page of audit events, newest first. A size that is no number counts as absent."""
    page = log.page(parse_decimal_int(call.first_value("size") or ""), call.first_value("pageToken") or "")
    if isinstance(page, IoError):
        return http_routing.text_reply(f"{page}\n", 500)
    if isinstance(page, AuditPageRefused):
        return http_routing.text_reply(f"{page.message}\n", 409 if page.expired else 400)
    if call.headers.get("Accept") == "application/json":
        events = [msgspec.Raw(line) for line in page.lines]
        body = msgspec.json.encode({"NextPageToken": page.token, "Events": events})
        return HttpReply(body=body, content_type=f"{http_routing.JSON}; charset=utf-8")
    body = b"".join(line + b"\n" for line in page.lines)
    headers = {"Next-Page-Token": page.token} if page.token else {}
    return HttpReply(body=body, headers=headers)


def _evictions(ledger: EvictionLedger, call: HttpCall) -> dict[str, Any]:
    return {"evictions": ledger.records(call.first_value("namespace") or "", call.first_value("name") or "")}
