"""Start a server on a clock that tests move, and send it requests in few words.

Kinds have no defaults or validation here, and nothing is admitted or refused unless a test says so.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.rest.request_context import AdmissionChain
from koord.embedded.apiserver.rest.watch import ServerWatchFrame, ServerWatchStream
from koord.embedded.apiserver.server import ApiServer, builtin_catalog
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.kube.transport.interface import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    ApiRequest,
    ApiResponse,
)
from koord.telemetry.clock import ManualClock

NS = "/api/v1/namespaces/default"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
MERGE, STRATEGIC, JSON6902, APPLY = MERGE_PATCH, STRATEGIC_PATCH, JSON_PATCH, APPLY_PATCH

POD_FIELDS = {
    "spec.nodeName": lambda pod: pod["spec"].get("nodeName", ""),
    "status.phase": lambda pod: pod.get("status", {}).get("phase", ""),
}
STRATEGIES: Mapping[tuple[str, str], KindStrategy] = {
    ("", "Pod"): KindStrategy(selectable_fields=POD_FIELDS),
    ("coordination.k8s.io", "Lease"): KindStrategy(creates_on_update=True),
}


class Api:
    """Sends requests to a server in this process and returns (status, body as dicts)."""

    def __init__(self, server: ApiServer, clock: ManualClock, chance: random.Random) -> None:
        self.server = server
        self.chance = chance
        self.clock = clock
        self.last: ApiResponse | None = None

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        accept: str = JSON,
        content_type: str = JSON,
        track_managed_fields: bool = True,
        agent: str = "",
    ) -> tuple[int, Any]:
        path, _, tail = path.partition("?")
        query = dict(pair.partition("=")[::2] for pair in tail.split("&") if pair)
        request = ApiRequest(
            method=method,
            path=path,
            query=query,
            body=body,
            accept=accept,
            content_type=content_type,
            user="tester",
            user_agent=agent,
        )
        self.last = await self.server.handle(request, track_managed_fields=track_managed_fields)
        return self.last.status, self.last.body.plain()

    @property
    def warning(self) -> str:
        return self.last.headers.get("Warning", "") if self.last is not None else ""

    async def get(self, path: str, **more: Any) -> tuple[int, Any]:
        return await self.ask("GET", path, **more)

    async def post(self, path: str, body: Any, **more: Any) -> tuple[int, Any]:
        return await self.ask("POST", path, body, **more)

    async def put(self, path: str, body: Any, **more: Any) -> tuple[int, Any]:
        return await self.ask("PUT", path, body, **more)

    async def patch(self, path: str, body: Any, content_type: str = MERGE, **more: Any) -> tuple[int, Any]:
        return await self.ask("PATCH", path, body, content_type=content_type, **more)

    async def delete(self, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        return await self.ask("DELETE", path, body, **more)

    async def watch(self, path: str, *, accept: str = JSON) -> ServerWatchStream | ApiResponse:
        path, _, tail = path.partition("?")
        query = dict(pair.partition("=")[::2] for pair in tail.split("&") if pair)
        return await self.server.watch(ApiRequest(method="GET", path=path, query=query, accept=accept, user="tester"))

    async def open(self, path: str, *, accept: str = JSON) -> ServerWatchStream:
        stream = await self.watch(path, accept=accept)
        assert isinstance(stream, ServerWatchStream), stream.body.plain()
        return stream


def seen(frames: list[ServerWatchFrame]) -> list[tuple[str, str]]:
    return [(frame.type, frame.body.plain()["metadata"].get("name", "")) for frame in frames]


async def fresh(
    *,
    admission: AdmissionChain | None = None,
    strategies: Mapping[tuple[str, str], KindStrategy] = STRATEGIES,
    store: ObjectStore | None = None,
) -> Api:
    """Start a server without its background task, so that the caller needs no loop of its own to end it."""
    clock, chance = ManualClock(), random.Random(7)
    server = ApiServer(
        store=store,
        catalog=builtin_catalog(strategies),
        clock=clock,
        chance=chance,
        admission=admission or AdmissionChain(),
        tokens={"secret": "tester"},
    )
    api = Api(server, clock, chance)
    status, _ = await api.post("/api/v1/namespaces", {"metadata": {"name": "default"}})
    assert status == 201
    return api


async def started(store: ObjectStore | None = None, *, seed: int = 7, admission: AdmissionChain | None = None) -> Api:
    """Start a server as programs do: with its own kinds, admission plugins and background task."""
    clock, chance = ManualClock(), random.Random(seed)
    server = ApiServer(store=store, clock=clock, chance=chance, admission=admission)
    await server.start()
    return Api(server, clock, chance)


def pod(name: str, labels: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name}
    if labels:
        meta["labels"] = dict(labels)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {"containers": [{"name": "main", "image": "example/app:1"}], **spec},
    }


def config_map(name: str, data: Mapping[str, str] | None = None, **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **meta},
        "data": dict(data or {"k": "v"}),
    }
