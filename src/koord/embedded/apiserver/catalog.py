"""The resources that this server serves: built-in ones from the start, custom ones as their definitions come and go.

A ServedResource is everything that the verbs need to know of one group-version-resource. What the fields of a kind mean
is decided by its Strategy (`kinds`), what they look like by its schema node (`schema`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.schema.builtin_decoding import DecodeResult
from koord.embedded.apiserver.schema.builtin_types import BuiltinResource, BuiltinTypes, Subresource
from koord.embedded.apiserver.schema.schema_node import SchemaNode


class VersionConversion(msgspec.Struct, frozen=True):
    """Converts between a served version and the stored one; takes a shared object and returns a private one."""

    to_storage: Callable[[Obj], Obj]
    from_storage: Callable[[Obj], Obj]


class ScalePaths(msgspec.Struct, frozen=True):
    """Names the dotted paths of the numbers that a kind's Scale shows; a custom resource names its own."""

    replicas: str = ".spec.replicas"
    status_replicas: str = ".status.replicas"
    selector: str = ".spec.selector"  # a LabelSelector, a plain map, or for custom kinds a string


class PrinterColumn(msgspec.Struct, frozen=True):
    """A Table column that a custom kind defines: its heading, and the function from object and time to its cell."""

    heading: Mapping[str, Any]
    cell: Callable[[Obj, float], Any]


class ServedResource(msgspec.Struct, kw_only=True, eq=False):
    group: str  # "" is the core group
    version: str
    kind: str
    plural: str
    singular: str = ""
    namespaced: bool = True
    verbs: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    storage_hash: str = ""
    list_kind: str = ""
    subresources: Mapping[str, Subresource] = {}
    schema_node: SchemaNode
    strategy: KindStrategy = KindStrategy()
    decode: Callable[[Any], DecodeResult]
    custom: bool = False
    schema: Mapping[str, Any] | None = None  # a custom kind's openAPIV3Schema, for the documents
    columns: tuple[PrinterColumn, ...] = ()  # a custom kind's, after Name
    storage: str = ""  # key of the collection: versions of one resource share it
    conversion: VersionConversion | None = None  # None: stored as served
    allows_unconditional_update: bool = True  # a PUT without resourceVersion is taken
    delete_returns_object: bool = False  # DELETE answers with the object instead of a Status
    orphans_by_default: bool = False
    scale: ScalePaths = ScalePaths()  # meant only with the scale subresource
    warning: str = ""  # sent with every answer, for versions that are on their way out
    api_version: str = ""

    def __post_init__(self) -> None:
        self.api_version = f"{self.group}/{self.version}" if self.group else self.version
        self.storage = self.storage or self.qualified
        self.list_kind = self.list_kind or f"{self.kind}List"
        self.singular = self.singular or self.kind.lower()

    @property
    def qualified(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources


class ResourceCatalog:
    """Looks resources up by path and by kind. Discovery documents are cached for one `generation`."""

    def __init__(self, resources: Iterable[ServedResource] = ()) -> None:
        self._served: dict[tuple[str, str, str], ServedResource] = {}
        self._kinds: dict[tuple[str, str, str], ServedResource] = {}
        self._versions_by_storage: dict[str, tuple[ServedResource, ...]] = {}
        self.generation = 0
        for resource in resources:
            self.add(resource)

    def add(self, resource: ServedResource) -> None:
        """Serve the resource, in place of an earlier one at the same path."""
        self._served[(resource.group, resource.version, resource.plural)] = resource
        self._kinds[(resource.group, resource.version, resource.kind)] = resource
        self._bump_generation()

    def remove(self, group: str, version: str, plural: str) -> None:
        gone = self._served.pop((group, version, plural), None)
        if gone is not None:
            self._kinds.pop((group, version, gone.kind), None)
            self._bump_generation()

    def _bump_generation(self) -> None:
        self.generation += 1
        self._versions_by_storage.clear()

    def find(self, group: str, version: str, plural: str) -> ServedResource | None:
        return self._served.get((group, version, plural))

    def by_kind(self, group: str, version: str, kind: str) -> ServedResource | None:
        return self._kinds.get((group, version, kind))

    def served_versions(self, storage: str) -> tuple[ServedResource, ...]:
        """Return all served versions of what is stored under one key; the stored version itself comes first."""
        found = self._versions_by_storage.get(storage)
        if found is None:
            all_of_it = [r for r in self._served.values() if r.storage == storage]
            found = self._versions_by_storage[storage] = tuple(
                sorted(all_of_it, key=lambda r: r.conversion is not None)
            )
        return found

    def resources(self) -> list[ServedResource]:
        return list(self._served.values())

    def versions(self) -> dict[str, list[str]]:
        """Return each group with its versions, preferred first; built-in groups in their order, then custom by name."""
        found: dict[str, dict[str, None]] = {}
        custom: dict[str, dict[str, None]] = {}
        for resource in self._served.values():
            into = custom if resource.custom and resource.group not in found else found
            into.setdefault(resource.group, {})[resource.version] = None
        merged = {**found, **{group: custom[group] for group in sorted(custom) if group not in found}}
        return {group: sorted(versions, key=version_priority) for group, versions in merged.items()}

    def in_group_version(self, group: str, version: str) -> list[ServedResource]:
        return [r for r in self._served.values() if r.group == group and r.version == version]


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Return the sort key of Kubernetes' version priority: stable, beta, alpha, higher numbers first, others last."""
    rest = version[1:] if version.startswith("v") else ""
    major, _, tail = rest.partition("beta") if "beta" in rest else rest.partition("alpha")
    if not major.isdecimal() or ("beta" in rest or "alpha" in rest) != bool(tail) or (tail and not tail.isdecimal()):
        return (3, 0, 0, version)
    level = 1 if "beta" in rest else 2 if "alpha" in rest else 0
    return (level, -int(major), -int(tail or 0), version)


# Facts about single built-in resources that discovery does not show.
_DELETE_RETURNS_OBJECT = frozenset(
    (
        *("pods", "services", "serviceaccounts", "persistentvolumes", "persistentvolumeclaims", "resourcequotas"),
        *("podtemplates", "storageclasses.storage.k8s.io", "csidrivers.storage.k8s.io", "csinodes.storage.k8s.io"),
        *("volumeattachments.storage.k8s.io", "deviceclasses.resource.k8s.io", "resourceclaims.resource.k8s.io"),
        *("resourceclaimtemplates.resource.k8s.io", "resourceslices.resource.k8s.io"),
    )
)
_NO_UNCONDITIONAL_UPDATE = frozenset(
    (
        *("leases.coordination.k8s.io", "customresourcedefinitions.apiextensions.k8s.io"),
        *("apiservices.apiregistration.k8s.io", "poddisruptionbudgets.policy"),
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingadmissionpolicies.admissionregistration.k8s.io",
        *("validatingadmissionpolicybindings.admissionregistration.k8s.io", "volumeattachments.storage.k8s.io"),
        *("csidrivers.storage.k8s.io", "csinodes.storage.k8s.io"),
    )
)
_WARNINGS = {
    "componentstatuses": "v1 ComponentStatus is deprecated in v1.19+",
    "endpoints": "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
}
_ORPHANS_BY_DEFAULT = frozenset(("replicationcontrollers", "jobs.batch"))


def builtin_resources(
    table: BuiltinTypes,
    decoder: Callable[[SchemaNode], Callable[[Any], DecodeResult]],
    strategies: Mapping[tuple[str, str], KindStrategy],
    conversions: Mapping[tuple[str, str, str], tuple[str, VersionConversion]],
) -> list[ServedResource]:
    """Return the built-in resources. `strategies` are by (group, kind); `conversions` by (group, version, plural)."""
    return [_builtin_resource(table, row, decoder, strategies, conversions) for row in table.resources()]


def _builtin_resource(
    table: BuiltinTypes,
    row: BuiltinResource,
    decoder: Callable[[SchemaNode], Callable[[Any], DecodeResult]],
    strategies: Mapping[tuple[str, str], KindStrategy],
    conversions: Mapping[tuple[str, str, str], tuple[str, VersionConversion]],
) -> ServedResource:
    node = table.node_for(row.group, row.version, row.kind)
    if node is None:
        raise LookupError(f"no type for {row.group}/{row.version} {row.kind}")
    storage, conversion = conversions.get((row.group, row.version, row.plural), ("", None))
    qualified = f"{row.plural}.{row.group}" if row.group else row.plural
    return ServedResource(
        group=row.group,
        version=row.version,
        kind=row.kind,
        plural=row.plural,
        singular=row.singular,
        namespaced=row.namespaced,
        verbs=row.verbs,
        short_names=row.short_names,
        categories=row.categories,
        storage_hash=row.storage_hash,
        subresources={sub.name: sub for sub in row.subresources},
        schema_node=node,
        strategy=strategies.get((row.group, row.kind), KindStrategy()),
        decode=decoder(node),
        storage=storage,
        conversion=conversion,
        allows_unconditional_update=qualified not in _NO_UNCONDITIONAL_UPDATE,
        delete_returns_object=qualified in _DELETE_RETURNS_OBJECT,
        orphans_by_default=qualified in _ORPHANS_BY_DEFAULT,
        warning=_WARNINGS.get(qualified, ""),
    )
