"""This module validates security contexts, and the fields that each operating system forbids."""

from __future__ import annotations

import re
from typing import Any

from koord.embedded.apiserver.kinds.internal import internal
from koord.embedded.apiserver.kinds.rule import FINE, Errors, between, each, fields, one_of
from koord.embedded.apiserver.refusal import FieldError, duplicate, invalid_value, not_supported, required

Obj = dict[str, Any]
_ID = between(0, 2147483647)
_PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_IPC = ("kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced")
_SYSCTL = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"


def _seccomp(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    kind, profile = found.get("type", ""), found.get("localhostProfile")
    at = f"{path}.type"
    if not kind:
        errors.append(required(at, "type is required when seccompProfile is set"))
    elif kind == "Localhost":
        if profile is None:
            errors.append(required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost"))
        else:
            errors += local_path(profile, f"{path}.localhostProfile")
    elif kind not in _PROFILES:
        errors.append(not_supported(at, kind, _PROFILES))
    if kind != "Localhost" and profile is not None:
        detail = "can only be set when seccomp type is Localhost"
        errors.append(invalid_value(f"{path}.localhostProfile", internal("Profile", found), detail))
    return errors


def _app_armor(found: Obj, path: str) -> Errors:
    errors: list[FieldError] = []
    kind, profile = found.get("type", ""), found.get("localhostProfile")
    at = f"{path}.localhostProfile"
    if kind == "Localhost":
        if not profile:
            errors.append(required(at, "must be set when AppArmor type is Localhost"))
        elif profile != profile.strip():
            errors.append(invalid_value(at, profile, "must not be padded with whitespace"))
        elif len(profile) > 4095:
            errors.append(FieldError(at, "FieldValueTooLong", "Too long: may not be more than 4095 bytes"))
    elif kind in ("RuntimeDefault", "Unconfined"):
        if profile is not None:
            errors.append(invalid_value(at, profile, "can only be set when AppArmor type is Localhost"))
    elif not kind:
        errors.append(required(f"{path}.type", "type is required when appArmorProfile is set"))
    else:
        errors.append(not_supported(f"{path}.type", kind, _PROFILES))
    return errors


def local_path(value: str, path: str) -> Errors:
    """Return errors unless the path is relative and does not leave its start."""
    errors: list[FieldError] = []
    if value.startswith("/"):
        errors.append(invalid_value(path, value, "must be a relative path"))
    if ".." in value.split("/"):
        errors.append(invalid_value(path, value, "must not contain '..'"))
    return errors


def sysctls(found: list[Obj], path: str) -> Errors:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for i, sysctl in enumerate(found):
        name, at = sysctl.get("name", ""), f"{path}[{i}].name"
        if not name:
            errors.append(required(at))
        elif len(name) > 253 or not re.fullmatch(_SYSCTL, name):
            errors.append(invalid_value(at, name, f"must have at most 253 characters and match regex {_SYSCTL}"))
        elif name in seen:
            errors.append(duplicate(at, name))
        seen.add(name)
    return errors


def host_namespace(sysctl: str) -> str:
    """Return the pod field that shares the host namespace of this sysctl, empty when there is none."""
    name = sysctl.replace("/", ".")
    if name.startswith("net."):
        return "hostNetwork"
    if name in _IPC or name.startswith(("fs.mqueue.", "kernel.msg")):
        return "hostIPC"
    return ""


pod_context = fields(
    {
        "fsGroup": _ID,
        "runAsUser": _ID,
        "runAsGroup": _ID,
        "supplementalGroups": each(_ID),
        "supplementalGroupsPolicy": one_of("Merge", "Strict"),
        "sysctls": sysctls,
        "fsGroupChangePolicy": one_of("Always", "OnRootMismatch"),
        "seccompProfile": _seccomp,
        "appArmorProfile": _app_armor,
    }
)


def selinux_policy(context: Obj, path: str, *, updating: bool) -> Errors:
    """Return the errors of seLinuxChangePolicy.

    MountOption is behind a feature gate, but a pod that has it may keep it.
    """
    if context.get("seLinuxChangePolicy") is None:
        return FINE
    known = one_of("MountOption", "Recursive") if updating else one_of("Recursive")
    return known(context["seLinuxChangePolicy"], f"{path}.seLinuxChangePolicy")


_container = fields(
    {
        "runAsUser": _ID,
        "runAsGroup": _ID,
        "procMount": one_of("Default", "Unmasked"),
        "seccompProfile": _seccomp,
        "appArmorProfile": _app_armor,
    }
)


def container_context(found: Obj, path: str, *, host_users: bool = True) -> Errors:
    if not found:
        return FINE
    errors = list(_container(found, path))
    if host_users and found.get("procMount") == "Unmasked":
        detail = "`hostUsers` must be false to use `Unmasked`"
        errors.append(invalid_value(f"{path}.procMount", "Unmasked", detail))
    if found.get("allowPrivilegeEscalation") is False:
        if found.get("privileged"):
            detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            errors.append(invalid_value(path, internal("SecurityContext", found), detail))
        if "CAP_SYS_ADMIN" in (found.get("capabilities", {}).get("add") or ()):
            detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"
            errors.append(invalid_value(path, internal("SecurityContext", found), detail))
    return errors
