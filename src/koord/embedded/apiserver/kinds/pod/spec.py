"""This module validates a pod spec as a whole, and pod templates. The parts of a spec are left to their modules."""

from __future__ import annotations

import re
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
from koord.embedded.apiserver.kinds import resource_validation, validators
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.pod import container, scheduling, security, volume
from koord.values import names
from koord.values.selector import Selector

_SUBDOMAIN = validators.valid_name(names.dns1123_subdomain)
_LABEL = validators.valid_name(names.dns1123_label)


_SEARCH_PART = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH = rf"{_SEARCH_PART}(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*"
_SEARCH_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', "
    "and must start and end with an alphanumeric character"
)


def _search_path_reasons(text: str) -> list[str]:
    """Return why a DNS search path is invalid; search paths are subdomains that may contain underscores."""
    reasons = ["must be no more than 253 characters"] if len(text) > 253 else []
    if not re.fullmatch(_SEARCH, text):
        reasons.append(names.pattern_refusal(_SEARCH_RULE, _SEARCH, "example.com"))
    return reasons


def _dns_config_errors(found: Obj, path: str) -> Iterator[ApiFieldError]:
    servers, searches = found.get("nameservers") or [], found.get("searches") or []
    if len(servers) > 3:
        yield invalid_value(f"{path}.nameservers", servers, "must not have more than 3 nameservers")
    yield from validators.each(validators.ip_address_errors)(servers, f"{path}.nameservers")
    if len(searches) > 32:
        yield invalid_value(f"{path}.searches", searches, "must not have more than 32 search paths")
    if len(" ".join(searches)) > 2048:
        detail = "must not have more than 2048 characters (including spaces) in the search list"
        yield invalid_value(f"{path}.searches", searches, detail)
    for i, search in enumerate(searches):
        if search != ".":
            reasons = _search_path_reasons(search.removesuffix("."))
            yield from [invalid_value(f"{path}.searches[{i}]", search, reason) for reason in reasons]
    yield from [
        required(f"{path}.options[{i}]", "must not be empty")
        for i, option in enumerate(found.get("options") or ())
        if not option.get("name")
    ]


def _dns_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    config = spec.get("dnsConfig")
    errors: list[ApiFieldError] = []
    if spec.get("dnsPolicy") == "None":
        if config is None:
            detail = "must provide `dnsConfig` when `dnsPolicy` is None"
            return [required(f"{path}.dnsConfig", detail)]
        if not config.get("nameservers"):
            detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(f"{path}.dnsConfig.nameservers", detail)]
    if config is not None:
        errors += _dns_config_errors(config, f"{path}.dnsConfig")
    return errors


def _host_alias_errors(found: Obj, path: str) -> validators.FieldErrors:
    return [
        *validators.ip_address_errors(found.get("ip", ""), f"{path}.ip"),
        *validators.each(_SUBDOMAIN)(found.get("hostnames") or [], f"{path}.hostnames"),
    ]


def _resource_claim_errors(found: list[Obj], path: str) -> Iterator[ApiFieldError]:
    seen: set[str] = set()
    for i, claim in enumerate(found):
        at, name = f"{path}[{i}]", claim.get("name", "")
        if not name:
            yield required(f"{at}.name")
        elif name in seen:
            yield duplicate(f"{at}.name", name)
        else:
            yield from [invalid_value(f"{at}.name", name, reason) for reason in names.dns1123_label(name)]
        seen.add(name)
        direct, template = claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")
        shown = to_internal("PodClaim", claim)
        if direct is not None and template is not None:
            detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            yield invalid_value(at, shown, detail)
        if direct is None and template is None:
            detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield invalid_value(at, shown, detail)
        for key in ("resourceClaimName", "resourceClaimTemplateName"):
            if claim.get(key) is not None:
                yield from _SUBDOMAIN(claim[key], f"{at}.{key}")


def _host_namespace_errors(spec: Obj, path: str) -> Iterator[ApiFieldError]:
    """Return the errors of fields that cannot be combined with the host's namespaces."""
    at = f"{path}.securityContext"
    if spec.get("hostPID") and spec.get("shareProcessNamespace"):
        detail = "ShareProcessNamespace and HostPID cannot both be enabled"
        yield invalid_value(f"{at}.shareProcessNamespace", True, detail)
    if spec.get("hostUsers") is False:
        yield from [
            forbidden_field(f"{path}.{shown}", "when `hostUsers` is false")
            for key, shown in (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC"))
            if spec.get(key)
        ]
    for i, sysctl in enumerate((spec.get("securityContext") or {}).get("sysctls") or ()):
        key = security.host_namespace_field(sysctl.get("name", ""))
        if key and spec.get(key):
            detail = f"may not be specified when '{key}' is true"
            yield invalid_value(f"{at}.sysctls[{i}].name", sysctl["name"], detail)


_leading_field_errors: validators.Validator = validators.fields(
    {
        "restartPolicy": validators.even_if_absent(
            validators.first_of(
                lambda v, p: validators.NO_ERRORS if v else [required(p)],
                validators.one_of("Always", "OnFailure", "Never"),
            )
        ),
        "dnsPolicy": validators.even_if_absent(
            validators.first_of(
                lambda v, p: validators.NO_ERRORS if v else [required(p)],
                validators.one_of("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
            )
        ),
        "nodeSelector": validators.label_errors,
        "securityContext": security.pod_security_context_errors,
        "affinity": scheduling.affinity_errors,
    }
)
_trailing_field_errors: validators.Validator = validators.fields(
    {
        "readinessGates": validators.each(
            validators.fields({"conditionType": validators.even_if_absent(validators.qualified_name_errors)})
        ),
        "schedulingGates": scheduling.scheduling_gate_errors,
        "topologySpreadConstraints": scheduling.topology_spread_errors,
        "serviceAccountName": _SUBDOMAIN,
        "nodeName": _SUBDOMAIN,
        "activeDeadlineSeconds": validators.between(1, 2147483647),
        "hostname": _LABEL,
        "subdomain": _LABEL,
        "tolerations": scheduling.toleration_errors,
        "hostAliases": validators.each(_host_alias_errors),
        "priorityClassName": _SUBDOMAIN,
        "runtimeClassName": _SUBDOMAIN,
        "preemptionPolicy": validators.one_of("PreemptLowerPriority", "Never"),
        "overhead": lambda value, path: resource_validation.resource_list_errors(
            value, path, resource_validation.container_resource_reasons
        ),
    }
)


def pod_spec_errors(spec: Obj, path: str, pod_name: str = "", *, updating: bool = False) -> list[ApiFieldError]:
    """Return the errors of a pod spec; `pod_name` is empty in templates, whose pods have no name yet."""
    errors: list[ApiFieldError] = []
    good: dict[str, Obj] = {}
    claims: frozenset[str] = frozenset()
    if "resourceClaims" in spec:
        errors += _resource_claim_errors(spec["resourceClaims"], f"{path}.resourceClaims")
        claims = frozenset(claim.get("name", "") for claim in spec["resourceClaims"])
    if "volumes" in spec:
        good, found = volume.validate_volumes(spec["volumes"], f"{path}.volumes", pod_name)
        errors += found
    pod = container.EnclosingPod(
        volumes=good,
        claims=claims,
        grace_period_s=spec.get("terminationGracePeriodSeconds"),
        restart_policy=spec.get("restartPolicy", ""),
        host_network=bool(spec.get("hostNetwork")),
        host_users=spec.get("hostUsers", True) is not False,
    )
    taken: set[str] = set()
    errors += container.main_container_errors(spec.get("containers"), f"{path}.containers", pod, taken)
    if spec.get("initContainers"):
        errors += container.init_container_errors(spec["initContainers"], f"{path}.initContainers", pod, taken)
    if spec.get("ephemeralContainers"):
        targets = set(taken)
        errors += container.ephemeral_container_errors(
            spec["ephemeralContainers"], f"{path}.ephemeralContainers", pod, taken, targets
        )
    if spec.get("resources"):
        errors += resource_validation.pod_resource_errors(spec, f"{path}.resources", claims)
    errors += _leading_field_errors(spec, path)
    errors += security.selinux_change_policy_errors(
        spec.get("securityContext") or {}, f"{path}.securityContext", updating=updating
    )
    errors += _host_namespace_errors(spec, path)
    errors += _dns_errors(spec, path)
    errors += _trailing_field_errors(spec, path)
    if spec.get("os") is not None:
        errors += security.os_errors(spec, path)
    return errors


def pod_only_errors(spec: Obj, *, creating: bool) -> list[ApiFieldError]:
    """Return the errors of what a pod may not specify although a pod template may."""
    errors: list[ApiFieldError] = []
    if creating and spec.get("ephemeralContainers"):
        errors.append(forbidden_field("spec.ephemeralContainers", "cannot be set on create"))
    if creating and spec.get("nodeName") and spec.get("schedulingGates"):
        errors.append(forbidden_field("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    if not spec.get("serviceAccountName"):
        for i, found in enumerate(spec.get("volumes") or ()):
            for j, source in enumerate((found.get("projected") or {}).get("sources") or ()):
                if source.get("serviceAccountToken"):
                    at = f"spec.volumes[{i}].projected.sources[{j}].serviceAccountToken"
                    detail = "must not be specified when serviceAccountName is not set"
                    errors.append(forbidden_field(at, detail))
    return errors


def pod_template_errors(template: Obj, path: str) -> list[ApiFieldError]:
    """Return the errors of the template by itself. Label errors leave `metadata` out of the path, as upstream."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    errors: list[ApiFieldError] = []
    errors += validators.label_errors(meta.get("labels") or {}, f"{path}.labels")
    errors += validators.annotation_errors(meta.get("annotations") or {}, f"{path}.annotations")
    errors += pod_spec_errors(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        detail = "ephemeral containers not allowed in pod template"
        errors.append(forbidden_field(f"{path}.spec.ephemeralContainers", detail))
    return errors


def selector_for_message(selector: Obj | None) -> Obj | None:
    """Return a LabelSelector as Go quotes it in messages."""
    if selector is None:
        return None
    shown: Obj = {}
    if selector.get("matchLabels"):
        shown["matchLabels"] = {key: selector["matchLabels"][key] for key in sorted(selector["matchLabels"])}
    if selector.get("matchExpressions"):
        shown["matchExpressions"] = selector["matchExpressions"]
    return shown


def required_selector_errors(selector: Obj | None, path: str, kind: str) -> list[ApiFieldError]:
    """Return the errors of a selector that must be present and must not select everything."""
    if selector is None:
        return [required(path)]
    errors = list(validators.label_selector_errors(selector, path))
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        errors.append(invalid_value(path, selector_for_message(selector), f"empty selector is invalid for {kind}"))
    return errors


def selected_template_errors(template: Obj, selector: Selector, path: str) -> list[ApiFieldError]:
    """Return the errors of a template whose pods must match the owner's selector and always restart."""
    return [
        *template_label_errors(template, selector, path),
        *pod_template_errors(template, path),
        *always_restart_errors(template, path, "ReplicaSet"),
    ]


def template_label_errors(template: Obj, selector: Selector, path: str) -> list[ApiFieldError]:
    """Return an error unless the owner's selector matches the labels of the template."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    if selector.matches(labels):
        return []
    shown = {key: labels[key] for key in sorted(labels)} or None
    return [invalid_value(f"{path}.metadata.labels", shown, "`selector` does not match template `labels`")]


def always_restart_errors(template: Obj, path: str, owner: str) -> list[ApiFieldError]:
    spec = template.get("spec") or {}
    errors: list[ApiFieldError] = []
    policy = spec.get("restartPolicy", "")
    if policy != "Always":
        errors.append(not_supported(f"{path}.spec.restartPolicy", policy, ("Always",)))
    if spec.get("activeDeadlineSeconds") is not None:
        detail = f"activeDeadlineSeconds in {owner} is not Supported"
        errors.append(forbidden_field(f"{path}.spec.activeDeadlineSeconds", detail))
    return errors
