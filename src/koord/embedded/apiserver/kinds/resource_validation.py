"""This module validates resource lists: resource names, quantities, and how requests and limits must relate.

It covers the resources of containers and those of a pod as a whole, with the defaults of the latter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_found_field,
    not_supported,
    required,
)
from koord.embedded.apiserver.kinds.validators import NO_ERRORS, FieldErrors
from koord.values import names
from koord.values.quantity import Quantity, QuantityError

HUGE_PAGE_PREFIX = "hugepages-"
_CONTAINER_RESOURCES = frozenset(("cpu", "memory", "ephemeral-storage"))
_OBJECT_COUNTS = [
    *("pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps"),
    *("persistentvolumeclaims", "services.nodeports", "services.loadbalancers"),
]
_STANDARD_RESOURCES = frozenset(
    (
        *_CONTAINER_RESOURCES,
        *_OBJECT_COUNTS,
        *(f"{kind}.{name}" for kind in ("requests", "limits") for name in ("cpu", "memory", "ephemeral-storage")),
        "storage",
        "requests.storage",
    )
)
QUOTA_RESOURCES = _STANDARD_RESOURCES - {"storage"}
INTEGER_RESOURCES = frozenset(_OBJECT_COUNTS)
NON_NEGATIVE = "must be greater than or equal to 0"


def is_huge_page(name: str) -> bool:
    return name.startswith(HUGE_PAGE_PREFIX)


def is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    return not is_native(name) and not name.startswith("requests.") and not names.qualified_name(f"requests.{name}")


@functools.lru_cache(maxsize=4096)
def container_resource_reasons(name: str) -> tuple[str, ...]:
    """Return why containers cannot request a resource of this name; empty when they can."""
    reasons = resource_name_reasons(name)
    if name in _CONTAINER_RESOURCES or is_huge_page(name):
        return reasons
    if "/" not in name:
        return (*reasons, "must be a standard resource for containers")
    if not is_native(name) and not is_extended(name):
        return (*reasons, "doesn't follow extended resource name standard")
    return reasons


@functools.lru_cache(maxsize=4096)
def resource_name_reasons(name: str) -> tuple[str, ...]:
    """Return why this is not a valid resource name at all; empty when it is."""
    reasons = names.qualified_name(name)
    if not reasons and "/" not in name and name not in _STANDARD_RESOURCES and not is_huge_page(name):
        reasons = ["must be a standard resource type or fully qualified"]
    return tuple(reasons)


@functools.lru_cache(maxsize=4096)
def quantity_reasons(name: str, text: str) -> tuple[str, ...]:
    """Return why this quantity is not valid for the resource; empty when it is."""
    amount = Quantity.parse(text)
    reasons = [NON_NEGATIVE] if amount.sign() < 0 else []
    if (name in INTEGER_RESOURCES or is_extended(name)) and amount.milli_value() % 1000:
        reasons.append("must be an integer")
    return tuple(reasons)


def resource_list_errors(found: Obj, path: str, name_reasons: Callable[[str], tuple[str, ...]]) -> list[ApiFieldError]:
    """Return the errors of a resource list; `name_reasons` checks names, `quantity_reasons` quantities."""
    errors: list[ApiFieldError] = []
    for name, text in found.items():
        at = f"{path}[{name}]"
        errors += [invalid_value(at, name, reason) for reason in name_reasons(name)]
        errors += [invalid_value(at, text, reason) for reason in quantity_reasons(name, text)]
    return errors


def _huge_page_errors(name: str, text: str, path: str) -> FieldErrors:
    """Return an error unless the quantity is a whole number of huge pages."""
    page, amount = _huge_page_bytes(name), Quantity.parse(text)
    if page <= 0 or amount.sign() < 0 or amount.milli_value() % (page * 1000):
        return [invalid_value(path, text, f"{text} is not positive integer multiple of {name}")]
    return NO_ERRORS


def _huge_page_bytes(name: str) -> int:
    """Return the page size in bytes that a huge page resource has in its name, 0 when that is not a size."""
    try:
        return Quantity.parse(name.removeprefix(HUGE_PAGE_PREFIX)).value()
    except QuantityError:
        return 0


def resource_requirement_errors(found: Obj, path: str, claims: frozenset[str] | set[str] = frozenset()) -> FieldErrors:
    """Return the errors of the ResourceRequirements of a container."""
    limits, requests = found.get("limits"), found.get("requests")
    if not limits and not requests:
        return _container_claim_errors(found["claims"], f"{path}.claims", claims) if "claims" in found else NO_ERRORS
    limits, requests = limits or {}, requests or {}
    errors = resource_list_errors(limits, f"{path}.limits", container_resource_reasons)
    computes = "cpu" in limits or "memory" in limits or "cpu" in requests or "memory" in requests
    huge = False
    for name, text in limits.items():
        if is_huge_page(name):
            huge = True
            errors += _huge_page_errors(name, text, f"{path}.limits[{name}]")
    for name, text in requests.items():
        at = f"{path}.requests[{name}]"
        errors += [invalid_value(at, name, reason) for reason in container_resource_reasons(name)]
        errors += [invalid_value(at, text, reason) for reason in quantity_reasons(name, text)]
        limit = limits.get(name)
        fixed = not is_native(name) or is_huge_page(name)
        if limit is not None:
            asked, most = Quantity.parse(text), Quantity.parse(limit)
            if fixed and asked != most:
                detail = f"must be equal to {name} limit of {limit}"
                errors.append(invalid_value(f"{path}.requests", text, detail))
            elif asked > most:
                detail = f"must be less than or equal to {name} limit of {limit}"
                errors.append(invalid_value(f"{path}.requests", text, detail))
        elif fixed:
            errors.append(required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        if is_huge_page(name):
            huge = True
            errors += _huge_page_errors(name, text, at)
    if huge and not computes:
        errors.append(forbidden_field(path, "HugePages require cpu or memory"))
    if "claims" in found:
        errors += _container_claim_errors(found["claims"], f"{path}.claims", claims)
    return errors


def _container_claim_errors(found: list[Obj], path: str, known: frozenset[str] | set[str]) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    seen: set[tuple[str, str]] = set()
    for i, claim in enumerate(found):
        name, request = claim.get("name", ""), claim.get("request", "")
        at = f"{path}[{i}]"
        if not name:
            errors.append(required(at))
            continue
        if (name, request) in seen:
            errors.append(duplicate(at, f"{name}/{request}" if request else name))
        elif (name, "") in seen or (not request and any(taken == name for taken, _ in seen)):
            errors.append(duplicate(at, name))
        seen.add((name, request))
        if name not in known:
            rest = f": {', '.join(sorted(known))}" if known else " which is empty"
            errors.append(not_found_field(at, name, f"must be one of the names in pod.spec.resourceClaims{rest}"))
    return errors


_COMPUTE_RESOURCES = ("cpu", "memory")
_POD_LEVEL_RESOURCES = ("cpu", "hugepages-", "memory")


def default_pod_resources(spec: Obj) -> None:
    """Fill missing pod-level requests with the sum of the container requests, or else with the pod's own limit."""
    resources = spec["resources"]
    requests = dict(resources.get("requests") or {})
    for name in _COMPUTE_RESOURCES:
        total = total_container_request(spec, name)
        if total is not None:
            requests.setdefault(name, str(total))
    for name, limit in (resources.get("limits") or {}).items():
        if _is_pod_level_resource(name):
            requests.setdefault(name, limit)
    if requests:
        resources["requests"] = requests


def _is_pod_level_resource(name: str) -> bool:
    return name in _COMPUTE_RESOURCES or is_huge_page(name)


def _container_request(container: Obj, name: str) -> Quantity | None:
    text = ((container.get("resources") or {}).get("requests") or {}).get(name)
    return None if text is None else Quantity.parse(text)


def total_container_request(spec: Obj, name: str) -> Quantity | None:
    """Compute the peak request of the containers: all of them, or one init container beside the started sidecars."""
    sidecars: Quantity | None = None
    peak: Quantity | None = None
    for container in spec.get("initContainers") or ():
        asked = _container_request(container, name)
        moment = _sum(sidecars, asked)
        if container.get("restartPolicy") == "Always":
            sidecars = moment
        peak = _larger(peak, moment)
    total = sidecars
    for container in spec.get("containers") or ():
        total = _sum(total, _container_request(container, name))
    return _larger(peak, total)


def _sum(left: Quantity | None, right: Quantity | None) -> Quantity | None:
    if left is None or right is None:
        return left if right is None else right
    return left + right


def _larger(left: Quantity | None, right: Quantity | None) -> Quantity | None:
    if left is None or right is None:
        return left if right is None else right
    return left if left > right else right


def pod_resource_errors(spec: Obj, path: str, claims: frozenset[str]) -> list[ApiFieldError]:
    resources = spec["resources"]
    errors: list[ApiFieldError] = []
    if resources.get("claims"):
        errors.append(forbidden_field(f"{path}.claims", "claims may not be set for Resources at pod-level"))
    for part in ("limits", "requests"):
        errors += [
            not_supported(f"{path}.{part}[{name}]", name, _POD_LEVEL_RESOURCES)
            for name in resources.get(part) or {}
            if not _is_pod_level_resource(name)
        ]
    if any(error.reason == "FieldValueNotSupported" for error in errors):
        return errors
    errors += resource_requirement_errors(resources, path, claims)
    return errors + _container_sum_errors(spec, path)


def _container_sum_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    resources = spec["resources"]
    errors: list[ApiFieldError] = []
    for name, text in (resources.get("requests") or {}).items():
        total = total_container_request(spec, name)
        if total is not None and total > Quantity.parse(text):
            detail = f"must be greater than or equal to aggregate container requests of {total}"
            errors.append(invalid_value(f"{path}.requests[{name}]", text, detail))
    for i, container in enumerate(spec.get("containers") or ()):
        own = (container.get("resources") or {}).get("limits") or {}
        for name, text in own.items():
            most = (resources.get("limits") or {}).get(name)
            if most is not None and _is_pod_level_resource(name) and Quantity.parse(text) > Quantity.parse(most):
                detail = f"must be less than or equal to pod limits of {most}"
                errors.append(invalid_value(f"{path}.containers[{i}][{name}].limits", text, detail))
    return errors
