"""Serve quotas below /apis/v1: Koordinator's summaries, and the reports of `koord quota`."""

from __future__ import annotations

from typing import Any

from koord.scheduler.plugins.elastic_quota import explain
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCache
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply

QUOTA_TREE_PATH = "/explain/quotas"
_NOT_ENABLED = "no profile of this scheduler enables ElasticQuota"


def routes(cache: ElasticQuotaCache | None) -> tuple[tuple[str, HttpHandler], ...]:
    """Build the routes; `cache` is None when no profile has quotas."""

    def tree(_: HttpCall) -> Any:
        return error_reply(404, _NOT_ENABLED) if cache is None else json_reply(explain.report_quota_tree(cache))

    def one(call: HttpCall) -> Any:
        name = call.parameters["name"]
        if cache is None:
            return error_reply(404, _NOT_ENABLED)
        found = explain.quota_summary(cache, name, pods=call.is_switched_on("includePods"))
        return error_reply(404, f"cannot find quota {name}") if found is None else json_reply(found)

    def every(call: HttpCall) -> Any:
        if cache is None:
            return error_reply(404, _NOT_ENABLED)
        return json_reply(
            explain.quota_summaries(cache, call.first_value("tree") or "", pods=call.is_switched_on("includePods"))
        )

    return (
        (QUOTA_TREE_PATH, tree),
        ("/plugins/ElasticQuota/quotas", every),
        ("/plugins/ElasticQuota/quotas/:name", one),
    )
