"""The explain endpoints of a running descheduler, below /apis/v1 on its own ports. Only the leader answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.descheduler.explain.migration_report import MigrationObstacles, MigrationReport, report_migration
from koord.descheduler.explain.round_report import RoundReport, report_pod, report_pool_loads, report_round
from koord.descheduler.framework.round import ready_nodes
from koord.descheduler.migration.controller import MigrationJobController
from koord.descheduler.plugins.low_node_load.plugin import LowNodeLoad
from koord.descheduler.program import Descheduler
from koord.telemetry.component_server import ComponentServer, ServiceRoutes
from koord.telemetry.http_routing import HttpCall, error_reply, json_reply

NODES_PATH = "/explain/nodes"
ROUND_PATH = "/explain/round"
MIGRATIONS_PATH = "/explain/migrations"
POD_PATH = "/explain/pods"
EVICTIONS_PATH = "/evictions"


def serve_explanations(endpoint: ComponentServer, descheduler: Descheduler, leads: Callable[[], bool]) -> None:
    """Serve the last round, the node loads, the migrations and whether a pod may be moved."""

    def last_round(_: HttpCall) -> Any:
        last = descheduler.last_outcome
        if last is None:
            return json_reply(RoundReport())
        return json_reply(report_round(last, descheduler.setup.plugins(), descheduler.last_round_s))

    def nodes(_: HttpCall) -> Any:
        snapshot = descheduler.snapshot_source.snapshot()
        ready = ready_nodes(snapshot, descheduler.setup.node_selector)
        plugins = [one for one in descheduler.setup.plugins() if isinstance(one, LowNodeLoad)]
        return {"pools": [pool for one in plugins for pool in report_pool_loads(one, ready, snapshot)]}

    def migrations(_: HttpCall) -> Any:
        return {"migrations": report_migrations(descheduler)}

    def pod(call: HttpCall) -> Any:
        space, name = call.parameters["namespace"], call.parameters["name"]
        found = descheduler.snapshot_source.pods.get(space, name)
        if found is None:
            return error_reply(404, f"cannot find pod {space}/{name}")
        return json_reply(report_pod(found, descheduler.snapshot_source.snapshot(), descheduler.setup.profiles))

    def evictions(call: HttpCall) -> Any:
        found = descheduler.ledger.records(call.first_value("namespace") or "", call.first_value("name") or "")
        return {"evictions": found}

    services = ServiceRoutes(endpoint, unavailable=lambda: None if leads() else "this replica does not lead")
    services.add("GET", NODES_PATH, nodes)
    services.add("GET", ROUND_PATH, last_round)
    services.add("GET", MIGRATIONS_PATH, migrations)
    services.add("GET", f"{POD_PATH}/:namespace/:name", pod)
    services.add("GET", EVICTIONS_PATH, evictions)


def report_migrations(descheduler: Descheduler) -> list[MigrationReport]:
    """Report every job, oldest first."""
    snapshot_source = descheduler.snapshot_source
    working = next(
        (one for one in descheduler.eviction_backends.values() if isinstance(one, MigrationJobController)), None
    )
    found = []
    for job in snapshot_source.jobs.list():
        ref = job.spec.pod_ref
        pod = snapshot_source.pods.get(ref.namespace, ref.name) if ref is not None else None
        if working is None:
            found.append(report_migration(job, pod))
            continue
        waits = working.arbiter.wait_reasons.get(job.metadata.name, "")
        limited = working.rate_limit_reason(pod) if pod is not None else ""
        forbidden = working.protection_reason(pod) if pod is not None else ""
        known = MigrationObstacles(waits=waits, limited=limited, forbidden=forbidden)
        found.append(report_migration(job, pod, working.reservation_of_job(job), known))
    return sorted(found, key=lambda one: (one.created.timestamp() if one.created is not None else 0.0, one.name))
