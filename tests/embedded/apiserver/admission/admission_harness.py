"""Start a server and send it requests in few words."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from koord.embedded.apiserver.server import ApiServer
from koord.kube.transport.interface import JSON, MERGE_PATCH, ApiRequest
from koord.telemetry.clock import ManualClock

Obj = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"


class Api:
    def __init__(self, server: ApiServer, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self.warning = ""

    async def send(
        self, method: str, path: str, body: Any = None, *, form: str = JSON, query: Mapping[str, str] | None = None
    ) -> tuple[int, Obj]:
        request = ApiRequest(method=method, path=path, body=body, content_type=form, query=query or {}, user="tester")
        answer = await self.server.handle(request)
        self.warning = answer.headers.get("Warning", "")
        return answer.status, answer.body.plain()

    async def post(self, path: str, body: Obj, **query: str) -> tuple[int, Obj]:
        return await self.send("POST", path, body, query=query)

    async def merge(self, path: str, body: Obj) -> tuple[int, Obj]:
        return await self.send("PATCH", path, body, form=MERGE_PATCH)

    async def get(self, path: str) -> tuple[int, Obj]:
        return await self.send("GET", path)

    async def delete(self, path: str) -> tuple[int, Obj]:
        return await self.send("DELETE", path)


async def started() -> Api:
    clock = ManualClock()
    server = ApiServer(clock=clock, chance=random.Random(5))
    await server.start()
    return Api(server, clock)


def pod(name: str = "p", **spec: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}], **spec}}


def config_map(name: str = "x", labels: Obj | None = None) -> Obj:
    return {"metadata": {"name": name, **({"labels": labels} if labels else {})}, "data": {"k": "v"}}


def claim(name: str = "c", **spec: Any) -> Obj:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": {**wanted, **spec}}
