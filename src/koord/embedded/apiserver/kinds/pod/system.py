"""These functions validate a pod against the operating system that it names."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.refusal import FieldError, forbidden_field, not_supported, required

Obj = dict[str, Any]
_SYSTEMS = ("linux", "windows")
_NOT_ON_WINDOWS = "cannot be set for a windows pod"
_NOT_ON_LINUX = "windows options cannot be set for a linux pod"
# In the order in which the real server looks; a bare name is a field of the spec, a dotted one of its security context.
_POD = (
    ".appArmorProfile",
    ".seLinuxOptions",
    "hostUsers",
    "hostPID",
    "hostIPC",
    ".seccompProfile",
    ".fsGroup",
    ".fsGroupChangePolicy",
    ".sysctls",
    "shareProcessNamespace",
    ".runAsUser",
    ".runAsGroup",
    ".supplementalGroups",
    ".supplementalGroupsPolicy",
    ".seLinuxChangePolicy",
)
_CONTAINER = (
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
)
_FLAGS = ("hostPID", "hostIPC")  # false is as good as absent


def system_errors(spec: Obj, path: str) -> list[FieldError]:
    name = spec["os"].get("name", "")
    if not name:
        return [required(f"{path}.os.name")]
    if name not in _SYSTEMS:
        return [not_supported(f"{path}.os", name, _SYSTEMS)]
    return _windows(spec, path) if name == "windows" else _linux(spec, path)


def _containers(spec: Obj, path: str) -> list[tuple[Obj, str]]:
    return [
        (container.get("securityContext") or {}, f"{path}.{key}[{i}].securityContext")
        for key in ("containers", "initContainers", "ephemeralContainers")
        for i, container in enumerate(spec.get(key) or ())
    ]


def _linux(spec: Obj, path: str) -> list[FieldError]:
    contexts = [(spec.get("securityContext") or {}, f"{path}.securityContext"), *_containers(spec, path)]
    return [
        forbidden_field(f"{at}.windowsOptions", _NOT_ON_LINUX) for found, at in contexts if "windowsOptions" in found
    ]


def _windows(spec: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    context = spec.get("securityContext") or {}
    for name in _POD:
        inside = name.startswith(".")
        value = (context if inside else spec).get(name.removeprefix("."))
        if value is None or (name in _FLAGS and not value):
            continue
        errors.append(forbidden_field(f"{path}.securityContext{name}" if inside else f"{path}.{name}", _NOT_ON_WINDOWS))
    return errors + [
        forbidden_field(f"{at}.{name}", _NOT_ON_WINDOWS)
        for found, at in _containers(spec, path)
        for name in _CONTAINER
        if found.get(name) is not None
    ]
