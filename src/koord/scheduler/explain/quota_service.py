"""Serve quotas below /apis/v1: Koordinator's summaries, and the reports of `koord quota`."""

from __future__ import annotations

from typing import Any

from koord.scheduler.explain import quota
from koord.scheduler.explain.live import Explainer
from koord.telemetry.routing import Call, Handler, json, trouble

TREE = "/explain/quotas"
_NONE = "no profile of this scheduler enables ElasticQuota"


def routes(explainer: Explainer) -> tuple[tuple[str, Handler], ...]:
    def tree(_: Call) -> Any:
        ledger = explainer.quotas()
        return trouble(404, _NONE) if ledger is None else json(quota.tree(ledger))

    def one(call: Call) -> Any:
        ledger, name = explainer.quotas(), call.parameters["name"]
        if ledger is None:
            return trouble(404, _NONE)
        found = quota.summary(ledger, name, pods=call.switch("includePods"))
        return trouble(404, f"cannot find quota {name}") if found is None else json(found)

    def every(call: Call) -> Any:
        ledger = explainer.quotas()
        if ledger is None:
            return trouble(404, _NONE)
        return json(quota.summaries(ledger, call.first("tree") or "", pods=call.switch("includePods")))

    return (
        (TREE, tree),
        ("/plugins/ElasticQuota/quotas", every),
        ("/plugins/ElasticQuota/quotas/:name", one),
        ("/explain/departures", lambda _: json({"departures": explainer.departures()})),
    )
