"""A closed fence holds back every byte of a write, wherever the write waits: for its turn, for a connection, for its
peer to read. The sockets, the handshakes and the servers are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trustme
from aiohttp import web

from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, PODS
from koord.kube.client.retrying_caller import NEVER_RETRY
from koord.kube.client.typed_client import Client
from koord.kube.transport.fenced_socket import WriteFence
from koord.kube.transport.http import HttpTransport
from koord.kube.transport.interface import ApiRequest, Unreachable
from koord.telemetry.clock import WallClock
from tests.kube.transport.faulty_http_server import FaultyHttpServer, serve_http
from tests.kube.transport.test_http_tls import ca_of, pair_of, server_side, tunnel

PATH = "/api/v1/namespaces/n/pods"


class Fence:
    """A fence that a test closes, at once or the n-th time that a transport looks at it."""

    def __init__(self) -> None:
        self.open = True
        self.looks = 0
        self.close_at_look = 0

    def is_open(self) -> bool:
        self.looks += 1
        if self.looks == self.close_at_look:
            self.open = False
        return self.open


@contextlib.asynccontextmanager
async def fenced(
    server: FaultyHttpServer, fence: Fence, /, connections: int = 64, **more: Any
) -> AsyncIterator[HttpTransport]:
    write_fence = WriteFence(is_open=fence.is_open, unacknowledged_s=5.0)
    transport = HttpTransport(server.connection(**more), WallClock(), connections=connections, fence=write_fence)
    try:
        yield transport
    finally:
        await transport.close()


def binding(name: str, size: int = 0) -> ApiRequest:
    return ApiRequest(method="POST", path=f"{PATH}/{name}/binding", body={"target": "node-1", "padding": "x" * size})


async def accept(request: web.Request) -> web.Response:
    return web.json_response({"kind": "Status", "path": request.path, "size": len(await request.read())})


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize(
    ("method", "path", "passes"),
    [
        pytest.param("GET", PATH, True, id="reads-pass"),
        pytest.param("POST", PATH, False, id="a-create-does-not"),
        pytest.param("PUT", f"{PATH}/p", False, id="a-replace-does-not"),
        pytest.param("PATCH", f"{PATH}/p", False, id="a-patch-does-not"),
        pytest.param("DELETE", f"{PATH}/p", False, id="a-delete-does-not"),
        pytest.param("POST", f"{PATH}/events/binding", False, id="a-pod-named-like-events-is-no-event"),
        pytest.param("POST", "/apis/events.k8s.io/v1/namespaces/n/events", True, id="events-pass"),
    ],
)
async def test_behind_a_closed_fence(method: str, path: str, passes: bool) -> None:
    fence = Fence()
    fence.open = False
    request = ApiRequest(method=method, path=path, body=None if method == "GET" else {"metadata": {"name": "x"}})
    async with serve_http(accept) as server, fenced(server, fence) as transport:
        if passes:
            assert (await transport.send(request)).ok
        else:
            with pytest.raises(Unreachable, match="is held back: this process may no longer write") as refused:
                await transport.send(request)
            assert not refused.value.sent
        assert len(server.requests) == passes


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
async def test_what_waits_for_a_connection_is_held_back(authority: trustme.CA, method: str, secure: bool) -> None:
    release, arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(request: web.Request) -> web.Response:
        arrived.release()
        await release.wait()
        return await accept(request)

    fence = Fence()
    context = server_side(authority) if secure else None
    more: dict[str, Any] = {"ca": ca_of(authority)} if secure else {}
    async with (
        serve_http(slow, context) as server,
        fenced(server, fence, connections=2, **more) as transport,
    ):
        first = [asyncio.create_task(transport.send(binding(f"first-{n}"))) for n in range(2)]
        for _ in first:
            await arrived.acquire()
        waiting = [
            asyncio.create_task(transport.send(ApiRequest(method=method, path=f"{PATH}/late-{n}", body={"a": 1})))
            for n in range(20)
        ]
        await asyncio.sleep(0)  # all of them queue for a connection
        fence.open = False
        release.set()
        assert [(await answer).ok for answer in first] == [True, True]
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(outcome, Unreachable)
            assert not outcome.sent
        assert sorted(request.path for request in server.requests) == [f"{PATH}/first-{n}/binding" for n in range(2)]


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
async def test_a_kept_connection_carries_no_byte_past_the_fence(authority: trustme.CA, secure: bool) -> None:
    fence = Fence()
    context = server_side(authority) if secure else None
    more: dict[str, Any] = {"ca": ca_of(authority)} if secure else {}
    async with (
        serve_http(accept, context) as server,
        fenced(server, fence, connections=1, **more) as transport,
    ):
        assert (await transport.send(binding("a"))).ok
        looks = fence.looks
        fence.looks, fence.close_at_look = 0, looks  # open when the request is begun, closed when its bytes would leave
        with pytest.raises(Unreachable, match="is held back") as refused:
            await transport.send(binding("b"))
        assert not refused.value.sent
        fence.open = True
        fence.close_at_look = 0
        assert (await transport.send(binding("c"))).ok  # on a new connection
        assert [request.path.split("/")[-2] for request in server.requests] == ["a", "c"]


@contextlib.asynccontextmanager
async def reads_later(
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[FaultyHttpServer, Callable[[], Any]]]:
    """A server that takes connections and reads nothing until it is told to; it then returns all that had come."""
    go_on = asyncio.Event()
    everything = bytearray()
    done = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 20):
                everything.extend(data)
        writer.close()
        done.set()

    async def read_all() -> bytes:
        go_on.set()
        async with asyncio.timeout(30):
            await done.wait()
        return bytes(everything)

    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    server = await asyncio.start_server(take, sock=listener, ssl=context, limit=1 << 12)
    scheme = "https" if context else "http"
    try:
        yield FaultyHttpServer(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", []), read_all
    finally:
        server.close()


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
async def test_a_body_on_its_way_stops_at_a_closed_fence(authority: trustme.CA, secure: bool) -> None:
    """The peer reads slowly: half of the body is with the kernel, the rest waits here when the fence closes."""
    fence = Fence()
    context = server_side(authority) if secure else None
    more: dict[str, Any] = {"ca": ca_of(authority)} if secure else {}
    size = 32 << 20
    async with (
        reads_later(context) as (server, read_all),
        fenced(server, fence, **more) as transport,
    ):
        sending = asyncio.create_task(transport.send(binding("big", size)))
        async with asyncio.timeout(30):
            while not await _stands_still(fence):
                assert not sending.done()
        fence.open = False
        received = await read_all()
        with pytest.raises(Unreachable, match="is held back") as refused:
            await sending
        assert refused.value.sent  # some of it did leave
        assert len(received) < size


async def _stands_still(fence: Fence) -> bool:
    """Return whether bytes have left, and no more of them do."""
    before = fence.looks
    await asyncio.sleep(0.1)
    return before > 2 and fence.looks == before


async def test_an_unanswered_request_is_reset_when_its_connection_is_closed() -> None:
    """The kernel must not go on to deliver what a process that gave up its lease had handed to it."""
    fence = Fence()
    async with reads_later() as (server, read_all), fenced(server, fence) as transport:
        sending = asyncio.create_task(transport.send(binding("big", 32 << 20)))
        async with asyncio.timeout(30):
            while not await _stands_still(fence):
                assert not sending.done()
        await transport.close()
        with pytest.raises(Unreachable):
            await sending
        assert len(await read_all()) < 32 << 20


async def test_a_write_that_waited_for_its_turn_is_looked_at_when_it_leaves() -> None:
    fence = Fence()
    async with serve_http(accept) as server, fenced(server, fence) as transport:
        client = Client(transport, qps=5, burst=1, retry=NEVER_RETRY)
        pods = [{"metadata": {"name": name, "namespace": "n"}} for name in ("first", "second")]
        await client.dynamic.create(PODS, pods[0])
        waiting = asyncio.create_task(client.dynamic.create(PODS, pods[1]))
        await asyncio.sleep(0)
        fence.open = False
        with pytest.raises(Unreachable):
            await waiting
        await client.dynamic.create(EVENTS_EVENTS, {"metadata": {"name": "e", "namespace": "n"}})
        assert [request.path for request in server.requests] == [PATH, "/apis/events.k8s.io/v1/namespaces/n/events"]


@pytest.mark.parametrize("size", [0, 100, 70_000, 3 << 20], ids=["empty", "small", "past-the-high-water-mark", "big"])
@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
async def test_an_open_fence_changes_nothing(authority: trustme.CA, size: int, secure: bool) -> None:
    context = server_side(authority, clients=True) if secure else None
    more: dict[str, Any] = (
        {"ca": ca_of(authority), "certificate": pair_of(authority.issue_cert("me@test"))} if secure else {}
    )
    async with (
        serve_http(accept, context) as server,
        fenced(server, Fence(), connections=4, **more) as transport,
    ):
        answers = await asyncio.gather(*(transport.send(binding(str(n), size)) for n in range(12)))
        assert {answer.body.plain()["size"] for answer in answers} == {size + len('{"target":"node-1","padding":""}')}
        assert len(server.requests) == 12


async def test_a_large_answer_is_read_whole(authority: trustme.CA) -> None:
    async def large(_: web.Request) -> web.Response:
        return web.json_response({"padding": "y" * (5 << 20)})

    async with (
        serve_http(large, server_side(authority)) as server,
        fenced(server, Fence(), ca=ca_of(authority)) as transport,
    ):
        answer = await transport.send(binding("a"))
        assert len(answer.body.plain()["padding"]) == 5 << 20


async def test_failures_to_connect_are_those_of_every_transport(authority: trustme.CA) -> None:
    async with serve_http(accept, server_side(authority)) as server:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"ca": ca_of(trustme.CA())}, "certificate verify failed"),
            ({"server": "https://127.0.0.1:1", "ca": ca_of(authority)}, "onnect"),
            ({"server": server.url.replace("https", "http")}, "no answer to POST"),
        ]
        for more, told in cases:
            async with fenced(server, Fence(), **more) as transport:
                with pytest.raises(Unreachable, match=told):
                    await transport.send(binding("a"))
        assert server.requests == []


async def test_a_peer_that_hangs_up_is_unreachable() -> None:
    async def hang_up(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serve_http(hang_up) as server, fenced(server, Fence()) as transport:
        with pytest.raises(Unreachable, match="no answer to POST") as caught:
            await transport.send(binding("a"))
        assert caught.value.sent


async def test_a_proxys_tunnel_is_fenced(authority: trustme.CA) -> None:
    fence = Fence()
    async with tunnel() as (proxy, heads), serve_http(accept, server_side(authority)) as server:
        async with fenced(server, fence, ca=ca_of(authority), proxy_url=f"http://{proxy}") as transport:
            assert (await transport.send(binding("a"))).ok
            fence.looks, fence.close_at_look = 0, 2
            with pytest.raises(Unreachable, match="is held back"):
                await transport.send(binding("b"))
        assert len(heads) == 1
        assert [request.path.split("/")[-2] for request in server.requests] == ["a"]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no TCP_USER_TIMEOUT")
async def test_the_kernel_gives_up_before_another_may_lead() -> None:
    seen: list[int] = []
    async with serve_http(accept) as server, fenced(server, Fence()) as transport:
        await transport.send(binding("a"))
        session = transport._fenced_session
        assert session is not None
        for held in session.connector._conns.values():  # type: ignore[union-attr]
            for protocol, _ in held:
                sock = protocol.transport.get_extra_info("socket")  # type: ignore[union-attr]
                seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    assert seen == [5000]


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_the_same_holds_under_uvloop(authority: trustme.CA, secure: bool) -> None:
    """The programs run under uvloop where it is installed; its own transports write later than they are told to."""
    uvloop = pytest.importorskip("uvloop")

    async def story() -> None:
        await test_what_waits_for_a_connection_is_held_back(authority, "POST", secure)
        await test_a_kept_connection_carries_no_byte_past_the_fence(authority, secure)
        await test_a_body_on_its_way_stops_at_a_closed_fence(authority, secure)
        await test_an_open_fence_changes_nothing(authority, 3 << 20, secure)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())
