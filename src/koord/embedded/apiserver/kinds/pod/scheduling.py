"""This module validates a pod's scheduling fields: affinity, tolerations, topology spread, gates."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import label
from koord.embedded.apiserver.kinds.pod.label_key import label_key_errors
from koord.embedded.apiserver.kinds.rule import Errors, each, fields, one_of
from koord.embedded.apiserver.refusal import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from koord.values import names

Obj = dict[str, Any]
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


# Node affinity -----------------------------------------------------------------------------------------------------


def _node_expression(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    operator, values = found.get("operator", ""), found.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            errors.append(required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(forbidden_field(f"{path}.values", detail))
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(required(f"{path}.values", detail))
    else:
        errors.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    return [*errors, *label.label_name(found.get("key", ""), f"{path}.key")]


def _strict_expression(found: Obj, path: str) -> Errors:
    """Return the errors of an expression of a required term.

    The values of preferred terms are not checked, as old pods exist.
    """
    return [*_node_expression(found, path), *each(label.label_value)(found.get("values") or [], f"{path}.values")]


def _node_field(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    operator, values, key = found.get("operator", ""), found.get("values") or [], found.get("key", "")
    if operator in ("In", "NotIn"):
        if len(values) != 1:
            detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            errors.append(required(f"{path}.values", detail))
    else:
        errors.append(invalid_value(f"{path}.operator", operator, "not a valid selector operator"))
    if key != "metadata.name":
        errors.append(invalid_value(f"{path}.key", key, "not a valid field selector key"))
    else:
        for i, value in enumerate(values):
            errors += [invalid_value(f"{path}.values[{i}]", value, reason) for reason in names.dns1123_subdomain(value)]
    return errors


_preference = fields({"matchExpressions": each(_node_expression), "matchFields": each(_node_field)})
node_term = fields({"matchExpressions": each(_strict_expression), "matchFields": each(_node_field)})


def node_selector(found: Obj, path: str) -> Errors:
    terms, at = found.get("nodeSelectorTerms"), f"{path}.nodeSelectorTerms"
    if not terms:
        return [required(at, "must have at least one node selector term")]
    return each(node_term)(terms, at)


def _weight(found: Obj, path: str) -> list[FieldError]:
    weight = found.get("weight", 0)
    return [] if 1 <= weight <= 100 else [invalid_value(f"{path}.weight", weight, "must be in the range 1-100")]


def _preferred_node(found: Obj, path: str) -> Errors:
    return [*_weight(found, path), *_preference(found.get("preference") or {}, f"{path}.preference")]


# Pod affinity ------------------------------------------------------------------------------------------------------


def _pod_term(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    errors += label.selector(found.get("labelSelector"), f"{path}.labelSelector")
    errors += label.selector(found.get("namespaceSelector"), f"{path}.namespaceSelector")
    for name in found.get("namespaces") or ():
        errors += [invalid_value(f"{path}.namespace", name, reason) for reason in names.dns1123_label(name)]
    errors += label_key_errors(found, path)
    topology = found.get("topologyKey", "")
    if not topology:
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    return [*errors, *label.label_name(topology, f"{path}.topologyKey")]


def _preferred_pod(found: Obj, path: str) -> Errors:
    return [*_weight(found, path), *_pod_term(found.get("podAffinityTerm") or {}, f"{path}.podAffinityTerm")]


_POD_TERMS = fields({_REQUIRED: each(_pod_term), _PREFERRED: each(_preferred_pod)})
affinity = fields(
    {
        "nodeAffinity": fields({_REQUIRED: node_selector, _PREFERRED: each(_preferred_node)}),
        "podAffinity": _POD_TERMS,
        "podAntiAffinity": _POD_TERMS,
    }
)


# Tolerations -------------------------------------------------------------------------------------------------------


def _toleration(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    key, operator, effect = found.get("key", ""), found.get("operator", ""), found.get("effect", "")
    if key:
        errors += label.label_name(key, f"{path}.key")
    elif operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid_value(f"{path}.operator", operator, detail))
    if found.get("tolerationSeconds") is not None and effect != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid_value(f"{path}.effect", effect, detail))
    if operator in ("", "Equal"):
        errors += label.label_value(found.get("value", ""), f"{path}.operator")
    elif operator == "Exists":
        if found.get("value"):
            detail = "value must be empty when `operator` is 'Exists'"
            errors.append(invalid_value(f"{path}.operator", found["value"], detail))
    else:
        known = ("Equal", "Exists", "Lt", "Gt") if operator in ("Lt", "Gt") else ("Equal", "Exists")
        errors.append(not_supported(f"{path}.operator", operator, known))
    if effect and effect not in EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, EFFECTS))
    return errors


tolerations = each(_toleration)


# Spreading and gates -----------------------------------------------------------------------------------------------


_POLICIES = fields(dict.fromkeys(("nodeAffinityPolicy", "nodeTaintsPolicy"), one_of("Honor", "Ignore")))


def _spread(found: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    skew, when = found.get("maxSkew", 0), found.get("whenUnsatisfiable", "")
    if skew <= 0:
        errors.append(invalid_value(f"{path}.maxSkew", skew, "must be greater than zero"))
    if not found.get("topologyKey"):
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    if when not in ("DoNotSchedule", "ScheduleAnyway"):
        errors.append(not_supported(f"{path}.whenUnsatisfiable", when, ("DoNotSchedule", "ScheduleAnyway")))
    domains = found.get("minDomains")
    if domains is not None:
        if domains <= 0:
            errors.append(invalid_value(f"{path}.minDomains", domains, "must be greater than zero"))
        if when != "DoNotSchedule":
            detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
            errors.append(invalid_value(f"{path}.minDomains", domains, detail))
    errors += _POLICIES(found, path)
    errors += label_key_errors(found, path)
    errors += label.selector(found.get("labelSelector"), f"{path}.labelSelector")
    return errors


def spreads(found: list[Obj], path: str) -> Errors:
    errors: list[FieldError] = []
    for i, constraint in enumerate(found):
        at = f"{path}[{i}]"
        errors += _spread(constraint, at)
        mine = (constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", ""))
        for later in found[i + 1 :]:
            if (later.get("topologyKey", ""), later.get("whenUnsatisfiable", "")) == mine:
                errors.append(duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", f"{{{mine[0]}, {mine[1]}}}"))
                break
    return errors


def gates(found: list[Obj], path: str) -> Errors:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for i, gate in enumerate(found):
        name = gate.get("name", "")
        errors += label.label_name(name, f"{path}[{i}]")
        if name in seen:
            errors.append(duplicate(f"{path}[{i}]", name))
        seen.add(name)
    return errors
