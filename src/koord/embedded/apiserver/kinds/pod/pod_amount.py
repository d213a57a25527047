"""These functions default and validate the resources that a pod requests as a whole."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import amount
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value, not_supported
from koord.values.quantity import Quantity

Obj = dict[str, Any]
_COMPUTE = ("cpu", "memory")
_SHOWN = ("cpu", "hugepages-", "memory")


def default_pod_amounts(spec: Obj) -> None:
    """Fill missing pod-level requests with the sum of the container requests, or else with the pod's own limit."""
    resources = spec["resources"]
    requests = dict(resources.get("requests") or {})
    for name in _COMPUTE:
        total = containers_request(spec, name)
        if total is not None:
            requests.setdefault(name, str(total))
    for name, limit in (resources.get("limits") or {}).items():
        if _known(name):
            requests.setdefault(name, limit)
    if requests:
        resources["requests"] = requests


def _known(name: str) -> bool:
    return name in _COMPUTE or amount.is_huge(name)


def _request(container: Obj, name: str) -> Quantity | None:
    text = ((container.get("resources") or {}).get("requests") or {}).get(name)
    return None if text is None else Quantity.parse(text)


def containers_request(spec: Obj, name: str) -> Quantity | None:
    """Compute the peak request of the containers: all of them, or one init container beside the started sidecars."""
    sidecars: Quantity | None = None
    peak: Quantity | None = None
    for container in spec.get("initContainers") or ():
        asked = _request(container, name)
        moment = _sum(sidecars, asked)
        if container.get("restartPolicy") == "Always":
            sidecars = moment
        peak = _larger(peak, moment)
    total = sidecars
    for container in spec.get("containers") or ():
        total = _sum(total, _request(container, name))
    return _larger(peak, total)


def _sum(left: Quantity | None, right: Quantity | None) -> Quantity | None:
    if left is None or right is None:
        return left if right is None else right
    return left + right


def _larger(left: Quantity | None, right: Quantity | None) -> Quantity | None:
    if left is None or right is None:
        return left if right is None else right
    return left if left > right else right


def pod_amounts(spec: Obj, path: str, claims: frozenset[str]) -> list[FieldError]:
    resources = spec["resources"]
    errors: list[FieldError] = []
    if resources.get("claims"):
        errors.append(forbidden_field(f"{path}.claims", "claims may not be set for Resources at pod-level"))
    for part in ("limits", "requests"):
        errors += [
            not_supported(f"{path}.{part}[{name}]", name, _SHOWN)
            for name in resources.get(part) or {}
            if not _known(name)
        ]
    if any(error.reason == "FieldValueNotSupported" for error in errors):
        return errors
    errors += amount.requirements(resources, path, claims)
    return errors + _against_containers(spec, path)


def _against_containers(spec: Obj, path: str) -> list[FieldError]:
    resources = spec["resources"]
    errors: list[FieldError] = []
    for name, text in (resources.get("requests") or {}).items():
        total = containers_request(spec, name)
        if total is not None and total > Quantity.parse(text):
            detail = f"must be greater than or equal to aggregate container requests of {total}"
            errors.append(invalid_value(f"{path}.requests[{name}]", text, detail))
    for i, container in enumerate(spec.get("containers") or ()):
        own = (container.get("resources") or {}).get("limits") or {}
        for name, text in own.items():
            most = (resources.get("limits") or {}).get(name)
            if most is not None and _known(name) and Quantity.parse(text) > Quantity.parse(most):
                detail = f"must be less than or equal to pod limits of {most}"
                errors.append(invalid_value(f"{path}.containers[{i}][{name}].limits", text, detail))
    return errors
