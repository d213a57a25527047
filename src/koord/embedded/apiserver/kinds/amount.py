"""This module validates resource lists: resource names, quantities, and how requests and limits must relate.

It covers the resources of containers and those of a pod as a whole, with the defaults of the latter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from koord.embedded.apiserver.kinds.rule import FINE, Errors
from koord.embedded.apiserver.refusal import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_found_field,
    required,
)
from koord.values import names
from koord.values.quantity import Quantity, QuantityError

Obj = dict[str, Any]
HUGE = "hugepages-"
_CONTAINER = frozenset(("cpu", "memory", "ephemeral-storage"))
_OBJECT_COUNTS = [
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
]
_STANDARD = frozenset(
    (
        *_CONTAINER,
        *_OBJECT_COUNTS,
        *(f"{kind}.{name}" for kind in ("requests", "limits") for name in ("cpu", "memory", "ephemeral-storage")),
        "storage",
        "requests.storage",
    )
)
QUOTA = _STANDARD - {"storage"}
INTEGER = frozenset(_OBJECT_COUNTS)
NON_NEGATIVE = "must be greater than or equal to 0"


def is_huge(name: str) -> bool:
    return name.startswith(HUGE)


def is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def is_extended(name: str) -> bool:
    return not is_native(name) and not name.startswith("requests.") and not names.qualified_name(f"requests.{name}")


@functools.lru_cache(maxsize=4096)
def container_reasons(name: str) -> tuple[str, ...]:
    """Return why containers cannot request a resource of this name; empty when they can."""
    reasons = standard_reasons(name)
    if name in _CONTAINER or is_huge(name):
        return reasons
    if "/" not in name:
        return (*reasons, "must be a standard resource for containers")
    if not is_native(name) and not is_extended(name):
        return (*reasons, "doesn't follow extended resource name standard")
    return reasons


@functools.lru_cache(maxsize=4096)
def standard_reasons(name: str) -> tuple[str, ...]:
    """Return why this is not a valid resource name at all; empty when it is."""
    reasons = names.qualified_name(name)
    if not reasons and "/" not in name and name not in _STANDARD and not is_huge(name):
        reasons = ["must be a standard resource type or fully qualified"]
    return tuple(reasons)


@functools.lru_cache(maxsize=4096)
def amount_reasons(name: str, text: str) -> tuple[str, ...]:
    """Return why this quantity is not valid for the resource; empty when it is."""
    amount = Quantity.parse(text)
    reasons = [NON_NEGATIVE] if amount.sign() < 0 else []
    if (name in INTEGER or is_extended(name)) and amount.milli_value() % 1000:
        reasons.append("must be an integer")
    return tuple(reasons)


def amounts(found: Obj, path: str, name_reasons: Callable[[str], tuple[str, ...]]) -> list[FieldError]:
    """Return the errors of a resource list; `name_reasons` checks names, `quantity_reasons` quantities."""
    errors: list[FieldError] = []
    for name, text in found.items():
        at = f"{path}[{name}]"
        errors += [invalid_value(at, name, reason) for reason in name_reasons(name)]
        errors += [invalid_value(at, text, reason) for reason in amount_reasons(name, text)]
    return errors


def _pages(name: str, text: str, path: str) -> Errors:
    """Return an error unless the quantity is a whole number of huge pages."""
    page, amount = _page_bytes(name), Quantity.parse(text)
    if page <= 0 or amount.sign() < 0 or amount.milli_value() % (page * 1000):
        return [invalid_value(path, text, f"{text} is not positive integer multiple of {name}")]
    return FINE


def _page_bytes(name: str) -> int:
    """Return the page size in bytes that a huge page resource has in its name, 0 when that is not a size."""
    try:
        return Quantity.parse(name.removeprefix(HUGE)).value()
    except QuantityError:
        return 0


def requirements(found: Obj, path: str, claims: frozenset[str] | set[str] = frozenset()) -> Errors:
    """Return the errors of the ResourceRequirements of a container."""
    limits, requests = found.get("limits"), found.get("requests")
    if not limits and not requests:
        return _claims(found["claims"], f"{path}.claims", claims) if "claims" in found else FINE
    limits, requests = limits or {}, requests or {}
    errors = amounts(limits, f"{path}.limits", container_reasons)
    computes = "cpu" in limits or "memory" in limits or "cpu" in requests or "memory" in requests
    huge = False
    for name, text in limits.items():
        if is_huge(name):
            huge = True
            errors += _pages(name, text, f"{path}.limits[{name}]")
    for name, text in requests.items():
        at = f"{path}.requests[{name}]"
        errors += [invalid_value(at, name, reason) for reason in container_reasons(name)]
        errors += [invalid_value(at, text, reason) for reason in amount_reasons(name, text)]
        limit = limits.get(name)
        fixed = not is_native(name) or is_huge(name)
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
        if is_huge(name):
            huge = True
            errors += _pages(name, text, at)
    if huge and not computes:
        errors.append(forbidden_field(path, "HugePages require cpu or memory"))
    if "claims" in found:
        errors += _claims(found["claims"], f"{path}.claims", claims)
    return errors


def _claims(found: list[Obj], path: str, known: frozenset[str] | set[str]) -> list[FieldError]:
    errors: list[FieldError] = []
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
