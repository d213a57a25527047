"""/openapi/v2 and /openapi/v3: the documents that `schema` writes for what is served, kept until that changes."""

from __future__ import annotations

import msgspec

from koord.embedded.apiserver.catalog import Catalog, ServedResource
from koord.embedded.apiserver.rest.answering import TextBody, text
from koord.embedded.apiserver.schema import openapi
from koord.embedded.apiserver.schema.builtin import Builtin
from koord.embedded.apiserver.schema.openapi_paths import Described
from koord.kube.transport import JSON, Answer, Request


class OpenApi:
    def __init__(self, builtin: Builtin, catalog: Catalog) -> None:
        self._builtin = builtin
        self._catalog = catalog
        self._generation = -1
        self._v2: bytes | None = None
        # path below /openapi/v3 -> what it was made of, and the document
        self._v3: dict[str, tuple[tuple[ServedResource, ...], bytes]] = {}

    def answer(self, request: Request) -> Answer | None:
        path = request.path.rstrip("/")
        if not path.startswith("/openapi/"):
            return None
        if "protobuf" in request.accept and JSON not in request.accept and "*/*" not in request.accept:
            return text(406, "406 not acceptable\n")
        if path == "/openapi/v2":
            return _document(self._all())
        documents = self._documents()
        if path == "/openapi/v3":
            raw = msgspec.json.encode(openapi.v3_index(documents))
            return Answer(status=200, body=TextBody(raw))
        found = documents.get(path.removeprefix("/openapi/v3/"))
        return text(404, "404 page not found\n") if found is None else _document(found)

    def _all(self) -> bytes:
        if self._v2 is None or self._generation != self._catalog.generation:
            self._generation = self._catalog.generation
            everything = [_described(resource) for resource in self._catalog.resources()]
            self._v2 = msgspec.json.encode(openapi.v2_document(self._builtin, everything))
        return self._v2

    def _documents(self) -> dict[str, bytes]:
        """One document per group-version; only those whose resources changed are written again."""
        made: dict[str, tuple[tuple[ServedResource, ...], bytes]] = {}
        for group, versions in self._catalog.versions().items():
            for version in versions:
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                resources = tuple(self._catalog.of_version(group, version))
                kept = self._v3.get(path)
                if kept is not None and kept[0] == resources:
                    made[path] = kept
                    continue
                document = openapi.v3_document(self._builtin, [_described(r) for r in resources])
                made[path] = (resources, msgspec.json.encode(document))
        self._v3 = made
        return {path: raw for path, (_, raw) in made.items()}


def _document(raw: bytes) -> Answer:
    tag = f'"{openapi.document_hash(raw)}"'
    return Answer(status=200, body=TextBody(raw), headers={"ETag": tag, "Vary": "Accept"})


def _described(resource: ServedResource) -> Described:
    return Described(
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
