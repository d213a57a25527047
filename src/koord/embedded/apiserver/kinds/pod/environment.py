"""This module validates environment variables and the references to pod fields that volumes share."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, invalid_value, not_supported, required
from koord.embedded.apiserver.kinds.validators import (
    NO_ERRORS,
    FieldErrors,
    each,
    even_if_absent,
    fields,
    first_of,
    non_empty,
    valid_name,
)
from koord.values import names

_ENV_FIELD_PATHS = frozenset(
    [
        *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
        *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
    ]
)
VOLUME_FIELD_PATHS = frozenset(
    ("metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations")
)
# Every path that Kubernetes knows; which of them a place takes is another question.
_KNOWN_FIELD_PATHS = (
    _ENV_FIELD_PATHS | VOLUME_FIELD_PATHS | {"spec.restartPolicy", "spec.schedulerName", "status.phase"}
)
RESOURCE_FIELDS = tuple(
    f"{kind}.{name}" for kind in ("limits", "requests") for name in ("cpu", "ephemeral-storage", "memory")
)
_ONE_SOURCE_REQUIRED = (
    "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
)
_DIVISORS = {
    "cpu": (("1m", "1"), "only divisor's values 1m and 1 are supported with the cpu resource"),
    "memory": (
        ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"),
        "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory "
        "resource",
    ),
}
_DIVISORS["ephemeral-storage"] = (
    _DIVISORS["memory"][0],
    "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the local "
    "ephemeral storage resource",
)


def field_ref_errors(found: Obj, path: str, known: frozenset[str]) -> FieldErrors:
    """Return the errors of a reference to a field of the pod itself."""
    name, version = found.get("fieldPath", ""), found.get("apiVersion", "")
    if not version:
        return [required(f"{path}.apiVersion")]
    if not name:
        return [required(f"{path}.fieldPath")]
    at = f"{path}.fieldPath"
    if name.endswith("']"):
        return _subscript_errors(name, path)
    if name not in _KNOWN_FIELD_PATHS:
        return [invalid_value(at, name, f"error converting fieldPath: field label not supported: {name}")]
    if name not in known:
        return [not_supported(at, name, sorted(known))]
    return NO_ERRORS


def _subscript_errors(name: str, path: str) -> FieldErrors:
    base, _, key = name[:-2].partition("['")
    if base == "metadata.annotations":
        return [invalid_value(path, key, reason) for reason in names.qualified_name(key.lower())]
    if base == "metadata.labels":
        return [invalid_value(path, key, reason) for reason in names.qualified_name(key)]
    return [invalid_value(path, base, "does not support subscript")]


def resource_field_ref_errors(found: Obj, path: str, *, volume: bool) -> FieldErrors:
    """Return the errors of a reference to a container's resource; in a volume it must name the container."""
    if volume and not found.get("containerName"):
        return [required(f"{path}.containerName")]
    name = found.get("resource", "")
    if not name:
        return [required(f"{path}.resource")]
    kind, _, short = name.partition(".")
    if name not in RESOURCE_FIELDS:
        if kind in ("limits", "requests") and short.startswith("hugepages-"):
            return NO_ERRORS
        return [not_supported(f"{path}.resource", name, RESOURCE_FIELDS)]
    divisors, detail = _DIVISORS[short]
    if found.get("divisor", "0") not in ("0", *divisors):
        return [invalid_value(f"{path}.divisor", name, detail)]
    return NO_ERRORS


_DATA_KEY = even_if_absent(first_of(non_empty(), valid_name(names.config_map_key)))
_KEY_REF = fields({"name": even_if_absent(valid_name(names.dns1123_subdomain)), "key": _DATA_KEY})
_FILE_REF = fields(
    {
        "volumeName": even_if_absent(first_of(non_empty(), valid_name(names.dns1123_label))),
        "path": even_if_absent(non_empty()),
        "key": even_if_absent(non_empty()),
    }
)


def _value_from_errors(found: Obj, path: str, value: str) -> Iterator[ApiFieldError]:
    chosen = 0
    if found.get("fieldRef") is not None:
        chosen += 1
        yield from field_ref_errors(found["fieldRef"], f"{path}.fieldRef", _ENV_FIELD_PATHS)
    if found.get("resourceFieldRef") is not None:
        chosen += 1
        yield from resource_field_ref_errors(found["resourceFieldRef"], f"{path}.resourceFieldRef", volume=False)
    for key in ("configMapKeyRef", "secretKeyRef"):
        if found.get(key) is not None:
            chosen += 1
            yield from _KEY_REF(found[key], f"{path}.{key}")
    if found.get("fileKeyRef") is not None:
        chosen += 1
        yield from _FILE_REF(found["fileKeyRef"], f"{path}.fileKeyRef")
    if not chosen:
        yield invalid_value(path, "", _ONE_SOURCE_REQUIRED)
    elif value:
        yield invalid_value(path, "", "may not be specified when `value` is not empty")
    elif chosen > 1:
        yield invalid_value(path, "", "may not have more than one field specified at a time")


def env_var_errors(found: Obj, path: str) -> FieldErrors:
    name = found.get("name", "")
    errors: list[ApiFieldError] = []
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid_value(f"{path}.name", name, reason) for reason in names.relaxed_env_var_name(name)]
    if found.get("valueFrom") is not None:
        errors += _value_from_errors(found["valueFrom"], f"{path}.valueFrom", found.get("value", ""))
    return errors


env_errors = each(env_var_errors)
_SOURCE_REF = fields({"name": even_if_absent(first_of(non_empty(), valid_name(names.dns1123_subdomain)))})


def env_from_errors(found: list[Obj], path: str) -> list[ApiFieldError]:
    """Return the errors of envFrom, which imports whole config maps and secrets."""
    errors: list[ApiFieldError] = []
    for i, source in enumerate(found):
        at = f"{path}[{i}]"
        if source.get("prefix"):
            errors += [
                invalid_value(f"{at}.prefix", source["prefix"], reason)
                for reason in names.relaxed_env_var_name(source["prefix"])
            ]
        chosen = [key for key in ("configMapRef", "secretRef") if source.get(key) is not None]
        for key in chosen:
            errors += _SOURCE_REF(source[key], f"{at}.{key}")
        if not chosen:
            errors.append(invalid_value(path, "", "must specify one of: `configMapRef` or `secretRef`"))
        elif len(chosen) > 1:
            errors.append(invalid_value(path, "", "may not have more than one field specified at a time"))
    return errors
