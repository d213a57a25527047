"""The HTTP transport against a real socket: what goes out, what comes back, and every way a network fails."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from koord.api.kubernetes.meta import Object
from koord.kube.config.connection import (
    BadConfig,
    BasicAuth,
    Connection,
    ExecAuth,
    Impersonation,
    SettingOrigin,
    TokenAuth,
    TokenFileAuth,
)
from koord.kube.transport.http import GC_PAUSE_MIN_BYTES, HttpResponseBody, HttpTransport, HttpWatchStream
from koord.kube.transport.interface import MERGE_PATCH, ApiRequest, ApiResponse, Unreachable, WatchStream
from koord.telemetry.clock import WallClock
from tests.kube.transport.faulty_http_server import ORIGIN, serve_http, status_response, stream_response

GET = ApiRequest(method="GET", path="/api/v1/pods")
WATCH = ApiRequest(method="GET", path="/api/v1/pods", query={"watch": "true"})


def transport(connection: Connection, **more: Any) -> HttpTransport:
    return HttpTransport(connection, WallClock(), **more)


async def echo(request: web.Request) -> web.Response:
    body = (await request.read()).decode()
    headers = [[name.lower(), value] for name, value in request.headers.items()]
    return web.json_response({"method": request.method, "path": request.raw_path, "body": body, "headers": headers})


async def sent(connection: Connection, request: ApiRequest) -> dict[str, Any]:
    carrier = transport(connection)
    try:
        answer = await carrier.send(request)
    finally:
        await carrier.close()
    plain: dict[str, Any] = answer.body.plain()
    return plain


def line(kind: str, name: str) -> bytes:
    return msgspec.json.encode({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": "1"}}}) + b"\n"


async def opened(carrier: HttpTransport, request: ApiRequest = WATCH) -> WatchStream:
    watch = await carrier.watch(request)
    assert not isinstance(watch, ApiResponse), watch
    return watch


async def names(watch: WatchStream) -> list[tuple[str, str]]:
    return [(frame.type, frame.body.typed(Object).metadata.name) async for frame in watch]


class TestSend:
    async def test_a_request_goes_out_as_it_is_said(self) -> None:
        async with serve_http(echo) as server:
            request = ApiRequest(
                method="PATCH",
                path="/api/v1/namespaces/a b/things/x:y",
                query={"labelSelector": "a in (b,c),d!=e&f", "limit": "5"},
                body={"a": "ü"},
                content_type=MERGE_PATCH,
                user_agent="tester",
            )
            seen = await sent(server.connection(auth=TokenAuth(token="t")), request)
        headers = dict(seen["headers"])
        assert seen["path"] == (
            "/api/v1/namespaces/a%20b/things/x:y?labelSelector=a%20in%20%28b%2Cc%29%2Cd%21%3De%26f&limit=5"
        )
        assert (seen["method"], seen["body"]) == ("PATCH", '{"a":"ü"}')
        wanted = {
            "content-type": MERGE_PATCH,
            "authorization": "Bearer t",
            "user-agent": "tester",
            "accept": "application/json",
        }
        assert wanted.items() <= headers.items()

    async def test_bytes_go_out_untouched_and_no_body_has_no_type(self) -> None:
        async with serve_http(echo) as server:
            raw = await sent(server.connection(), ApiRequest(method="POST", path="/x", body=b"raw"))
            bare = await sent(server.connection(), ApiRequest(method="DELETE", path="/x"))
        assert raw["body"] == "raw"
        assert "content-type" not in dict(bare["headers"])

    async def test_a_gateways_prefix_stays_in_front(self) -> None:
        async with serve_http(echo) as server:
            seen = await sent(server.connection(server=f"{server.url}/k8s/clusters/c"), GET)
        assert seen["path"] == "/k8s/clusters/c/api/v1/pods"

    async def test_impersonation_headers(self) -> None:
        who = Impersonation(user="bob", uid="7", groups=("a", "b"), extra={"Example.org/Scope": ("x", "y")})
        async with serve_http(echo) as server:
            seen = await sent(server.connection(impersonate=who), GET)
        said = [(name, value) for name, value in seen["headers"] if name.startswith("impersonate")]
        assert sorted(said) == [
            ("impersonate-extra-example.org%2fscope", "x"),
            ("impersonate-extra-example.org%2fscope", "y"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-uid", "7"),
            ("impersonate-user", "bob"),
        ]

    async def test_basic_login(self) -> None:
        async with serve_http(echo) as server:
            seen = await sent(server.connection(auth=BasicAuth(username="u", password="p")), GET)
        assert dict(seen["headers"])["authorization"] == "Basic dTpw"

    async def test_compressed_answers_are_opened_and_may_be_declined(self) -> None:
        async def zipped(request: web.Request) -> web.Response:
            if request.headers["Accept-Encoding"] != "gzip":
                return web.json_response({"zipped": False})
            return web.Response(body=gzip.compress(b'{"zipped":true}'), headers={"Content-Encoding": "gzip"})

        async with serve_http(zipped) as server:
            assert await sent(server.connection(), GET) == {"zipped": True}
            assert await sent(server.connection(compress=False), GET) == {"zipped": False}

    async def test_a_refusal_is_an_answer(self) -> None:
        async def refuse(_: web.Request) -> web.Response:
            return status_response(409, "Conflict", "no", Retry_After="3")

        async with serve_http(refuse) as server:
            carrier = transport(server.connection())
            answer = await carrier.send(GET)
            await carrier.close()
        assert (answer.status, answer.ok, answer.headers["retry-after"]) == (409, False, "3")

    async def test_a_redirect_is_not_followed(self) -> None:
        async def away(_: web.Request) -> web.Response:
            return web.Response(status=302, headers={"Location": "http://thief.test/"})

        async with serve_http(away) as server:
            carrier = transport(server.connection(auth=TokenAuth(token="t")))
            assert (await carrier.send(GET)).status == 302
            await carrier.close()


class TestUnreachable:
    async def test_a_closed_port_is_known_not_to_have_been_reached(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            connection = Connection(server=f"http://127.0.0.1:{taken.getsockname()[1]}", origin=ORIGIN)
            carrier = transport(connection)
            with pytest.raises(Unreachable, match=r"no answer to GET http://127\.0\.0\.1") as caught:
                await carrier.send(GET)
            assert not caught.value.sent
            with pytest.raises(Unreachable):
                await carrier.watch(WATCH)
            await carrier.close()

    async def test_a_connection_cut_before_the_answer_may_have_been_served(self) -> None:
        async def cut(request: web.Request) -> web.Response:
            assert request.transport is not None
            request.transport.close()
            return web.Response()

        async with serve_http(cut) as server:
            carrier = transport(server.connection())
            with pytest.raises(Unreachable) as caught:
                await carrier.send(ApiRequest(method="POST", path="/x", body={}))
            assert caught.value.sent
            assert len(server.requests) == 1
            await carrier.close()

    async def test_an_answer_cut_in_the_middle(self) -> None:
        async with serve_http(lambda request: stream_response(request, b'{"items":[', cut=True)) as server:
            carrier = transport(server.connection())
            with pytest.raises(Unreachable) as caught:
                await carrier.send(GET)
            assert caught.value.sent
            await carrier.close()

    async def test_a_silent_server_is_given_up(self) -> None:
        silence = asyncio.Event()

        async def wait(_: web.Request) -> web.Response:
            await silence.wait()
            return web.Response()

        async with serve_http(wait) as server:
            carrier = transport(server.connection(), timeout_s=0.05)
            with pytest.raises(Unreachable) as caught:
                await carrier.send(GET)
            assert caught.value.sent
            with pytest.raises(Unreachable):
                await carrier.watch(WATCH)
            silence.set()
            await carrier.close()


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Leave cycles alone for a while, so that the caller can count them."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class TestNoCyclesAfterFailures:
    """A program waits for hours between two collections, and meanwhile fails to connect once a second."""

    FAILURES = 30

    async def test_refused_connections(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            connection = Connection(server=f"http://127.0.0.1:{taken.getsockname()[1]}", origin=ORIGIN)
            carrier = transport(connection)
            with without_collector():
                for _ in range(self.FAILURES):
                    with contextlib.suppress(Unreachable):
                        await carrier.send(GET)
                    with contextlib.suppress(Unreachable):
                        await carrier.watch(WATCH)
                assert gc.collect() < self.FAILURES
            await carrier.close()

    async def test_watches_that_are_cut(self) -> None:
        def kept_alive() -> list[Unreachable | HttpWatchStream]:
            return [one for one in gc.get_objects() if isinstance(one, Unreachable | HttpWatchStream)]

        async with serve_http(lambda request: stream_response(request, line("ADDED", "a")[:20], cut=True)) as server:
            carrier = transport(server.connection())
            with without_collector():
                known = kept_alive()  # of other tests in this process; held here, so that no identity is used again
                for _ in range(self.FAILURES):
                    with contextlib.suppress(Unreachable):
                        await names(await opened(carrier))
                assert [one for one in kept_alive() if all(one is not other for other in known)] == []
            await carrier.close()

    async def test_a_failure_keeps_its_causes(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            connection = Connection(server=f"http://127.0.0.1:{taken.getsockname()[1]}", origin=ORIGIN)
            carrier = transport(connection)
            with pytest.raises(Unreachable) as caught:
                await carrier.send(GET)
            assert isinstance(caught.value.__cause__, aiohttp.ClientConnectorError)
            assert isinstance(caught.value.__cause__.os_error, ConnectionRefusedError)
            await carrier.close()


class TestWatch:
    async def test_frames_arrive_uncompressed_and_the_end_is_normal(self) -> None:
        whole = line("ADDED", "a") + line("DELETED", "b")
        async with serve_http(lambda request: stream_response(request, whole[:7], whole[7:60], whole[60:])) as server:
            carrier = transport(server.connection())
            assert await names(await opened(carrier)) == [("ADDED", "a"), ("DELETED", "b")]
            assert server.requests[0].headers["Accept-Encoding"] == "identity"
            await carrier.close()

    async def test_a_half_line_at_a_clean_end_is_dropped(self) -> None:
        async with serve_http(
            lambda request: stream_response(request, line("ADDED", "a"), line("ADDED", "b")[:-9])
        ) as server:
            carrier = transport(server.connection())
            assert await names(await opened(carrier)) == [("ADDED", "a")]
            await carrier.close()

    async def test_a_cut_stream_is_unreachable(self) -> None:
        async with serve_http(lambda request: stream_response(request, line("ADDED", "a")[:20], cut=True)) as server:
            carrier = transport(server.connection())
            with pytest.raises(Unreachable, match="the watch of /api/v1/pods was cut"):
                await names(await opened(carrier))
            await carrier.close()

    async def test_an_expired_version_in_the_stream_is_an_error_frame(self) -> None:
        gone = b'{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410}}\n'
        async with serve_http(lambda request: stream_response(request, line("ADDED", "a"), gone)) as server:
            carrier = transport(server.connection())
            assert [frame.type async for frame in await opened(carrier)] == ["ADDED", "ERROR"]
            await carrier.close()

    async def test_a_refused_watch_is_an_answer(self) -> None:
        async def refuse(_: web.Request) -> web.Response:
            return status_response(410, "Expired")

        async with serve_http(refuse) as server:
            carrier = transport(server.connection())
            answer = await carrier.watch(WATCH)
            assert isinstance(answer, ApiResponse)
            assert answer.status == 410
            await carrier.close()

    async def test_closing_ends_the_iteration_of_another_task_quietly(self) -> None:
        hold = asyncio.Event()

        async def endless(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(line("ADDED", "a"))
            await hold.wait()
            return response

        async with serve_http(endless) as server:
            carrier = transport(server.connection())
            watch = await opened(carrier)
            first = asyncio.Event()
            seen: list[str] = []

            async def read() -> None:
                async for frame in watch:
                    seen.append(frame.type)
                    first.set()

            task = asyncio.create_task(read())
            await first.wait()
            await watch.close()
            await task
            assert seen == ["ADDED"]
            hold.set()
            await carrier.close()


class TestSecondChance:
    async def test_a_renewed_token_file_is_tried_once_after_401(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("old")

        async def guard(request: web.Request) -> web.Response:
            if request.headers["Authorization"] == "Bearer new":
                return await echo(request)
            file.write_text("new")
            return status_response(401, "Unauthorized")

        async with serve_http(guard) as server:
            auth = TokenFileAuth(origin=ORIGIN, path=str(file))
            seen = await sent(server.connection(auth=auth), ApiRequest(method="POST", path="/x", body={"a": 1}))
            assert seen["body"] == '{"a":1}'
            assert len(server.requests) == 2

    async def test_a_plugin_runs_again_after_401_and_not_a_third_time(self, tmp_path: Path) -> None:
        plugin = tmp_path / "plugin"
        printed = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
        plugin.write_text(
            f"#!/bin/sh\necho run >> {tmp_path}/runs\nprintf '{printed}' \"$(wc -l < {tmp_path}/runs)\"\n"
        )
        plugin.chmod(0o700)
        accepted = "Bearer 2"

        async def guard(request: web.Request) -> web.Response:
            said = request.headers["Authorization"].replace(" " * 2, " ")
            return await echo(request) if said == accepted else status_response(401, "Unauthorized")

        api = "client.authentication.k8s.io/v1"
        auth = ExecAuth(origin=ORIGIN, api_version=api, command=str(plugin), environ={"PATH": "/usr/bin:/bin"})
        async with serve_http(guard) as server:
            carrier = transport(server.connection(auth=auth))
            assert (await carrier.send(GET)).status == 200
            assert (await carrier.send(GET)).status == 200
            assert (tmp_path / "runs").read_text() == "run\nrun\n"
            accepted = "nobody"
            assert (await carrier.send(GET)).status == 401
            assert (tmp_path / "runs").read_text() == "run\nrun\nrun\n"
            watch = await carrier.watch(WATCH)
            assert isinstance(watch, ApiResponse)
            assert watch.status == 401
            await carrier.close()

    async def test_a_fixed_token_is_not_tried_twice(self) -> None:
        async def guard(_: web.Request) -> web.Response:
            return status_response(401, "Unauthorized")

        async with serve_http(guard) as server:
            carrier = transport(server.connection(auth=TokenAuth(token="t")))
            assert (await carrier.send(GET)).status == 401
            assert len(server.requests) == 1
            await carrier.close()

    async def test_credentials_that_cannot_be_had_are_told(self, tmp_path: Path) -> None:
        auth = TokenFileAuth(origin=SettingOrigin("config", "users[u].tokenFile"), path=str(tmp_path / "none"))
        carrier = transport(Connection(server="http://127.0.0.1:1", origin=ORIGIN, auth=auth))
        with pytest.raises(BadConfig, match=r"users\[u\].tokenFile"):
            await carrier.send(GET)
        await carrier.close()


class GcWitness(Object, frozen=True, kw_only=True):
    """Notes whether the collector was on while it was decoded."""

    def __post_init__(self) -> None:
        COLLECTING.append(gc.isenabled())


COLLECTING: list[bool] = []


@pytest.mark.parametrize(("padding", "collecting"), [(0, True), (GC_PAUSE_MIN_BYTES, False)], ids=["small", "large"])
def test_the_collector_rests_only_while_a_large_body_is_decoded(padding: int, collecting: bool) -> None:
    COLLECTING.clear()
    HttpResponseBody(b'{"kind":"' + b"x" * padding + b'"}').typed(GcWitness)
    assert [collecting] == COLLECTING
    assert gc.isenabled()
    with pytest.raises(msgspec.ValidationError):
        HttpResponseBody(b'{"kind":1,"x":"' + b"x" * padding + b'"}').typed(GcWitness)
    assert gc.isenabled()
