"""Whatever the kubelet calls reaches the runtime as it was sent, and comes back as the runtime answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from koord.runtimeproxy.backend import MAX_MESSAGE_BYTES
from koord.runtimeproxy.server import UNARY_METHODS
from koord.telemetry.http_routing import HttpCall
from tests.runtimeproxy.cri_messages import create_container, run_pod_sandbox
from tests.runtimeproxy.fake_runtime import CHAT, EVENTS, METHOD
from tests.runtimeproxy.proxy_site import Site

BYTES = b"\x08\x96\x01\x12\x07testing\xfa\x01\x00"


@pytest.mark.parametrize("method", [*UNARY_METHODS, "/runtime.v9.FutureService/Unheard"])
async def test_every_method_passes_as_bytes(site: Site, method: str) -> None:
    site.runtime.replies[method] = BYTES[::-1]
    call = site.channel.unary_unary(method)(BYTES, metadata=(("trace", "7"), ("trace-bin", b"\x00\x01")))
    assert await call == BYTES[::-1]
    seen = site.runtime.seen[-1]
    assert (seen.method, seen.message) == (method, BYTES)
    assert seen.metadata["trace"] == "7"
    assert seen.metadata["trace-bin"] == b"\x00\x01"
    assert dict(await call.initial_metadata())["runtime-initial"] == "yes"
    trailing = dict(await call.trailing_metadata())
    assert (trailing["runtime-trailing"], trailing["runtime-bin"]) == ("yes", b"\x00\xff")


async def test_container_events_are_streamed(site: Site) -> None:
    call = site.channel.unary_stream(EVENTS)(b"", wait_for_ready=True)
    for event in (b"one", b"", b"three" * 1000):
        site.runtime.events.put_nowait(event)
        assert await call.read() == event
    call.cancel()
    assert await site.runtime.cancelled.get() == EVENTS


async def test_messages_of_an_unknown_service_stream_both_ways_in_step(site: Site) -> None:
    call = site.channel.stream_stream(CHAT)()
    for message in (b"abc", b"", b"x" * 100_000):
        await call.write(message)
        assert await call.read() == message[::-1]
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert dict(await call.initial_metadata())["chat-initial"] == "yes"
    assert dict(await call.trailing_metadata())["chat-count"] == "3"


async def test_a_stream_that_fails_fails_with_the_same_status(site: Site) -> None:
    site.runtime.failures[CHAT] = (grpc.StatusCode.DATA_LOSS, "half of it", (("why", "disk"),))

    async def messages() -> AsyncIterator[bytes]:
        yield b"abc"

    call = site.channel.stream_stream(CHAT)(messages())
    assert await call.read() == b"cba"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.DATA_LOSS, "half of it")
    assert dict(failed.value.trailing_metadata())["why"] == "disk"


@pytest.mark.parametrize("name", ["ContainerStatus", "RunPodSandbox", "StopContainer"])
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (grpc.StatusCode.NOT_FOUND, 'an error occurred when try to find container "x": not found'),
        (grpc.StatusCode.UNAVAILABLE, ""),
        (grpc.StatusCode.UNKNOWN, "ünïcode %41 \n two lines"),
        (grpc.StatusCode.INTERNAL, "failed to mount: " + "layer " * 40_000),
    ],
)
async def test_an_error_of_the_runtime_is_the_kubelets(site: Site, name: str, code: grpc.StatusCode, text: str) -> None:
    details = (("grpc-status-details-bin", b"\x08\x05\x12\x03abc"), ("other", "kept"))
    site.runtime.failures[METHOD(name)] = (code, text, details)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await site.call(name, run_pod_sandbox())
    assert (failed.value.code(), failed.value.details()) == (code, text)
    trailing = dict(failed.value.trailing_metadata())
    assert (trailing["grpc-status-details-bin"], trailing["other"]) == (b"\x08\x05\x12\x03abc", "kept")
    counted = dict(site.proxy.metrics.requests)
    assert counted[(name, code.name)].value == 1


async def test_the_kubelets_deadline_is_the_runtimes(site: Site) -> None:
    await site.call("Status", b"", timeout=100.0)
    assert 0 < (site.runtime.seen[-1].remaining_s or 0) < 110.0  # gRPC rounds up to three digits on each hop
    await site.call("Status", b"")
    assert site.runtime.seen[-1].remaining_s is None


@pytest.mark.parametrize("name", ["PullImage", "RunPodSandbox"])
async def test_a_call_that_the_kubelet_gives_up_is_given_up_at_the_runtime(site: Site, name: str) -> None:
    method = METHOD(name)
    site.runtime.held[method] = asyncio.Event()
    call = site.channel.unary_unary(method)(run_pod_sandbox())
    while await site.runtime.arrived.get() != method:
        pass
    call.cancel()
    assert await site.runtime.cancelled.get() == method
    assert site.proxy.checkpoint.pods == {}


async def test_a_message_that_is_too_large_is_refused_and_the_next_one_passes(site: Site) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await site.call("RunPodSandbox", bytes(MAX_MESSAGE_BYTES + 1))
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await site.call("Version", b"")


async def test_an_answer_that_is_too_large_is_an_error_and_the_next_one_passes(site: Site) -> None:
    site.runtime.replies[METHOD("ListContainers")] = bytes(MAX_MESSAGE_BYTES + 1)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await site.call("ListContainers", b"")
    assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await site.call("Version", b"")


async def test_messages_cut_at_any_byte_pass_and_break_nothing(site: Site) -> None:
    site.register("Fail")
    whole = run_pod_sandbox({"a": "b"}, {"c": "d"})
    created = create_container(await site.id_of("RunPodSandbox", whole))
    cut = [("RunPodSandbox", whole[:end]) for end in range(0, len(whole), 3)]
    cut += [("CreateContainer", created[:end]) for end in range(0, len(created), 5)]
    cut += [(name, b"\x0a\xff") for name in ("StartContainer", "StopContainer", "RemoveContainer", "StopPodSandbox")]
    cut += [("UpdateContainerResources", b"\x0a\x01\xff"), ("RemovePodSandbox", b"\x00")]
    for name, message in cut:
        code = await site.channel.unary_unary(METHOD(name))(message).code()
        assert code in (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL)  # whatever the runtime says to it
        assert site.runtime.last(name) == message
    assert await site.id_of("RunPodSandbox", whole)


async def test_a_runtime_that_was_restarted_is_reached_again(site: Site) -> None:
    await site.call("Version", b"")
    await site.runtime.stop()
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await site.call("Version", b"")
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (await site.proxy.endpoint.answer(HttpCall(method="GET", path="/readyz"))).status == 500
    assert (await site.proxy.endpoint.answer(HttpCall(method="GET", path="/healthz"))).status == 200
    await site.runtime.start(site.settings.runtime_endpoint)
    code = grpc.StatusCode.UNAVAILABLE
    while code is grpc.StatusCode.UNAVAILABLE:
        await asyncio.sleep(0.05)
        call = site.channel.unary_unary(METHOD("Version"))(b"")
        code = await call.code()
    assert code is grpc.StatusCode.OK
    assert (await site.proxy.endpoint.answer(HttpCall(method="GET", path="/readyz"))).status == 200


async def test_ending_lets_calls_end_and_ends_streams(site: Site) -> None:
    events = site.channel.unary_stream(EVENTS)(b"", wait_for_ready=True)
    site.runtime.events.put_nowait(b"one")
    assert await events.read() == b"one"
    method = METHOD("RunPodSandbox")
    site.runtime.held[method] = asyncio.Event()
    making = asyncio.ensure_future(site.id_of("RunPodSandbox", run_pod_sandbox()))
    while await site.runtime.arrived.get() != method:
        pass
    ending = asyncio.create_task(site.stop())
    assert await site.runtime.cancelled.get() == EVENTS
    assert not making.done()
    site.runtime.held[method].set()
    assert await making == "sandbox1"
    await ending
    assert await events.code() is not grpc.StatusCode.OK


async def test_large_messages_pass(site: Site) -> None:
    method = METHOD("ListImages")
    site.runtime.replies[method] = bytes(MAX_MESSAGE_BYTES - 100)
    assert await site.call("ListImages", bytes(MAX_MESSAGE_BYTES - 100)) == site.runtime.replies[method]


@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 200, bytes(5000)]
)
async def test_a_client_that_does_not_speak_grpc_harms_nobody(site: Site, noise: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(site.settings.endpoint)
    writer.write(noise)
    if noise:
        while await reader.read(4096):  # until it is hung up on
            pass
    writer.close()
    assert await site.call("Version", b"")
