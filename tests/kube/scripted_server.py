"""This module is a scripted API server for tests on top of the client: a revisioned store in memory that can
fail.

It is a Transport, so the real client is under test with it. It knows lists with pages, watches with
bookmarks, 410, creates, updates and merge patches with preconditions and deletes; it validates nothing.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import Model
from koord.kube.transport.interface import ApiRequest, ApiResponse, ResponseBody, Unreachable, UnstructuredBody

Unstructured = dict[str, Any]


class ThingSpec(Model, frozen=True, kw_only=True):
    size: int = 0
    node: str = ""


class Thing(Object, frozen=True, kw_only=True):
    spec: ThingSpec = ThingSpec()


THINGS = Resource(group="test.koord", version="v1", kind="Thing", plural="things", namespaced=True, model=Thing)


class ScriptedWatchFrame(msgspec.Struct, frozen=True):
    type: str
    body: ResponseBody


class ScriptedWatchStream:
    """ScriptedWatchStream is one open watch; the server pushes frames, a failure, or the end."""

    def __init__(self, server: ScriptedServer, collection: str, namespace: str | None) -> None:
        self.collection = collection
        self.namespace = namespace
        self._server = server
        self._frames: asyncio.Queue[ScriptedWatchFrame | Unreachable | None] = asyncio.Queue()

    def push(self, item: ScriptedWatchFrame | Unreachable | None) -> None:
        self._frames.put_nowait(item)

    async def __aiter__(self) -> AsyncIterator[ScriptedWatchFrame]:
        while (item := await self._frames.get()) is not None:
            if isinstance(item, Unreachable):
                raise item
            yield item

    async def close(self) -> None:
        if self in self._server.streams:
            self._server.streams.remove(self)


def failure_status(code: int, reason: str, message: str = "") -> Unstructured:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message or reason}


def api_response(status: int, plain: Any) -> ApiResponse:
    return ApiResponse(status=status, body=UnstructuredBody(plain))


class ScriptedServer:
    def __init__(self) -> None:
        self.revision = 100
        self.objects: dict[tuple[str, str, str], Unstructured] = {}  # collection, namespace, name
        self.log: list[tuple[int, str, str, Unstructured]] = []  # revision, type, collection, object
        self.compacted = 0
        self.streams: list[ScriptedWatchStream] = []
        self.requests: list[ApiRequest] = []
        self.faults: list[ApiResponse | Exception] = []  # what the next requests meet instead of an answer
        self.watch_faults: list[ApiResponse | Unreachable] = []
        self.down = False
        self.end_at_once = False  # every new watch is empty and over
        self.latency_s = 0.0
        self.before: Callable[[ApiRequest], None] | None = None
        self._uid = 0

    # -- the script's side

    def create(self, namespace: str, name: str, resource: Resource[Any] = THINGS, **fields: Any) -> Unstructured:
        metadata = {**fields.pop("metadata", {}), "namespace": namespace, "name": name}
        return self._create(resource.path(), {"metadata": metadata, **fields})

    def update(self, namespace: str, name: str, resource: Resource[Any] = THINGS, **fields: Any) -> Unstructured:
        key = (resource.path(), namespace, name)
        return self._store(key, {**self.objects[key], **fields}, "MODIFIED")

    def delete(self, namespace: str, name: str, resource: Resource[Any] = THINGS) -> None:
        key = (resource.path(), namespace, name)
        gone = copy.deepcopy(self.objects.pop(key))
        self.revision += 1
        gone["metadata"]["resourceVersion"] = str(self.revision)
        self._publish("DELETED", key[0], gone)

    def bookmark(self) -> None:
        body = UnstructuredBody({"kind": "Thing", "metadata": {"resourceVersion": str(self.revision)}})
        for stream in self.streams:
            stream.push(ScriptedWatchFrame("BOOKMARK", body))

    def cut(self, *, clean: bool) -> None:
        for stream in self.streams:
            stream.push(None if clean else Unreachable("connection reset"))
        self.streams.clear()

    def compact(self) -> None:
        """Forget history: a watch from an older version is answered 410."""
        self.compacted = self.revision
        self.log.clear()

    def error(self, code: int, reason: str) -> None:
        """End every stream with an ERROR frame."""
        for stream in self.streams:
            stream.push(ScriptedWatchFrame("ERROR", UnstructuredBody(failure_status(code, reason))))
            stream.push(None)
        self.streams.clear()

    def state(self, resource: Resource[Any] = THINGS) -> dict[tuple[str, str], tuple[str, str]]:
        """Return the objects that exist, with UID and version."""
        return {
            (namespace, name): (obj["metadata"]["uid"], obj["metadata"]["resourceVersion"])
            for (collection, namespace, name), obj in self.objects.items()
            if collection == resource.path()
        }

    def sent(self, method: str, *, watch: bool = False) -> list[ApiRequest]:
        return [r for r in self.requests if r.method == method and ("watch" in r.query) == watch]

    # -- the client's side

    async def send(self, request: ApiRequest) -> ApiResponse:
        await self._arrive(request)
        if self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            return fault
        return self.handle(request)

    async def watch(self, request: ApiRequest) -> ScriptedWatchStream | ApiResponse:
        await self._arrive(request)
        if self.watch_faults:
            fault = self.watch_faults.pop(0)
            if isinstance(fault, Unreachable):
                raise fault
            return fault
        collection, namespace, _ = self._address(request.path)
        since = int(request.query.get("resourceVersion") or 0)
        if since < self.compacted:
            return api_response(
                410, failure_status(410, "Expired", f"too old resource version: {since} ({self.compacted})")
            )
        stream = ScriptedWatchStream(self, collection, namespace)
        for revision, kind, where, obj in self.log:
            if revision > since:
                self._offer(stream, kind, where, obj)
        if self.end_at_once:
            stream.push(None)
            return stream
        self.streams.append(stream)
        return stream

    async def close(self) -> None:
        self.cut(clean=True)

    def handle(self, request: ApiRequest) -> ApiResponse:
        """Respond at once, as a server does that has the request before it."""
        collection, namespace, name = self._address(request.path)
        if request.method == "POST":
            if (collection, namespace, request.body["metadata"]["name"]) in self.objects:
                return api_response(409, failure_status(409, "AlreadyExists"))
            body = copy.deepcopy(request.body)
            body["metadata"]["namespace"] = namespace
            return api_response(201, self._create(collection, body))
        if request.method == "GET" and name is None:
            return self._list(collection, namespace, request)
        key = (collection, namespace or "", name or "")
        found = self.objects.get(key)
        if found is None:
            return api_response(404, failure_status(404, "NotFound"))
        if request.method == "GET":
            return api_response(200, found)
        if request.method in ("PATCH", "PUT"):
            wanted = request.body.get("metadata", {}).get("resourceVersion")
            if wanted is not None and wanted != found["metadata"]["resourceVersion"]:
                return api_response(409, failure_status(409, "Conflict"))
            after = request.body if request.method == "PUT" else _merged(found, request.body)
            return api_response(200, self._store(key, after, "MODIFIED"))
        if request.method == "DELETE":
            self.objects.pop(key)
            self.revision += 1
            self._publish("DELETED", collection, found)
            return api_response(200, found)
        raise AssertionError(f"the script has no answer to {request.method} {request.path}")

    async def _arrive(self, request: ApiRequest) -> None:
        self.requests.append(request)
        if self.before is not None:
            self.before(request)
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        if self.down:
            raise Unreachable("connection refused", sent=False)

    def _list(self, collection: str, namespace: str | None, request: ApiRequest) -> ApiResponse:
        version = request.query.get("resourceVersion")
        if version and int(version) > self.revision:
            return api_response(504, failure_status(504, "Timeout", "Too large resource version"))
        keys = sorted(k for k in self.objects if k[0] == collection and namespace in (None, k[1]))
        start = int(request.query.get("continue") or 0)
        limit = int(request.query.get("limit") or 0) or len(keys)
        metadata: Unstructured = {"resourceVersion": str(self.revision)}
        if start + limit < len(keys):
            metadata["continue"] = str(start + limit)
        return api_response(
            200, {"metadata": metadata, "items": [self.objects[k] for k in keys[start : start + limit]]}
        )

    @staticmethod
    def _address(path: str) -> tuple[str, str | None, str | None]:
        parts = path.strip("/").split("/")
        root, rest = ("/".join(parts[:2]), parts[2:]) if parts[0] == "api" else ("/".join(parts[:3]), parts[3:])
        namespace = None
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        return f"/{root}/{rest[0]}", namespace, rest[1] if len(rest) > 1 else None

    def _create(self, collection: str, obj: Unstructured) -> Unstructured:
        self._uid += 1
        obj["metadata"]["uid"] = f"uid-{self._uid}"
        return self._store((collection, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]), obj, "ADDED")

    def _store(self, key: tuple[str, str, str], obj: Unstructured, kind: str) -> Unstructured:
        self.revision += 1
        stored = copy.deepcopy(obj)
        stored["metadata"]["resourceVersion"] = str(self.revision)
        self.objects[key] = stored
        self._publish(kind, key[0], stored)
        return stored

    def _publish(self, kind: str, collection: str, obj: Unstructured) -> None:
        self.log.append((self.revision, kind, collection, obj))
        for stream in self.streams:
            self._offer(stream, kind, collection, obj)

    @staticmethod
    def _offer(stream: ScriptedWatchStream, kind: str, collection: str, obj: Unstructured) -> None:
        if stream.collection == collection and stream.namespace in (None, obj["metadata"].get("namespace", "")):
            stream.push(ScriptedWatchFrame(kind, UnstructuredBody(obj)))


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for field, value in patch.items():
        if value is None:
            merged.pop(field, None)
        else:
            merged[field] = _merged(merged.get(field), value)
    return merged
