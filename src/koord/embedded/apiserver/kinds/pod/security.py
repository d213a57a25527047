"""This module validates security contexts, and the fields that each operating system forbids."""

from __future__ import annotations

import re

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import (
    ApiFieldError,
    duplicate,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.validators import NO_ERRORS, FieldErrors, between, each, fields, one_of

_USER_OR_GROUP_ID = between(0, 2147483647)
_PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_IPC_SYSCTLS = ("kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced")
_SYSCTL_PATTERN = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"


def _seccomp_errors(found: Obj, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    kind, profile = found.get("type", ""), found.get("localhostProfile")
    at = f"{path}.type"
    if not kind:
        errors.append(required(at, "type is required when seccompProfile is set"))
    elif kind == "Localhost":
        if profile is None:
            errors.append(required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost"))
        else:
            errors += relative_path_errors(profile, f"{path}.localhostProfile")
    elif kind not in _PROFILES:
        errors.append(not_supported(at, kind, _PROFILES))
    if kind != "Localhost" and profile is not None:
        detail = "can only be set when seccomp type is Localhost"
        errors.append(invalid_value(f"{path}.localhostProfile", to_internal("Profile", found), detail))
    return errors


def _app_armor_errors(found: Obj, path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    kind, profile = found.get("type", ""), found.get("localhostProfile")
    at = f"{path}.localhostProfile"
    if kind == "Localhost":
        if not profile:
            errors.append(required(at, "must be set when AppArmor type is Localhost"))
        elif profile != profile.strip():
            errors.append(invalid_value(at, profile, "must not be padded with whitespace"))
        elif len(profile) > 4095:
            errors.append(ApiFieldError(at, "FieldValueTooLong", "Too long: may not be more than 4095 bytes"))
    elif kind in ("RuntimeDefault", "Unconfined"):
        if profile is not None:
            errors.append(invalid_value(at, profile, "can only be set when AppArmor type is Localhost"))
    elif not kind:
        errors.append(required(f"{path}.type", "type is required when appArmorProfile is set"))
    else:
        errors.append(not_supported(f"{path}.type", kind, _PROFILES))
    return errors


def relative_path_errors(value: str, path: str) -> FieldErrors:
    """Return errors unless the path is relative and does not leave its start."""
    errors: list[ApiFieldError] = []
    if value.startswith("/"):
        errors.append(invalid_value(path, value, "must be a relative path"))
    if ".." in value.split("/"):
        errors.append(invalid_value(path, value, "must not contain '..'"))
    return errors


def sysctl_errors(found: list[Obj], path: str) -> FieldErrors:
    errors: list[ApiFieldError] = []
    seen: set[str] = set()
    for i, sysctl in enumerate(found):
        name, at = sysctl.get("name", ""), f"{path}[{i}].name"
        if not name:
            errors.append(required(at))
        elif len(name) > 253 or not re.fullmatch(_SYSCTL_PATTERN, name):
            errors.append(
                invalid_value(at, name, f"must have at most 253 characters and match regex {_SYSCTL_PATTERN}")
            )
        elif name in seen:
            errors.append(duplicate(at, name))
        seen.add(name)
    return errors


def host_namespace_field(sysctl: str) -> str:
    """Return the pod field that shares the host namespace of this sysctl, empty when there is none."""
    name = sysctl.replace("/", ".")
    if name.startswith("net."):
        return "hostNetwork"
    if name in _IPC_SYSCTLS or name.startswith(("fs.mqueue.", "kernel.msg")):
        return "hostIPC"
    return ""


pod_security_context_errors = fields(
    {
        "fsGroup": _USER_OR_GROUP_ID,
        "runAsUser": _USER_OR_GROUP_ID,
        "runAsGroup": _USER_OR_GROUP_ID,
        "supplementalGroups": each(_USER_OR_GROUP_ID),
        "supplementalGroupsPolicy": one_of("Merge", "Strict"),
        "sysctls": sysctl_errors,
        "fsGroupChangePolicy": one_of("Always", "OnRootMismatch"),
        "seccompProfile": _seccomp_errors,
        "appArmorProfile": _app_armor_errors,
    }
)


def selinux_change_policy_errors(context: Obj, path: str, *, updating: bool) -> FieldErrors:
    """Return the errors of seLinuxChangePolicy. MountOption is behind a feature gate; a pod that has it may keep it."""
    if context.get("seLinuxChangePolicy") is None:
        return NO_ERRORS
    known = one_of("MountOption", "Recursive") if updating else one_of("Recursive")
    return known(context["seLinuxChangePolicy"], f"{path}.seLinuxChangePolicy")


_container_context_rules = fields(
    {
        "runAsUser": _USER_OR_GROUP_ID,
        "runAsGroup": _USER_OR_GROUP_ID,
        "procMount": one_of("Default", "Unmasked"),
        "seccompProfile": _seccomp_errors,
        "appArmorProfile": _app_armor_errors,
    }
)


def container_security_context_errors(found: Obj, path: str, *, host_users: bool = True) -> FieldErrors:
    if not found:
        return NO_ERRORS
    errors = list(_container_context_rules(found, path))
    if host_users and found.get("procMount") == "Unmasked":
        detail = "`hostUsers` must be false to use `Unmasked`"
        errors.append(invalid_value(f"{path}.procMount", "Unmasked", detail))
    if found.get("allowPrivilegeEscalation") is False:
        if found.get("privileged"):
            detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            errors.append(invalid_value(path, to_internal("SecurityContext", found), detail))
        if "CAP_SYS_ADMIN" in (found.get("capabilities", {}).get("add") or ()):
            detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            errors.append(invalid_value(path, to_internal("SecurityContext", found), detail))
    return errors


_OPERATING_SYSTEMS = ("linux", "windows")
_NOT_ON_WINDOWS = "cannot be set for a windows pod"
_NOT_ON_LINUX = "windows options cannot be set for a linux pod"
# In the order in which the real server looks; a bare name is a field of the spec, a dotted one of its security context.
_LINUX_ONLY_POD_FIELDS = (
    *(".appArmorProfile", ".seLinuxOptions", "hostUsers", "hostPID", "hostIPC", ".seccompProfile", ".fsGroup"),
    *(".fsGroupChangePolicy", ".sysctls", "shareProcessNamespace", ".runAsUser", ".runAsGroup"),
    *(".supplementalGroups", ".supplementalGroupsPolicy", ".seLinuxChangePolicy"),
)
_LINUX_ONLY_CONTAINER_FIELDS = (
    *("appArmorProfile", "seLinuxOptions", "seccompProfile", "capabilities", "readOnlyRootFilesystem", "privileged"),
    *("allowPrivilegeEscalation", "procMount", "runAsUser", "runAsGroup"),
)
_FALSE_MEANS_UNSET = ("hostPID", "hostIPC")  # false is as good as absent


def os_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    name = spec["os"].get("name", "")
    if not name:
        return [required(f"{path}.os.name")]
    if name not in _OPERATING_SYSTEMS:
        return [not_supported(f"{path}.os", name, _OPERATING_SYSTEMS)]
    return _windows_errors(spec, path) if name == "windows" else _linux_errors(spec, path)


def _container_security_contexts(spec: Obj, path: str) -> list[tuple[Obj, str]]:
    return [
        (container.get("securityContext") or {}, f"{path}.{key}[{i}].securityContext")
        for key in ("containers", "initContainers", "ephemeralContainers")
        for i, container in enumerate(spec.get(key) or ())
    ]


def _linux_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    contexts = [
        (spec.get("securityContext") or {}, f"{path}.securityContext"),
        *_container_security_contexts(spec, path),
    ]
    return [
        forbidden_field(f"{at}.windowsOptions", _NOT_ON_LINUX) for found, at in contexts if "windowsOptions" in found
    ]


def _windows_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    context = spec.get("securityContext") or {}
    for name in _LINUX_ONLY_POD_FIELDS:
        inside = name.startswith(".")
        value = (context if inside else spec).get(name.removeprefix("."))
        if value is None or (name in _FALSE_MEANS_UNSET and not value):
            continue
        errors.append(forbidden_field(f"{path}.securityContext{name}" if inside else f"{path}.{name}", _NOT_ON_WINDOWS))
    return errors + [
        forbidden_field(f"{at}.{name}", _NOT_ON_WINDOWS)
        for found, at in _container_security_contexts(spec, path)
        for name in _LINUX_ONLY_CONTAINER_FIELDS
        if found.get(name) is not None
    ]
