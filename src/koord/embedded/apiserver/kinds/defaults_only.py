"""This module holds the strategies of kinds that get defaults and no validation beyond the schema."""

from __future__ import annotations

from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver.kinds import strategy
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent, fill_empty


def _with_generation(*keys: str, default: Any = None) -> KindStrategy:
    """Return the strategy of a kind whose generation follows these fields."""
    return KindStrategy(
        default=default or (lambda obj: None),
        prepare_create=strategy.begin_generation,
        prepare_update=strategy.bump_generation_on(*keys),
    )


# networking.k8s.io -------------------------------------------------------------------------------------------------


def _default_network_policy(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    for side in ("ingress", "egress"):
        for rule in spec.get(side) or ():
            for port in rule.get("ports") or ():
                fill_absent(port, protocol="TCP")
    fill_empty(spec, policyTypes=["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _default_ingress_class(obj: Obj) -> None:
    parameters = (obj.get("spec") or {}).get("parameters")
    if parameters is not None:
        fill_absent(parameters, scope="Cluster")


NETWORK_POLICY = _with_generation("spec", default=_default_network_policy)
INGRESS = _with_generation("spec")
INGRESS_CLASS = _with_generation("spec", default=_default_ingress_class)


# autoscaling -------------------------------------------------------------------------------------------------------

_SCALE_UP = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN = {"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}


def _default_autoscaler(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, minReplicas=1)
    if obj.get("apiVersion") == "autoscaling/v1":
        fill_absent(spec, targetCPUUtilizationPercentage=80)
        return
    if not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    behavior = spec.get("behavior")
    if behavior is not None:
        for key, wanted in (("scaleUp", _SCALE_UP), ("scaleDown", _SCALE_DOWN)):
            given = behavior.get(key) or {}
            filled = {field: value for field, value in wanted.items() if given.get(field) is None}
            behavior[key] = {**filled, **given}


AUTOSCALER = KindStrategy(default=_default_autoscaler)


# discovery and endpoints -------------------------------------------------------------------------------------------


def _default_endpoints(obj: Obj) -> None:
    for subset in obj.get("subsets") or ():
        for port in subset.get("ports") or ():
            fill_empty(port, protocol="TCP")


def _default_endpoint_slice(obj: Obj) -> None:
    for port in obj.get("ports") or ():
        fill_absent(port, protocol="TCP", name="")


ENDPOINTS = KindStrategy(default=_default_endpoints)
ENDPOINT_SLICE = _with_generation("addressType", "endpoints", "ports", default=_default_endpoint_slice)


# apiregistration.k8s.io --------------------------------------------------------------------------------------------


def _default_api_service(obj: Obj) -> None:
    service = (obj.get("spec") or {}).get("service")
    if service is not None and service.get("port") is None:
        service["port"] = 443


API_SERVICE = KindStrategy(default=_default_api_service)
