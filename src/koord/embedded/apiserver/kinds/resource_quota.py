"""This module holds the strategies of ResourceQuota and LimitRange."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, duplicate, forbidden_field, invalid_value, required
from koord.embedded.apiserver.kinds import resource_validation
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.kinds.validators import IMMUTABLE
from koord.values import names
from koord.values.quantity import Quantity

# ResourceQuota -----------------------------------------------------------------------------------------------------

_COMPUTE_RESOURCES = frozenset(
    ("cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory", "pods")
)
_SCOPES = (
    *("Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity"),
    "VolumeAttributesClass",
)
_CONFLICTING_SCOPES = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
_EXISTS_ONLY_SCOPES = ("Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "CrossNamespacePodAffinity")


@functools.lru_cache(maxsize=4096)
def _quota_resource_reasons(name: str) -> tuple[str, ...]:
    reasons = names.qualified_name(name)
    if reasons:
        return tuple(reasons)
    if (
        "/" in name
        or name in resource_validation.QUOTA_RESOURCES
        or resource_validation.is_huge_page(name)
        or name.startswith("requests.hugepages-")
    ):
        return ()
    return (
        ("must be a standard resource for quota",)
        if name in ("storage",)
        else ("must be a standard resource type or fully qualified", "must be a standard resource for quota")
    )


def _resource_list_errors(found: Obj, path: str) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for name, text in found.items():
        at = f"{path}[{name}]"
        errors += [invalid_value(at, name, reason) for reason in _quota_resource_reasons(name)]
        reasons = resource_validation.quantity_reasons(name, text)
        errors += [invalid_value(at, text, reason) for reason in reasons]
    return errors


def _scope_errors(scopes: list[str], hard: Obj, shown: Any, path: str) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for scope in scopes:
        if scope not in _SCOPES:
            errors.append(invalid_value(path, shown, "unsupported scope"))
        misfits = [name for name in hard if _scope_excludes(scope, name)]
        errors += [invalid_value(path, shown, "unsupported scope applied to resource") for _ in misfits]
    clashes = [pair for pair in _CONFLICTING_SCOPES if set(pair) <= set(scopes)]
    return errors + [invalid_value(path, shown, "conflicting scopes") for _ in clashes]


def _scope_excludes(scope: str, name: str) -> bool:
    """Return whether the scope cannot apply to the resource: most scopes are properties of pods."""
    if name not in resource_validation.QUOTA_RESOURCES and not resource_validation.is_huge_page(
        name.removeprefix("requests.")
    ):
        return False
    if scope == "BestEffort":
        return name != "pods"
    return (
        scope in ("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass") and name not in _COMPUTE_RESOURCES
    )


def _scope_selector_errors(found: Obj, hard: Obj, path: str) -> Iterator[ApiFieldError]:
    at = f"{path}.matchExpressions"
    for expression in found.get("matchExpressions") or ():
        scope, operator, values = (
            expression.get("scopeName", ""),
            expression.get("operator", ""),
            expression.get("values") or [],
        )
        if scope not in _SCOPES:
            yield invalid_value(f"{at}.scopeName", scope, "unsupported scope")
        if scope in _EXISTS_ONLY_SCOPES and operator != "Exists":
            detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "
            detail += "ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, "
            detail += "ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
            yield invalid_value(f"{at}.operator", operator, detail)
        if operator in ("In", "NotIn"):
            if not values:
                detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                yield required(f"{at}.values", detail)
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                yield invalid_value(f"{at}.values", values, detail)
        else:
            yield invalid_value(f"{at}.operator", operator, "not a valid selector operator")


def _quota_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    hard = spec.get("hard") or {}
    errors = _resource_list_errors(hard, "spec.hard")
    scopes = spec.get("scopes") or []
    if scopes:
        errors += _scope_errors(scopes, hard, scopes, "spec.scopes")
    if spec.get("scopeSelector"):
        errors += _scope_selector_errors(spec["scopeSelector"], hard, "spec.scopeSelector")
    return errors


def _quota_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors = _quota_errors(new)
    scopes = (new.get("spec") or {}).get("scopes") or []
    if set(scopes) != set((old.get("spec") or {}).get("scopes") or ()):
        errors.append(invalid_value("spec.scopes", scopes, IMMUTABLE))
    return errors


def _quota_status_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    status = new.get("status") or {}
    return _resource_list_errors(status.get("hard") or {}, "status.hard") + _resource_list_errors(
        status.get("used") or {}, "status.used"
    )


RESOURCE_QUOTA = KindStrategy(
    validate_create=_quota_errors, validate_update=_quota_update_errors, validate_status=_quota_status_errors
)


# LimitRange --------------------------------------------------------------------------------------------------------

_LIMIT_FIELDS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")


def _default_limit_range(obj: Obj) -> None:
    """Default limits of containers to the maximum, and default requests to that limit or else to the minimum."""
    for item in (obj.get("spec") or {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        limits, requests = dict(item.get("default") or {}), dict(item.get("defaultRequest") or {})
        for name, amount_text in (item.get("max") or {}).items():
            limits.setdefault(name, amount_text)
        for source in (limits, item.get("min") or {}):
            for name, amount_text in source.items():
                requests.setdefault(name, amount_text)
        if limits:
            item["default"] = limits
        if requests:
            item["defaultRequest"] = requests


def _limit_range_errors(obj: Obj) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    seen: set[str] = set()
    for i, item in enumerate((obj.get("spec") or {}).get("limits") or ()):
        errors += _limit_item_errors(item, f"spec.limits[{i}]", seen)
    return errors


def _limit_item_errors(item: Obj, path: str, seen: set[str]) -> list[ApiFieldError]:
    kind = item.get("type", "")
    errors = [invalid_value(f"{path}.type", kind, reason) for reason in names.qualified_name(kind)]
    if not errors and "/" not in kind and kind not in ("Pod", "Container", "PersistentVolumeClaim"):
        errors.append(invalid_value(f"{path}.type", kind, "must be a standard limit type or fully qualified"))
    if kind in seen:
        errors.append(duplicate(f"{path}.type", kind))
    seen.add(kind)
    parts = {part: item.get(part) or {} for part in _LIMIT_FIELDS}
    rule = (
        resource_validation.container_resource_reasons
        if kind in ("Pod", "Container")
        else resource_validation.resource_name_reasons
    )
    for part in ("max", "min"):
        errors += _name_errors(parts[part], f"{path}.{part}", rule)
    if kind == "Pod":
        for part in ("default", "defaultRequest"):
            if parts[part]:
                errors.append(forbidden_field(f"{path}.{part}", "may not be specified when `type` is 'Pod'"))
    else:
        for part in ("default", "defaultRequest"):
            errors += _name_errors(parts[part], f"{path}.{part}", rule)
    errors += _name_errors(parts["maxLimitRequestRatio"], f"{path}.maxLimitRequestRatio", rule)
    if kind == "PersistentVolumeClaim" and "storage" not in parts["max"] and "storage" not in parts["min"]:
        detail = "either minimum or maximum storage value is required, but neither was provided"
        errors.append(required(f"{path}.limits", detail))
    for name in sorted({name for part in parts.values() for name in part}):
        errors += _limit_relation_errors(name, {part: parts[part].get(name) for part in _LIMIT_FIELDS}, path)
    return errors


def _name_errors(found: Obj, path: str, rule: Callable[[str], tuple[str, ...]]) -> list[ApiFieldError]:
    return [invalid_value(f"{path}[{name}]", name, reason) for name in found for reason in rule(name)]


def _limit_relation_errors(name: str, texts: dict[str, str | None], path: str) -> list[ApiFieldError]:
    """Check that min <= default request <= default <= max, and that the ratio is within what min and max allow."""
    errors: list[ApiFieldError] = []
    found = {part: Quantity.parse(text) for part, text in texts.items() if text is not None}

    def above(left: str, right: str) -> bool:
        return left in found and right in found and found[left] > found[right]

    def complain(part: str, shown: str, detail: str) -> None:
        errors.append(invalid_value(f"{path}.{part}[{name}]", texts[shown], detail))

    if above("min", "max"):
        complain("min", "min", f"min value {texts['min']} is greater than max value {texts['max']}")
    if above("min", "defaultRequest"):
        detail = f"min value {texts['min']} is greater than default request value {texts['defaultRequest']}"
        complain("defaultRequest", "defaultRequest", detail)
    if above("defaultRequest", "max"):
        detail = f"default request value {texts['defaultRequest']} is greater than max value {texts['max']}"
        complain("defaultRequest", "defaultRequest", detail)
    if above("defaultRequest", "default"):
        detail = (
            f"default request value {texts['defaultRequest']} is greater than default limit value {texts['default']}"
        )
        complain("defaultRequest", "defaultRequest", detail)
    if above("min", "default"):
        complain("default", "min", f"min value {texts['min']} is greater than default value {texts['default']}")
    if above("default", "max"):
        complain("default", "max", f"default value {texts['default']} is greater than max value {texts['max']}")
    ratio = found.get("maxLimitRequestRatio")
    if ratio is not None:
        one = Quantity.from_value(1)
        if ratio < one:
            complain(
                "maxLimitRequestRatio", "maxLimitRequestRatio", f"ratio {texts['maxLimitRequestRatio']} is less than 1"
            )
        if "min" in found and "max" in found and not found["min"].is_zero():
            most = float(found["max"]) / float(found["min"])
            if float(ratio) > most:
                detail = f"ratio {texts['maxLimitRequestRatio']} is greater than max/min = {most:f}"
                complain("maxLimitRequestRatio", "maxLimitRequestRatio", detail)
    overcommits = resource_validation.is_native(name) and not resource_validation.is_huge_page(name)
    if not overcommits:
        errors += _request_equals_limit_errors(name, texts, found, path)
    return errors


def _request_equals_limit_errors(
    name: str, texts: dict[str, str | None], found: dict[str, Quantity], path: str
) -> list[ApiFieldError]:
    request, limit = found.get("defaultRequest"), found.get("default")
    if request is not None and limit is not None and request != limit:
        detail = (
            f"default value {texts['default']} must equal to defaultRequest value {texts['defaultRequest']} in {name}"
        )
        return [invalid_value(f"{path}.defaultRequest[{name}]", texts["defaultRequest"], detail)]
    return []


LIMIT_RANGE = KindStrategy(
    default=_default_limit_range,
    validate_create=_limit_range_errors,
    validate_update=lambda new, old: _limit_range_errors(new),
)
