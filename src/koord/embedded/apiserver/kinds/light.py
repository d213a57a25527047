"""This module holds the strategies of kinds that get defaults and no validation beyond the schema."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import generation
from koord.embedded.apiserver.kinds.strategy import Strategy

Obj = dict[str, Any]


def _counted(*keys: str, default: Any = None) -> Strategy:
    """Return the strategy of a kind whose generation follows these fields."""
    return Strategy(
        default=default or (lambda obj: None),
        prepare_create=generation.begin,
        prepare_update=generation.bump_on(*keys),
    )


# networking.k8s.io -------------------------------------------------------------------------------------------------


def _network_policy(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    for side in ("ingress", "egress"):
        for rule in spec.get(side) or ():
            for port in rule.get("ports") or ():
                if port.get("protocol") is None:
                    port["protocol"] = "TCP"
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]


def _ingress_class(obj: Obj) -> None:
    parameters = (obj.get("spec") or {}).get("parameters")
    if parameters is not None and parameters.get("scope") is None:
        parameters["scope"] = "Cluster"


NETWORK_POLICY = _counted("spec", default=_network_policy)
INGRESS = _counted("spec")
INGRESS_CLASS = _counted("spec", default=_ingress_class)


# autoscaling -------------------------------------------------------------------------------------------------------

_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_DOWN = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}


def _autoscaler(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    if spec.get("minReplicas") is None:
        spec["minReplicas"] = 1
    if obj.get("apiVersion") == "autoscaling/v1":
        if spec.get("targetCPUUtilizationPercentage") is None:
            spec["targetCPUUtilizationPercentage"] = 80
        return
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    behavior = spec.get("behavior")
    if behavior is not None:
        for key, wanted in (("scaleUp", _UP), ("scaleDown", _DOWN)):
            given = behavior.get(key) or {}
            filled = {field: value for field, value in wanted.items() if given.get(field) is None}
            behavior[key] = {**filled, **given}


AUTOSCALER = Strategy(default=_autoscaler)


# discovery and endpoints -------------------------------------------------------------------------------------------


def _endpoints(obj: Obj) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            if not port.get("protocol"):
                port["protocol"] = "TCP"


def _slice(obj: Obj) -> None:
    for port in obj.get("ports") or ():
        if port.get("protocol") is None:
            port["protocol"] = "TCP"
        if port.get("name") is None:
            port["name"] = ""


ENDPOINTS = Strategy(default=_endpoints)
ENDPOINT_SLICE = _counted("addressType", "endpoints", "ports", default=_slice)


# resource.k8s.io ---------------------------------------------------------------------------------------------------


def _device_requests(spec: Obj) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        for exact in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if exact is None:
                continue
            if not exact.get("allocationMode"):
                exact["allocationMode"] = "ExactCount"
            if exact["allocationMode"] == "ExactCount" and not exact.get("count"):
                exact["count"] = 1


def _claim(obj: Obj) -> None:
    _device_requests(obj.setdefault("spec", {}))


def _claim_template(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("metadata", {})
    _device_requests(spec.setdefault("spec", {}))


RESOURCE_CLAIM = Strategy(default=_claim)
RESOURCE_CLAIM_TEMPLATE = Strategy(default=_claim_template)
RESOURCE_SLICE = Strategy(
    prepare_create=generation.begin,
    prepare_update=generation.bump_on("spec"),
    fields={
        "spec.nodeName": lambda obj: str((obj.get("spec") or {}).get("nodeName", "")),
        "spec.driver": lambda obj: str((obj.get("spec") or {}).get("driver", "")),
    },
)
DEVICE_CLASS = _counted("spec")


# apiregistration.k8s.io --------------------------------------------------------------------------------------------


def _api_service(obj: Obj) -> None:
    service = (obj.get("spec") or {}).get("service")
    if service is not None and service.get("port") is None:
        service["port"] = 443


API_SERVICE = Strategy(default=_api_service)
