"""koordlet's hook server and koord's runtime proxy, as they meet on a node."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest

from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.host.unix_socket import NotExclusive, has_listener
from koord.koordlet.hook_server.registered_server import HookRegistration, HookServerSettings, RegisteredHookServer
from koord.runtimeproxy.program import RuntimeProxy
from koord.runtimeproxy.settings import RuntimeProxySettings
from koord.telemetry.clock import WallClock
from koord.wire import raw_fields
from koord.wire.runtime_hook import (
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    echo_container,
    echo_pod,
)
from tests.runtimeproxy.cri_messages import create_container, run_pod_sandbox
from tests.runtimeproxy.fake_runtime import METHOD, FakeRuntime


class Handler:
    """Gives containers of pods with the label BE two CPU shares."""

    async def pre_run_pod_sandbox(self, request: PodSandboxHookRequest) -> PodSandboxHookResponse:
        return echo_pod(request)

    async def pre_create_container(self, request: ContainerResourceHookRequest) -> ContainerResourceHookResponse:
        answer = echo_container(request)
        if answer.container_resources is None or request.pod_labels.get("koordinator.sh/qosClass") != "BE":
            return answer
        resources = msgspec.structs.replace(answer.container_resources, cpu_shares=2, cpu_quota=-1)
        return msgspec.structs.replace(answer, container_resources=resources)

    async def pre_update_container_resources(
        self, request: ContainerResourceHookRequest
    ) -> ContainerResourceHookResponse:
        return await self.pre_create_container(request)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="rs-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def settings(folder: Path) -> HookServerSettings:
    socket = str(folder / "koordlet.sock")
    registration = HookRegistration(endpoint=socket, failure_policy="Ignore")
    return HookServerSettings(socket=socket, config_dir=str(folder / "hooks"), registration=registration)


async def started(settings: HookServerSettings) -> RegisteredHookServer:
    server = await RegisteredHookServer.start(Host(), settings, Handler())
    assert isinstance(server, RegisteredHookServer), server
    return server


def registered(settings: HookServerSettings) -> list[str]:
    folder = Path(settings.config_dir)
    return [path.name for path in folder.iterdir()] if folder.is_dir() else []


async def test_it_is_registered_while_it_serves(settings: HookServerSettings) -> None:
    server = await started(settings)
    assert registered(settings) == ["koordlet.json"]
    assert has_listener(settings.socket)
    assert isinstance(await RegisteredHookServer.start(Host(), settings, Handler()), NotExclusive)
    assert await server.stop() is None
    assert registered(settings) == []
    assert not has_listener(settings.socket)


async def test_one_that_cannot_register_does_not_serve(settings: HookServerSettings, folder: Path) -> None:
    (folder / "hooks").write_text("in the way")
    assert isinstance(await RegisteredHookServer.start(Host(), settings, Handler()), IoError)
    assert not has_listener(settings.socket)


@pytest.fixture
async def runtime(folder: Path) -> AsyncIterator[FakeRuntime]:
    runtime = FakeRuntime()
    await runtime.start(str(folder / "runtime.sock"))
    yield runtime
    await runtime.stop()


async def test_a_proxy_that_runs_already_calls_it_as_soon_as_it_is_registered(
    settings: HookServerSettings, folder: Path, runtime: FakeRuntime
) -> None:
    proxy = await RuntimeProxy.start(
        RuntimeProxySettings(
            endpoint=str(folder / "proxy.sock"),
            runtime_endpoint=str(folder / "runtime.sock"),
            hook_config_dir=settings.config_dir,
            state_dir=str(folder / "state"),
            hook_timeout_s=10.0,
            address=None,
        ),
        WallClock(),
    )
    assert isinstance(proxy, RuntimeProxy), proxy

    async def shares_of(labels: dict[str, str]) -> int:
        reply = await channel.unary_unary(METHOD("RunPodSandbox"))(run_pod_sandbox(labels))
        await channel.unary_unary(METHOD("CreateContainer"))(create_container(raw_fields.string_of(reply, 1)))
        return raw_fields.int_of(raw_fields.message_of(runtime.last("CreateContainer"), 2, 15, 1) or b"", 3)

    batch = {"koordinator.sh/qosClass": "BE"}
    async with grpc.aio.insecure_channel(f"unix://{folder}/proxy.sock") as channel:
        assert await shares_of(batch) == 512
        server = await started(settings)
        while await shares_of(batch) != 2:  # until the proxy has seen the file
            pass
        assert await shares_of({}) == 512
        await server.stop()
        assert await shares_of(batch) == 512
    await proxy.stop()
