"""Discover which kinds a server serves, for controllers that handle every kind."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest

_ACCEPT = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"


class ServedKind(msgspec.Struct, frozen=True):
    """A served kind in its preferred version, read as metadata only."""

    resource: Resource[Object]
    verbs: frozenset[str]
    subresources: frozenset[str] = frozenset()

    @property
    def qualified(self) -> str:
        return f"{self.resource.plural}.{self.resource.group}" if self.resource.group else self.resource.plural


class ServedKinds(msgspec.Struct, frozen=True):
    served: tuple[ServedKind, ...]
    by_kind: dict[tuple[str, str], ServedKind]  # (group, kind): references may name any version

    def find(self, api_version: str, kind: str) -> ServedKind | None:
        return self.by_kind.get((api_version.rpartition("/")[0], kind))


async def discover(client: Client) -> ServedKinds | ApiError:
    groups: list[dict[str, Any]] = []
    for root in ("/api", "/apis"):
        answer = await client.raw(ApiRequest(method="GET", path=root, accept=_ACCEPT))
        if not answer.ok:
            return error_from_response(answer)
        # Not `plain()`: a server may keep the document as the bytes that it sends.
        groups += msgspec.json.decode(answer.body.raw()).get("items") or ()
    return parse_discovery(groups)


def parse_discovery(groups: list[dict[str, Any]]) -> ServedKinds:
    """Parse aggregated discovery. Versions come preferred first; a kind is taken in the first that has it."""
    found: dict[tuple[str, str], ServedKind] = {}
    by_kind: dict[tuple[str, str], ServedKind] = {}
    for item in groups:
        group = (item.get("metadata") or {}).get("name") or ""
        for version in item.get("versions") or ():
            for row in version.get("resources") or ():
                if (group, row["resource"]) in found:
                    continue
                name = row["responseKind"]["kind"]
                resource = Resource(
                    group=group,
                    version=version["version"],
                    kind=name,
                    plural=row["resource"],
                    namespaced=row["scope"] == "Namespaced",
                    model=Object,
                )
                subresources = frozenset(sub["subresource"] for sub in row.get("subresources") or ())
                kind = ServedKind(resource, frozenset(row["verbs"]), subresources)
                found[group, row["resource"]] = kind
                by_kind.setdefault((group, name), kind)
    return ServedKinds(tuple(found.values()), by_kind)
