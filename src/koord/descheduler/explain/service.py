"""The explain endpoints of a running descheduler, below /apis/v1 on its own ports. Only the leader answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.descheduler.explain.account import RoundAccount, pod_account, round_account
from koord.descheduler.explain.load import standings
from koord.descheduler.explain.statement import Known, Statement, statement
from koord.descheduler.framework.round import ready_nodes
from koord.descheduler.plugins.low_node_load import LowNodeLoad
from koord.descheduler.program import Descheduler
from koord.descheduler.shell.migration.controller import Migration
from koord.telemetry.endpoint import Endpoint, Services
from koord.telemetry.routing import Call, json, trouble

NODES = "/explain/nodes"
ROUND = "/explain/round"
MIGRATIONS = "/explain/migrations"
POD = "/explain/pods"


def serve(endpoint: Endpoint, descheduler: Descheduler, leads: Callable[[], bool]) -> None:
    """Serve the last round, the node loads, the migrations and whether a pod may be moved."""

    def last_round(_: Call) -> Any:
        last = descheduler.last
        if last is None:
            return json(RoundAccount())
        return json(round_account(last, descheduler.assembly.plugins(), descheduler.last_s))

    def nodes(_: Call) -> Any:
        snapshot = descheduler.view.snapshot()
        ready = ready_nodes(snapshot, descheduler.assembly.nodes)
        plugins = [one for one in descheduler.assembly.plugins() if isinstance(one, LowNodeLoad)]
        return {"pools": [pool for one in plugins for pool in standings(one, ready, snapshot)]}

    def migrations(_: Call) -> Any:
        return {"migrations": statements(descheduler)}

    def pod(call: Call) -> Any:
        space, name = call.parameters["namespace"], call.parameters["name"]
        found = descheduler.view.pods.get(space, name)
        if found is None:
            return trouble(404, f"cannot find pod {space}/{name}")
        return json(pod_account(found, descheduler.view.snapshot(), descheduler.assembly.profiles))

    services = Services(endpoint, unavailable=lambda: None if leads() else "this replica does not lead")
    services.add("GET", NODES, nodes)
    services.add("GET", ROUND, last_round)
    services.add("GET", MIGRATIONS, migrations)
    services.add("GET", f"{POD}/:namespace/:name", pod)


def statements(descheduler: Descheduler) -> list[Statement]:
    """Report every job, oldest first."""
    view = descheduler.view
    working = next((one for one in descheduler.means.values() if isinstance(one, Migration)), None)
    found = []
    for job in view.jobs.list():
        ref = job.spec.pod_ref
        pod = view.pods.get(ref.namespace, ref.name) if ref is not None else None
        if working is None:
            found.append(statement(job, pod))
            continue
        waits = working.arbiter.why.get(job.metadata.name, "")
        limited = working.limited(pod) if pod is not None else ""
        forbidden = working.forbidden(pod) if pod is not None else ""
        known = Known(waits=waits, limited=limited, forbidden=forbidden)
        found.append(statement(job, pod, working.place(job), known))
    return sorted(found, key=lambda one: (one.created.timestamp() if one.created is not None else 0.0, one.name))
