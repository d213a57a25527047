"""This module holds the strategy of CustomResourceDefinition: defaults, status on write, validation.

The rules for versions and their schemas are in `version_validation`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from koord.embedded.apiserver.crd import definition_names, definition_versions
from koord.embedded.apiserver.crd.naming import APPROVAL, is_established, protected
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.refusal import (
    FieldError,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from koord.values import names as naming_rules

Obj = dict[str, Any]

GROUP = "apiextensions.k8s.io"
KIND = "CustomResourceDefinition"
STORAGE = "customresourcedefinitions.apiextensions.k8s.io"
NO_WEBHOOK_CONVERSION = (
    "conversion webhooks are not supported by the embedded server: versions that differ in apiVersion only can use None"
)
_IMMUTABLE = "field is immutable"
_APPROVAL_HELP = (
    f'protected groups must have approval annotation "{APPROVAL}", '
    "see https://github.com/kubernetes/enhancements/pull/1111"
)


def _default(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind")
    if kind:
        if not names.get("singular"):
            names["singular"] = kind.lower()
        if not names.get("listKind"):
            names["listKind"] = f"{kind}List"
    if spec.get("conversion") is None:
        spec["conversion"] = {"strategy": "None"}
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
    obj["metadata"]["generation"] = 1
    stored = [v.get("name", "") for v in obj["spec"].get("versions") or () if v.get("storage")]
    obj["status"] = {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored[:1] or None,
    }


def _prepare_update(new: Obj, old: Obj) -> None:
    if new.get("spec") != old.get("spec"):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
    status = new.get("status") or {}
    stored = status.get("storedVersions") or []
    added = [v["name"] for v in new["spec"].get("versions") or () if v.get("storage") and v["name"] not in stored]
    if added:
        new["status"] = {**status, "storedVersions": [*stored, *added]}


def _validate_create(obj: Obj) -> list[FieldError]:
    return [*_name_errors(obj), *_spec_errors(obj), *_approval_errors(obj), *_stored_errors(obj, None)]


def _name_errors(obj: Obj) -> list[FieldError]:
    name, spec = obj["metadata"]["name"], obj["spec"]
    if not name or naming_rules.dns1123_subdomain(name):
        return []  # said elsewhere
    if name == f"{(spec.get('names') or {}).get('plural', '')}.{spec.get('group', '')}":
        return []
    return [invalid_value("metadata.name", name, 'must be spec.names.plural+"."+spec.group')]


def _spec_errors(obj: Obj) -> list[FieldError]:
    spec = obj["spec"]
    errors: list[FieldError] = []
    group = spec.get("group", "")
    if not group:
        errors.append(required("spec.group"))
    elif reasons := naming_rules.dns1123_subdomain(group):
        errors += [invalid_value("spec.group", group, reason) for reason in reasons]
    elif "." not in group:
        errors.append(invalid_value("spec.group", group, "should be a domain with at least one dot"))
    scope = spec.get("scope", "")
    if not scope:
        errors.append(required("spec.scope"))
    elif scope not in ("Cluster", "Namespaced"):
        errors.append(not_supported("spec.scope", scope, ("Cluster", "Namespaced")))
    if spec.get("preserveUnknownFields"):
        problem = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        errors.append(invalid_value("spec.preserveUnknownFields", True, problem))
    errors += definition_versions.version_errors(spec)
    errors += definition_names.name_errors(spec.get("names") or {})
    errors += definition_versions.column_errors(spec)
    errors += _conversion_errors(spec.get("conversion") or {})
    return errors


def _conversion_errors(conversion: Obj) -> list[FieldError]:
    at = "spec.conversion"
    strategy = conversion.get("strategy", "")
    webhook = conversion.get("webhook") or {}
    if not strategy:
        return [required(f"{at}.strategy")]
    errors: list[FieldError] = []
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


def _approval_errors(obj: Obj) -> list[FieldError]:
    if not protected(obj["spec"].get("group", "")):
        return []
    value = (obj["metadata"].get("annotations") or {}).get(APPROVAL)
    at = f"metadata.annotations[{APPROVAL}]"
    if not value:
        return [required(at, _APPROVAL_HELP)]
    url = urlsplit(value)
    if value.startswith("unapproved") or (url.scheme and url.netloc):
        return []
    problem = (
        f'protected groups must have approval annotation "{APPROVAL}" with either a URL or a reason starting with '
        '"unapproved", see https://github.com/kubernetes/enhancements/pull/1111'
    )
    return [invalid_value(at, value, problem)]


def _stored_errors(obj: Obj, old: Obj | None) -> list[FieldError]:
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


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    spec, before = new["spec"], old["spec"]
    if not _same_versions(spec, before) or spec != before:
        errors += _spec_errors(new)
    names, names_before = spec.get("names") or {}, before.get("names") or {}
    if is_established(old):
        if spec.get("scope") != before.get("scope"):
            errors.append(invalid_value("spec.scope", spec.get("scope", ""), _IMMUTABLE))
        if names.get("kind") != names_before.get("kind"):
            errors.append(invalid_value("spec.names.kind", names.get("kind", ""), _IMMUTABLE))
    if spec.get("group") != before.get("group"):
        errors.append(invalid_value("spec.group", spec.get("group", ""), _IMMUTABLE))
    if names.get("plural") != names_before.get("plural"):
        errors.append(invalid_value("spec.names.plural", names.get("plural", ""), _IMMUTABLE))
    if new["metadata"].get("annotations") != old["metadata"].get("annotations"):
        errors += _approval_errors(new)
    return errors + _stored_errors(new, old)


def _same_versions(spec: Obj, before: Obj) -> bool:
    return bool(spec.get("versions") == before.get("versions"))


def _validate_status(new: Obj, old: Obj) -> list[FieldError]:
    return _stored_errors(new, old)


DEFINITION = Strategy(
    default=_default,
    prepare_create=_prepare_create,
    prepare_update=_prepare_update,
    validate_create=_validate_create,
    validate_update=_validate_update,
    validate_status=_validate_status,
)
