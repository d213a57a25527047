"""This module looks up every kind that koord knows. The tables themselves are in koord.api.builtin and
koord.api.custom.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.api.kubernetes.builtin_kinds import BUILTIN_KINDS
from koord.api.kubernetes.resource import Resource

ALL_KINDS: tuple[Resource[Any], ...] = BUILTIN_KINDS + CUSTOM_KINDS


class KindRegistry:
    """KindRegistry indexes a table of resources. Where a name is shared, the resource that the table lists first
    is meant.
    """

    def __init__(self, resources: tuple[Resource[Any], ...]) -> None:
        self._resources = resources
        self._by_kind: dict[tuple[str, str, str], Resource[Any]] = {}
        self._by_plural: dict[tuple[str, str], Resource[Any]] = {}
        for resource in resources:
            key = (resource.group, resource.version, resource.kind)
            if key in self._by_kind:
                raise ValueError(f"{resource.api_version} {resource.kind} is listed twice")
            self._by_kind[key] = resource
            self._by_plural.setdefault((resource.group, resource.plural), resource)

    def __iter__(self) -> Iterator[Resource[Any]]:
        return iter(self._resources)

    def by_kind(self, group: str, version: str, kind: str) -> Resource[Any] | None:
        return self._by_kind.get((group, version, kind))

    def by_plural(self, group: str, plural: str) -> Resource[Any] | None:
        """Return the preferred version of a kind, as a URL names it."""
        return self._by_plural.get((group, plural))

    def by_api_version(self, api_version: str, kind: str) -> Resource[Any] | None:
        """Return the kind by the two fields that every object carries."""
        group, _, version = api_version.rpartition("/")
        return self._by_kind.get((group, version, kind))

    def by_user_text(self, text: str) -> Resource[Any] | None:
        """Return the kind that a user typed: plural, singular, short name or kind in any case; name.group;
        name.version.group.

        Full names win over short ones, so that one kind's short name never hides another kind.
        """
        name, _, rest = text.lower().partition(".")
        for named in (_full_name, _short_name):
            for resource in self._resources:
                if named(resource, name) and (not rest or rest in _suffixes(resource)):
                    return resource
        return None


def _full_name(resource: Resource[Any], name: str) -> bool:
    return name in (resource.plural, resource.singular, resource.kind.lower())


def _short_name(resource: Resource[Any], name: str) -> bool:
    return name in resource.short_names


def _suffixes(resource: Resource[Any]) -> tuple[str, str]:
    return resource.group, f"{resource.version}.{resource.group}"


KIND_REGISTRY = KindRegistry(ALL_KINDS)
