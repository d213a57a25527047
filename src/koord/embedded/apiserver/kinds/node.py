"""This module holds the strategies of Node, Namespace, Lease, PriorityClass and RuntimeClass.

What the server itself creates in a namespace is left to the REST layer.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from koord.embedded.apiserver.kinds import amount, label
from koord.embedded.apiserver.kinds.internal import internal
from koord.embedded.apiserver.kinds.pod.scheduling import EFFECTS
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.refusal import FieldError, forbidden_field, invalid_value, not_supported, required

Obj = dict[str, Any]
_ONCE = 'node updates may not change {} except from "" to valid'


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


def _taints(found: list[Obj], path: str = "metadata.taints") -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for i, taint in enumerate(found):
        at = f"{path}[{i}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        errors += label.label_name(key, f"{at}.key")
        errors += label.label_value(taint.get("value", ""), f"{at}.value")
        if not effect:
            errors.append(required(f"{at}.effect"))
        elif effect not in EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, EFFECTS))
        if (key, effect) in seen:
            shown = internal("Taint", taint)
            text = invalid_value(at, shown, "taints must be unique by key and effect pair").message
            errors.append(FieldError(at, "FieldValueDuplicate", text.replace("Invalid", "Duplicate", 1)))
        seen.add((key, effect))
    return errors


def _quantities(found: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for name, text in found.items():
        at = f"{path}.{name}"
        errors += [invalid_value(at, text, reason) for reason in amount.amount_reasons(name, text)]
    return errors


def _networks(found: list[str]) -> list[FieldError]:
    at = "spec.podCIDRs"
    errors: list[FieldError] = []
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


def _node_errors(obj: Obj) -> list[FieldError]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    errors = _taints(spec.get("taints") or [])
    errors += _quantities(status.get("capacity") or {}, "status.capacity")
    errors += _quantities(status.get("allocatable") or {}, "status.allocatable")
    return errors + _networks(spec.get("podCIDRs") or [])


def _node_update(new: Obj, old: Obj) -> list[FieldError]:
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    errors = _node_errors(new)
    if before.get("podCIDRs") and spec.get("podCIDRs") != before["podCIDRs"]:
        errors.append(forbidden_field("spec.podCIDRs", _ONCE.format("podCIDR")))
    if before.get("providerID") and spec.get("providerID") != before["providerID"]:
        errors.append(forbidden_field("spec.providerID", _ONCE.format("providerID")))
    return errors + _taints(spec.get("taints") or [])


NODE = Strategy(
    default=_default_node,
    validate_create=_node_errors,
    validate_update=_node_update,
    validate_status=_node_update,
    fields={
        "spec.unschedulable": lambda obj: "true" if (obj.get("spec") or {}).get("unschedulable") else "false",
    },
)

NAMESPACE = Strategy(
    fields={
        "status.phase": lambda obj: str((obj.get("status") or {}).get("phase", "")),
        "name": lambda obj: str(obj["metadata"].get("name", "")),
    },
)
