"""Controller references: who controls an object, indexes by owner and selector, adopting and releasing objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from koord.api.kubernetes.meta import LabelSelector, Object, ObjectMeta, OwnerReference, stored_label_selector
from koord.api.kubernetes.resource import Resource
from koord.embedded.workloads.controller_context import error_unless_gone, sync_result
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import ReconcileResult
from koord.kube.informer.informer import Informer
from koord.kube.transport.api_error import ApiError
from koord.values.selector import Operator, Selector

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_CONTROLLER_INDEX = "controller"
_ORPHAN_PREFIX = "orphan "


def controller_owner(meta: ObjectMeta) -> OwnerReference | None:
    for owner in meta.owner_references:
        if owner.controller:
            return owner
    return None


def controller_owner_of_kind(meta: ObjectMeta, resource: Resource[Any]) -> OwnerReference | None:
    """Return the controller reference when it is of this kind; the version of its group does not matter."""
    owner = controller_owner(meta)
    if owner is None or owner.kind != resource.kind or owner.api_version.rpartition("/")[0] != resource.group:
        return None
    return owner


def controller_reference(resource: Resource[Any], owner: Object) -> Unstructured:
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
    if not informer.has_index(_CONTROLLER_INDEX):
        informer.add_index(_CONTROLLER_INDEX, _controller_keys)


def _controller_keys(obj: Object) -> Iterable[str]:
    meta = obj.metadata
    owner = controller_owner(meta)
    if owner is not None:
        return (owner.uid,)
    return [_ORPHAN_PREFIX + value for value in label_index_keys(meta.namespace, meta.labels)]


def owned_objects(informer: Informer[O], uid: str) -> list[O]:
    return informer.by_index(_CONTROLLER_INDEX, uid)


def orphans_matching(informer: Informer[O], namespace: str, selector: Selector) -> list[O]:
    """Return objects without a controller that the selector may match."""
    value = selector_index_key(namespace, selector)
    return informer.by_index(_CONTROLLER_INDEX, _ORPHAN_PREFIX + value) if value else []


def index_by_selector(informer: Informer[O], select: Callable[[O], Selector]) -> None:
    """Add the index behind `objects_selecting` to the informer; `select(obj)` returns the selector of an object."""
    if not informer.has_index("selector"):
        informer.add_index("selector", lambda obj: [selector_index_key(obj.metadata.namespace, select(obj))])


def objects_selecting(informer: Informer[O], meta: ObjectMeta, select: Callable[[O], Selector]) -> list[O]:
    """Return the objects whose selector matches this metadata."""
    found = []
    for value in label_index_keys(meta.namespace, meta.labels):
        found += [obj for obj in informer.by_index("selector", value) if select(obj).matches(meta.labels)]
    return found


# -- claims


class ObjectClaims(msgspec.Struct, Generic[O], frozen=True):
    """Lists the objects of an owner: `held` is its own, `adopt` should become so, `release` no longer be."""

    held: tuple[O, ...]
    adopt: tuple[O, ...] = ()
    release: tuple[O, ...] = ()


def decide_object_claims(
    owner: Object, selector: Selector, owned: Iterable[O], orphans: Iterable[O]
) -> ObjectClaims[O]:
    """Decide what an owner holds, adopts and releases. An owner that is being deleted adopts and releases nothing."""
    held = [obj for obj in owned if selector.matches(obj.metadata.labels)]
    if owner.metadata.deletion_timestamp is not None:
        return ObjectClaims(tuple(held))
    release = [obj for obj in owned if not selector.matches(obj.metadata.labels)]
    adopt = [
        obj for obj in orphans if obj.metadata.deletion_timestamp is None and selector.matches(obj.metadata.labels)
    ]
    return ObjectClaims(tuple(held), tuple(adopt), tuple(release))


async def apply_object_claims(
    client: Client,
    resource: Resource[Any],
    owner: Object,
    dependents: Resource[O],
    claims: ObjectClaims[O],
    finalizer: str = "",
) -> ApiError | None:
    """Write the owner references. The owner is read anew before it adopts: a cache may not know yet that it is gone."""
    meta = owner.metadata
    if claims.adopt:
        live = await client.get(resource, meta.name, meta.namespace)
        if isinstance(live, ApiError):
            return live
        if live.metadata.uid != meta.uid or live.metadata.deletion_timestamp is not None:
            return None
    refused: ApiError | None = None
    for obj in claims.adopt:
        change: Unstructured = {"ownerReferences": [controller_reference(resource, owner)]}
        if finalizer:
            change["finalizers"] = [finalizer]
        refused = await _patch_metadata(client, dependents, obj, change) or refused
    for obj in claims.release:
        change = {"ownerReferences": [{"$patch": "delete", "uid": meta.uid}]}
        if finalizer:
            change["$deleteFromPrimitiveList/finalizers"] = [finalizer]
        refused = await _patch_metadata(client, dependents, obj, change) or refused
    return refused


async def _patch_metadata(client: Client, resource: Resource[O], obj: O, change: Unstructured) -> ApiError | None:
    answer = await client.patch_object(resource, obj, {"metadata": change}, kind="strategic")
    return error_unless_gone(answer)


async def claim_objects(
    client: Client,
    resource: Resource[Any],
    owner: Object,
    selector: Selector,
    dependents: Informer[O],
    *,
    is_eligible: Callable[[O], bool] | None = None,
    finalizer: str = "",
) -> tuple[O, ...] | ReconcileResult:
    """Return the objects that the owner holds. If it must adopt or release some, write that and end the sync."""
    orphans = orphans_matching(dependents, owner.metadata.namespace, selector)
    if is_eligible is not None:
        orphans = [obj for obj in orphans if is_eligible(obj)]
    claims = decide_object_claims(owner, selector, owned_objects(dependents, owner.metadata.uid), orphans)
    if not claims.adopt and not claims.release:
        return claims.held
    return sync_result(await apply_object_claims(client, resource, owner, dependents.resource, claims, finalizer))


class _SelectingSpec(Protocol):
    @property
    def selector(self) -> LabelSelector | None: ...


class _SelectingObject(Protocol):
    @property
    def spec(self) -> _SelectingSpec: ...


def spec_selector(owner: _SelectingObject) -> Selector:
    return stored_label_selector(owner.spec.selector)


def selector_index_key(namespace: str, selector: Selector) -> str:
    """Return the one index key under which every object that the selector can match looks for it."""
    if selector.matches_nothing:
        return ""
    for requirement in selector.requirements:
        if requirement.operator is Operator.EQUALS and requirement.values:
            return f"{namespace} {requirement.key}={requirement.values[0]}"
    return f"{namespace} *"


def label_index_keys(namespace: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield all index keys under which a selector that matches these labels may be stored."""
    yield f"{namespace} *"
    for key, value in labels.items():
        yield f"{namespace} {key}={value}"
