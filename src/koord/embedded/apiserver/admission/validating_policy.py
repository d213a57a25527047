"""ValidatingAdmissionPolicy admission: requests that a bound policy selects must satisfy its CEL expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.admission import matching
from koord.embedded.apiserver.admission.matching import (
    ExpressionFault,
    WebhookRule,
    any_labels_match,
    decide_match,
    expression_fault,
    expression_value,
    parse_rule,
    parse_selector,
    request_facts,
)
from koord.embedded.apiserver.admission.webhooks import EXEMPT_RESOURCES, REGISTRATION_GROUP, admission_request
from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.values.selector import Selector

POLICIES = f"validatingadmissionpolicies.{REGISTRATION_GROUP}"
BINDINGS = f"validatingadmissionpolicybindings.{REGISTRATION_GROUP}"
_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}
_NO_PARAMETERS = "no params found for policy binding with `Deny` parameterNotFoundAction"


class PolicyFailure(msgspec.Struct, frozen=True):
    """One reason for which a policy does not accept a request."""

    message: str
    reason: str = "Invalid"


class ResourceMatch(msgspec.Struct, frozen=True):
    """The requests that a policy or a binding selects."""

    rules: tuple[tuple[WebhookRule, tuple[str, ...]], ...]  # with the names of objects, all where there are none
    excluded: tuple[tuple[WebhookRule, tuple[str, ...]], ...]
    namespaces: Selector | None
    objects: Selector | None
    exact: bool

    @staticmethod
    def parse(stated: Obj) -> ResourceMatch:
        return ResourceMatch(
            _named_rules(stated.get("resourceRules")),
            _named_rules(stated.get("excludeResourceRules")),
            parse_selector(stated.get("namespaceSelector")),
            parse_selector(stated.get("objectSelector")),
            stated.get("matchPolicy") == "Exact",
        )


def _named_rules(stated: Sequence[Obj] | None) -> tuple[tuple[WebhookRule, tuple[str, ...]], ...]:
    return tuple((parse_rule(rule), tuple(rule.get("resourceNames") or ())) for rule in stated or ())


class ValidatingPolicyAdmission:
    def __init__(self, store: ObjectStore, catalog: ResourceCatalog) -> None:
        self._store = store
        self._catalog = catalog
        self._policies = store.collection(POLICIES)
        self._bindings = store.collection(BINDINGS)
        self._namespaces = store.collection("namespaces")

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if not len(self._bindings) or attributes.resource.storage in EXEMPT_RESOURCES:
            return
        for record in self._bindings.scan():
            binding = record.plain()
            policy = self._policies.get("", binding["spec"].get("policyName", ""))
            if policy is not None:
                self._enforce(policy.plain(), binding, attributes)

    def _enforce(self, policy: Obj, binding: Obj, attributes: AdmissionAttributes) -> None:
        resource = self._matched(policy["spec"].get("matchConstraints") or {}, attributes)
        narrower = binding["spec"].get("matchResources")
        if resource is None or (narrower and self._matched(narrower, attributes, all_by_default=True) is None):
            return
        parameters = self._parameters(policy["spec"].get("paramKind"), binding["spec"].get("paramRef"), attributes)
        if isinstance(parameters, PolicyFailure):
            failures = [parameters] if policy["spec"].get("failurePolicy") != "Ignore" else []
        else:
            facts = self._facts(attributes, resource)
            failures = [
                failure for found in parameters for failure in decide_failures(policy, {**facts, "params": found})
            ]
        where = f"ValidatingAdmissionPolicy '{policy['metadata']['name']}' with binding '{binding['metadata']['name']}'"
        actions = binding["spec"].get("validationActions") or ()
        if "Warn" in actions:
            attributes.warnings += [f"Validation failed for {where}: {failure.message}" for failure in failures]
        if "Deny" in actions and failures:
            raise _denial(attributes, f"{where} denied request: {failures[0].message}", failures[0].reason)

    def _matched(
        self, stated: Obj, attributes: AdmissionAttributes, *, all_by_default: bool = False
    ) -> ServedResource | None:
        """Return the version of the resource in which a request is selected; None when it is not."""
        match = ResourceMatch.parse(stated)
        resource: ServedResource | None = attributes.resource
        if match.rules or not all_by_default:
            rules = [rule for rule, names in match.rules if not names or attributes.name in names]
            resource = matching.matching_version(rules, attributes, self._catalog, exact=match.exact)
        excluded = [rule for rule, names in match.excluded if not names or attributes.name in names]
        if resource is None or matching.matching_version(excluded, attributes, self._catalog, exact=match.exact):
            return None
        if not matching.namespace_matches(match.namespaces, attributes, self._namespaces):
            return None
        labels = [
            (obj.get("metadata") or {}).get("labels") or {}
            for obj in (attributes.obj, attributes.old_obj)
            if obj is not None
        ]
        return resource if any_labels_match(match.objects, *labels) else None

    def _facts(self, attributes: AdmissionAttributes, resource: ServedResource) -> dict[str, Any]:
        namespace = self._namespaces.get("", attributes.namespace) if attributes.namespace else None
        facts = request_facts(admission_request(attributes, resource, ""))
        return {**facts, "namespaceObject": namespace.plain() if namespace is not None else None}

    def _parameters(
        self, kind: Obj | None, reference: Obj | None, attributes: AdmissionAttributes
    ) -> list[Obj | None] | PolicyFailure:
        """Return the objects that a binding names as parameters, each of which is a reason to evaluate the policy."""
        if kind is None or reference is None:
            return [None]
        group, _, version = kind.get("apiVersion", "").rpartition("/")
        resource = self._catalog.by_kind(group, version, kind.get("kind", ""))
        if resource is None:
            return PolicyFailure(f"failed to find resource referenced by paramKind: '{kind.get('apiVersion')}'")
        collection = self._store.collection(resource.storage)
        namespace = (reference.get("namespace") or attributes.namespace) if resource.namespaced else ""
        if reference.get("name"):
            record = collection.get(namespace, reference["name"])
            found = [record] if record is not None else []
        else:
            selector = parse_selector(reference.get("selector"))
            found = [one for one in collection.scan(namespace) if selector is None or selector.matches(one.labels)]
        if not found and reference.get("parameterNotFoundAction") != "Allow":
            return PolicyFailure(_NO_PARAMETERS)
        return [one.plain() for one in found]


def decide_failures(policy: Obj, facts: Mapping[str, Any]) -> list[PolicyFailure]:
    """Return the reasons for which a policy does not accept what the facts describe."""
    spec = policy["spec"]
    is_strict = spec.get("failurePolicy") != "Ignore"
    matches = decide_match((row["expression"] for row in spec.get("matchConditions") or ()), facts)
    if matches is not True:
        return [PolicyFailure(matches.message)] if isinstance(matches, ExpressionFault) and is_strict else []
    variables: dict[str, Any] = {}
    known = {**facts, "variables": variables}
    for row in spec.get("variables") or ():
        variables[row["name"]] = expression_value(row["expression"], known)
    failures: list[PolicyFailure] = []
    for row in spec.get("validations") or ():
        holds = expression_value(row["expression"], known)
        if holds is True:
            continue
        if holds is False:
            failures.append(PolicyFailure(_message(row, known), row.get("reason") or "Invalid"))
        elif is_strict:
            failures.append(PolicyFailure(expression_fault(row["expression"], holds).message))
    return failures


def _message(row: Obj, variables: Mapping[str, Any]) -> str:
    """Return the words of a failed validation: of its own expression, as stated, or the expression that failed."""
    if row.get("messageExpression"):
        made = expression_value(row["messageExpression"], variables)
        if isinstance(made, str) and made.strip() and "\n" not in made:
            return made
    return (row.get("message") or "").strip() or f"failed expression: {row['expression'].strip()}"


def _denial(attributes: AdmissionAttributes, message: str, reason: str) -> api_errors.StatusError:
    resource = attributes.resource
    error = api_errors.forbidden(resource.plural, resource.group, attributes.name, message)
    details = {**(error.details or {}), "causes": [{"message": message}]}
    return api_errors.StatusError(_CODES[reason], reason, error.message, details=details)
