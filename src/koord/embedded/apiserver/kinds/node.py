"""This module holds the strategies of Node, Namespace, Lease, PriorityClass and RuntimeClass."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from koord.embedded.apiserver.kinds import resource_validation, strategy, validators
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.pod.scheduling import TAINT_EFFECTS, toleration_errors
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.values import names

_SET_ONCE = 'node updates may not change {} except from "" to valid'


def _default_node(obj: Obj) -> None:
    """Keep podCIDR the first of podCIDRs, and default allocatable to the capacity."""
    spec = obj.setdefault("spec", {})
    one, many = spec.get("podCIDR"), spec.get("podCIDRs")
    if one and (not many or many[0] != one):
        spec["podCIDRs"] = [one]
    elif many and not one:
        spec["podCIDR"] = many[0]
    _default_allocatable(obj)


def _default_allocatable(obj: Obj) -> None:
    status = obj.get("status") or {}
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _taint_errors(found: list[Obj], path: str = "metadata.taints") -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate(found):
        at = f"{path}[{i}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        errors += validators.qualified_name_errors(key, f"{at}.key")
        errors += validators.label_value_errors(taint.get("value", ""), f"{at}.value")
        if not effect:
            errors.append(required(f"{at}.effect"))
        elif effect not in TAINT_EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, TAINT_EFFECTS))
        if (key, effect) in seen:
            shown = to_internal("Taint", taint)
            text = invalid_value(at, shown, "taints must be unique by key and effect pair").message
            errors.append(ApiFieldError(at, "FieldValueDuplicate", text.replace("Invalid", "Duplicate", 1)))
        seen.add((key, effect))
    return errors


def _capacity_errors(found: Obj, path: str) -> Iterator[ApiFieldError]:
    for name, text in found.items():
        at = f"{path}.{name}"
        yield from [invalid_value(at, text, reason) for reason in resource_validation.quantity_reasons(name, text)]


def _pod_cidr_errors(found: list[str]) -> list[ApiFieldError]:
    at = "spec.podCIDRs"
    errors: list[ApiFieldError] = []
    families = []
    for i, text in enumerate(found):
        try:
            families.append(ipaddress.ip_network(text).version)
        except ValueError:
            detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            errors.append(invalid_value(f"{at}[{i}]", text, detail))
    if not errors and len(found) > 1 and len(families) != len(set(families)):
        errors.append(invalid_value(at, found, "may specify no more than one CIDR for each IP family"))
    return errors


def _node_errors(obj: Obj) -> list[ApiFieldError]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    errors = _taint_errors(spec.get("taints") or [])
    errors += _capacity_errors(status.get("capacity") or {}, "status.capacity")
    errors += _capacity_errors(status.get("allocatable") or {}, "status.allocatable")
    return errors + _pod_cidr_errors(spec.get("podCIDRs") or [])


def _node_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors = _node_errors(new)
    if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
        errors.append(forbidden_field("spec.podCIDRs", _SET_ONCE.format("podCIDR")))
    if before.get("providerID") and spec.get("providerID") != before["providerID"]:
        errors.append(forbidden_field("spec.providerID", _SET_ONCE.format("providerID")))
    return errors + _taint_errors(spec.get("taints") or [])


NODE = KindStrategy(
    default=_default_node,
    validate_create=_node_errors,
    validate_update=_node_update_errors,
    validate_status=_node_update_errors,
    selectable_fields={
        "spec.unschedulable": lambda obj: "true" if (obj.get("spec") or {}).get("unschedulable") else "false"
    },
)

NAMESPACE = KindStrategy(
    selectable_fields={
        "status.phase": lambda obj: str((obj.get("status") or {}).get("phase", "")),
        "name": lambda obj: str(obj["metadata"].get("name", "")),
    }
)


# Lease -------------------------------------------------------------------------------------------------------------

_LEASE_RULES = validators.fields(
    {
        "leaseDurationSeconds": validators.at_least(1, "must be greater than 0"),
        "leaseTransitions": validators.NOT_NEGATIVE,
    }
)


def _lease_errors(obj: Obj) -> list[ApiFieldError]:
    return list(_LEASE_RULES(obj.get("spec") or {}, "spec"))


LEASE = KindStrategy(
    validate_create=_lease_errors, validate_update=lambda new, old: _lease_errors(new), creates_on_update=True
)


# PriorityClass -----------------------------------------------------------------------------------------------------

HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM_PRIORITIES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def _default_priority_class(obj: Obj) -> None:
    if obj.get("preemptionPolicy") is None:
        obj["preemptionPolicy"] = "PreemptLowerPriority"


_PREEMPTION_POLICY = validators.first_of(validators.non_empty(), validators.one_of("PreemptLowerPriority", "Never"))


def _priority_class_errors(obj: Obj) -> list[ApiFieldError]:
    name, value = obj["metadata"]["name"], obj.get("value", 0)
    errors: list[ApiFieldError] = []
    if name.startswith("system-"):
        if _SYSTEM_PRIORITIES.get(name) != value:
            detail = "priority class names with 'system-' prefix are reserved for system use only. error: "
            known = (
                f"value of {name} PriorityClass must be {_SYSTEM_PRIORITIES[name]}"
                if name in _SYSTEM_PRIORITIES
                else f"{name} is not a known system priority class"
            )
            errors.append(forbidden_field("metadata.name", detail + known))
    elif value > HIGHEST_USER_PRIORITY:
        detail = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        errors.append(forbidden_field("value", detail))
    return [*errors, *_PREEMPTION_POLICY(obj["preemptionPolicy"], "preemptionPolicy")]


def _priority_class_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    if new.get("value") != old.get("value"):
        errors.append(forbidden_field("value", "may not be changed in an update."))
    if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
        errors.append(invalid_value("preemptionPolicy", new.get("preemptionPolicy"), validators.IMMUTABLE))
    return errors


PRIORITY_CLASS = KindStrategy(
    default=_default_priority_class,
    prepare_create=strategy.begin_generation,
    validate_create=_priority_class_errors,
    validate_update=_priority_class_update_errors,
)


# RuntimeClass ------------------------------------------------------------------------------------------------------


def _runtime_class_errors(obj: Obj) -> list[ApiFieldError]:
    handler = obj.get("handler", "")
    errors = [invalid_value("handler", handler, reason) for reason in names.dns1123_label(handler)]
    fixed = (obj.get("overhead") or {}).get("podFixed") or {}
    # The real server validates the overhead as limits of a container, and reports it so.
    errors += resource_validation.resource_requirement_errors({"limits": fixed}, "overhead")
    scheduling = obj.get("scheduling") or {}
    errors += validators.label_errors(scheduling.get("nodeSelector") or {}, "scheduling.nodeSelector")
    return errors + _runtime_toleration_errors(scheduling.get("tolerations") or [])


def _runtime_toleration_errors(found: list[Obj]) -> list[ApiFieldError]:
    at = "scheduling.tolerations"
    errors = list(toleration_errors(found, at))
    errors += [
        duplicate(f"{at}[{i}]", to_internal("Toleration", item)) for i, item in enumerate(found) if item in found[:i]
    ]
    return errors


def _runtime_class_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors = _runtime_class_errors(new)
    if new.get("handler") != old.get("handler"):
        errors.append(invalid_value("handler", new.get("handler", ""), validators.IMMUTABLE))
    return errors


RUNTIME_CLASS = KindStrategy(validate_create=_runtime_class_errors, validate_update=_runtime_class_update_errors)
