"""A runtime that breaks the protocol gets a refusal or a closed connection, and never a hang."""

from __future__ import annotations

import asyncio
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from koord.koordlet.nri.connection import MAX_REQUESTS
from koord.koordlet.nri.session import MAX_SYNCHRONIZED
from koord.wire.nri_messages import CreateContainerRequest, EmptyMessage, NriContainer, SynchronizeRequest
from koord.wire.ttrpc import INTERNAL, INVALID_ARGUMENT, MAX_DATA, RESOURCE_EXHAUSTED, UNIMPLEMENTED, TtrpcResponse
from tests.koordlet.nri.fake_runtime import RuntimePeer, TtrpcError
from tests.koordlet.nri.nri_fixture import CONTAINER, POD, session_in, soon

CREATE = CreateContainerRequest(pod=POD, container=CONTAINER)


async def _code(peer: RuntimePeer, answer: asyncio.Future[TtrpcResponse]) -> int:
    try:
        await peer.wait(answer)
    except TtrpcError as error:
        return error.code
    return 0


async def test_streams_that_are_even_or_not_new_are_refused(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        send = met.peer.send
        assert await _code(met.peer, send("StopContainer", CREATE, stream=101)) == 0
        for stream in (102, 101, 99):
            assert await _code(met.peer, send("StopContainer", CREATE, stream=stream)) == INVALID_ARGUMENT
        assert await _code(met.peer, send("StopContainer", CREATE, stream=103)) == 0


async def test_what_is_not_there_or_not_readable_is_refused(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        send = met.peer.send
        assert await _code(met.peer, send("Explode", CREATE, stream=101)) == UNIMPLEMENTED
        assert await _code(met.peer, send("Configure", CREATE, stream=103, service="another")) == UNIMPLEMENTED
        assert await _code(met.peer, send("CreateContainer", b"\x0a\xff", stream=105)) == INTERNAL
        answer = send("StopContainer", CREATE, stream=109)
        met.peer.send_frame(1, 111, 1, b"\xff\xff")
        assert await _code(met.peer, answer) == 0
        assert met.handler.calls == [("synchronize", (0, 0))]


async def test_an_oversized_request_is_discarded_and_refused(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        answer = met.peer.send("CreateContainer", bytes(MAX_DATA), stream=101)
        await met.peer.drain()
        assert await _code(met.peer, answer) == RESOURCE_EXHAUSTED
        assert await _code(met.peer, met.peer.send("StopContainer", CREATE, stream=103)) == 0


async def test_an_endless_synchronize_is_refused(tmp_path: Path) -> None:
    many = tuple(NriContainer() for _ in range(MAX_SYNCHRONIZED // 4))
    async with session_in(tmp_path) as met:
        for _ in range(4):
            await met.peer.call("Synchronize", SynchronizeRequest(containers=many, more=True))
        with pytest.raises(TtrpcError) as refused:
            await met.peer.call("Synchronize", SynchronizeRequest(containers=many[:1]))
        assert refused.value.code == RESOURCE_EXHAUSTED
        assert len(met.handler.calls) == 1


async def test_too_many_requests_at_once_are_refused(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with session_in(tmp_path, max_handler_s=60.0) as met:
        met.handler.before = lambda _: gate.wait()
        answers = [
            met.peer.send("CreateContainer", CREATE, stream=101 + 2 * number, timeout_s=60.0)
            for number in range(MAX_REQUESTS + 1)
        ]
        assert await _code(met.peer, answers[-1]) == RESOURCE_EXHAUSTED
        gate.set()
        assert [await _code(met.peer, answer) for answer in answers[:-1]] == [0] * MAX_REQUESTS


async def test_frames_of_other_connections_and_kinds_are_ignored(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        met.peer.send_frame(7, 1, 1, b"hello")
        met.peer.send_frame(0, 1, 1, b"hello")
        met.peer.send_frame(1, 5, 2, b"an answer that nobody waits for")
        met.peer.send_frame(2, 5, 2, b"another")
        met.peer.send_frame(1, 5, 77, b"a kind that does not exist")
        met.peer.send_raw(struct.pack(">II", 1, 0))
        assert await met.peer.call("Shutdown", EmptyMessage()) == b""


async def test_data_of_a_stream_that_is_not_open_is_refused(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        answer = met.peer.send("CreateContainer", CREATE, stream=101)
        assert await _code(met.peer, answer) == 0
        waited = met.peer._calls[101] = asyncio.get_running_loop().create_future()
        met.peer.send_frame(1, 101, 3, b"more")
        assert await _code(met.peer, waited) == INVALID_ARGUMENT


async def test_a_frame_of_absurd_length_ends_the_session(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        met.peer.send_raw(struct.pack(">II", 1, 0xFFFFFFFF))
        assert "mux frame announces 4294967295 bytes" in await soon(met.session.wait_ended())


async def test_a_message_that_is_cut_off_is_named(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        met.peer.send_raw(struct.pack(">II", 1, 30) + b"half")
        await met.peer.drain()
        await met.peer.close()
        assert await soon(met.session.wait_ended()) == "the runtime closed the connection inside a message"


async def test_a_closed_connection_is_named(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        await met.peer.close()
        assert await soon(met.session.wait_ended()) == "the runtime closed the connection"


_PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(lambda body: struct.pack(">II", 1, len(body)) + body, st.binary(max_size=60)),
        st.builds(
            lambda connection, stream, kind, body: (
                struct.pack(">IIIIBB", connection, 10 + len(body), len(body), stream, kind, 0) + body
            ),
            st.sampled_from([0, 1, 2, 3]),
            st.integers(0, 300),
            st.integers(0, 5),
            st.binary(max_size=60),
        ),
    ),
    max_size=12,
)


@given(_PIECES)
@example([struct.pack(">II", 1, 10), struct.pack(">IIBB", 0, 101, 1, 0)])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_random_bytes_end_in_a_clean_close(pieces: list[bytes]) -> None:
    async def meet() -> None:
        with tempfile.TemporaryDirectory(prefix="nri-") as folder:
            async with session_in(Path(folder)) as met:
                for piece in pieces:
                    met.peer.send_raw(piece)
                await met.peer.close()
                assert await soon(met.session.wait_ended())
                await soon(met.session.close())
            left = [task for task in asyncio.all_tasks() if task.get_name().startswith("nri-")]
            assert left == []

    asyncio.run(meet())


async def test_a_session_that_closes_is_gone_for_the_runtime(tmp_path: Path) -> None:
    async with session_in(tmp_path) as met:
        await met.session.close()
        await soon(met.peer.gone.wait())
        assert await soon(met.session.wait_ended()) == "koordlet closed the session"
