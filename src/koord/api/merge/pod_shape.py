"""The lists of a pod that strategic merge joins item by item, for programs that patch pods without an API server.

All other lists are replaced as a whole. The embedded server's field table is the measure: a test compares the two.
"""

from __future__ import annotations

from koord.api.merge.shape import Opened, Shape

_MERGE = frozenset({"merge"})


def _keyed(key: str, **inside: Opened) -> Opened:
    """Return the schema of a list whose items are matched by one of their fields."""
    return Opened(patch_strategy=_MERGE, patch_key=key, items=Opened(fields=inside))


def _object(**fields: Opened) -> Opened:
    return Opened(fields=fields)


def _containers() -> Opened:
    return _keyed(
        "name",
        ports=_keyed("containerPort"),
        env=_keyed("name"),
        volumeMounts=_keyed("mountPath"),
        volumeDevices=_keyed("devicePath"),
    )


def _statuses() -> Opened:
    inside = _object(volumeMounts=_keyed("mountPath"), allocatedResourcesStatus=_keyed("name"))
    return Opened(items=inside)


_METADATA = _object(ownerReferences=_keyed("uid"), finalizers=Opened(patch_strategy=_MERGE))
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

POD: Shape = _object(metadata=_METADATA, spec=_SPEC, status=_STATUS)
RESERVATION: Shape = _object(
    metadata=_METADATA, spec=_object(template=_object(metadata=_METADATA, spec=_SPEC))
)  # a custom kind; upstream merges it by its Go type, whose only merging lists are those of the pod template
