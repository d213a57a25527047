"""This module validates a pod's scheduling fields: affinity, tolerations, topology spread, gates."""

from __future__ import annotations

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
from koord.embedded.apiserver.kinds import validators
from koord.embedded.apiserver.kinds.validators import FieldErrors, each, fields, one_of
from koord.values import names

TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


# Node affinity -----------------------------------------------------------------------------------------------------


def _node_expression_errors(found: Obj, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    if found.get("operator") in ("Gt", "Lt"):
        if len(found.get("values") or ()) != 1:
            detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(required(f"{path}.values", detail))
    else:
        errors = validators.operator_errors(found, path)
    return [*errors, *validators.qualified_name_errors(found.get("key", ""), f"{path}.key")]


def _required_node_expression_errors(found: Obj, path: str) -> FieldErrors:
    """Return the errors of an expression of a required term; values of preferred terms are not checked."""
    return [
        *_node_expression_errors(found, path),
        *each(validators.label_value_errors)(found.get("values") or [], f"{path}.values"),
    ]


def _node_field_errors(found: Obj, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
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


_preference_errors = fields(
    {"matchExpressions": each(_node_expression_errors), "matchFields": each(_node_field_errors)}
)
node_selector_term_errors = fields(
    {"matchExpressions": each(_required_node_expression_errors), "matchFields": each(_node_field_errors)}
)


def node_selector_errors(found: Obj, path: str) -> FieldErrors:
    terms, at = found.get("nodeSelectorTerms"), f"{path}.nodeSelectorTerms"
    if not terms:
        return [required(at, "must have at least one node selector term")]
    return each(node_selector_term_errors)(terms, at)


def _weight_errors(found: Obj, path: str) -> list[ApiFieldError]:
    weight = found.get("weight", 0)
    return [] if 1 <= weight <= 100 else [invalid_value(f"{path}.weight", weight, "must be in the range 1-100")]


def _preferred_node_term_errors(found: Obj, path: str) -> FieldErrors:
    return [*_weight_errors(found, path), *_preference_errors(found.get("preference") or {}, f"{path}.preference")]


# Pod affinity ------------------------------------------------------------------------------------------------------


def _pod_affinity_term_errors(found: Obj, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    errors += validators.label_selector_errors(found.get("labelSelector"), f"{path}.labelSelector")
    errors += validators.label_selector_errors(found.get("namespaceSelector"), f"{path}.namespaceSelector")
    for name in found.get("namespaces") or ():
        errors += [invalid_value(f"{path}.namespace", name, reason) for reason in names.dns1123_label(name)]
    errors += label_key_errors(found, path)
    topology = found.get("topologyKey", "")
    if not topology:
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    return [*errors, *validators.qualified_name_errors(topology, f"{path}.topologyKey")]


def _preferred_pod_term_errors(found: Obj, path: str) -> FieldErrors:
    return [
        *_weight_errors(found, path),
        *_pod_affinity_term_errors(found.get("podAffinityTerm") or {}, f"{path}.podAffinityTerm"),
    ]


_POD_AFFINITY_RULES = fields({_REQUIRED: each(_pod_affinity_term_errors), _PREFERRED: each(_preferred_pod_term_errors)})
affinity_errors = fields(
    {
        "nodeAffinity": fields({_REQUIRED: node_selector_errors, _PREFERRED: each(_preferred_node_term_errors)}),
        "podAffinity": _POD_AFFINITY_RULES,
        "podAntiAffinity": _POD_AFFINITY_RULES,
    }
)


# Tolerations -------------------------------------------------------------------------------------------------------


def _toleration_errors(found: Obj, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    key, operator, effect = found.get("key", ""), found.get("operator", ""), found.get("effect", "")
    if key:
        errors += validators.qualified_name_errors(key, f"{path}.key")
    elif operator != "Exists":
        detail = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid_value(f"{path}.operator", operator, detail))
    if found.get("tolerationSeconds") is not None and effect != "NoExecute":
        detail = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid_value(f"{path}.effect", effect, detail))
    if operator in ("", "Equal"):
        errors += validators.label_value_errors(found.get("value", ""), f"{path}.operator")
    elif operator == "Exists":
        if found.get("value"):
            detail = "value must be empty when `operator` is 'Exists'"
            errors.append(invalid_value(f"{path}.operator", found["value"], detail))
    else:
        known = ("Equal", "Exists", "Lt", "Gt") if operator in ("Lt", "Gt") else ("Equal", "Exists")
        errors.append(not_supported(f"{path}.operator", operator, known))
    if effect and effect not in TAINT_EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, TAINT_EFFECTS))
    return errors


toleration_errors = each(_toleration_errors)


# Spreading and gates -----------------------------------------------------------------------------------------------


_NODE_INCLUSION_POLICIES = fields(dict.fromkeys(("nodeAffinityPolicy", "nodeTaintsPolicy"), one_of("Honor", "Ignore")))


def _spread_constraint_errors(found: Obj, path: str) -> Iterator[ApiFieldError]:
    skew, when = found.get("maxSkew", 0), found.get("whenUnsatisfiable", "")
    if skew <= 0:
        yield invalid_value(f"{path}.maxSkew", skew, "must be greater than zero")
    if not found.get("topologyKey"):
        yield required(f"{path}.topologyKey", "can not be empty")
    if when not in ("DoNotSchedule", "ScheduleAnyway"):
        yield not_supported(f"{path}.whenUnsatisfiable", when, ("DoNotSchedule", "ScheduleAnyway"))
    domains = found.get("minDomains")
    if domains is not None:
        if domains <= 0:
            yield invalid_value(f"{path}.minDomains", domains, "must be greater than zero")
        if when != "DoNotSchedule":
            detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
            yield invalid_value(f"{path}.minDomains", domains, detail)
    yield from _NODE_INCLUSION_POLICIES(found, path)
    yield from label_key_errors(found, path)
    yield from validators.label_selector_errors(found.get("labelSelector"), f"{path}.labelSelector")


def topology_spread_errors(found: list[Obj], path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    for i, constraint in enumerate(found):
        at = f"{path}[{i}]"
        errors += _spread_constraint_errors(constraint, at)
        mine = (constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", ""))
        for later in found[i + 1 :]:
            if (later.get("topologyKey", ""), later.get("whenUnsatisfiable", "")) == mine:
                errors.append(duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", f"{{{mine[0]}, {mine[1]}}}"))
                break
    return errors


def scheduling_gate_errors(found: list[Obj], path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    seen: set[str] = set()
    for i, gate in enumerate(found):
        name = gate.get("name", "")
        errors += validators.qualified_name_errors(name, f"{path}[{i}]")
        if name in seen:
            errors.append(duplicate(f"{path}[{i}]", name))
        seen.add(name)
    return errors


_LABEL_KEY_OPERATORS = (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))


def merge_label_keys(spec: Obj, labels: Obj) -> None:
    """Merge the pod's label values into its selectors, once at creation: later label changes do not affect them."""
    if not labels or not ("affinity" in spec or "topologySpreadConstraints" in spec):
        return
    for term in _label_selecting_terms(spec):
        selector = term.get("labelSelector")
        if selector is None:
            continue
        added = [
            {"key": key, "operator": operator, "values": [labels[key]]}
            for field, operator in _LABEL_KEY_OPERATORS
            for key in term.get(field) or ()
            if key in labels
        ]
        if added:
            expressions = [*(selector.get("matchExpressions") or ()), *added]
            term["labelSelector"] = {**selector, "matchExpressions": expressions}


def _label_selecting_terms(spec: Obj) -> Iterator[Obj]:
    yield from spec.get("topologySpreadConstraints") or ()
    affinity = spec.get("affinity") or {}
    for side in ("podAffinity", "podAntiAffinity"):
        found = affinity.get(side) or {}
        yield from found.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for weighted in found.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield weighted.get("podAffinityTerm") or {}


def label_key_errors(term: Obj, path: str) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    selector = term.get("labelSelector")
    for field, _ in _LABEL_KEY_OPERATORS:
        listed = term.get(field) or []
        for i, name in enumerate(listed):
            errors += validators.qualified_name_errors(name, f"{path}.{field}[{i}]")
        if listed and selector is None:
            errors.append(forbidden_field(f"{path}.{field}", "must not be specified when labelSelector is not set"))
    matched, mismatched = term.get("matchLabelKeys") or [], term.get("mismatchLabelKeys") or []
    used = _selector_keys(selector or {})
    errors += [
        # The real server leaves the field's name out of this path.
        invalid_value(f"{path}[{i}]", name, "exists in both matchLabelKeys and labelSelector")
        for i, name in enumerate(matched)
        if used.count(name) > 1
    ]
    errors += [
        invalid_value(f"{path}.matchLabelKeys[{i}]", name, "exists in both matchLabelKeys and mismatchLabelKeys")
        for i, name in enumerate(matched)
        if name in mismatched
    ]
    return errors


def _selector_keys(selector: Obj) -> list[str]:
    expressions = selector.get("matchExpressions") or ()
    return [*(selector.get("matchLabels") or ()), *(expression.get("key", "") for expression in expressions)]
