"""This module defaults and validates PersistentVolumeClaimSpec, of claims, ephemeral volumes and StatefulSets."""

from __future__ import annotations

from collections.abc import Iterator

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, not_supported, required
from koord.embedded.apiserver.kinds import validators
from koord.embedded.apiserver.kinds.validators import FieldErrors, even_if_absent, fields, non_empty, one_of, valid_name
from koord.values import names
from koord.values.quantity import Quantity

ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES = ("Block", "Filesystem")
_DATA_SOURCES = (("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot"))
_SUBDOMAIN = valid_name(names.dns1123_subdomain)


def default_pvc_spec(spec: Obj) -> None:
    spec.setdefault("volumeMode", "Filesystem")


def drop_unsupported_data_source(spec: Obj) -> None:
    """Drop the dataSource of a new claim when it names a kind that volumes cannot be populated from."""
    source = spec.get("dataSource")
    if source is not None and (source.get("apiGroup") or "", source.get("kind")) not in _DATA_SOURCES:
        del spec["dataSource"]


def sync_data_source_ref(spec: Obj) -> None:
    """Copy dataSource and dataSourceRef to each other; they are two names of one field."""
    source, ref = spec.get("dataSource"), spec.get("dataSourceRef")
    if source and not ref:
        spec["dataSourceRef"] = dict(source)
    elif ref and not source and not ref.get("namespace"):
        spec["dataSource"] = dict(ref)


def access_mode_errors(found: list[str] | None, path: str, detail: str) -> list[ApiFieldError]:
    if not found:
        return [required(path, detail)]
    errors: list[ApiFieldError] = [
        not_supported(path, mode, ACCESS_MODES) for mode in found if mode not in ACCESS_MODES
    ]
    if "ReadWriteOncePod" in found and len(set(found)) > 1:
        text = "may not use ReadWriteOncePod with other access modes"
        errors.append(forbidden_field(path, text))
    return errors


def positive_quantity_errors(text: str, path: str) -> FieldErrors:
    return [] if Quantity.parse(text).sign() > 0 else [invalid_value(path, text, "must be greater than zero")]


_OTHER_FIELDS = fields(
    {
        "storageClassName": lambda value, path: _SUBDOMAIN(value, path) if value else (),
        "volumeMode": one_of(*VOLUME_MODES),
        "dataSource": fields({"name": even_if_absent(non_empty()), "kind": even_if_absent(non_empty())}),
        "dataSourceRef": fields({"name": even_if_absent(non_empty()), "kind": even_if_absent(non_empty())}),
        "volumeAttributesClassName": lambda value, path: _SUBDOMAIN(value, path) if value else (),
    }
)


def _data_source_errors(spec: Obj, path: str) -> Iterator[ApiFieldError]:
    for key in ("dataSource", "dataSourceRef"):
        source = spec.get(key)
        if source and not source.get("apiGroup") and source.get("kind") != "PersistentVolumeClaim":
            detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
            yield invalid_value(f"{path}.{key}", source.get("kind", ""), detail)
    source, ref = spec.get("dataSource"), spec.get("dataSourceRef")
    if source and ref and not ref.get("namespace") and source != ref:
        yield invalid_value(path, {}, "must match dataSourceRef")  # the real server quotes an empty value


def pvc_spec_errors(spec: Obj, path: str) -> list[ApiFieldError]:
    errors = access_mode_errors(spec.get("accessModes"), f"{path}.accessModes", "at least 1 access mode is required")
    errors += validators.label_selector_errors(spec.get("selector"), f"{path}.selector")
    storage = (spec.get("resources", {}).get("requests") or {}).get("storage")
    at = f"{path}.resources[storage]"
    errors += [required(at)] if storage is None else positive_quantity_errors(storage, at)
    errors += _OTHER_FIELDS(spec, path)
    errors += _data_source_errors(spec, path)
    return errors
