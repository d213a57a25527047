"""Serve /openapi/v2 and /openapi/v3 from the documents that `schema` writes, cached until the catalog
changes.
"""

from __future__ import annotations

import msgspec

from koord.embedded.apiserver.catalog import Catalog, ServedResource
from koord.embedded.apiserver.protobuf import swagger
from koord.embedded.apiserver.rest.answering import TextBody, text
from koord.embedded.apiserver.rest.negotiation import wishes
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
        self._v2_packed: bytes | None = None
        # path below /openapi/v3 -> what it was made of, and the document
        self._v3: dict[str, tuple[tuple[ServedResource, ...], bytes]] = {}

    def answer(self, request: Request) -> Answer | None:
        path = request.path.rstrip("/")
        if not path.startswith("/openapi/"):
            return None
        if path == "/openapi/v2":
            media = _media(request.accept, (JSON, *swagger.MEDIA_TYPES))
            if media == JSON:
                return _document(self._all())
            return _document(self._packed(), swagger.MEDIA_TYPES[0]) if media else _not_acceptable()
        documents = self._documents()
        if path == "/openapi/v3":
            raw = msgspec.json.encode(openapi.v3_index(documents))
            return Answer(status=200, body=TextBody(raw))
        if not _media(request.accept, (JSON,)):
            return _not_acceptable()
        found = documents.get(path.removeprefix("/openapi/v3/"))
        return text(404, "404 page not found\n") if found is None else _document(found)

    def _all(self) -> bytes:
        if self._v2 is None or self._generation != self._catalog.generation:
            self._generation = self._catalog.generation
            everything = [_described(resource) for resource in self._catalog.resources()]
            self._v2 = msgspec.json.encode(openapi.v2_document(self._builtin, everything))
            self._v2_packed = None
        return self._v2

    def _packed(self) -> bytes:
        """Return the v2 document in protobuf, made when the first client asks for it."""
        document = self._all()
        if self._v2_packed is None:
            self._v2_packed = swagger.encode(msgspec.json.decode(document))
        return self._v2_packed

    def _documents(self) -> dict[str, bytes]:
        """Return one v3 document per group-version; only those whose resources changed are written again."""
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


def _media(accept: str, served: tuple[str, ...]) -> str:
    """Return the first acceptable media type that is served, the default without a header, or "" when none is
    acceptable.
    """
    if not accept:
        return served[0]
    for wish in wishes(accept):
        if wish.type in served:
            return wish.type
        if wish.type in ("*/*", "application/*"):
            return served[0]
    return ""


def _not_acceptable() -> Answer:
    return text(406, "")


def _document(raw: bytes, content_type: str = JSON) -> Answer:
    tag = f'"{openapi.document_hash(raw)}"'
    headers = {"ETag": tag, "Vary": "Accept"}
    return Answer(status=200, body=TextBody(raw), headers=headers, content_type=content_type)


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
