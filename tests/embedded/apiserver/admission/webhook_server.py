"""An HTTPS server that plays admission webhooks: the path decides its answer, and it records what it received."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import trustme
from aiohttp import web

Obj = dict[str, Any]
# A review's request -> the answer's `response`, without the uid that every good answer repeats.
Behaviour = Callable[[Obj], Obj]


def patch(*operations: Obj) -> Obj:
    encoded = base64.b64encode(msgspec.json.encode(list(operations))).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


def _labelled(key: str, value: str) -> Behaviour:
    """Sets a label, with one operation that fits whether or not there are labels."""

    def behave(request: Obj) -> Obj:
        labels = request["object"]["metadata"].get("labels")
        if labels is None:
            return patch({"op": "add", "path": "/metadata/labels", "value": {key: value}})
        return patch({"op": "add", "path": f"/metadata/labels/{key}", "value": value})

    return behave


def _counted(request: Obj) -> Obj:
    """Sets `seen` to how many labels there are: a second call gives another answer when others have changed it."""
    labels = request["object"]["metadata"].get("labels") or {}
    others = sum(1 for key in labels if key != "seen")
    return _labelled("seen", str(others))(request)


def _prioritised(request: Obj) -> Obj:
    """Another priority class, with the numbers that go with it: what the server resolved before is put aside."""
    return patch(
        {"op": "add", "path": "/spec/priorityClassName", "value": "system-cluster-critical"},
        {"op": "replace", "path": "/spec/priority", "value": 2_000_000_000},
    )


BEHAVIOURS: dict[str, Behaviour] = {
    "/allow": lambda _: {"allowed": True},
    "/allow-with-warnings": lambda _: {"allowed": True, "warnings": ["careful now", 'with a "quote"']},
    "/deny": lambda _: {"allowed": False},
    "/deny-with-message": lambda _: {"allowed": False, "status": {"message": "not on my watch"}},
    "/deny-with-code": lambda _: {"allowed": False, "status": {"message": "teapot", "code": 418, "reason": "Teapot"}},
    "/deny-with-reason": lambda _: {"allowed": False, "status": {"reason": "BecauseISaySo"}},
    "/deny-with-good-code": lambda _: {"allowed": False, "status": {"message": "odd", "code": 200}},
    "/deny-with-details": lambda _: {
        "allowed": False,
        "status": {
            "message": "see details",
            "code": 422,
            "reason": "Invalid",
            "details": {"causes": [{"field": "spec.x", "message": "bad", "reason": "FieldValueInvalid"}]},
        },
    },
    "/deny-with-warnings": lambda _: {"allowed": False, "warnings": ["told you"], "status": {"message": "no"}},
    "/label-a": _labelled("a", "1"),
    "/label-b": _labelled("b", "2"),
    "/count": _counted,
    "/prioritise": _prioritised,
    "/prioritise-by-name-only": lambda _: patch(
        {"op": "add", "path": "/spec/priorityClassName", "value": "system-cluster-critical"}
    ),
    "/no-tolerations": lambda _: patch({"op": "remove", "path": "/spec/tolerations"}),
    "/scale-to-five": lambda _: patch({"op": "replace", "path": "/spec/replicas", "value": 5}),
    "/empty-patch": lambda _: patch(),
    "/bad-patch": lambda _: patch({"op": "remove", "path": "/metadata/nothing/here"}),
    "/broken-patch": lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(b"{").decode()},
    "/wrong-type-patch": lambda _: patch({"op": "add", "path": "/data", "value": "text"}),
    "/unknown-field-patch": lambda _: patch({"op": "add", "path": "/nonsense", "value": 1}),
    "/invalid-patch": lambda _: patch({"op": "add", "path": "/metadata/labels", "value": {"bad key!": "x"}}),
    "/rename-patch": lambda _: patch({"op": "replace", "path": "/metadata/name", "value": "other"}),
    "/patch-without-type": lambda _: {"allowed": True, "patch": patch({"op": "test", "path": "/x"})["patch"]},
    "/type-without-patch": lambda _: {"allowed": True, "patchType": "JSONPatch"},
    "/other-patch-type": lambda _: {**patch({"op": "add", "path": "/data", "value": {"a": "b"}}), "patchType": "Merge"},
    "/deny-with-patch": lambda _: {**patch({"op": "add", "path": "/x", "value": 1}), "allowed": False},
}


class WebhookServer:
    def __init__(self) -> None:
        self.reviews: list[tuple[str, Obj]] = []  # path, review
        self.url = ""
        self.ca_bundle = ""
        self._hold = asyncio.Event()

    def asked(self, path: str) -> list[Obj]:
        return [review for at, review in self.reviews if at == path]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        review = msgspec.json.decode(await request.read())
        self.reviews.append((request.path, {**review, "query": dict(request.query)}))
        asked = review["request"]
        match request.path:
            case "/slow":
                await self._hold.wait()
                return web.Response(status=500)
            case "/error":
                return web.Response(status=500, text="it broke")
            case "/missing":
                return web.Response(status=404, text="not here")
            case "/garbage":
                return web.Response(text="garbage", content_type="application/json")
            case "/empty":
                return web.json_response({})
            case "/no-response":
                return web.json_response({"kind": review["kind"], "apiVersion": review["apiVersion"]})
            case "/other-version":
                answer = {"kind": review["kind"], "apiVersion": "admission.k8s.io/v9"}
                return web.json_response({**answer, "response": {"uid": asked["uid"], "allowed": True}})
            case "/other-uid":
                answer = {"kind": review["kind"], "apiVersion": review["apiVersion"]}
                return web.json_response({**answer, "response": {"uid": "someone-else", "allowed": True}})
        behaviour = BEHAVIOURS.get(request.path)
        if behaviour is None:
            return web.Response(status=404, text="no such behaviour")
        response = {"uid": asked["uid"], **behaviour(asked)}
        return web.json_response({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response})

    def release(self) -> None:
        """Let the slow ones end."""
        self._hold.set()


@contextlib.asynccontextmanager
async def webhook_server(*hosts: str) -> AsyncIterator[WebhookServer]:
    """Serves on a loopback port under a certificate for `hosts` (127.0.0.1 when none is named)."""
    authority = trustme.CA()
    server = WebhookServer()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", *hosts).configure_cert(context)
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    server.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    server.ca_bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
    try:
        yield server
    finally:
        server.release()
        await runner.cleanup()
