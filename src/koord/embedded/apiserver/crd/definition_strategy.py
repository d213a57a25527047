"""This module holds the strategy of CustomResourceDefinition: defaults, validation, and status, with the names that a
CRD gets and its conditions NamesAccepted and Established.

The rules for versions and their schemas are in `version_validation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, not_supported, required
from koord.embedded.apiserver.crd import version_validation
from koord.embedded.apiserver.kinds.strategy import (
    KindStrategy,
    begin_generation,
    bump_generation_on,
    fill_absent,
    fill_empty,
)
from koord.embedded.apiserver.kinds.validators import IMMUTABLE
from koord.embedded.apiserver.rest.object_metadata import ordered_metadata
from koord.values import names as naming_rules
from koord.values.names import dns1035_label

# This module decides which names a CRD gets, and its conditions NamesAccepted and Established.
#
# Names are taken per group, first come first served; a name that another CRD holds is not reassigned.

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


CRD_GROUP = "apiextensions.k8s.io"
CRD_KIND = "CustomResourceDefinition"
CRD_STORAGE_KEY = "customresourcedefinitions.apiextensions.k8s.io"
NO_WEBHOOK_CONVERSION = (
    "conversion webhooks are not supported by the embedded server: versions that differ in apiVersion only can use None"
)
_APPROVAL_HELP = (
    f'protected groups must have approval annotation "{APPROVED_ANNOTATION}", '
    "see https://github.com/kubernetes/enhancements/pull/1111"
)


def _default_definition(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind")
    if kind:
        fill_empty(names, singular=kind.lower(), listKind=f"{kind}List")
    fill_absent(spec, conversion={"strategy": "None"})
    webhook = spec["conversion"].get("webhook") or {}
    service = (webhook.get("clientConfig") or {}).get("service")
    if service is not None and service.get("port") is None:
        service["port"] = 443
    status = obj.get("status")
    if status is not None and not status.get("storedVersions"):
        stored = [v["name"] for v in spec.get("versions") or () if v.get("storage")]
        if stored:
            status["storedVersions"] = stored[:1]


def _prepare_create(obj: Obj) -> None:
    begin_generation(obj)
    stored = [v.get("name", "") for v in obj["spec"].get("versions") or () if v.get("storage")]
    obj["status"] = {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored[:1] or None,
    }


_bump_generation = bump_generation_on("spec")


def _prepare_update(new: Obj, old: Obj) -> None:
    _bump_generation(new, old)
    status = new.get("status") or {}
    stored = status.get("storedVersions") or []
    added = [v["name"] for v in new["spec"].get("versions") or () if v.get("storage") and v["name"] not in stored]
    if added:
        new["status"] = {**status, "storedVersions": [*stored, *added]}


def _validate_create(obj: Obj) -> list[ApiFieldError]:
    return [*_metadata_name_errors(obj), *_spec_errors(obj), *_approval_errors(obj), *_stored_version_errors(obj, None)]


def _metadata_name_errors(obj: Obj) -> list[ApiFieldError]:
    name, spec = obj["metadata"]["name"], obj["spec"]
    if not name or naming_rules.dns1123_subdomain(name):
        return []  # said elsewhere
    if name == f"{(spec.get('names') or {}).get('plural', '')}.{spec.get('group', '')}":
        return []
    return [invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group')]


def _spec_errors(obj: Obj) -> Iterator[ApiFieldError]:
    spec = obj["spec"]
    group = spec.get("group", "")
    if not group:
        yield required("spec.group")
    elif reasons := naming_rules.dns1123_subdomain(group):
        yield from [invalid_value("spec.group", group, reason) for reason in reasons]
    elif "." not in group:
        yield invalid_value("spec.group", group, "should be a domain with at least one dot")
    scope = spec.get("scope", "")
    if not scope:
        yield required("spec.scope")
    elif scope not in ("Cluster", "Namespaced"):
        yield not_supported("spec.scope", scope, ("Cluster", "Namespaced"))
    if spec.get("preserveUnknownFields"):
        problem = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        yield invalid_value("spec.preserveUnknownFields", True, problem)
    yield from version_validation.version_errors(spec)
    yield from spec_names_errors(spec.get("names") or {})
    yield from version_validation.printer_column_errors(spec)
    yield from _conversion_errors(spec.get("conversion") or {})


def _conversion_errors(conversion: Obj) -> list[ApiFieldError]:
    at = "spec.conversion"
    strategy = conversion.get("strategy", "")
    webhook = conversion.get("webhook") or {}
    if not strategy:
        return [required(f"{at}.strategy")]
    errors: list[ApiFieldError] = []
    if strategy == "Webhook":
        if not webhook.get("clientConfig"):
            problem = "required when strategy is set to Webhook"
            errors.append(required(f"{at}.webhookClientConfig", problem))
        if not webhook.get("conversionReviewVersions"):
            errors.append(required(f"{at}.conversionReviewVersions"))
        return errors or [forbidden_field(f"{at}.strategy", NO_WEBHOOK_CONVERSION)]
    problem = "should not be set when strategy is not set to Webhook"
    if webhook.get("clientConfig"):
        errors.append(forbidden_field(f"{at}.webhookClientConfig", problem))
    if webhook.get("conversionReviewVersions"):
        errors.append(forbidden_field(f"{at}.conversionReviewVersions", problem))
    if strategy != "None":
        errors.append(not_supported(f"{at}.strategy", strategy, ("None", "Webhook")))
    return errors


def _approval_errors(obj: Obj) -> list[ApiFieldError]:
    if not is_protected_group(obj["spec"].get("group", "")):
        return []
    value = (obj["metadata"].get("annotations") or {}).get(APPROVED_ANNOTATION)
    at = f"metadata.annotations[{APPROVED_ANNOTATION}]"
    if not value:
        return [required(at, _APPROVAL_HELP)]
    url = urlsplit(value)
    if value.startswith("unapproved") or (url.scheme and url.netloc):
        return []
    problem = (
        f'protected groups must have approval annotation "{APPROVED_ANNOTATION}" '
        f"with either a URL or a reason starting with "
        '"unapproved", see https://github.com/kubernetes/enhancements/pull/1111'
    )
    return [invalid_value(at, value, problem)]


def _stored_version_errors(obj: Obj, old: Obj | None) -> list[ApiFieldError]:
    """Return errors for storedVersions, which must stay: objects may be stored in any version listed there."""
    at = "status.storedVersions"
    stored = (obj.get("status") or {}).get("storedVersions")
    if not stored:
        return [invalid_value(at, stored, "must have at least one stored version")]
    versions = obj["spec"].get("versions") or ()
    known = {v.get("name", "") for v in versions}
    errors = []
    for index, name in enumerate(stored):
        if name not in known:
            problem = (
                f"missing from spec.versions; {name} was previously a storage version, and must remain in "
                f"spec.versions until a storage migration ensures no data remains persisted in {name} and removes "
                f"{name} from status.storedVersions"
            )
            errors.append(invalid_value(f"{at}[{index}]", name, problem))
    if old is None:
        missing = [v.get("name", "") for v in versions if v.get("storage") and v.get("name", "") not in stored]
        errors += [invalid_value(at, stored, f"must have the storage version {name}") for name in missing]
    return errors


def _validate_update(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    spec, before = new["spec"], old["spec"]
    if spec != before:
        errors += _spec_errors(new)
    names, names_before = spec.get("names") or {}, before.get("names") or {}
    if is_established(old):
        if spec.get("scope") != before.get("scope"):
            errors.append(invalid_value("spec.scope", spec.get("scope", ""), IMMUTABLE))
        if names.get("kind") != names_before.get("kind"):
            errors.append(invalid_value("spec.names.kind", names.get("kind", ""), IMMUTABLE))
    if spec.get("group") != before.get("group"):
        errors.append(invalid_value("spec.group", spec.get("group", ""), IMMUTABLE))
    if names.get("plural") != names_before.get("plural"):
        errors.append(invalid_value("spec.names.plural", names.get("plural", ""), IMMUTABLE))
    if new["metadata"].get("annotations") != old["metadata"].get("annotations"):
        errors += _approval_errors(new)
    return errors + _stored_version_errors(new, old)


def _validate_status(new: Obj, old: Obj) -> list[ApiFieldError]:
    return _stored_version_errors(new, old)


# Deletion ------------------------------------------------------------------------------------------------------------


CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
TERMINATING = "Terminating"
_DELETION_PENDING = condition(
    TERMINATING,
    "True",
    "InstanceDeletionPending",
    "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
)
DELETION_IN_PROGRESS = condition(
    TERMINATING, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress"
)


def mark_for_deletion(obj: Obj, now: str) -> Obj:
    """Mark a CRD as terminating. Its finalizer keeps it until the controller has deleted its objects."""
    if "deletionTimestamp" in obj["metadata"]:
        return obj
    meta = {**obj["metadata"], "deletionTimestamp": now}
    meta["finalizers"] = [
        *(name for name in meta.get("finalizers", ()) if name != CLEANUP_FINALIZER),
        CLEANUP_FINALIZER,
    ]
    status = obj.get("status") or {}
    conditions = with_condition(status.get("conditions") or (), _DELETION_PENDING, now)
    return {**obj, "metadata": ordered_metadata(meta), "status": {**status, "conditions": conditions}}


def deletion_in_progress_status(obj: Obj, now: str) -> Obj:
    """Return the status of a CRD whose objects are being deleted."""
    status = obj.get("status") or {}
    return {**status, "conditions": with_condition(status.get("conditions") or (), DELETION_IN_PROGRESS, now)}


def without_cleanup_finalizer(obj: Obj) -> Obj:
    """Return the CRD without its cleanup finalizer; other finalizers stay."""
    meta = dict(obj["metadata"])
    left = [name for name in meta.get("finalizers", ()) if name != CLEANUP_FINALIZER]
    if left:
        meta["finalizers"] = left
    else:
        meta.pop("finalizers", None)
    return {**obj, "metadata": meta}


DEFINITION_STRATEGY = KindStrategy(
    default=_default_definition,
    prepare_create=_prepare_create,
    prepare_update=_prepare_update,
    validate_create=_validate_create,
    validate_update=_validate_update,
    validate_status=_validate_status,
    mark_for_deletion=mark_for_deletion,
)


def spec_names_errors(names: Obj) -> list[ApiFieldError]:
    at = "spec.names"
    errors = [
        *_dns_label_errors(f"{at}.plural", names.get("plural", "")),
        *_dns_label_errors(f"{at}.singular", names.get("singular", "")),
    ]
    errors += _kind_name_errors(f"{at}.kind", names.get("kind", "")) + _kind_name_errors(
        f"{at}.listKind", names.get("listKind", "")
    )
    for field in ("shortNames", "categories"):
        for index, word in enumerate(names.get(field) or ()):
            errors += [invalid_value(f"{at}.{field}[{index}]", word, reason) for reason in dns1035_label(word)]
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        errors.append(invalid_value(f"{at}.listKind", names["listKind"], "kind and listKind may not be the same"))
    return errors


def _dns_label_errors(field: str, word: str) -> list[ApiFieldError]:
    if not word:
        return [required(field)]
    return [invalid_value(field, word, reason) for reason in dns1035_label(word)]


def _kind_name_errors(field: str, kind: str) -> list[ApiFieldError]:
    if not kind:
        return [required(field)]
    wrong = dns1035_label(kind.lower())
    return [invalid_value(field, kind, f"may have mixed case, but should otherwise match: {r}") for r in wrong]
