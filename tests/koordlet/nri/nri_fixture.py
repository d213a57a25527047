"""What tests of the NRI plugin share: a handler that notes its calls, a session with a fake runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from koord.koordlet.nri.plugin import NriPlugin
from koord.koordlet.nri.session import NriConnectError, NriSession, open_session
from koord.koordlet.nri.settings import NriSettings
from koord.telemetry.clock import WallClock
from koord.wire.nri_messages import ContainerAdjustment, ContainerUpdate, LinuxResources, NriContainer, NriPodSandbox
from tests.koordlet.nri.fake_runtime import PATIENCE_S, FakeRuntime, RuntimePeer

T = TypeVar("T")
POD = NriPodSandbox(id="p1", name="web", namespace="default", uid="u1", annotations={"a": "b"})
CONTAINER = NriContainer(id="c1", pod_sandbox_id="p1", name="main")


class RecordingHandler:
    """Notes each call as (method, subjects) and then does what the test set: `before` is awaited first."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []
        self.adjustment: ContainerAdjustment | None = None
        self.update: ContainerUpdate | None = None
        self.before: Callable[[str], object] | None = None
        self.pods: tuple[NriPodSandbox, ...] = ()
        self.containers: tuple[NriContainer, ...] = ()

    async def synchronize(self, pods: tuple[NriPodSandbox, ...], containers: tuple[NriContainer, ...]) -> None:
        self.pods, self.containers = pods, containers
        await self._note("synchronize", (len(pods), len(containers)))

    async def run_pod_sandbox(self, pod: NriPodSandbox) -> None:
        await self._note("run", pod)

    async def remove_pod_sandbox(self, pod: NriPodSandbox) -> None:
        await self._note("remove", pod)

    async def create_container(self, pod: NriPodSandbox, container: NriContainer) -> ContainerAdjustment | None:
        await self._note("create", (pod, container))
        return self.adjustment

    async def update_container(
        self, pod: NriPodSandbox, container: NriContainer, resources: LinuxResources
    ) -> ContainerUpdate | None:
        await self._note("update", (pod, container, resources))
        return self.update

    async def _note(self, method: str, what: object) -> None:
        self.calls.append((method, what))
        if self.before is not None:
            waited = self.before(method)
            if asyncio.iscoroutine(waited):
                await waited


class Outcomes:
    """Collects what `on_outcome` is told."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, str]] = []

    def __call__(self, stage: str, outcome: str, seconds: float, detail: str) -> None:
        assert seconds >= 0
        self.found.append((stage, outcome, detail))


async def soon(waited: Awaitable[T]) -> T:
    """Wait for something that a mistake could put off for ever."""
    async with asyncio.timeout(PATIENCE_S):
        return await waited


def settings_in(folder: Path, **changes: object) -> NriSettings:
    base = NriSettings(socket_path=str(folder / "nri.sock"), lock_path=str(folder / "koordlet" / "nri.lock"))
    return msgspec.structs.replace(base, **changes)


class Met(msgspec.Struct):
    """A session and the runtime that it is with."""

    runtime: FakeRuntime
    peer: RuntimePeer
    session: NriSession
    handler: RecordingHandler
    outcomes: Outcomes


@asynccontextmanager
async def runtime_at(folder: Path) -> AsyncIterator[FakeRuntime]:
    runtime = FakeRuntime(folder / "nri.sock")
    await runtime.start()
    try:
        yield runtime
    finally:
        await runtime.stop()


@asynccontextmanager
async def session_in(
    folder: Path, prepare: Callable[[FakeRuntime], None] | None = None, **changes: object
) -> AsyncIterator[Met]:
    handler, outcomes = RecordingHandler(), Outcomes()
    async with runtime_at(folder) as runtime:
        if prepare is not None:
            prepare(runtime)
        session = await open_session(settings_in(folder, **changes), handler, WallClock(), outcomes)
        assert not isinstance(session, NriConnectError), session
        try:
            yield Met(runtime, await runtime.peer(), session, handler, outcomes)
        finally:
            await session.close()


@asynccontextmanager
async def running(plugin: NriPlugin) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(plugin.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
