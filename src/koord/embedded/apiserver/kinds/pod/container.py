"""This module validates containers: names, images, ports, mounts, probes, lifecycle handlers, and the limits of init
and ephemeral ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_found_field,
    not_supported,
    required,
)
from koord.embedded.apiserver.kinds import resource_validation, validators
from koord.embedded.apiserver.kinds.pod import environment, security
from koord.embedded.apiserver.kinds.pod.defaults import SIMPLE_CONTAINER_FIELDS
from koord.embedded.apiserver.kinds.validators import NO_ERRORS, PORT_NUMBER, FieldErrors, Validator, fields, one_of
from koord.values import names


def port_or_name_errors(value: int | str, path: str) -> validators.FieldErrors:
    if isinstance(value, int):
        return validators.PORT_NUMBER(value, path)
    return [invalid_value(path, value, reason) for reason in names.port_name(value)]


def _exec_errors(found: Obj, path: str) -> validators.FieldErrors:
    return validators.NO_ERRORS if found.get("command") else [required(f"{path}.command")]


def _http_header_errors(found: list[Obj], path: str) -> validators.FieldErrors:
    return [
        invalid_value(path, header.get("name", ""), reason)
        for header in found
        for reason in names.http_header_name(header.get("name", ""))
    ]


_HANDLERS: dict[str, validators.Validator] = {
    "exec": _exec_errors,
    "httpGet": validators.fields(
        {
            "port": validators.even_if_absent(port_or_name_errors, 0),
            "scheme": validators.even_if_absent(validators.one_of("HTTP", "HTTPS")),
            "httpHeaders": _http_header_errors,
        }
    ),
    "tcpSocket": validators.fields({"port": validators.even_if_absent(port_or_name_errors, 0)}),
    "grpc": validators.fields({"port": validators.even_if_absent(validators.PORT_NUMBER, 0)}),
}


def _handler_errors(found: Obj, path: str, grace: int | None) -> list[ApiFieldError]:
    """Return the errors of a handler, which must have exactly one action; `grace` bounds a sleep, in seconds."""
    errors: list[ApiFieldError] = []
    chosen = 0
    for key in ("exec", "httpGet", "tcpSocket", "grpc", "sleep"):
        if found.get(key) is None:
            continue
        chosen += 1
        at = f"{path}.{key}"
        if chosen > 1:
            errors.append(forbidden_field(at, "may not specify more than 1 handler type"))
        elif key == "sleep":
            errors += _sleep_errors(found[key], at, grace)
        else:
            errors += _HANDLERS[key](found[key], at)
    if not chosen:
        errors.append(required(path, "must specify a handler type"))
    return errors


def _sleep_errors(found: Obj, path: str, grace: int | None) -> validators.FieldErrors:
    seconds = found.get("seconds", 0)
    if grace is None or 0 <= seconds <= grace:
        return validators.NO_ERRORS
    detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
    return [invalid_value(path, seconds, detail)]


_TIMING_RULES = validators.fields(
    dict.fromkeys(
        ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"),
        validators.NOT_NEGATIVE,
    )
)


def _probe_errors(found: Obj, path: str) -> list[ApiFieldError]:
    errors = _handler_errors({key: found[key] for key in _HANDLERS if key in found}, path, None)
    errors += _TIMING_RULES(found, path)
    grace = found.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        errors.append(invalid_value(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0"))
    return errors


def container_probe_errors(container: Obj, path: str) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        found = container.get(key)
        if found is None:
            continue
        at = f"{path}.{key}"
        errors += _probe_errors(found, at)
        if key == "readinessProbe":
            if found.get("terminationGracePeriodSeconds") is not None:
                value = found["terminationGracePeriodSeconds"]
                detail = "must not be set for readinessProbes"
                errors.append(invalid_value(f"{at}.terminationGracePeriodSeconds", value, detail))
        elif found.get("successThreshold") not in (None, 1):
            errors.append(invalid_value(f"{at}.successThreshold", found["successThreshold"], "must be 1"))
    return errors


def lifecycle_errors(found: Obj, path: str, grace: int | None) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for key in ("postStart", "preStop"):
        if found.get(key) is not None:
            errors += _handler_errors(found[key], f"{path}.{key}", grace)
    return errors


_PROTOCOLS = ("SCTP", "TCP", "UDP")
_ONLY_RESTARTABLE = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
_RESTART_POLICIES = ("Always", "Never", "OnFailure")
_NOT_EPHEMERAL = ("ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resources", "resizePolicy")


class EnclosingPod(msgspec.Struct, frozen=True):
    """An EnclosingPod holds what the fields of a container refer to in the rest of its pod."""

    volumes: Mapping[str, Obj]
    claims: frozenset[str]
    grace_period_s: int | None
    restart_policy: str
    host_network: bool
    host_users: bool


@functools.lru_cache(maxsize=4096)
def dns_label_reasons(name: str) -> tuple[str, ...]:
    return tuple(names.dns1123_label(name))


def ports(found: list[Obj], path: str, host_network: bool) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    seen: set[str] = set()
    for i, port in enumerate(found):
        at = f"{path}[{i}]"
        name = port.get("name")
        if name:
            reasons = names.port_name(name)
            errors += [invalid_value(f"{at}.name", name, reason) for reason in reasons]
            if not reasons and name in seen:
                errors.append(duplicate(f"{at}.name", name))
            seen.add(name)
        number, host = port.get("containerPort", 0), port.get("hostPort", 0)
        if not number:
            errors.append(required(f"{at}.containerPort"))
        else:
            errors += PORT_NUMBER(number, f"{at}.containerPort")
        if host:
            errors += PORT_NUMBER(host, f"{at}.hostPort")
            if host_network and host != number:
                detail = "must match `containerPort` when `hostNetwork` is true"
                errors.append(invalid_value(f"{at}.hostPort", host, detail))
        protocol = port.get("protocol", "")
        if not protocol:
            errors.append(required(f"{at}.protocol"))
        elif protocol not in _PROTOCOLS:
            errors.append(not_supported(f"{at}.protocol", protocol, _PROTOCOLS))
    return errors


def host_port_conflict_errors(containers: list[Obj], path: str) -> list[ApiFieldError]:
    """Return an error for each host port that two containers of the pod claim."""
    errors: list[ApiFieldError] = []
    seen: set[str] = set()
    for i, container in enumerate(containers):
        for j, port in enumerate(container.get("ports") or ()):
            if port.get("hostPort"):
                text = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{port['hostPort']}"
                if text in seen:
                    errors.append(duplicate(f"{path}[{i}].ports[{j}].hostPort", text))
                seen.add(text)
    return errors


def _mount_errors(container: Obj, path: str, pod: EnclosingPod) -> Iterator[ApiFieldError]:
    seen: set[str] = set()
    devices = {device.get("name", "") for device in container.get("volumeDevices") or ()}
    device_paths = {device.get("devicePath", "") for device in container.get("volumeDevices") or ()}
    for i, mount in enumerate(container["volumeMounts"]):
        at = f"{path}[{i}]"
        name, place = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            yield required(f"{at}.name")
        if name in devices:
            yield invalid_value(f"{at}.name", name, "must not already exist in volumeDevices")
        if name not in pod.volumes:
            yield not_found_field(f"{at}.name", name)
        if not place:
            yield required(f"{at}.mountPath")
        elif place in seen:
            yield invalid_value(f"{at}.mountPath", place, "must be unique")
        seen.add(place)
        if place and place in device_paths:
            yield invalid_value(f"{at}.mountPath", place, "must not already exist as a path in volumeDevices")
        if mount.get("subPath"):
            yield from security.relative_path_errors(mount["subPath"], f"{path}.subPath")
        if mount.get("subPathExpr"):
            if mount.get("subPath"):
                detail = "subPathExpr and subPath are mutually exclusive"
                yield invalid_value(f"{at}.subPathExpr", mount["subPathExpr"], detail)
            yield from security.relative_path_errors(mount["subPathExpr"], f"{path}.subPathExpr")
        if mount.get("mountPropagation") is not None:
            yield from _mount_propagation_errors(mount["mountPropagation"], container, path)
        if mount.get("recursiveReadOnly") is not None:
            yield from _recursive_read_only_errors(mount, path)


def _mount_propagation_errors(value: str, container: Obj, path: str) -> list[ApiFieldError]:
    at = f"{path}.mountPropagation"
    known = ("Bidirectional", "HostToContainer", "None")
    if value not in known:
        return [not_supported(at, value, known)]
    if value == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
        return [forbidden_field(at, "Bidirectional mount propagation is available only to privileged containers")]
    return []


def _recursive_read_only_errors(mount: Obj, path: str) -> list[ApiFieldError]:
    at, value = f"{path}.recursiveReadOnly", mount["recursiveReadOnly"]
    known = ("Disabled", "Enabled", "IfPossible")
    if value not in known:
        return [not_supported(at, value, known)]
    errors = []
    if value != "Disabled":
        if not mount.get("readOnly"):
            errors.append(forbidden_field(at, "may only be specified when readOnly is true"))
        if mount.get("mountPropagation") not in (None, "None"):
            detail = "may only be specified when mountPropagation is None or not specified"
            errors.append(forbidden_field(at, detail))
    return errors


def _volume_device_errors(container: Obj, path: str, pod: EnclosingPod) -> Iterator[ApiFieldError]:
    names_seen: set[str] = set()
    paths_seen: set[str] = set()
    mounted = {mount.get("mountPath", "") for mount in container.get("volumeMounts") or ()}
    mounts = {mount.get("name", "") for mount in container.get("volumeMounts") or ()}
    for i, device in enumerate(container["volumeDevices"]):
        at = f"{path}[{i}]"
        name, place = device.get("name", ""), device.get("devicePath", "")
        if not name:
            yield required(f"{at}.name")
        if name in names_seen:
            yield invalid_value(f"{at}.name", name, "must be unique")
        volume = pod.volumes.get(name)
        if volume is not None and not (volume.get("persistentVolumeClaim") or volume.get("ephemeral")):
            detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            yield invalid_value(f"{at}.name", name, detail)
        if volume is None:
            yield not_found_field(f"{at}.name", name)
        if not place:
            yield required(f"{at}.devicePath")
        if place in paths_seen:
            yield invalid_value(f"{at}.devicePath", place, "must be unique")
        if place and ".." in place.split("/"):
            yield invalid_value(f"{at}.devicePath", place, "can not contain backsteps ('..')")
        elif place:
            paths_seen.add(place)
        if name:
            names_seen.add(name)
        if name and name in mounts:
            yield invalid_value(f"{at}.name", name, "must not already exist in volumeMounts")
        if place and place in mounted:
            yield invalid_value(f"{at}.devicePath", place, "must not already exist as a path in volumeMounts")


def _resize_policy_errors(found: list[Obj], path: str, restart_policy: str) -> Iterator[ApiFieldError]:
    seen: set[str] = set()
    for i, policy in enumerate(found):
        resource, restart = policy.get("resourceName", ""), policy.get("restartPolicy", "")
        if resource in seen:
            yield duplicate(f"{path}[{i}]", resource)
        seen.add(resource)
        if not resource:
            yield required(path)
        elif resource not in ("cpu", "memory"):
            yield not_supported(path, resource, ("cpu", "memory"))
        if not restart:
            yield required(path)
        elif restart not in ("NotRequired", "RestartContainer"):
            yield not_supported(path, restart, ("NotRequired", "RestartContainer"))
        if restart_policy == "Never" and restart == "RestartContainer":
            detail = "must be 'NotRequired' when `restartPolicy` is 'Never'"
            yield invalid_value(path, restart, detail)


_FIELD_RULES: Validator = fields(
    {
        "terminationMessagePolicy": one_of("File", "FallbackToLogsOnError"),
        "imagePullPolicy": one_of("Always", "IfNotPresent", "Never"),
        "env": environment.env_errors,
        "envFrom": environment.env_from_errors,
    }
)


def container_errors(container: Obj, path: str, pod: EnclosingPod) -> list[ApiFieldError]:
    """Return the errors that apply to containers of every sort."""
    errors: list[ApiFieldError] = []
    name, image = container.get("name", ""), container.get("image", "")
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid_value(f"{path}.name", name, reason) for reason in dns_label_reasons(name)]
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(invalid_value(f"{path}.image", image, "must not have leading or trailing whitespace"))
    if container.get("ports"):
        errors += ports(container["ports"], f"{path}.ports", pod.host_network)
    errors += _FIELD_RULES(container, path)
    if container.get("volumeMounts"):
        errors += _mount_errors(container, f"{path}.volumeMounts", pod)
    if container.get("volumeDevices"):
        errors += _volume_device_errors(container, f"{path}.volumeDevices", pod)
    resources = container.get("resources")
    if resources:
        errors += resource_validation.resource_requirement_errors(resources, f"{path}.resources", pod.claims)
    if container.get("resizePolicy"):
        errors += _resize_policy_errors(container["resizePolicy"], f"{path}.resizePolicy", pod.restart_policy)
    if container.get("securityContext"):
        errors += security.container_security_context_errors(
            container["securityContext"], f"{path}.securityContext", host_users=pod.host_users
        )
    return errors


def _probe_and_lifecycle_errors(container: Obj, path: str, pod: EnclosingPod) -> Iterator[ApiFieldError]:
    """Return the errors of lifecycle handlers and probes."""
    if container.get("lifecycle"):
        yield from lifecycle_errors(container["lifecycle"], f"{path}.lifecycle", pod.grace_period_s)
    yield from container_probe_errors(container, path)


def _restart_policy_errors(container: Obj, path: str) -> Iterator[ApiFieldError]:
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules")
    if policy is not None and policy not in _RESTART_POLICIES:
        yield not_supported(f"{path}.restartPolicy", policy, _RESTART_POLICIES)
    if rules and policy is None:
        detail = "must specify restartPolicy when restart rules are used"
        yield required(f"{path}.restartPolicy", detail)


def main_container_errors(found: list[Obj] | None, path: str, pod: EnclosingPod, taken: set[str]) -> FieldErrors:
    """Return the errors of the main containers; `taken` collects the names in use."""
    if not found:
        return [required(path)]
    errors: list[ApiFieldError] = []
    for i, container in enumerate(found):
        at = f"{path}[{i}]"
        errors += container_errors(container, at, pod)
        name = container.get("name", "")
        if name and name in taken:
            errors.append(duplicate(f"{at}.name", name))
        taken.add(name)
        if not container.keys() <= SIMPLE_CONTAINER_FIELDS:
            errors += _probe_and_lifecycle_errors(container, at, pod)
            errors += _restart_policy_errors(container, at)
    errors += host_port_conflict_errors(found, path)
    return errors


def init_container_errors(found: list[Obj], path: str, pod: EnclosingPod, taken: set[str]) -> FieldErrors:
    errors: list[ApiFieldError] = []
    for i, container in enumerate(found):
        at = f"{path}[{i}]"
        errors += container_errors(container, at, pod)
        restartable = container.get("restartPolicy") == "Always"
        errors += _restart_policy_errors(container, at)
        name = container.get("name", "")
        if name and name in taken:
            errors.append(duplicate(f"{at}.name", name))
        taken.add(name)
        errors += host_port_conflict_errors([container], f"{path}[{i}]") if container.get("ports") else NO_ERRORS
        if restartable:
            errors += _probe_and_lifecycle_errors(container, at, pod)
            continue
        detail = "may not be set for init containers without restartPolicy=Always"
        errors += [forbidden_field(f"{at}.{key}", detail) for key in _ONLY_RESTARTABLE if container.get(key)]
    return errors


def ephemeral_container_errors(
    found: list[Obj], path: str, pod: EnclosingPod, taken: set[str], targets: set[str]
) -> FieldErrors:
    errors: list[ApiFieldError] = []
    for i, container in enumerate(found):
        at = f"{path}[{i}]"
        errors += container_errors(container, at, pod)
        name = container.get("name", "")
        if name and name in taken:
            errors.append(duplicate(f"{at}.name", name))
        taken.add(name)
        target = container.get("targetContainerName")
        if target and target not in targets:
            errors.append(not_found_field(f"{at}.targetContainerName", target))
        errors += [
            forbidden_field(f"{at}.{key}", "cannot be set for an Ephemeral Container")
            for key in _NOT_EPHEMERAL
            if container.get(key)
        ]
        errors += [
            forbidden_field(f"{at}.volumeMounts[{j}].{key}", "cannot be set for an Ephemeral Container")
            for j, mount in enumerate(container.get("volumeMounts") or ())
            for key in ("subPath", "subPathExpr")
            if mount.get(key)
        ]
    return errors
