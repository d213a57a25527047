"""Describe what the server serves: discovery lists per group and version, aggregated discovery, and the
OpenAPI documents.

Documents are cached until the catalog changes. OpenAPI v3 is JSON only: no client asks for it in
another form without taking JSON too.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from koord.embedded.apiserver.catalog import Catalog, ServedResource
from koord.embedded.apiserver.refusal import no_such_path
from koord.embedded.apiserver.rest.answering import TextBody, json_answer, text
from koord.embedded.apiserver.rest.negotiation import aggregated_discovery
from koord.kube.transport import Answer, Request

Obj = dict[str, Any]


class Discovery:
    """Serves discovery documents, which are made once per generation of the catalog."""

    def __init__(self, catalog: Catalog, address: str = "") -> None:
        self._catalog = catalog
        self._address = address
        self._made: dict[tuple[str, str], tuple[bytes, str]] = {}
        self._generation = -1

    def answer(self, request: Request) -> Answer | None:
        """Answer a discovery request; return None when the path is not one of discovery's."""
        parts = [part for part in request.path.split("/") if part]
        if not parts or parts[0] not in ("api", "apis") or len(parts) > 3:
            return None
        if len(parts) == 1:
            version = aggregated_discovery(request.accept)
            if version:
                return self._aggregated(parts[0], version)
            return json_answer(200, self._versions() if parts[0] == "api" else self._groups())
        if parts[0] == "api":
            return json_answer(200, self._resources("", parts[1])) if len(parts) == 2 else None
        if parts[1] not in self._catalog.versions():
            return text(404, "404 page not found\n")
        if len(parts) == 2:
            return json_answer(200, {"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1])})
        return json_answer(200, self._resources(parts[1], parts[2]))

    def paths(self) -> list[str]:
        found = ["/api", "/api/v1", "/apis", "/apis/"]
        for group, versions in self._catalog.versions().items():
            if group:
                found.append(f"/apis/{group}")
                found += [f"/apis/{group}/{version}" for version in versions]
        return found

    def _versions(self) -> Obj:
        return {
            "kind": "APIVersions",
            "versions": self._catalog.versions().get("", []),
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": self._address}],
        }

    def _groups(self) -> Obj:
        groups = [self._group(group) for group in self._catalog.versions() if group]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _group(self, group: str) -> Obj:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in self._catalog.versions().get(group, [])
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _resources(self, group: str, version: str) -> Obj:
        if version not in self._catalog.versions().get(group, []):
            raise no_such_path()
        rows: list[Obj] = []
        for resource in sorted(self._catalog.of_version(group, version), key=lambda r: r.plural):
            rows.append(_old_row(resource))
            for sub in sorted(resource.subresources.values(), key=lambda s: s.name):
                row: Obj = {
                    "name": f"{resource.plural}/{sub.name}",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    **({"group": sub.group} if sub.group else {}),
                    **({"version": sub.version} if sub.version else {}),
                    "kind": sub.kind,
                    "verbs": list(sub.verbs),
                }
                rows.append(row)
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": rows,
        }

    def _aggregated(self, root: str, version: str) -> Answer:
        if self._generation != self._catalog.generation:
            self._made.clear()
            self._generation = self._catalog.generation
        if (root, version) not in self._made:
            wanted = [g for g in self._catalog.versions() if bool(g) == (root == "apis")]
            document = {
                "kind": "APIGroupDiscoveryList",
                "apiVersion": f"apidiscovery.k8s.io/{version}",
                "metadata": {},
                "items": [self._aggregated_group(group) for group in wanted],
            }
            raw = msgspec.json.encode(document)
            self._made[(root, version)] = (raw, f'"{hashlib.sha512(raw).hexdigest().upper()}"')
        raw, tag = self._made[(root, version)]
        return Answer(
            status=200,
            body=TextBody(raw),
            headers={"ETag": tag, "Vary": "Accept"},
            content_type=f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList",
        )

    def _aggregated_group(self, group: str) -> Obj:
        versions = []
        for version in self._catalog.versions()[group]:
            resources = sorted(self._catalog.of_version(group, version), key=lambda r: r.plural)
            versions.append(
                {"version": version, "resources": [_aggregated_row(r) for r in resources], "freshness": "Current"}
            )
        return {"metadata": {"name": group} if group else {}, "versions": versions}


def _old_row(resource: ServedResource) -> Obj:
    row: Obj = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    if resource.categories:
        row["categories"] = list(resource.categories)
    if resource.storage_hash:
        row["storageVersionHash"] = resource.storage_hash
    return row


def _aggregated_row(resource: ServedResource) -> Obj:
    row: Obj = {
        "resource": resource.plural,
        "responseKind": _kind(resource, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        row["shortNames"] = list(resource.short_names)
    if resource.categories:
        row["categories"] = list(resource.categories)
    if resource.subresources:
        row["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": {"group": sub.group, "version": sub.version, "kind": sub.kind}
                if sub.group or sub.version
                else _kind(resource, sub.kind),
                "verbs": list(sub.verbs),
            }
            for sub in sorted(resource.subresources.values(), key=lambda s: s.name)
        ]
    return row


def _kind(resource: ServedResource, kind: str) -> Obj:
    """Return the kind of a row. Built-in rows leave group and version to their place in the document; custom
    rows name them.
    """
    if resource.custom:
        return {"group": resource.group, "version": resource.version, "kind": kind}
    return {"group": "", "version": "", "kind": kind}
