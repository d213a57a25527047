"""This module validates a CRD's versions: names, storage version, schemas, subresources, printer columns.

What all versions have in common is validated once, and reported at the path above them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, duplicate, invalid_value, required, too_many
from koord.embedded.apiserver.schema.crd_validation import SHARED_SCHEMA_PATH, crd_schema_errors, crd_schema_warnings
from koord.values.names import dns1035_label

MAX_SELECTABLE_FIELDS = 8
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_SIMPLE_PATH_REQUIRED = "must be a simple json path starting with ."


def version_errors(spec: Obj) -> list[ApiFieldError]:
    versions: Sequence[Obj] = spec.get("versions") or ()
    errors: list[ApiFieldError] = []
    for at, version in enumerate(versions):
        place = f"spec.versions[{at}]"
        name = version.get("name", "")
        errors += [invalid_value(f"{place}.name", name, reason) for reason in dns1035_label(name)]
        errors += _deprecation_errors(version, place)
    shown = _versions_as_go_prints(spec)
    if len({v.get("name", "") for v in versions}) != len(versions):
        errors.append(invalid_value("spec.versions", shown, "must contain unique version names"))
    if sum(1 for v in versions if v.get("storage")) != 1:
        errors.append(invalid_value("spec.versions", shown, "must have exactly one version marked as storage version"))
    first = versions[0].get("name", "") if versions else ""
    if first:
        errors += [invalid_value("spec.version", first, reason) for reason in dns1035_label(first)]
    for place, schema, version in _schemas_with_paths(spec):
        errors += _schema_errors(place, schema, version)
    for place, subresources in _shared_or_per_version(spec, "subresources"):
        errors += _scale_errors(f"{place}.scale", subresources.get("scale"))
    for place, fields in _shared_or_per_version(spec, "selectableFields"):
        errors += _selectable_errors(place, fields, _schema_at(spec, place))
    return errors


def _schemas_with_paths(spec: Obj) -> Iterator[tuple[str, Obj | None, Obj]]:
    versions: Sequence[Obj] = spec.get("versions") or ()
    stated = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    if stated and stated[0] is not None and all(s == stated[0] for s in stated):
        yield SHARED_SCHEMA_PATH, stated[0], versions[0]
        return
    for at, version in enumerate(versions):
        yield f"spec.versions[{at}].schema.openAPIV3Schema", stated[at], version


def _schema_errors(place: str, schema: Obj | None, version: Obj) -> list[ApiFieldError]:
    if schema is None:
        return [required(place)]
    return crd_schema_errors(schema, place, status=(version.get("subresources") or {}).get("status") is not None)


def _shared_or_per_version(spec: Obj, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of `name` in the versions with the path to report. A value common to all versions comes once."""
    versions: Sequence[Obj] = spec.get("versions") or ()
    stated = [version.get(name) for version in versions]
    if stated and all(s == stated[0] for s in stated):
        if stated[0]:
            yield f"spec.{name}", stated[0]
        return
    yield from ((f"spec.versions[{at}].{name}", s) for at, s in enumerate(stated) if s)


def _schema_at(spec: Obj, place: str) -> Obj:
    """Return the schema of the version that a path of `_shared_or_per_version` belongs to."""
    index = int(place.removeprefix("spec.versions[").partition("]")[0]) if place.startswith("spec.versions[") else 0
    return (spec["versions"][index].get("schema") or {}).get("openAPIV3Schema") or {}


def _deprecation_errors(version: Obj, place: str) -> Iterator[ApiFieldError]:
    at, text = f"{place}.deprecationWarning", version.get("deprecationWarning")
    if text is None:
        return
    if not version.get("deprecated"):
        yield invalid_value(at, text, "can only be set for deprecated versions")
    if len(text.encode()) > 256:
        yield invalid_value(at, text, "must be <= 256 characters long")
    if not text:
        yield invalid_value(at, text, "must not be an empty string")
    for index, letter in enumerate(text):
        if not letter.isprintable():
            problem = f"must only contain printable UTF-8 characters; non-printable character found at index {index}"
            yield invalid_value(at, text, problem)
            return


def _scale_errors(at: str, scale: Obj | None) -> Iterator[ApiFieldError]:
    if scale is None:
        return
    for name, root in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
        path = scale.get(name, "")
        if not path:
            yield required(f"{at}.{name}")
        elif not path.startswith("."):
            yield invalid_value(f"{at}.{name}", path, _SIMPLE_PATH_REQUIRED)
        elif not path.startswith(root):
            yield invalid_value(f"{at}.{name}", path, f"should be a json path under {root[:-1]}")
    selector = scale.get("labelSelectorPath") or ""
    if selector and not selector.startswith("."):
        yield invalid_value(f"{at}.labelSelectorPath", selector, _SIMPLE_PATH_REQUIRED)
    elif selector and not selector.startswith((".spec.", ".status.")):
        problem = "should be a json path under either .spec or .status"
        yield invalid_value(f"{at}.labelSelectorPath", selector, problem)


def _selectable_errors(at: str, fields: Sequence[Obj], schema: Obj) -> list[ApiFieldError]:
    if len(fields) > MAX_SELECTABLE_FIELDS:
        return [too_many(at, len(fields), MAX_SELECTABLE_FIELDS)]
    errors: list[ApiFieldError] = []
    seen: set[str] = set()
    for index, field in enumerate(fields):
        place, path = f"{at}[{index}].jsonPath", field.get("jsonPath", "")
        if not path:
            errors.append(required(place))
            continue
        problem = _selectable_path_problem(path, schema)
        if problem:
            errors.append(invalid_value(place, path, problem))
        elif path in seen:
            errors.append(duplicate(place, path))
        seen.add(path)
    return errors


def _selectable_path_problem(path: str, schema: Obj) -> str:
    if not path.startswith("."):
        return f"is an invalid path: expected [ or . but got: {path.partition('.')[0]}"
    if "[" in path:
        return "is an invalid path: array notation is not allowed"
    here: Obj = schema
    names = path[1:].split(".")
    for name in names:
        found = (here.get("properties") or {}).get(name)
        if found is None or name == "metadata":
            return "is an invalid path: does not refer to a valid field"
        here = found
    if here.get("type") not in ("string", "boolean", "integer"):
        return (
            "must point to a field of type string, boolean or integer. "
            "Enum string fields and strings with formats are allowed."
        )
    return ""


def printer_column_errors(spec: Obj) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    for place, columns in _shared_or_per_version(spec, "additionalPrinterColumns"):
        for index, column in enumerate(columns):
            errors += _column_errors(column, f"{place}[{index}]")
    return errors


def _column_errors(column: Obj, at: str) -> Iterator[ApiFieldError]:
    if not column.get("name"):
        yield required(f"{at}.name")
    known = f"must be one of {','.join(_COLUMN_TYPES)}"
    kind = column.get("type", "")
    if not kind:
        yield required(f"{at}.type", known)
    elif kind not in _COLUMN_TYPES:
        yield invalid_value(f"{at}.type", kind, known)
    form = column.get("format", "")
    if form and form not in _COLUMN_FORMATS:
        yield invalid_value(f"{at}.format", form, f"must be one of {','.join(_COLUMN_FORMATS)}")
    path = column.get("jsonPath", "")
    if not path:
        yield required(f"{at}.JSONPath")
    elif not path.startswith("."):
        yield invalid_value(f"{at}.JSONPath", path, _SIMPLE_PATH_REQUIRED)


def _versions_as_go_prints(spec: Obj) -> list[Obj] | None:
    """Return the versions as the server's Go type prints them, with null for what they have in common."""
    versions = spec.get("versions")
    if versions is None:
        return None
    return [
        {
            "Name": v.get("name", ""),
            "Served": v.get("served", False),
            "Storage": v.get("storage", False),
            "Deprecated": v.get("deprecated", False),
            "DeprecationWarning": v.get("deprecationWarning"),
            "Schema": None,
            "Subresources": None,
            "AdditionalPrinterColumns": None,
            "SelectableFields": None,
        }
        for v in versions
    ]


def definition_warnings(obj: Obj) -> list[str]:
    """Return the warnings that the server sends when it accepts a CRD."""
    return [text for _, schema, _ in _schemas_with_paths(obj["spec"]) if schema for text in crd_schema_warnings(schema)]
