"""The agent's HTTP endpoints: metrics, audit events, evictions, capabilities, and what each strategy last did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.host.audit_log import AuditLog, Unpaged
from koord.host.fault import Fault
from koord.koordlet.capability import Row
from koord.koordlet.doing import Doing
from koord.koordlet.eviction.ledger import Ledger
from koord.koordlet.metrics import Metrics
from koord.telemetry import routing
from koord.telemetry.clock import Clock
from koord.telemetry.endpoint import Endpoint, Services
from koord.telemetry.health import Check
from koord.telemetry.routing import Call, Reply
from koord.values.quotation import integer

MERGED, INTERNAL, EXTERNAL = "/metrics", "/internal-metrics", "/external-metrics"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What the endpoints serve; each callable is called per request."""

    metrics: Metrics
    ledger: Ledger
    audit_log: AuditLog | None  # None: its gate is off
    capabilities: Callable[[], list[Row]]
    doings: Callable[[], list[Doing]]
    state: Callable[[], Mapping[str, Any]]
    checks: Mapping[str, Check]


def endpoint_of(source: Source, clock: Clock, *, events: bool) -> Endpoint:
    """Build the agent's endpoint with all its routes."""
    endpoint = Endpoint(clock)
    endpoint.metrics((source.metrics.internal, source.metrics.external), MERGED)
    endpoint.metrics((source.metrics.internal,), INTERNAL)
    endpoint.metrics((source.metrics.external,), EXTERNAL)
    endpoint.health("healthz", {})
    endpoint.health("readyz", source.checks)
    if events and source.audit_log is not None:
        log = source.audit_log
        endpoint.routes.add("GET", "/events", lambda call: events_reply(log, call))
    services = Services(endpoint)
    services.add("GET", "/evictions", lambda call: _evictions(source.ledger, call))
    services.add("GET", "/capabilities", lambda _: {"capabilities": source.capabilities()})
    services.add("GET", "/strategies", lambda _: {"strategies": source.doings()})
    services.add("GET", "/state", lambda _: source.state())
    return endpoint


def events_reply(log: AuditLog, call: Call) -> Reply:
    """Answer one page of audit events, newest first. A size that is no number counts as absent."""
    page = log.page(integer(call.first("size") or ""), call.first("pageToken") or "")
    if isinstance(page, Fault):
        return routing.text(f"{page}\n", 500)
    if isinstance(page, Unpaged):
        return routing.text(f"{page.message}\n", 409 if page.expired else 400)
    if call.headers.get("Accept") == "application/json":
        events = [msgspec.Raw(line) for line in page.lines]
        return routing.json({"NextPageToken": page.token, "Events": events})
    body = b"".join(line + b"\n" for line in page.lines)
    headers = {"Next-Page-Token": page.token} if page.token else {}
    return Reply(body=body, headers=headers)


def _evictions(ledger: Ledger, call: Call) -> dict[str, Any]:
    return {"evictions": ledger.entries(call.first("namespace") or "", call.first("name") or "")}
