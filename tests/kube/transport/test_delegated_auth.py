"""Who may use a secure port: the order of Kubernetes' checks, what is asked of the API server, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from koord.kube.transport.delegated_auth import AuthCacheTtls, DelegatedAuth
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable, UnstructuredBody
from koord.telemetry.clock import ManualClock
from koord.telemetry.http_routing import HttpCall

USERS: Mapping[str, Any] = {
    "reader": {"username": "alice", "uid": "7", "groups": ["ops"], "extra": {"why": ["test"]}},
    "master": {"username": "root", "groups": ["system:masters"]},
}


class Reviewer:
    """An API server that knows two tokens and lets group ops read /metrics."""

    def __init__(self) -> None:
        self.asked: list[ApiRequest] = []
        self.down = False
        self.status = 201

    async def send(self, request: ApiRequest) -> ApiResponse:
        self.asked.append(request)
        if self.down:
            raise Unreachable("connection refused")
        spec = request.body["spec"]
        if request.path.endswith("tokenreviews"):
            user = USERS.get(spec["token"])
            status: dict[str, Any] = {"authenticated": True, "user": user} if user else {"error": "unknown"}
        else:
            wanted = spec["nonResourceAttributes"]
            status = {"allowed": "ops" in spec["groups"] and wanted == {"path": "/metrics", "verb": "get"}}
            if not status["allowed"]:
                status["reason"] = "no rule"
        return ApiResponse(status=self.status, body=UnstructuredBody({"status": status}))

    async def watch(self, request: ApiRequest) -> ApiResponse:
        raise AssertionError(f"nobody watches here: {request}")

    async def close(self) -> None:
        return


def call(path: str, token: str = "", **more: Any) -> HttpCall:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return HttpCall(method="GET", path=path, headers=headers, **more)


async def code(guard: DelegatedAuth, asked: HttpCall) -> int:
    reply = await guard(asked)
    return 200 if reply is None else reply.status


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        pytest.param(call("/healthz"), 200, id="open-to-all"),
        pytest.param(call("/healthz/ping"), 403, id="open-path-is-exact"),
        pytest.param(call("/open/a/b"), 200, id="below-an-open-path"),
        pytest.param(call("/healthz", "nonsense"), 401, id="bad-token-even-where-open"),
        pytest.param(call("/metrics"), 403, id="anonymous"),
        pytest.param(call("/metrics", "reader"), 200, id="may-read"),
        pytest.param(call("/configz", "reader"), 403, id="may-not-read"),
        pytest.param(call("/configz", "master"), 200, id="master"),
        pytest.param(
            call("/metrics", certificate={"subject": ((("organizationName", "ops"),), (("commonName", "bob"),))}),
            200,
            id="certificate",
        ),
        pytest.param(call("/metrics", certificate={"subject": ()}), 401, id="certificate-without-name"),
    ],
)
async def test_decisions(asked: HttpCall, wanted: int) -> None:
    server = Reviewer()
    paths = ("/healthz", "/open/*")
    guard = DelegatedAuth(ManualClock(), authentication=server, authorization=server, open_paths=paths)
    assert await code(guard, asked) == wanted


async def test_the_refusal_is_kubernetes_own() -> None:
    guard = DelegatedAuth(ManualClock())
    reply = await guard(call("/configz", "reader"))  # nobody to ask: the token says nothing, and only open paths serve
    assert reply is not None
    assert reply.status == 403
    assert b'"message": "forbidden: User \\"system:anonymous\\" cannot get path \\"/configz\\""' in reply.body
    assert await guard(call("/healthz")) is None


async def test_the_whole_user_is_asked_about() -> None:
    server = Reviewer()
    guard = DelegatedAuth(ManualClock(), authentication=server, authorization=server)
    reply = await guard(call("/configz", "reader"))
    assert server.asked[1].body["spec"] == {
        "nonResourceAttributes": {"path": "/configz", "verb": "get"},
        "user": "alice",
        "groups": ["ops"],
        "uid": "7",
        "extra": {"why": ["test"]},
    }
    assert reply is not None
    assert b"no rule" in reply.body


async def test_answers_are_believed_for_their_time() -> None:
    server, clock = Reviewer(), ManualClock()
    cache_ttls = AuthCacheTtls(token_s=10, allowed_s=20, denied_s=0)
    guard = DelegatedAuth(clock, authentication=server, authorization=server, cache_ttls=cache_ttls)
    for _ in range(3):
        await guard(call("/metrics", "reader"))
    assert len(server.asked) == 2
    clock.advance(11)
    await guard(call("/metrics", "reader"))
    assert [request.path.rpartition("/")[2] for request in server.asked[2:]] == ["tokenreviews"]
    await guard(call("/configz", "reader"))
    await guard(call("/configz", "reader"))
    assert len(server.asked) == 5


async def test_no_answer_is_no_permission_and_is_not_remembered() -> None:
    server = Reviewer()
    guard = DelegatedAuth(ManualClock(), authentication=server, authorization=server)
    server.down = True
    assert await code(guard, call("/metrics", "reader")) == 500
    server.down, server.status = False, 403
    assert await code(guard, call("/metrics", "reader")) == 500
    server.status = 201
    assert await code(guard, call("/metrics", "reader")) == 200
