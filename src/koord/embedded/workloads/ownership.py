"""Controller references: who controls an object, indexes by owner and by selector, and adopting or
releasing objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.meta import Object, ObjectMeta, OwnerReference
from koord.api.resource import Resource
from koord.embedded.workloads.selecting import pin, pins
from koord.kube.client import Client
from koord.kube.informer import Informer
from koord.kube.refused import Refused
from koord.kube.verb import Plain
from koord.values.selector import Selector

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_INDEX = "controller"
_ORPHAN = "orphan "


def controller_of(meta: ObjectMeta) -> OwnerReference | None:
    for owner in meta.owner_references:
        if owner.controller:
            return owner
    return None


def controlled_by(meta: ObjectMeta, resource: Resource[Any]) -> OwnerReference | None:
    """Return the controller reference when it is of this kind; the version of its group does not matter."""
    owner = controller_of(meta)
    if owner is None or owner.kind != resource.kind or owner.api_version.rpartition("/")[0] != resource.group:
        return None
    return owner


def reference(resource: Resource[Any], owner: Object) -> Plain:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


# -- indexes


def index_by_controller(informer: Informer[O]) -> None:
    """Add the index behind `owned_objects` and `orphans_matching` to the informer, once."""
    if not informer.has_index(_INDEX):
        informer.add_index(_INDEX, _controllers)


def _controllers(obj: Object) -> Iterable[str]:
    meta = obj.metadata
    owner = controller_of(meta)
    if owner is not None:
        return (owner.uid,)
    return [_ORPHAN + value for value in pins(meta.namespace, meta.labels)]


def owned(informer: Informer[O], uid: str) -> list[O]:
    return informer.by_index(_INDEX, uid)


def orphans(informer: Informer[O], namespace: str, selector: Selector) -> list[O]:
    """Return objects without a controller that the selector may match."""
    value = pin(namespace, selector)
    return informer.by_index(_INDEX, _ORPHAN + value) if value else []


def index_by_selector(informer: Informer[O], select: Callable[[O], Selector]) -> None:
    """Add the index behind `objects_selecting` to the informer; `select(obj)` returns the selector of an
    object.
    """
    if not informer.has_index("selector"):
        informer.add_index("selector", lambda obj: [pin(obj.metadata.namespace, select(obj))])


def selecting(informer: Informer[O], meta: ObjectMeta, select: Callable[[O], Selector]) -> list[O]:
    """Return the objects whose selector matches this metadata."""
    found = []
    for value in pins(meta.namespace, meta.labels):
        found += [obj for obj in informer.by_index("selector", value) if select(obj).matches(meta.labels)]
    return found


# -- claims


class Claims(msgspec.Struct, Generic[O], frozen=True):
    """Lists the objects of an owner: `held` is its own; `adopt` should become its own, `release` should no
    longer be.
    """

    held: tuple[O, ...]
    adopt: tuple[O, ...] = ()
    release: tuple[O, ...] = ()


def decide_claims(owner: Object, selector: Selector, owned: Iterable[O], orphans: Iterable[O]) -> Claims[O]:
    """Decide what an owner holds, adopts and releases. An owner that is being deleted adopts and releases
    nothing.
    """
    held = [obj for obj in owned if selector.matches(obj.metadata.labels)]
    if owner.metadata.deletion_timestamp is not None:
        return Claims(tuple(held))
    release = [obj for obj in owned if not selector.matches(obj.metadata.labels)]
    adopt = [
        obj for obj in orphans if obj.metadata.deletion_timestamp is None and selector.matches(obj.metadata.labels)
    ]
    return Claims(tuple(held), tuple(adopt), tuple(release))


async def apply_claims(
    client: Client,
    resource: Resource[Any],
    owner: Object,
    dependents: Resource[O],
    claims: Claims[O],
    finalizer: str = "",
) -> Refused | None:
    """Write the owner references. The owner is read anew before it adopts: a cache may not know yet that it is
    gone.
    """
    meta = owner.metadata
    if claims.adopt:
        live = await client.get(resource, meta.name, meta.namespace)
        if isinstance(live, Refused):
            return live
        if live.metadata.uid != meta.uid or live.metadata.deletion_timestamp is not None:
            return None
    refused: Refused | None = None
    for obj in claims.adopt:
        change: Plain = {"ownerReferences": [reference(resource, owner)]}
        if finalizer:
            change["finalizers"] = [finalizer]
        refused = await _patch(client, dependents, obj, change) or refused
    for obj in claims.release:
        change = {"ownerReferences": [{"$patch": "delete", "uid": meta.uid}]}
        if finalizer:
            change["$deleteFromPrimitiveList/finalizers"] = [finalizer]
        refused = await _patch(client, dependents, obj, change) or refused
    return refused


async def _patch(client: Client, resource: Resource[O], obj: O, change: Plain) -> Refused | None:
    meta = obj.metadata
    answer = await client.patch(
        resource, meta.name, {"metadata": change}, meta.namespace, kind="strategic", uid=meta.uid
    )
    if isinstance(answer, Refused) and not answer.not_found and not answer.conflict:
        return answer  # gone, or another object of that name: nothing to write to
    return None
