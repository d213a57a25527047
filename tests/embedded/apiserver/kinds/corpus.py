"""This module provides the requests that both servers answer: rich objects and small damages of each.

An object of `objects/*.yaml` is created as it is, then with one field at a time dropped, emptied, negated,
doubled or misspelt, then with the changes that `variations.yaml` lists for it; and once created, replaced
by each of those. `{ns}` in a name becomes the namespace of the run.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Obj = dict[str, Any]
Place = tuple[str | int, ...]
OBJECTS = Path(__file__).parent / "objects"
VARIATIONS = Path(__file__).parent / "variations.yaml"
UNDAMAGED = "as-it-is"
_QUANTITY = re.compile(r"\d+(m|Gi|Mi)?")
# Paths of what a kind's name does not tell: the plural, and whether it lives in a namespace.
_PLURALS = {"Endpoints": "endpoints", "Ingress": "ingresses"}
_CLUSTER = frozenset(
    [
        "Node",
        "Namespace",
        "PersistentVolume",
        "PriorityClass",
        "RuntimeClass",
        "StorageClass",
        "CSINode",
        "CSIDriver",
        "VolumeAttachment",
        "ClusterRole",
        "ClusterRoleBinding",
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "APIService",
        "IngressClass",
        "DeviceClass",
        "ResourceSlice",
    ]
)
# Objects that change what the whole server serves are never really created.
NOT_STORED = frozenset(("apiservice",))
# Kinds that this server does not judge beyond their schema are asked about undamaged only.
SCHEMA_ONLY = frozenset(
    [
        "apiservice",
        "network",
        "network-egress",
        "ingress",
        "ingressclass",
        "endpoints",
        "slice",
        "slice-plain",
        "autoscaler",
        "autoscaler-plain",
    ]
)


def objects() -> dict[str, Obj]:
    found: dict[str, Obj] = {}
    for file in sorted(OBJECTS.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            found.update(document)
    return found


def variations(id: str) -> dict[str, Obj]:
    """Return the changes of more than one field that are worth a request: name -> path -> value."""
    return _variations().get(id, {})


@functools.cache
def _variations() -> dict[str, dict[str, Obj]]:
    found: dict[str, dict[str, Obj]] = yaml.safe_load(VARIATIONS.read_text())
    return found


def varied(id: str, onto: Obj) -> Iterator[tuple[str, Obj]]:
    for name, changes in variations(id).items():
        obj = onto
        for path, value in changes.items():
            place = tuple(int(part) if part.isdigit() else part for part in path.split("."))
            obj = _put(obj, place, value, make=True)
        yield name, obj


def collection(obj: Obj) -> str:
    """Return the path that the object is posted to, with `{ns}`."""
    version, kind = obj["apiVersion"], obj["kind"]
    plural = _PLURALS.get(kind) or kind.lower()
    if not plural.endswith("s"):
        plural = plural[:-1] + "ies" if plural.endswith("y") else plural + "s"
    elif plural.endswith("class"):
        plural += "es"
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/{plural}" if kind in _CLUSTER else f"{root}/namespaces/{{ns}}/{plural}"


def damaged(obj: Obj, onto: Obj | None = None) -> Iterator[tuple[str, Obj]]:
    """Yield the object itself, then each small change to it, with an id that says what was done where.

    `onto`: make the same changes to this object, which is the stored form of the first one.
    """
    onto = obj if onto is None else onto
    yield UNDAMAGED, onto
    for key in obj:
        if key in ("apiVersion", "kind", "metadata"):
            continue
        for id, path, value in _changes((key,), obj[key]):
            try:
                yield id, _put(onto, path, value)
            except KeyError:  # a field that is not kept as it was sent
                yield id, {**onto, key: _put(obj, path, value).get(key)}


def _changes(path: Place, value: Any) -> Iterator[tuple[str, Place, Any]]:
    where = ".".join(map(str, path))
    yield f"{where} dropped", path, None
    for word, other in _others(value):
        yield f"{where} {word}", path, other
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _changes((*path, key), inner)
        if path[-1] in ("nodeSelector", "matchLabels", "labels", "annotations", "data", "parameters", "requests"):
            yield f"{where} with a bad key", (*path, "-bad key"), "1"
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _changes((*path, index), inner)


def _others(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool):
        yield "flipped", not value
    elif isinstance(value, int):
        yield "negative", -1
        yield "zero", 0
        yield "huge", 2_000_000_000
    elif isinstance(value, str) and _QUANTITY.fullmatch(value):
        yield "negative", "-1"
        yield "zero", "0"
        yield "fraction", "1500m"
        yield "misspelt", "Bad_Value!"
    elif isinstance(value, str):
        yield "empty", ""
        yield "misspelt", "Bad_Value!"
        yield "long", "x" * 300
        yield "other", "other"
    elif isinstance(value, list):
        yield "empty", []
        yield "doubled", value + value[:1]
    elif isinstance(value, dict) and value:
        yield "empty", {}


def _put(obj: Any, path: Place, value: Any, *, make: bool = False) -> Any:
    """Return a copy of the object with another value at the path; None removes the field.

    Raises KeyError where the path leaves the object, unless `make` creates the path.
    """
    key, rest = path[0], path[1:]
    if isinstance(obj, list):
        index = int(key)
        if index == len(obj):
            return [*obj, value]
        if rest:
            return [_put(item, rest, value, make=make) if i == index else item for i, item in enumerate(obj)]
        return [value if i == index else item for i, item in enumerate(obj) if i != index or value is not None]
    if rest:
        inner = obj.get(key, {}) if make else obj[key]
        return {**obj, key: _put(inner, rest, value, make=make)}
    return {**{k: v for k, v in obj.items() if k != key}, **({} if value is None else {key: value})}


def with_namespace(value: Any, ns: str) -> Any:
    """Return the value with `{ns}` replaced in every string."""
    if isinstance(value, str):
        return value.replace("{ns}", ns)
    if isinstance(value, dict):
        return {with_namespace(k, ns): with_namespace(v, ns) for k, v in value.items()}
    if isinstance(value, list):
        return [with_namespace(v, ns) for v in value]
    return value


def delta(old: Any, new: Any) -> Any:
    """Return a merge patch that turns `old` into `new`; lists are replaced whole."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    changed = {key: None for key in old if key not in new}
    for key, value in new.items():
        if key not in old:
            changed[key] = value
        elif old[key] != value:
            changed[key] = delta(old[key], value)
    return changed
