"""The update strategies of an object: one for its main path and one for each subresource that writes part
of it.

A strategy restores what its path may not change, and validates what it may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.refusal import FieldError
from koord.embedded.apiserver.rest import stamping
from koord.embedded.apiserver.rest.copying import clone

Obj = dict[str, Any]
Prepare = Callable[[Obj, Obj, ServedResource], None]
Validate = Callable[[Obj, Obj, ServedResource], list[FieldError]]


class Door(msgspec.Struct, frozen=True):
    prepare: Prepare  # (new, old, resource): restore what this path may not change
    validate: Validate


def _prepare_main(new: Obj, old: Obj, resource: ServedResource) -> None:
    stamping.keep_status(new, old, resource)
    if resource.storage == "namespaces":  # finalizers of the spec have a subresource of their own
        _keep(new, old, "spec")
    resource.strategy.prepare_update(new, old)


def _prepare_status(new: Obj, old: Obj, resource: ServedResource) -> None:
    stamping.keep_but_status(new, old, resource)
    resource.strategy.prepare_status(new, old)


def _prepare_finalize(new: Obj, old: Obj, resource: ServedResource) -> None:
    finalizers = new.get("spec", {}).get("finalizers")
    _keep(new, old, "status")
    new["spec"] = {"finalizers": finalizers} if finalizers else {}


def _prepare_ephemeral(new: Obj, old: Obj, resource: ServedResource) -> None:
    added = new.get("spec", {}).get("ephemeralContainers")
    _only_spec(new, old)
    if added:
        new["spec"] = {**old["spec"], "ephemeralContainers": added}
    _bump(new, old)


def _prepare_resize(new: Obj, old: Obj, resource: ServedResource) -> None:
    wanted = new.get("spec", {})
    _only_spec(new, old)
    spec = clone(old["spec"])
    for group in ("containers", "initContainers"):
        sent = {c.get("name"): c for c in wanted.get(group, [])}
        for container in spec.get(group, []):
            for field in ("resources", "resizePolicy"):
                if field in sent.get(container["name"], {}):
                    container[field] = sent[container["name"]][field]
    if "resources" in wanted:
        spec["resources"] = wanted["resources"]
    new["spec"] = spec
    _bump(new, old)


def _only_spec(new: Obj, old: Obj) -> None:
    """Restore everything from the old object but managedFields."""
    managed = new["metadata"].get("managedFields")
    new.clear()
    new.update(old)
    new["metadata"] = {**old["metadata"]}
    if managed:
        new["metadata"]["managedFields"] = managed


def _bump(new: Obj, old: Obj) -> None:
    if new.get("spec") != old.get("spec") and "generation" in old["metadata"]:
        new["metadata"]["generation"] = old["metadata"]["generation"] + 1


def _keep(new: Obj, old: Obj, key: str) -> None:
    if key in old:
        new[key] = old[key]
    else:
        new.pop(key, None)


def _valid_main(new: Obj, old: Obj, resource: ServedResource) -> list[FieldError]:
    return resource.strategy.validate_update(new, old)


def _valid_status(new: Obj, old: Obj, resource: ServedResource) -> list[FieldError]:
    return resource.strategy.validate_status(new, old)


def _valid(new: Obj, old: Obj, resource: ServedResource) -> list[FieldError]:
    return []


MAIN = Door(_prepare_main, _valid_main)
STATUS = Door(_prepare_status, _valid_status)

# Subresources that are written as the whole object. Scale, binding, eviction and the like have modules of their own.
DOORS: dict[tuple[str, str], Door] = {
    ("namespaces", "finalize"): Door(_prepare_finalize, _valid),
    ("pods", "ephemeralcontainers"): Door(_prepare_ephemeral, _valid),
    ("pods", "resize"): Door(_prepare_resize, _valid),
    ("certificatesigningrequests.certificates.k8s.io", "approval"): STATUS,
}


def door_of(resource: ServedResource, subresource: str) -> Door | None:
    if not subresource:
        return MAIN
    if subresource == "status":
        return STATUS
    return DOORS.get((resource.storage, subresource))
