"""This section holds the strategies of Lease, PriorityClass and RuntimeClass."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import amount, generation, label
from koord.embedded.apiserver.kinds.internal import internal
from koord.embedded.apiserver.kinds.pod.scheduling import tolerations
from koord.embedded.apiserver.kinds.rule import IMMUTABLE, at_least, fields, filled, first_of, one_of
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.refusal import FieldError, duplicate, forbidden_field, invalid_value
from koord.values import names

Obj = dict[str, Any]


# Lease -------------------------------------------------------------------------------------------------------------

_LEASE = fields(
    {
        "leaseDurationSeconds": at_least(1, "must be greater than 0"),
        "leaseTransitions": at_least(0),
    }
)


def _lease_errors(obj: Obj) -> list[FieldError]:
    return list(_LEASE(obj.get("spec") or {}, "spec"))


LEASE = Strategy(
    validate_create=_lease_errors,
    validate_update=lambda new, old: _lease_errors(new),
    creates_on_update=True,
)


# PriorityClass -----------------------------------------------------------------------------------------------------

HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def _default_priority(obj: Obj) -> None:
    if obj.get("preemptionPolicy") is None:
        obj["preemptionPolicy"] = "PreemptLowerPriority"


_PREEMPTION = first_of(filled(), one_of("PreemptLowerPriority", "Never"))


def _priority_errors(obj: Obj) -> list[FieldError]:
    name, value = obj["metadata"]["name"], obj.get("value", 0)
    errors: list[FieldError] = []
    if name.startswith("system-"):
        if _SYSTEM.get(name) != value:
            detail = "priority class names with 'system-' prefix are reserved for system use only. error: "
            known = (
                f"value of {name} PriorityClass must be {_SYSTEM[name]}"
                if name in _SYSTEM
                else f"{name} is not a known system priority class"
            )
            errors.append(forbidden_field("metadata.name", detail + known))
    elif value > HIGHEST_USER_PRIORITY:
        detail = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
        errors.append(forbidden_field("value", detail))
    return [*errors, *_PREEMPTION(obj["preemptionPolicy"], "preemptionPolicy")]


def _priority_update(new: Obj, old: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    if new.get("value") != old.get("value"):
        errors.append(forbidden_field("value", "may not be changed in an update."))
    if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
        errors.append(invalid_value("preemptionPolicy", new.get("preemptionPolicy"), IMMUTABLE))
    return errors


PRIORITY_CLASS = Strategy(
    default=_default_priority,
    prepare_create=generation.begin,
    validate_create=_priority_errors,
    validate_update=_priority_update,
)


# RuntimeClass ------------------------------------------------------------------------------------------------------


def _runtime_errors(obj: Obj) -> list[FieldError]:
    handler = obj.get("handler", "")
    errors = [invalid_value("handler", handler, reason) for reason in names.dns1123_label(handler)]
    fixed = (obj.get("overhead") or {}).get("podFixed") or {}
    # The real server validates the overhead as limits of a container, and reports it so.
    errors += amount.requirements({"limits": fixed}, "overhead")
    scheduling = obj.get("scheduling") or {}
    errors += label.labels(scheduling.get("nodeSelector") or {}, "scheduling.nodeSelector")
    return errors + _tolerations(scheduling.get("tolerations") or [])


def _tolerations(found: list[Obj]) -> list[FieldError]:
    at = "scheduling.tolerations"
    errors = list(tolerations(found, at))
    errors += [
        duplicate(f"{at}[{i}]", internal("Toleration", item)) for i, item in enumerate(found) if item in found[:i]
    ]
    return errors


def _runtime_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = _runtime_errors(new)
    if new.get("handler") != old.get("handler"):
        errors.append(invalid_value("handler", new.get("handler", ""), IMMUTABLE))
    return errors


RUNTIME_CLASS = Strategy(validate_create=_runtime_errors, validate_update=_runtime_update)
