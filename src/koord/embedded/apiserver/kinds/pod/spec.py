"""This module validates a pod spec as a whole, and pod templates.

The parts of a spec are left to their modules.
"""

from __future__ import annotations

import re
from typing import Any

from koord.embedded.apiserver.kinds import amount, label
from koord.embedded.apiserver.kinds.internal import internal
from koord.embedded.apiserver.kinds.pod import container, pod_amount, scheduling, security, system, volume
from koord.embedded.apiserver.kinds.rule import (
    FINE,
    Errors,
    Rule,
    address,
    between,
    each,
    fields,
    first_of,
    named,
    needed,
    one_of,
)
from koord.embedded.apiserver.refusal import (
    FieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    required,
)
from koord.values import names

Obj = dict[str, Any]
_SUBDOMAIN = named(names.dns1123_subdomain)
_LABEL = named(names.dns1123_label)


_SEARCH_PART = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH = rf"{_SEARCH_PART}(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*"
_SEARCH_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', "
    "and must start and end with an alphanumeric character"
)


def _search_reasons(text: str) -> list[str]:
    """Return why a DNS search path is invalid; search paths are subdomains that may contain underscores."""
    reasons = ["must be no more than 253 characters"] if len(text) > 253 else []
    if not re.fullmatch(_SEARCH, text):
        reasons.append(names.pattern_refusal(_SEARCH_RULE, _SEARCH, "example.com"))
    return reasons


def _dns_config(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    servers, searches = found.get("nameservers") or [], found.get("searches") or []
    if len(servers) > 3:
        errors.append(invalid_value(f"{path}.nameservers", servers, "must not have more than 3 nameservers"))
    errors += each(address)(servers, f"{path}.nameservers")
    if len(searches) > 32:
        errors.append(invalid_value(f"{path}.searches", searches, "must not have more than 32 search paths"))
    if len(" ".join(searches)) > 2048:
        detail = "must not have more than 2048 characters (including spaces) in the search list"
        errors.append(invalid_value(f"{path}.searches", searches, detail))
    for i, search in enumerate(searches):
        if search != ".":
            reasons = _search_reasons(search.removesuffix("."))
            errors += [invalid_value(f"{path}.searches[{i}]", search, reason) for reason in reasons]
    errors += [
        required(f"{path}.options[{i}]", "must not be empty")
        for i, option in enumerate(found.get("options") or ())
        if not option.get("name")
    ]
    return errors


def _dns(spec: Obj, path: str) -> list[FieldError]:
    config = spec.get("dnsConfig")
    errors: list[FieldError] = []
    if spec.get("dnsPolicy") == "None":
        if config is None:
            detail = "must provide `dnsConfig` when `dnsPolicy` is None"
            return [required(f"{path}.dnsConfig", detail)]
        if not config.get("nameservers"):
            detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [required(f"{path}.dnsConfig.nameservers", detail)]
    if config is not None:
        errors += _dns_config(config, f"{path}.dnsConfig")
    return errors


def _host_alias(found: Obj, path: str) -> Errors:
    return [
        *address(found.get("ip", ""), f"{path}.ip"),
        *each(_SUBDOMAIN)(found.get("hostnames") or [], f"{path}.hostnames"),
    ]


def _claims(found: list[Obj], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for i, claim in enumerate(found):
        at, name = f"{path}[{i}]", claim.get("name", "")
        if not name:
            errors.append(required(f"{at}.name"))
        elif name in seen:
            errors.append(duplicate(f"{at}.name", name))
        else:
            errors += [invalid_value(f"{at}.name", name, reason) for reason in names.dns1123_label(name)]
        seen.add(name)
        direct, template = claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")
        shown = internal("PodClaim", claim)
        if direct is not None and template is not None:
            detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            errors.append(invalid_value(at, shown, detail))
        if direct is None and template is None:
            detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            errors.append(invalid_value(at, shown, detail))
        for key in ("resourceClaimName", "resourceClaimTemplateName"):
            if claim.get(key) is not None:
                errors += _SUBDOMAIN(claim[key], f"{at}.{key}")
    return errors


def _sharing(spec: Obj, path: str) -> list[FieldError]:
    """Return the errors of fields that cannot be combined with the host's namespaces."""
    errors: list[FieldError] = []
    at = f"{path}.securityContext"
    if spec.get("hostPID") and spec.get("shareProcessNamespace"):
        detail = "ShareProcessNamespace and HostPID cannot both be enabled"
        errors.append(invalid_value(f"{at}.shareProcessNamespace", True, detail))
    if spec.get("hostUsers") is False:
        errors += [
            forbidden_field(f"{path}.{shown}", "when `hostUsers` is false")
            for key, shown in (("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC"))
            if spec.get(key)
        ]
    for i, sysctl in enumerate((spec.get("securityContext") or {}).get("sysctls") or ()):
        key = security.host_namespace(sysctl.get("name", ""))
        if key and spec.get(key):
            detail = f"may not be specified when '{key}' is true"
            errors.append(invalid_value(f"{at}.sysctls[{i}].name", sysctl["name"], detail))
    return errors


_before: Rule = fields(
    {
        "restartPolicy": needed(
            first_of(lambda v, p: FINE if v else [required(p)], one_of("Always", "OnFailure", "Never"))
        ),
        "dnsPolicy": needed(
            first_of(
                lambda v, p: FINE if v else [required(p)],
                one_of("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"),
            )
        ),
        "nodeSelector": label.labels,
        "securityContext": security.pod_context,
        "affinity": scheduling.affinity,
    }
)
_after: Rule = fields(
    {
        "readinessGates": each(fields({"conditionType": needed(label.label_name)})),
        "schedulingGates": scheduling.gates,
        "topologySpreadConstraints": scheduling.spreads,
        "serviceAccountName": _SUBDOMAIN,
        "nodeName": _SUBDOMAIN,
        "activeDeadlineSeconds": between(1, 2147483647),
        "hostname": _LABEL,
        "subdomain": _LABEL,
        "tolerations": scheduling.tolerations,
        "hostAliases": each(_host_alias),
        "priorityClassName": _SUBDOMAIN,
        "runtimeClassName": _SUBDOMAIN,
        "preemptionPolicy": one_of("PreemptLowerPriority", "Never"),
        "overhead": lambda value, path: amount.amounts(value, path, amount.container_reasons),
    }
)


def spec_errors(spec: Obj, path: str, pod_name: str = "", *, updating: bool = False) -> list[FieldError]:
    """Return the errors of a pod spec; `pod_name` is empty in templates, whose pods have no name yet."""
    errors: list[FieldError] = []
    good: dict[str, Obj] = {}
    claims: frozenset[str] = frozenset()
    if "resourceClaims" in spec:
        errors += _claims(spec["resourceClaims"], f"{path}.resourceClaims")
        claims = frozenset(claim.get("name", "") for claim in spec["resourceClaims"])
    if "volumes" in spec:
        good, found = volume.volumes(spec["volumes"], f"{path}.volumes", pod_name)
        errors += found
    around = container.Surroundings(
        volumes=good,
        claims=claims,
        grace=spec.get("terminationGracePeriodSeconds"),
        restart_policy=spec.get("restartPolicy", ""),
        host_network=bool(spec.get("hostNetwork")),
        host_users=spec.get("hostUsers", True) is not False,
    )
    taken: set[str] = set()
    errors += container.containers(spec.get("containers"), f"{path}.containers", around, taken)
    if spec.get("initContainers"):
        errors += container.init_containers(spec["initContainers"], f"{path}.initContainers", around, taken)
    if spec.get("ephemeralContainers"):
        targets = set(taken)
        errors += container.ephemeral_containers(
            spec["ephemeralContainers"], f"{path}.ephemeralContainers", around, taken, targets
        )
    if spec.get("resources"):
        errors += pod_amount.pod_amounts(spec, f"{path}.resources", claims)
    errors += _before(spec, path)
    errors += security.selinux_policy(spec.get("securityContext") or {}, f"{path}.securityContext", updating=updating)
    errors += _sharing(spec, path)
    errors += _dns(spec, path)
    errors += _after(spec, path)
    if spec.get("os") is not None:
        errors += system.system_errors(spec, path)
    return errors


def pod_only_errors(spec: Obj, *, creating: bool) -> list[FieldError]:
    """Return the errors of what a pod may not specify although a pod template may."""
    errors: list[FieldError] = []
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
