"""This module decides which names a CRD gets, and its conditions NamesAccepted and Established.

Names are taken per group, first come first served; a name that another CRD holds is not reassigned.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koord.api.model import Obj

NAMES_ACCEPTED = "NamesAccepted"
ESTABLISHED = "Established"
APPROVED_ANNOTATION = "api-approved.kubernetes.io"
APPROVAL_CONDITION = "KubernetesAPIApprovalPolicyConformant"
_FIELD_ORDER = ("plural", "singular", "shortNames", "kind", "listKind", "categories")


class NamesInUse(msgspec.Struct, frozen=True):
    """NamesInUse holds the names of the other CRDs of a group: resource names and kinds."""

    resources: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()


def names_in_use(others: Iterable[Obj]) -> NamesInUse:
    """Collect the accepted names of `others`, the other CRDs of the same group."""
    resources: set[str] = set()
    kinds: set[str] = set()
    for other in others:
        names = (other.get("status") or {}).get("acceptedNames") or {}
        resources |= {names.get("plural", ""), names.get("singular", ""), *names.get("shortNames", ())}
        kinds |= {names.get("kind", ""), names.get("listKind", "")}
    return NamesInUse(frozenset(resources - {""}), frozenset(kinds - {""}))


class NameDecision(msgspec.Struct, frozen=True):
    """A NameDecision holds the accepted names and the resulting conditions."""

    names: Obj
    conditions: tuple[Obj, ...]  # without times


def decide_names(definition: Obj, held: NamesInUse) -> NameDecision:
    """Decide the names to accept now, keeping an earlier one where the requested one is in use."""
    wanted = definition["spec"].get("names") or {}
    status = definition.get("status") or {}
    names = dict(status.get("acceptedNames") or {})
    problem: tuple[str, str] | None = None
    for field, title in (("plural", "Plural"), ("singular", "Singular")):
        problem = _accept_name(names, wanted, field, title, held.resources) or problem
    shorts = [name for name in wanted.get("shortNames", ()) if name in held.resources]
    if shorts:
        listed = ", ".join(f'"{name}" is already in use' for name in shorts)
        problem = ("ShortNamesConflict", listed if len(shorts) == 1 else f"[{listed}]")
    else:
        _accept_list(names, wanted, "shortNames")
    for field, title in (("kind", "Kind"), ("listKind", "ListKind")):
        problem = _accept_name(names, wanted, field, title, held.kinds) or problem
    _accept_list(names, wanted, "categories")
    ordered = {"plural": "", **{key: names[key] for key in _FIELD_ORDER if names.get(key)}}
    ordered.setdefault("kind", "")
    return NameDecision({key: ordered[key] for key in _FIELD_ORDER if key in ordered}, _conditions(definition, problem))


def _accept_name(names: Obj, wanted: Obj, field: str, title: str, held: frozenset[str]) -> tuple[str, str] | None:
    name = wanted.get(field, "")
    if name in held:
        return (f"{title}Conflict", f'"{name}" is already in use')
    names[field] = name
    return None


def _accept_list(names: Obj, wanted: Obj, field: str) -> None:
    if wanted.get(field):
        names[field] = list(wanted[field])
    else:
        names.pop(field, None)


def _conditions(definition: Obj, problem: tuple[str, str] | None) -> tuple[Obj, ...]:
    accepted = (
        condition(NAMES_ACCEPTED, "True", "NoConflicts", "no conflicts found")
        if problem is None
        else condition(NAMES_ACCEPTED, "False", *problem)
    )
    if problem is None:
        established = condition(ESTABLISHED, "True", "InitialNamesAccepted", "the initial names have been accepted")
    elif is_established(definition):  # once served, a definition stays served
        return (*_approval_conditions(definition), accepted)
    else:
        established = condition(ESTABLISHED, "False", "NotAccepted", "not all names are accepted")
    return (*_approval_conditions(definition), accepted, established)


def is_protected_group(group: str) -> bool:
    """Return whether the group is below k8s.io or kubernetes.io, where a CRD must name its API review."""
    return group in ("k8s.io", "kubernetes.io") or group.endswith((".k8s.io", ".kubernetes.io"))


def _approval_conditions(definition: Obj) -> tuple[Obj, ...]:
    if not is_protected_group(definition["spec"].get("group", "")):
        return ()
    value = (definition["metadata"].get("annotations") or {}).get(APPROVED_ANNOTATION, "")
    if value.startswith("unapproved"):
        message = f'not approved: "{value}"'
        return (condition(APPROVAL_CONDITION, "False", "UnapprovedAnnotation", message),)
    return (condition(APPROVAL_CONDITION, "True", "ApprovedAnnotation", f"approved in {value}"),)


def condition(type: str, status: str, reason: str, message: str) -> Obj:
    return {"type": type, "status": status, "lastTransitionTime": None, "reason": reason, "message": message}


def with_condition(conditions: Iterable[Obj], new: Obj, now: str) -> list[Obj]:
    """Return the list with one condition set; its transition time changes only when its status does."""
    kept = list(conditions)
    for at, old in enumerate(kept):
        if old["type"] == new["type"]:
            time = old["lastTransitionTime"] if old["status"] == new["status"] else now
            kept[at] = {**new, "lastTransitionTime": time}
            return kept
    return [*kept, {**new, "lastTransitionTime": now}]


def has_condition(definition: Obj, type: str, status: str = "True") -> bool:
    found = (definition.get("status") or {}).get("conditions") or ()
    return any(c["type"] == type and c["status"] == status for c in found)


def is_established(definition: Obj) -> bool:
    return has_condition(definition, ESTABLISHED)
