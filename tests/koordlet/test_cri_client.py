"""The client of the runtime stops the containers of one pod and nobody else's, and every failure is a value."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from koord.koordlet.cri_client import CriClient
from koord.koordlet.settings import CriEvictionSettings, PodNotStopped, PodStopped
from koord.wire import raw_fields
from koord.wire.cri import CriContainerState
from tests.koordlet.cri_pod import add_container
from tests.runtimeproxy.fake_runtime import METHOD, FakeRuntime


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as the path of a socket is limited."""
    made = Path(tempfile.mkdtemp(prefix="cri-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def runtime(folder: Path) -> AsyncIterator[FakeRuntime]:
    fake = FakeRuntime()
    await fake.start(str(folder / "a.sock"))
    yield fake
    await fake.stop()


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[CriClient]:
    made = build(folder)
    yield made
    await made.close()


def build(folder: Path, *names: str, grace_s: int = 0, timeout_s: float = 20.0) -> CriClient:
    endpoints = tuple(str(folder / name) for name in names or ("a.sock",))
    return CriClient(CriEvictionSettings(endpoints=endpoints, grace_s=grace_s, timeout_s=timeout_s))


def stops(runtime: FakeRuntime) -> list[tuple[str, int]]:
    return sorted(
        (raw_fields.string_of(one.message, 1), raw_fields.int_of(one.message, 2))
        for one in runtime.seen
        if one.method == METHOD("StopContainer")
    )


async def test_all_running_containers_of_the_pod_are_killed_and_no_others(
    runtime: FakeRuntime, client: CriClient
) -> None:
    add_container(runtime, "c1", "u1", "main")
    add_container(runtime, "c2", "u1", "sidecar", CriContainerState.UNKNOWN)
    add_container(runtime, "c3", "u1", "init", CriContainerState.EXITED)
    add_container(runtime, "c4", "u2", "main")
    assert await client.stop_pod("u1") == PodStopped(("main", "sidecar"))
    assert stops(runtime) == [("c1", 0), ("c2", 0)]
    assert runtime.states["c4"] is CriContainerState.RUNNING


async def test_a_runtime_that_ignores_the_filter_makes_nobody_else_stop(
    runtime: FakeRuntime, client: CriClient
) -> None:
    add_container(runtime, "c1", "u1", "main")
    add_container(runtime, "c2", "u2", "main")
    runtime.ignores_filter = True
    assert await client.stop_pod("u1") == PodStopped(("main",))
    assert stops(runtime) == [("c1", 0)]


async def test_the_grace_period_is_the_runtimes_and_the_call_may_last_longer(
    runtime: FakeRuntime, folder: Path
) -> None:
    add_container(runtime, "c1", "u1", "main")
    client = build(folder, grace_s=1000, timeout_s=300.0)
    assert isinstance(await client.stop_pod("u1"), PodStopped)
    await client.close()
    assert stops(runtime) == [("c1", 1000)]
    listed, stopped = runtime.seen
    assert listed.remaining_s is not None
    assert stopped.remaining_s is not None
    assert listed.remaining_s < 600.0 < stopped.remaining_s  # of 300 and 1300, which gRPC rounds


@pytest.mark.parametrize("state", [None, CriContainerState.EXITED, CriContainerState.CREATED])
async def test_a_pod_without_a_running_container_is_not_stopped(
    runtime: FakeRuntime, client: CriClient, state: CriContainerState | None
) -> None:
    if state is not None:
        add_container(runtime, "c1", "u1", "main", state)
    assert await client.stop_pod("u1") == PodNotStopped("the runtime has no running container of it")
    assert stops(runtime) == []


async def test_one_container_that_cannot_be_stopped_is_named_beside_those_that_were(
    runtime: FakeRuntime, client: CriClient
) -> None:
    add_container(runtime, "c1", "u1", "main")
    add_container(runtime, "c2", "u1", "stuck")
    runtime.stop_failures["c2"] = (grpc.StatusCode.UNKNOWN, "task is in D state")
    assert await client.stop_pod("u1") == PodNotStopped(
        "container stuck: StopContainer: UNKNOWN: task is in D state; stopped: main"
    )


async def test_a_container_that_is_gone_by_then_is_stopped(runtime: FakeRuntime, client: CriClient) -> None:
    add_container(runtime, "c1", "u1", "main")
    runtime.stop_failures["c1"] = (grpc.StatusCode.NOT_FOUND, "no such container")
    assert await client.stop_pod("u1") == PodStopped(("main",))


async def test_a_runtime_that_does_not_answer_is_waited_for_until_the_deadline(
    runtime: FakeRuntime, folder: Path
) -> None:
    add_container(runtime, "c1", "u1", "main")
    runtime.held[METHOD("StopContainer")] = asyncio.Event()
    client = build(folder, timeout_s=1.0)
    found = await client.stop_pod("u1")
    await client.close()
    assert isinstance(found, PodNotStopped)
    assert found.reason.startswith("container main: StopContainer: DEADLINE_EXCEEDED")


async def test_an_answer_that_is_no_message_stops_nobody(runtime: FakeRuntime, client: CriClient) -> None:
    runtime.replies[METHOD("ListContainers")] = b"\xff"
    found = await client.stop_pod("u1")
    assert isinstance(found, PodNotStopped)
    assert "a.sock: ListContainers: its answer" in found.reason
    assert stops(runtime) == []


async def test_without_a_socket_the_places_are_named(folder: Path) -> None:
    found = await build(folder, "a.sock", "b.sock").stop_pod("u1")
    assert found == PodNotStopped(f"no container runtime has a socket at {folder}/a.sock, {folder}/b.sock")


async def test_the_runtime_that_has_the_pod_is_asked_to_stop_it(runtime: FakeRuntime, folder: Path) -> None:
    """A node may have a containerd without CRI, which belongs to Docker, beside the kubelet's runtime."""
    other = FakeRuntime()
    await other.start(str(folder / "b.sock"))
    add_container(other, "c1", "u1", "main")
    runtime.failures[METHOD("ListContainers")] = (grpc.StatusCode.UNIMPLEMENTED, "unknown service", ())
    client = build(folder, "a.sock", "b.sock")
    assert await client.stop_pod("u1") == PodStopped(("main",))
    missing = await client.stop_pod("u2")
    assert missing == PodNotStopped(f"{folder}/a.sock: ListContainers: UNIMPLEMENTED: unknown service")
    await client.close()
    await other.stop()


async def test_a_runtime_that_was_restarted_is_reached_again(folder: Path) -> None:
    client = build(folder)
    for uid in ("u1", "u2"):
        fake = FakeRuntime()
        await fake.start(str(folder / "a.sock"))
        add_container(fake, "c1", uid, "main")
        found = await client.stop_pod(uid)
        async with asyncio.timeout(60):
            while isinstance(found, PodNotStopped) and "UNAVAILABLE" in found.reason:
                found = await client.stop_pod(uid)
        assert found == PodStopped(("main",))
        await fake.stop()
    await client.close()
