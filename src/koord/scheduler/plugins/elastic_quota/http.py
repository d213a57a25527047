"""Serve quotas below /apis/v1: Koordinator's summaries, and the reports of `koord quota`."""

from __future__ import annotations

from typing import Any

from koord.scheduler.explain.explainer import Explainer
from koord.scheduler.plugins.elastic_quota import explain
from koord.telemetry.http_routing import HttpCall, HttpHandler, error_reply, json_reply

QUOTA_TREE_PATH = "/explain/quotas"
_NOT_ENABLED = "no profile of this scheduler enables ElasticQuota"


def routes(explainer: Explainer) -> tuple[tuple[str, HttpHandler], ...]:
    def tree(_: HttpCall) -> Any:
        quota_cache = explainer.quota_cache()
        return (
            error_reply(404, _NOT_ENABLED)
            if quota_cache is None
            else json_reply(explain.report_quota_tree(quota_cache))
        )

    def one(call: HttpCall) -> Any:
        quota_cache, name = explainer.quota_cache(), call.parameters["name"]
        if quota_cache is None:
            return error_reply(404, _NOT_ENABLED)
        found = explain.quota_summary(quota_cache, name, pods=call.is_switched_on("includePods"))
        return error_reply(404, f"cannot find quota {name}") if found is None else json_reply(found)

    def every(call: HttpCall) -> Any:
        quota_cache = explainer.quota_cache()
        if quota_cache is None:
            return error_reply(404, _NOT_ENABLED)
        return json_reply(
            explain.quota_summaries(
                quota_cache, call.first_value("tree") or "", pods=call.is_switched_on("includePods")
            )
        )

    return (
        (QUOTA_TREE_PATH, tree),
        ("/plugins/ElasticQuota/quotas", every),
        ("/plugins/ElasticQuota/quotas/:name", one),
    )
