"""This module holds the strategies of admissionregistration.k8s.io: mutating and validating webhook configurations,
ValidatingAdmissionPolicy and its bindings. Their CEL expressions are validated when they are written.

An expression that names a function or a variable that this server does not have is refused: a rule that is stored must
be one that can be enforced.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from koord.api.model import Obj
from koord.cel.evaluation import evaluate, names_in, unknown_names
from koord.cel.functions import type_of
from koord.cel.syntax import CelError, parse
from koord.embedded.apiserver.api_errors import ApiFieldError, duplicate, invalid_value, required, too_many
from koord.embedded.apiserver.kinds import strategy, validators
from koord.embedded.apiserver.kinds.strategy import KindStrategy, fill_absent
from koord.embedded.apiserver.kinds.validators import between, one_of
from koord.values import names

MAX_MATCH_CONDITIONS = 64
WEBHOOK_VARIABLES = frozenset(("object", "oldObject", "request", "namespaceObject"))


def expression_errors(
    text: str, path: str, variables: frozenset[str], *, is_condition: bool = False, blank: str = ""
) -> list[ApiFieldError]:
    """Return why an expression cannot be evaluated. `is_condition`: its value must be true or false."""
    if not text.strip():
        return [required(path, blank)]
    node = parse(text)
    if isinstance(node, CelError):
        return [invalid_value(path, text, f"compilation failed: {node.message}")]
    errors = [invalid_value(path, text, f"compilation failed: {why}") for why in unknown_names(node, variables)]
    if is_condition and not errors and not names_in(node):  # without variables its type is known now
        value = evaluate(node, {})
        if not isinstance(value, bool | CelError):
            errors.append(invalid_value(path, text, f"must evaluate to bool but got {type_of(value)}"))
    return errors


def match_condition_errors(rows: list[Obj], path: str, variables: frozenset[str]) -> Iterator[ApiFieldError]:
    if len(rows) > MAX_MATCH_CONDITIONS:
        yield too_many(path, len(rows), MAX_MATCH_CONDITIONS)
        return
    seen: set[str] = set()
    for i, row in enumerate(rows):
        at, name = f"{path}[{i}]", row.get("name", "")
        yield from expression_errors(row.get("expression", ""), f"{at}.expression", variables, is_condition=True)
        if not name:
            yield required(f"{at}.name")
            continue
        yield from (invalid_value(f"{at}.name", name, reason) for reason in names.qualified_name(name))
        if name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)


_REVIEW_VERSIONS = ("v1", "v1beta1")
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_URL_FORM = "desired format: https://host[/path]"
_TIMEOUT = between(1, 30, "the timeout value must be between 1 and 30 seconds")
_PORT = between(1, 65535, "port is not valid: must be between 1 and 65535, inclusive")


def _default_webhooks(obj: Obj, *, mutating: bool) -> None:
    for hook in obj.get("webhooks") or ():
        fill_absent(hook, failurePolicy="Fail", matchPolicy="Equivalent", timeoutSeconds=10)
        fill_absent(hook, namespaceSelector={}, objectSelector={})
        if mutating:
            fill_absent(hook, reinvocationPolicy="Never")
        for rule in hook.get("rules") or ():
            fill_absent(rule, scope="*")
        service = (hook.get("clientConfig") or {}).get("service")
        if service is not None:
            fill_absent(service, port=443)


def _review_version_errors(found: list[str], path: str) -> list[ApiFieldError]:
    if not found:
        return [required(path, f"must specify one of {', '.join(_REVIEW_VERSIONS)}")]
    errors: list[ApiFieldError] = []
    for i, version in enumerate(found):
        if version in found[:i]:
            errors.append(invalid_value(f"{path}[{i}]", version, "duplicate version"))
            continue
        errors += [invalid_value(f"{path}[{i}]", version, reason) for reason in names.dns1035_label(version)]
    if not set(found) & set(_REVIEW_VERSIONS):
        errors.append(invalid_value(path, found, f"must include at least one of {', '.join(_REVIEW_VERSIONS)}"))
    return errors


_FIELD_WORDS = {"operations": "operations", "apiGroups": "API groups", "apiVersions": "API versions"}


def _wildcard_errors(values: list[str], path: str, key: str) -> list[ApiFieldError]:
    if len(values) > 1 and "*" in values:
        return [invalid_value(path, values, f"if '*' is present, must not specify other {_FIELD_WORDS[key]}")]
    return []


def rule_errors(found: Obj, path: str) -> Iterator[ApiFieldError]:
    operations = found.get("operations") or []
    if not operations:
        yield required(f"{path}.operations")
    yield from _wildcard_errors(operations, f"{path}.operations", "operations")
    for i, operation in enumerate(operations):
        yield from one_of(*_OPERATIONS)(operation, f"{path}.operations[{i}]")
    for key in ("apiGroups", "apiVersions", "resources"):
        values = found.get(key) or []
        if not values:
            yield required(f"{path}.{key}")
        if key == "resources":
            yield from _resource_errors(values, f"{path}.{key}")
            continue
        yield from _wildcard_errors(values, f"{path}.{key}", key)
        if key == "apiVersions":
            yield from [required(f"{path}.{key}[{i}]") for i, value in enumerate(values) if not value]
    if found.get("scope") is not None:
        yield from one_of("*", "Cluster", "Namespaced")(found["scope"], f"{path}.scope")


def _resource_errors(values: list[str], path: str) -> Iterator[ApiFieldError]:
    whole = {value.split("/")[0] for value in values if value.endswith("/*")}
    subs = {value.split("/")[1] for value in values if value.startswith("*/")}
    for i, value in enumerate(values):
        if not value:
            yield required(f"{path}[{i}]")
            continue
        if "/" not in value:
            continue
        name, sub = value.split("/")[:2]
        if value == "*/*" or (name != "*" and sub != "*"):
            if name in whole and sub != "*":
                detail = f"if '{name}/*' is present, must not specify {value}"
                yield invalid_value(f"{path}[{i}]", value, detail)
            elif sub in subs and name != "*":
                detail = f"if '*/{sub}' is present, must not specify {value}"
                yield invalid_value(f"{path}[{i}]", value, detail)
    if len(values) > 1 and "*/*" in values:
        yield invalid_value(path, values, "if '*/*' is present, must not specify other resources")
    if "*" in values and any("/" not in value for value in values if value != "*"):
        detail = "if '*' is present, must not specify other resources without subresources"
        yield invalid_value(path, values, detail)


def _client_config_errors(found: Obj, path: str) -> list[ApiFieldError]:
    url, service = found.get("url"), found.get("service")
    if (url is None) == (service is None):
        return [required(path, "exactly one of url or service is required")]
    if url is not None:
        return _url_errors(url, f"{path}.url")
    assert service is not None
    return _service_ref_errors(service, f"{path}.service")


def _url_errors(text: str, path: str) -> list[ApiFieldError]:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        return [required(path, f"url must be a valid URL: {error}; {_URL_FORM}")]
    errors: list[ApiFieldError] = []
    if parts.scheme != "https":
        detail = f"'https' is the only allowed URL scheme; {_URL_FORM}"
        errors.append(invalid_value(path, parts.scheme, detail))
    if not parts.hostname:
        errors.append(invalid_value(path, parts.netloc, f"host must be specified; {_URL_FORM}"))
    if parts.username is not None:
        errors.append(invalid_value(path, parts.username, "user information is not permitted in the URL"))
    if parts.fragment:
        errors.append(invalid_value(path, parts.fragment, "fragments are not permitted in the URL"))
    if parts.query:
        errors.append(invalid_value(path, parts.query, "query parameters are not permitted in the URL"))
    return errors


def _service_ref_errors(found: Obj, path: str) -> list[ApiFieldError]:
    errors = []
    # The real server names each of the two when the other is missing.
    if not found.get("namespace"):
        errors.append(required(f"{path}.name"))
    if not found.get("name"):
        errors.append(required(f"{path}.namespace"))
    errors += _PORT(found.get("port", 443), f"{path}.port")
    if found.get("path") is not None:
        errors += _service_path_errors(found["path"], f"{path}.path")
    return errors


def _service_path_errors(text: str, path: str) -> Iterator[ApiFieldError]:
    if text in ("", "/"):
        return
    if not text.startswith("/"):
        yield invalid_value(path, text, "must start with a '/'")
    for i, segment in enumerate(text.removeprefix("/").removesuffix("/").split("/")):
        if not segment:
            yield invalid_value(path, text, f"segment[{i}] may not be empty")
            continue
        yield from [invalid_value(path, text, f"segment[{i}]: {reason}") for reason in names.dns1123_subdomain(segment)]


def _webhook_errors(found: Obj, path: str, *, mutating: bool) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    name = found.get("name", "")
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid_value(f"{path}.name", name, reason) for reason in names.dns1123_subdomain(name)]
        if not errors and name.count(".") < 2:
            detail = "should be a domain with at least three segments separated by dots"
            errors.append(invalid_value(f"{path}.name", name, detail))
    for i, rule in enumerate(found.get("rules") or ()):
        errors += rule_errors(rule, f"{path}.rules[{i}]")
    errors += one_of("Fail", "Ignore")(found["failurePolicy"], f"{path}.failurePolicy")
    errors += one_of("Equivalent", "Exact")(found["matchPolicy"], f"{path}.matchPolicy")
    effects = found.get("sideEffects")
    if effects is None:
        errors.append(required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun"))
    else:
        errors += one_of("None", "NoneOnDryRun")(effects, f"{path}.sideEffects")
    errors += _TIMEOUT(found["timeoutSeconds"], f"{path}.timeoutSeconds")
    errors += validators.label_selector_errors(found.get("namespaceSelector"), f"{path}.namespaceSelector")
    errors += validators.label_selector_errors(found.get("objectSelector"), f"{path}.objectSelector")
    errors += _client_config_errors(found.get("clientConfig") or {}, f"{path}.clientConfig")
    errors += match_condition_errors(found.get("matchConditions") or [], f"{path}.matchConditions", WEBHOOK_VARIABLES)
    if mutating:
        errors += one_of("IfNeeded", "Never")(found["reinvocationPolicy"], f"{path}.reinvocationPolicy")
    return errors


def _configuration_errors(obj: Obj, *, mutating: bool) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    seen: set[str] = set()
    for i, hook in enumerate(obj.get("webhooks") or ()):
        at = f"webhooks[{i}]"
        errors += _webhook_errors(hook, at, mutating=mutating)
        errors += _review_version_errors(hook.get("admissionReviewVersions") or [], f"{at}.admissionReviewVersions")
        name = hook.get("name", "")
        if name and name in seen:
            errors.append(duplicate(f"{at}.name", name))
        seen.add(name)
    return errors


MUTATING_WEBHOOK_CONFIGURATION = KindStrategy(
    default=lambda obj: _default_webhooks(obj, mutating=True),
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("webhooks"),
    validate_create=lambda obj: _configuration_errors(obj, mutating=True),
    validate_update=lambda new, old: _configuration_errors(new, mutating=True),
)
VALIDATING_WEBHOOK_CONFIGURATION = KindStrategy(
    default=lambda obj: _default_webhooks(obj, mutating=False),
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("webhooks"),
    validate_create=lambda obj: _configuration_errors(obj, mutating=False),
    validate_update=lambda new, old: _configuration_errors(new, mutating=False),
)


VARIABLES = frozenset(("object", "oldObject", "request", "params", "namespaceObject", "variables"))
REASONS = ("Unauthorized", "Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS = ("Audit", "Deny", "Warn")


def _default_match(match: Obj | None) -> None:
    if match is None:
        return
    fill_absent(match, matchPolicy="Equivalent", namespaceSelector={}, objectSelector={})
    for rule in (*(match.get("resourceRules") or ()), *(match.get("excludeResourceRules") or ())):
        fill_absent(rule, scope="*")


def _default_policy(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    fill_absent(spec, failurePolicy="Fail")
    _default_match(spec.get("matchConstraints"))


def _default_binding(obj: Obj) -> None:
    spec = obj.setdefault("spec", {})
    _default_match(spec.get("matchResources"))
    if spec.get("paramRef") is not None:
        fill_absent(spec["paramRef"], parameterNotFoundAction="Deny")


def _match_errors(match: Obj, path: str) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for field in ("resourceRules", "excludeResourceRules"):
        for i, rule in enumerate(match.get(field) or ()):
            errors += rule_errors(rule, f"{path}.{field}[{i}]")
    errors += one_of("Equivalent", "Exact")(match.get("matchPolicy", "Equivalent"), f"{path}.matchPolicy")
    errors += validators.label_selector_errors(match.get("namespaceSelector"), f"{path}.namespaceSelector")
    errors += validators.label_selector_errors(match.get("objectSelector"), f"{path}.objectSelector")
    return errors


def _expression_errors(text: str, path: str) -> list[ApiFieldError]:
    return expression_errors(text, path, VARIABLES, blank="expression is not specified")


def _named_expressions(rows: list[Obj], path: str) -> Iterator[ApiFieldError]:
    seen: set[str] = set()
    for i, row in enumerate(rows):
        name = row.get("name", "")
        if not name:
            yield required(f"{path}[{i}].name")
        elif name in seen:
            yield duplicate(f"{path}[{i}].name", name)
        seen.add(name)
        yield from _expression_errors(row.get("expression", ""), f"{path}[{i}].expression")


def _policy_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    errors = [*one_of("Fail", "Ignore")(spec["failurePolicy"], "spec.failurePolicy")]
    match = spec.get("matchConstraints")
    if match is None:
        errors.append(required("spec.matchConstraints"))
    else:
        errors += _match_errors(match, "spec.matchConstraints")
        if not match.get("resourceRules"):
            errors.append(required("spec.matchConstraints.resourceRules"))
    errors += _named_expressions(spec.get("variables") or [], "spec.variables")
    errors += match_condition_errors(spec.get("matchConditions") or [], "spec.matchConditions", VARIABLES)
    validations, annotations = spec.get("validations") or [], spec.get("auditAnnotations") or []
    if not validations and not annotations:
        detail = "validations or auditAnnotations must contain at least one item"
        errors += [required("spec.validations", detail), required("spec.auditAnnotations", detail)]
    for i, row in enumerate(validations):
        errors += _validation_errors(row, f"spec.validations[{i}]")
    for i, row in enumerate(annotations):
        errors += _expression_errors(row.get("valueExpression", ""), f"spec.auditAnnotations[{i}].valueExpression")
    return errors


def _validation_errors(row: Obj, path: str) -> list[ApiFieldError]:
    errors = _expression_errors(row.get("expression", ""), f"{path}.expression")
    if row.get("messageExpression"):
        errors += _expression_errors(row["messageExpression"], f"{path}.messageExpression")
    if "\n" in (row.get("message") or "").strip():
        errors.append(invalid_value(f"{path}.message", row["message"], "message must not contain line breaks"))
    if row.get("reason"):
        errors += one_of(*REASONS)(row["reason"], f"{path}.reason")
    return errors


def _binding_errors(obj: Obj) -> list[ApiFieldError]:
    spec = obj.get("spec") or {}
    errors: list[ApiFieldError] = []
    if not spec.get("policyName"):
        errors.append(required("spec.policyName"))
    if spec.get("matchResources") is not None:
        errors += _match_errors(spec["matchResources"], "spec.matchResources")
    actions = spec.get("validationActions") or []
    if not actions:
        errors.append(required("spec.validationActions", "at least one validation action is required"))
    for i, action in enumerate(actions):
        errors += one_of(*_ACTIONS)(action, f"spec.validationActions[{i}]")
        if action in actions[:i]:
            errors.append(duplicate(f"spec.validationActions[{i}]", action))
    if {"Deny", "Warn"} <= set(actions):
        detail = "must not contain both Deny and Warn (repeating the same validation failure information in the API "
        detail += "response and headers serves no purpose)"
        errors.append(invalid_value("spec.validationActions", actions, detail))
    return errors


VALIDATING_ADMISSION_POLICY = KindStrategy(
    default=_default_policy,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_policy_errors,
    validate_update=lambda new, old: _policy_errors(new),
)
VALIDATING_ADMISSION_POLICY_BINDING = KindStrategy(
    default=_default_binding,
    prepare_create=strategy.begin_generation,
    prepare_update=strategy.bump_generation_on("spec"),
    validate_create=_binding_errors,
    validate_update=lambda new, old: _binding_errors(new),
)
