"""The update strategies of an object: one for its main path and one for each subresource that writes part of it.

A strategy restores what its path may not change, and validates what it may.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.kinds.strategy import copy_or_drop
from koord.embedded.apiserver.rest import object_metadata
from koord.embedded.apiserver.rest.object_metadata import deep_copy

PrepareForUpdate = Callable[[Obj, Obj, ServedResource], None]
ValidateUpdate = Callable[[Obj, Obj, ServedResource], list[ApiFieldError]]


class SubresourceStrategy(msgspec.Struct, frozen=True):
    prepare: PrepareForUpdate  # (new, old, resource): restore what this path may not change
    validate: ValidateUpdate


def _prepare_main(new: Obj, old: Obj, resource: ServedResource) -> None:
    object_metadata.keep_old_status(new, old, resource)
    if resource.storage == "namespaces":  # finalizers of the spec have a subresource of their own
        copy_or_drop(new, old, "spec")
    resource.strategy.prepare_update(new, old)


def _prepare_status(new: Obj, old: Obj, resource: ServedResource) -> None:
    object_metadata.keep_all_but_status(new, old, resource)
    resource.strategy.prepare_status(new, old)


def _prepare_finalize(new: Obj, old: Obj, resource: ServedResource) -> None:
    finalizers = new.get("spec", {}).get("finalizers")
    copy_or_drop(new, old, "status")
    new["spec"] = {"finalizers": finalizers} if finalizers else {}


def _prepare_ephemeral(new: Obj, old: Obj, resource: ServedResource) -> None:
    added = new.get("spec", {}).get("ephemeralContainers")
    _restore_all_but_managed_fields(new, old)
    if added:
        new["spec"] = {**old["spec"], "ephemeralContainers": added}
        if old["spec"].get("nodeName"):
            _end_ephemeral_containers(new, added)
    _bump_generation(new, old)


def _end_ephemeral_containers(pod: Obj, added: list[Obj]) -> None:
    """Report that these containers have ended: simulated nodes start none, and `kubectl debug` would wait for ever."""
    status = {**(pod.get("status") or {})}
    held = status.get("ephemeralContainerStatuses") or []
    known = {one["name"] for one in held}
    ended = {"exitCode": 1, "reason": "NotSupported", "message": "simulated nodes run no processes to debug"}
    status["ephemeralContainerStatuses"] = held + [
        {
            "name": container.get("name", ""),
            "image": container.get("image", ""),
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": ended},
            "lastState": {},
        }
        for container in added
        if container.get("name") not in known
    ]
    pod["status"] = status


def _prepare_resize(new: Obj, old: Obj, resource: ServedResource) -> None:
    wanted = new.get("spec", {})
    _restore_all_but_managed_fields(new, old)
    spec = deep_copy(old["spec"])
    for group in ("containers", "initContainers"):
        sent = {c.get("name"): c for c in wanted.get(group, [])}
        for container in spec.get(group, []):
            for field in ("resources", "resizePolicy"):
                if field in sent.get(container["name"], {}):
                    container[field] = sent[container["name"]][field]
    if "resources" in wanted:
        spec["resources"] = wanted["resources"]
    new["spec"] = spec
    _bump_generation(new, old)


def _restore_all_but_managed_fields(new: Obj, old: Obj) -> None:
    """Restore everything from the old object but managedFields."""
    managed = new["metadata"].get("managedFields")
    new.clear()
    new.update(old)
    new["metadata"] = {**old["metadata"]}
    if managed:
        new["metadata"]["managedFields"] = managed


def _bump_generation(new: Obj, old: Obj) -> None:
    if new.get("spec") != old.get("spec") and "generation" in old["metadata"]:
        new["metadata"]["generation"] = old["metadata"]["generation"] + 1


def _validate_main(new: Obj, old: Obj, resource: ServedResource) -> list[ApiFieldError]:
    return resource.strategy.validate_update(new, old)


def _validate_status(new: Obj, old: Obj, resource: ServedResource) -> list[ApiFieldError]:
    return resource.strategy.validate_status(new, old)


def _accept_any(new: Obj, old: Obj, resource: ServedResource) -> list[ApiFieldError]:
    return []


MAIN_STRATEGY = SubresourceStrategy(_prepare_main, _validate_main)
STATUS_STRATEGY = SubresourceStrategy(_prepare_status, _validate_status)

# Subresources that are written as the whole object. Scale, binding, eviction and the like have modules of their own.
SUBRESOURCE_STRATEGIES: dict[tuple[str, str], SubresourceStrategy] = {
    ("namespaces", "finalize"): SubresourceStrategy(_prepare_finalize, _accept_any),
    ("pods", "ephemeralcontainers"): SubresourceStrategy(_prepare_ephemeral, _accept_any),
    ("pods", "resize"): SubresourceStrategy(_prepare_resize, _accept_any),
    ("certificatesigningrequests.certificates.k8s.io", "approval"): STATUS_STRATEGY,
}


def strategy_for(resource: ServedResource, subresource: str) -> SubresourceStrategy | None:
    if not subresource:
        return MAIN_STRATEGY
    if subresource == "status":
        return STATUS_STRATEGY
    return SUBRESOURCE_STRATEGIES.get((resource.storage, subresource))
