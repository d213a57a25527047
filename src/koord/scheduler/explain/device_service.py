"""Serve Koordinator's summaries of the devices on each node below /apis/v1."""

from __future__ import annotations

from typing import Any

from koord.policy.device.summary import NodeDeviceSummary, summary_of
from koord.scheduler.explain.live import Explainer
from koord.scheduler.plugins.device_share.site import Site
from koord.telemetry.routing import Call, Handler, json, trouble

_PATH = "/plugins/DeviceShare/nodeDeviceSummaries"


def routes(explainer: Explainer) -> tuple[tuple[str, Handler], ...]:
    def sites() -> dict[str, Site]:
        book = explainer.devices()
        return {} if book is None else book.sites

    def summary(site: Site) -> NodeDeviceSummary:
        names = {uid: name for uid in site.ledger.allocations if (name := explainer.name_of(uid)) is not None}
        return summary_of(site.ledger, names)

    def one(call: Call) -> Any:
        name = call.parameters["name"]
        site = sites().get(name)
        return trouble(404, f"cannot find node {name}") if site is None else json(summary(site))

    def every(_: Call) -> Any:
        return json({name: summary(site) for name, site in sorted(sites().items())})

    return ((_PATH, every), (f"{_PATH}/:name", one))
