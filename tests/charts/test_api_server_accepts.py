"""An API server takes every object that the chart renders, and knows every field of it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.charts.api_servers import CRDS, SERVERS, ApiServer
from tests.charts.golden_files import VARIANTS
from tests.charts.helm import Obj, render

pytestmark = pytest.mark.real

RENDERINGS = {"default": ((), "koord", "default"), **VARIANTS}
# Of the Prometheus operator; their fields are its own business.
MONITORS = {"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors"}


def monitor_definition(kind: str, plural: str) -> Obj:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    with SERVERS[request.param]() as running:
        for kind, plural in MONITORS.items():
            running.request("POST", CRDS, monitor_definition(kind, plural))
        for plural in MONITORS.values():
            running.wait_until_served(f"/apis/monitoring.coreos.com/v1/{plural}")
        yield running


@pytest.mark.parametrize("variant", RENDERINGS)
def test_every_object(server: ApiServer, variant: str) -> None:
    args, release, namespace = RENDERINGS[variant]
    rendered = render(*args, release=release, namespace=namespace)
    spaces = {one["metadata"]["namespace"] for one in rendered if "namespace" in one["metadata"]}
    for name in spaces:
        if not server.exists(f"/api/v1/namespaces/{name}"):
            server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    others = [one for one in rendered if one["kind"] != "Namespace"]
    for obj in others:
        server.request("POST", f"{server.collection(obj)}?dryRun=All&fieldValidation=Strict", obj)
    assert len(others) > 20


def test_a_field_that_does_not_exist_would_be_found(server: ApiServer) -> None:
    (obj,) = [one for one in render() if one["kind"] == "DaemonSet"]
    obj["metadata"]["namespace"] = "default"
    obj["spec"]["template"]["spec"]["hostPIDs"] = True
    with pytest.raises(Exception, match="hostPIDs") as refused:
        server.request("POST", f"{server.collection(obj)}?dryRun=All&fieldValidation=Strict", obj)
    assert json.dumps("BadRequest") in str(refused.value)
