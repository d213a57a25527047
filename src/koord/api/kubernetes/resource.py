"""This module describes how a kind is addressed: group, version, plural, scope. The registry lists all."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from koord.api.kubernetes.meta import Object

O_co = TypeVar("O_co", bound=Object, covariant=True)
M = TypeVar("M", bound=Object)


class CrdPrinterColumn(msgspec.Struct, frozen=True, kw_only=True):
    """CrdPrinterColumn is one printer column of a custom resource."""

    name: str
    type: str
    json_path: str


class Resource(msgspec.Struct, Generic[O_co], frozen=True, kw_only=True, eq=False):
    """Resource is one served kind. `model` is the typed view of programs; it may cover only part of the object."""

    group: str  # "" is the core group
    version: str
    kind: str
    plural: str
    namespaced: bool
    model: type[O_co]
    singular: str = ""
    short_names: tuple[str, ...] = ()
    status_subresource: bool = False
    columns: tuple[CrdPrinterColumn, ...] = ()
    custom: bool = False  # served from a CRD that we emit

    @staticmethod
    def named_like_model(
        group: str,
        version: str,
        model: type[M],
        plural: str,
        short_names: tuple[str, ...],
        *,
        namespaced: bool,
        status: bool,
        columns: tuple[CrdPrinterColumn, ...] = (),
        custom: bool = False,
    ) -> Resource[M]:
        """Return the kind that has the name of its model, with the lower-case name as singular."""
        return Resource(
            group=group,
            version=version,
            kind=model.__name__,
            plural=plural,
            singular=model.__name__.lower(),
            short_names=short_names,
            namespaced=namespaced,
            status_subresource=status,
            model=model,
            columns=columns,
            custom=custom,
        )

    def with_model(self, model: type[M]) -> Resource[M]:
        """Return the same kind read through another model, for programs that hold many and read little of each."""
        return msgspec.structs.replace(self, model=model)  # type: ignore[arg-type]

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def group_version_path(self) -> str:
        """Return the path below which this group-version is served."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        parts = [self.group_version_path]
        if namespace and self.namespaced:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name:
            parts.append(name)
        if subresource:
            parts.append(subresource)
        return "/".join(parts)
