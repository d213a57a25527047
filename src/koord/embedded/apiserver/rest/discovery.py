"""Describe what the server serves and answer the paths that are no resources: discovery, OpenAPI, version, liveness,
readiness, and the paths below /koord/.

Documents are cached until the catalog changes. OpenAPI v3 is JSON only: no client asks for it in
another form without taking JSON too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import no_such_path
from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource
from koord.embedded.apiserver.protobuf import swagger
from koord.embedded.apiserver.rest import responses
from koord.embedded.apiserver.rest.responses import TextBody, text_response
from koord.embedded.apiserver.schema import openapi
from koord.embedded.apiserver.schema.builtin_types import BuiltinTypes
from koord.embedded.apiserver.schema.openapi import OpenApiResource
from koord.kube.transport.interface import JSON, ApiRequest, ApiResponse


class DiscoveryEndpoints:
    """Serves discovery documents, which are made once per generation of the catalog."""

    def __init__(self, catalog: ResourceCatalog, address: str = "") -> None:
        self._catalog = catalog
        self._address = address
        self._documents: dict[tuple[str, str], tuple[bytes, str]] = {}
        self._generation = -1

    def respond(self, request: ApiRequest) -> ApiResponse | None:
        """Answer a discovery request; return None when the path is not one of discovery's."""
        parts = [part for part in request.path.split("/") if part]
        if not parts or parts[0] not in ("api", "apis") or len(parts) > 3:
            return None
        if len(parts) == 1:
            version = responses.aggregated_discovery_version(request.accept)
            if version:
                return self._aggregated(parts[0], version)
            return responses.json_response(200, self._versions() if parts[0] == "api" else self._groups())
        if parts[0] == "api":
            return responses.json_response(200, self._resources("", parts[1])) if len(parts) == 2 else None
        if parts[1] not in self._catalog.versions():
            return responses.text_response(404, "404 page not found\n")
        if len(parts) == 2:
            return responses.json_response(200, {"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1])})
        return responses.json_response(200, self._resources(parts[1], parts[2]))

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
        for resource in sorted(self._catalog.in_group_version(group, version), key=lambda r: r.plural):
            rows.append(_resource_row(resource))
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

    def _aggregated(self, root: str, version: str) -> ApiResponse:
        if self._generation != self._catalog.generation:
            self._documents.clear()
            self._generation = self._catalog.generation
        if (root, version) not in self._documents:
            wanted = [g for g in self._catalog.versions() if bool(g) == (root == "apis")]
            document = {
                "kind": "APIGroupDiscoveryList",
                "apiVersion": f"apidiscovery.k8s.io/{version}",
                "metadata": {},
                "items": [self._aggregated_group(group) for group in wanted],
            }
            raw = msgspec.json.encode(document)
            self._documents[(root, version)] = (raw, f'"{hashlib.sha512(raw).hexdigest().upper()}"')
        raw, tag = self._documents[(root, version)]
        return ApiResponse(
            status=200,
            body=responses.TextBody(raw),
            headers={"ETag": tag, "Vary": "Accept"},
            content_type=f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList",
        )

    def _aggregated_group(self, group: str) -> Obj:
        versions = []
        for version in self._catalog.versions()[group]:
            resources = sorted(self._catalog.in_group_version(group, version), key=lambda r: r.plural)
            versions.append(
                {"version": version, "resources": [_aggregated_row(r) for r in resources], "freshness": "Current"}
            )
        return {"metadata": {"name": group} if group else {}, "versions": versions}


def _resource_row(resource: ServedResource) -> Obj:
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
        "responseKind": _response_kind(resource, resource.kind),
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
                else _response_kind(resource, sub.kind),
                "verbs": list(sub.verbs),
            }
            for sub in sorted(resource.subresources.values(), key=lambda s: s.name)
        ]
    return row


def _response_kind(resource: ServedResource, kind: str) -> Obj:
    """Return the kind of a row. Built-in rows leave group and version to their place in the document."""
    if resource.custom:
        return {"group": resource.group, "version": resource.version, "kind": kind}
    return {"group": "", "version": "", "kind": kind}


class OpenApiEndpoints:
    def __init__(self, builtin: BuiltinTypes, catalog: ResourceCatalog) -> None:
        self._builtin = builtin
        self._catalog = catalog
        self._generation = -1
        self._v2: bytes | None = None
        self._v2_protobuf_bytes: bytes | None = None
        # path below /openapi/v3 -> what it was made of, and the document
        self._v3: dict[str, tuple[tuple[ServedResource, ...], bytes]] = {}

    def respond(self, request: ApiRequest) -> ApiResponse | None:
        path = request.path.rstrip("/")
        if not path.startswith("/openapi/"):
            return None
        if path == "/openapi/v2":
            media = _negotiate_media_type(request.accept, (JSON, *swagger.MEDIA_TYPES))
            if media == JSON:
                return _document_response(self._v2_document())
            return _document_response(self._v2_protobuf(), swagger.MEDIA_TYPES[0]) if media else _not_acceptable()
        documents = self._v3_documents()
        if path == "/openapi/v3":
            raw = msgspec.json.encode(openapi.v3_index(documents))
            return ApiResponse(status=200, body=responses.TextBody(raw))
        if not _negotiate_media_type(request.accept, (JSON,)):
            return _not_acceptable()
        found = documents.get(path.removeprefix("/openapi/v3/"))
        return responses.text_response(404, "404 page not found\n") if found is None else _document_response(found)

    def _v2_document(self) -> bytes:
        if self._v2 is None or self._generation != self._catalog.generation:
            self._generation = self._catalog.generation
            everything = [_describe(resource) for resource in self._catalog.resources()]
            self._v2 = msgspec.json.encode(openapi.v2_document(self._builtin, everything))
            self._v2_protobuf_bytes = None
        return self._v2

    def _v2_protobuf(self) -> bytes:
        """Return the v2 document in protobuf, made when the first client asks for it."""
        document = self._v2_document()
        if self._v2_protobuf_bytes is None:
            self._v2_protobuf_bytes = swagger.encode_openapi_v2(msgspec.json.decode(document))
        return self._v2_protobuf_bytes

    def _v3_documents(self) -> dict[str, bytes]:
        """Return one v3 document per group-version; only those whose resources changed are written again."""
        made: dict[str, tuple[tuple[ServedResource, ...], bytes]] = {}
        for group, versions in self._catalog.versions().items():
            for version in versions:
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                resources = tuple(self._catalog.in_group_version(group, version))
                kept = self._v3.get(path)
                if kept is not None and kept[0] == resources:
                    made[path] = kept
                    continue
                document = openapi.v3_document(self._builtin, [_describe(r) for r in resources])
                made[path] = (resources, msgspec.json.encode(document))
        self._v3 = made
        return {path: raw for path, (_, raw) in made.items()}


def _negotiate_media_type(accept: str, served: tuple[str, ...]) -> str:
    """Return the first acceptable media type that is served, the default without a header, or "" for none."""
    if not accept:
        return served[0]
    for media_range in responses.parse_accept(accept):
        if media_range.type in served:
            return media_range.type
        if media_range.type in ("*/*", "application/*"):
            return served[0]
    return ""


def _not_acceptable() -> ApiResponse:
    return responses.text_response(406, "")


def _document_response(raw: bytes, content_type: str = JSON) -> ApiResponse:
    tag = f'"{openapi.document_hash(raw)}"'
    headers = {"ETag": tag, "Vary": "Accept"}
    return ApiResponse(status=200, body=responses.TextBody(raw), headers=headers, content_type=content_type)


def _describe(resource: ServedResource) -> OpenApiResource:
    return OpenApiResource(
        group=resource.group,
        version=resource.version,
        kind=resource.kind,
        plural=resource.plural,
        namespaced=resource.namespaced,
        verbs=resource.verbs,
        list_kind=resource.list_kind,
        subresources=tuple(resource.subresources.values()),
        schema=resource.schema,
    )


HealthCheck = Callable[[], str]  # "" when all is well, else what is not


class HealthEndpoints:
    """Serves /version, /healthz, /livez and /readyz. `checks` run on every request."""

    def __init__(self, release: str, checks: Mapping[str, HealthCheck]) -> None:
        self._checks = {"ping": lambda: "", **checks}
        self._version = _version_document(release)

    def respond(self, request: ApiRequest) -> ApiResponse | None:
        path = request.path.rstrip("/")
        if path == "/version":
            return ApiResponse(
                status=200, body=TextBody(msgspec.json.format(msgspec.json.encode(self._version), indent=2))
            )
        root, _, name = path.lstrip("/").partition("/")
        if root not in ("healthz", "livez", "readyz"):
            return None
        if name:
            check = self._checks.get(name)
            if check is None:
                return text_response(404, "404 page not found\n")
            failure = check()
            return text_response(500, f"internal server error: {failure}\n") if failure else text_response(200, "ok")
        failed = {name: failure for name, check in self._checks.items() if (failure := check())}
        if not failed and "verbose" not in request.query:
            return text_response(200, "ok")
        lines = [f"[-]{name} failed: {failed[name]}" if name in failed else f"[+]{name} ok" for name in self._checks]
        lines.append(f"{root} check {'failed' if failed else 'passed'}")
        return text_response(500 if failed else 200, "\n".join(lines) + "\n")

    def paths(self) -> list[str]:
        probes = ("healthz", "livez", "readyz")
        return (
            [f"/{probe}" for probe in probes] + [f"/{p}/{name}" for p in probes for name in self._checks] + ["/version"]
        )


def _version_document(release: str) -> Obj:
    major, minor = release.lstrip("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": f"{release}+koord",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }


COMPONENT_PREFIX = "/koord/"

ComponentHandler = Callable[
    [ApiRequest, str], Awaitable[ApiResponse]
]  # the request and its path below the component's own


class ComponentRoutes:
    def __init__(self) -> None:
        self._handlers: dict[str, ComponentHandler] = {}

    def add(self, component: str, page: ComponentHandler) -> None:
        if component in self._handlers:
            raise ValueError(f"{COMPONENT_PREFIX}{component} is taken")
        self._handlers[component] = page

    def remove(self, component: str) -> None:
        self._handlers.pop(component, None)

    async def respond(self, request: ApiRequest) -> ApiResponse | None:
        """Answer a request for a component; return None when no component serves the path."""
        if not request.path.startswith(COMPONENT_PREFIX):
            return None
        component, slash, rest = request.path[len(COMPONENT_PREFIX) :].partition("/")
        page = self._handlers.get(component)
        return None if page is None else await page(request, slash + rest)

    def paths(self) -> list[str]:
        return [f"{COMPONENT_PREFIX}{component}" for component in self._handlers]
