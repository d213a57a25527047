"""This module describes to strategic merge which lists of a kind merge by key, in full or for pods and
reservations alone.

The embedded server's schema nodes are merge schemas that know every field. `PartialMergeSchema` is for
callers without a schema: it names the lists that merge; other objects merge by field, other lists are
replaced. The embedded server's field table is the reference: a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

OPEN_SCHEMA = "open"  # a place where fields beyond the named ones may stand


class MergeSchema(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, MergeSchema]: ...
    @property
    def items(self) -> MergeSchema | None: ...
    @property
    def patch_strategy(self) -> frozenset[str]: ...
    @property
    def patch_key(self) -> str: ...
    @property
    def go_type(self) -> str: ...


class PartialMergeSchema(msgspec.Struct, frozen=True, kw_only=True):
    """PartialMergeSchema knows only the merging lists below it. Objects merge by field, other lists are replaced."""

    fields: dict[str, PartialMergeSchema] = {}
    items: PartialMergeSchema | None = None
    patch_strategy: frozenset[str] = frozenset()
    patch_key: str = ""
    go_type: str = ""
    kind: str = OPEN_SCHEMA


UNKNOWN_FIELD_SCHEMA: MergeSchema = PartialMergeSchema()


_MERGE = frozenset({"merge"})


def _keyed(key: str, **inside: PartialMergeSchema) -> PartialMergeSchema:
    """Return the schema of a list whose items are matched by one of their fields."""
    return PartialMergeSchema(patch_strategy=_MERGE, patch_key=key, items=PartialMergeSchema(fields=inside))


def _object(**fields: PartialMergeSchema) -> PartialMergeSchema:
    return PartialMergeSchema(fields=fields)


def _containers() -> PartialMergeSchema:
    return _keyed(
        "name",
        ports=_keyed("containerPort"),
        env=_keyed("name"),
        volumeMounts=_keyed("mountPath"),
        volumeDevices=_keyed("devicePath"),
    )


def _statuses() -> PartialMergeSchema:
    inside = _object(volumeMounts=_keyed("mountPath"), allocatedResourcesStatus=_keyed("name"))
    return PartialMergeSchema(items=inside)


_METADATA = _object(ownerReferences=_keyed("uid"), finalizers=PartialMergeSchema(patch_strategy=_MERGE))
_SPEC = _object(
    volumes=_keyed("name", ephemeral=_object(volumeClaimTemplate=_object(metadata=_METADATA))),
    initContainers=_containers(),
    containers=_containers(),
    ephemeralContainers=_containers(),
    imagePullSecrets=_keyed("name"),
    hostAliases=_keyed("ip"),
    topologySpreadConstraints=_keyed("topologyKey"),
    schedulingGates=_keyed("name"),
    resourceClaims=_keyed("name"),
)
_STATUS = _object(
    conditions=_keyed("type"),
    hostIPs=_keyed("ip"),
    podIPs=_keyed("ip"),
    initContainerStatuses=_statuses(),
    containerStatuses=_statuses(),
    ephemeralContainerStatuses=_statuses(),
    resourceClaimStatuses=_keyed("name"),
)

POD_MERGE_SCHEMA: MergeSchema = _object(metadata=_METADATA, spec=_SPEC, status=_STATUS)
RESERVATION_MERGE_SCHEMA: MergeSchema = _object(
    metadata=_METADATA, spec=_object(template=_object(metadata=_METADATA, spec=_SPEC))
)  # a custom kind; upstream merges it by its Go type, whose only merging lists are those of the pod template
