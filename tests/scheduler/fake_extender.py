"""A whole extender: it filters, scores, looks at preemption and binds as it is told, and can be slow or broken."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

from koord.scheduler.framework.verdict import Fault


class FakeExtender:
    def __init__(self) -> None:
        self.failed: dict[str, str] = {}  # by node
        self.unresolvable: dict[str, str] = {}
        self.silently_out: set[str] = set()
        self.invented: list[str] = []  # nodes that it claims though nobody asked about them
        self.scores: dict[str, int] = {}
        self.refused_victims: set[str] = set()  # nodes where nobody is to be evicted
        self.error = ""
        self.status = 200
        self.delay_s = 0.0
        self.bind: Callable[[str, str, str], Awaitable[str]] | None = None  # namespace, name, node -> error
        self.preempt: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # instead of `refused_victims`
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def calls_of(self, verb: str) -> list[dict[str, Any]]:
        return [args for called, args in self.calls if called == verb]

    async def answer(self, verb: str, body: bytes) -> tuple[int, bytes]:
        args = msgspec.json.decode(body)
        self.calls.append((verb, args))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.status != 200:
            return self.status, b"out of order"
        return 200, msgspec.json.encode(await self._act(verb, args))

    async def _act(self, verb: str, args: dict[str, Any]) -> Any:
        if verb == "filter":
            return self._filter(args)
        if verb == "prioritize":
            return [{"Host": name, "Score": self.scores.get(name, 0)} for name in node_names(args)]
        if verb == "preempt":
            return (self.preempt or self._preempt)(args)
        assert verb == "bind"
        assert self.bind is not None
        return {"Error": await self.bind(args["PodNamespace"], args["PodName"], args["Node"]) or self.error}

    def _filter(self, args: dict[str, Any]) -> dict[str, Any]:
        if self.error:
            return {"Error": self.error}
        out = {*self.failed, *self.unresolvable, *self.silently_out}
        passing = [name for name in node_names(args) if name not in out] + self.invented
        found: dict[str, Any] = {"FailedNodes": self.failed, "FailedAndUnresolvableNodes": self.unresolvable}
        if args["Nodes"] is None:
            return {**found, "nodeNames": passing}  # Go matches keys in any case
        items = {node["metadata"]["name"]: node for node in args["Nodes"]["items"]}
        return {**found, "Nodes": {"items": [items[name] for name in passing]}}

    def _preempt(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["NodeNameToVictims"] is None:
            shown = args["NodeNameToMetaVictims"]
            uids = {node: [pod["UID"] for pod in victims["Pods"]] for node, victims in shown.items()}
        else:
            shown = args["NodeNameToVictims"]
            uids = {node: [pod["metadata"]["uid"] for pod in victims["Pods"]] for node, victims in shown.items()}
        left = {
            node: {"Pods": [{"UID": uid} for uid in found], "NumPDBViolations": shown[node]["NumPDBViolations"]}
            for node, found in uids.items()
            if node not in self.refused_victims
        }
        return {"NodeNameToMetaVictims": left}

    # Two ways to it: in the process, where time may be virtual, and over HTTP.

    async def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes] | Fault:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.answer(url.rpartition("/")[2], body)
        except TimeoutError:
            return Fault(f'Post "{url}": context deadline exceeded')

    async def close(self) -> None: ...

    @asynccontextmanager
    async def serve(self, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Serve it on a free port of the loopback interface; yield its URL."""

        async def handle(request: web.Request) -> web.Response:
            assert request.headers["Content-Type"] == "application/json"
            status, body = await self.answer(request.match_info["verb"], await request.read())
            return web.Response(status=status, body=body, content_type="application/json")

        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/{verb}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        try:
            yield f"http{'s' if context is not None else ''}://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


def node_names(args: dict[str, Any]) -> list[str]:
    if args["Nodes"] is None:
        names: list[str] = args["NodeNames"]
        return names
    return [node["metadata"]["name"] for node in args["Nodes"]["items"]]
