"""koordlet's hook server: what it decides nothing about it echoes, and no two servers share a socket."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import grpc.aio
import msgspec
import pytest

from koord.host.unix_socket import NotExclusive
from koord.koordlet.hook_server.handler import HookFailed
from koord.koordlet.hook_server.server import HookServer
from koord.wire import runtime_hook
from koord.wire.runtime_hook import (
    ContainerMetadata,
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    PodSandboxHookRequest,
    PodSandboxHookResponse,
    PodSandboxMetadata,
    RuntimeHookStage,
    echo_container,
    echo_pod,
)

POD = PodSandboxHookRequest(
    pod_meta=PodSandboxMetadata(name="web", uid="u"),
    labels={"app": "web"},
    annotations={"note": "1"},
    cgroup_parent="/kubepods/podu",
    resources=LinuxContainerResources(cpu_shares=2, unified={"a": "b"}),
)
CONTAINER = ContainerResourceHookRequest(
    container_meta=ContainerMetadata(name="main", id="c"),
    container_annotations={"own": "yes"},
    container_resources=LinuxContainerResources(cpu_quota=-1, cpuset_cpus="0-3", oom_score_adj=5),
    pod_labels={"app": "web"},
    pod_cgroup_parent="/kubepods/podu",
    container_envs={"A": "1"},
)


class Handler:
    """Decides about pods with a label, and echoes for the others."""

    async def pre_run_pod_sandbox(self, request: PodSandboxHookRequest) -> PodSandboxHookResponse | HookFailed:
        if request.labels.get("fails"):
            return HookFailed("no such cgroup")
        if not request.labels.get("decided"):
            return echo_pod(request)
        return msgspec.structs.replace(echo_pod(request), cgroup_parent="/decided")

    async def pre_create_container(self, request: ContainerResourceHookRequest) -> ContainerResourceHookResponse:
        if not request.pod_labels.get("decided"):
            return echo_container(request)
        resources = LinuxContainerResources(cpu_shares=7)
        return msgspec.structs.replace(echo_container(request), container_resources=resources)

    async def pre_update_container_resources(
        self, request: ContainerResourceHookRequest
    ) -> ContainerResourceHookResponse:
        if request.pod_labels.get("broken"):
            raise ZeroDivisionError
        return await self.pre_create_container(request)


@pytest.fixture
def path() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="hs-"))
    yield str(folder / "made" / "koordlet.sock")
    shutil.rmtree(folder)


@pytest.fixture
async def channel(path: str) -> AsyncIterator[grpc.aio.Channel]:
    server = await HookServer.start(path, Handler())
    assert isinstance(server, HookServer), server
    async with grpc.aio.insecure_channel(f"unix://{path}") as channel:
        yield channel
    await server.stop()


async def ask(channel: grpc.aio.Channel, stage: RuntimeHookStage, request: msgspec.Struct) -> msgspec.Struct:
    model = PodSandboxHookResponse if stage.is_of_pod else ContainerResourceHookResponse
    reply = runtime_hook.decode(await channel.unary_unary(stage.method)(runtime_hook.encode(request)), model)
    assert isinstance(reply, model)
    return reply


@pytest.mark.parametrize("stage", RuntimeHookStage)
async def test_the_response_of_an_unlabelled_pod_equals_its_request(
    channel: grpc.aio.Channel, stage: RuntimeHookStage
) -> None:
    if stage.is_of_pod:
        assert await ask(channel, stage, POD) == PodSandboxHookResponse(
            labels=POD.labels, annotations=POD.annotations, cgroup_parent=POD.cgroup_parent, resources=POD.resources
        )
    else:
        assert await ask(channel, stage, CONTAINER) == ContainerResourceHookResponse(
            container_annotations=CONTAINER.container_annotations,
            container_resources=CONTAINER.container_resources,
            pod_cgroup_parent=CONTAINER.pod_cgroup_parent,
            container_envs=CONTAINER.container_envs,
        )


@pytest.mark.parametrize("stage", RuntimeHookStage)
async def test_only_three_stages_are_decided(channel: grpc.aio.Channel, stage: RuntimeHookStage) -> None:
    decided = {"decided": "yes"}
    if stage.is_of_pod:
        reply = await ask(channel, stage, msgspec.structs.replace(POD, labels=decided))
        assert isinstance(reply, PodSandboxHookResponse)
        assert (reply.cgroup_parent == "/decided") is (stage is RuntimeHookStage.PRE_RUN_POD_SANDBOX)
    else:
        answer = await ask(channel, stage, msgspec.structs.replace(CONTAINER, pod_labels=decided))
        assert isinstance(answer, ContainerResourceHookResponse)
        changed = answer.container_resources == LinuxContainerResources(cpu_shares=7)
        assert changed is (
            stage in (RuntimeHookStage.PRE_CREATE_CONTAINER, RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES)
        )


async def test_a_failure_is_an_error_with_its_words(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="no such cgroup") as failed:
        await ask(channel, RuntimeHookStage.PRE_RUN_POD_SANDBOX, msgspec.structs.replace(POD, labels={"fails": "yes"}))
    assert failed.value.code() is grpc.StatusCode.UNKNOWN


async def test_a_fault_of_the_handler_is_an_error_and_the_server_goes_on(channel: grpc.aio.Channel) -> None:
    stage = RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES
    with pytest.raises(grpc.aio.AioRpcError):
        await ask(channel, stage, msgspec.structs.replace(CONTAINER, pod_labels={"broken": "yes"}))
    assert await ask(channel, stage, CONTAINER) == echo_container(CONTAINER)


@pytest.mark.parametrize("stage", RuntimeHookStage)
async def test_what_is_no_request_is_refused_and_the_server_goes_on(
    channel: grpc.aio.Channel, stage: RuntimeHookStage
) -> None:
    encoded = runtime_hook.encode(POD if stage.is_of_pod else CONTAINER)
    for message in (b"\xff", encoded[:-1], b"\x0a\x01\xff"):
        code = await channel.unary_unary(stage.method)(message).code()
        assert code is grpc.StatusCode.INTERNAL
    assert await channel.unary_unary(stage.method)(encoded)


async def test_other_methods_are_not_implemented(channel: grpc.aio.Channel) -> None:
    code = await channel.unary_unary("/runtime.v1alpha1.RuntimeHookService/PreRemoveRunPodSandboxHook")(b"").code()
    assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_socket_with_a_server_is_not_taken_and_one_without_is(path: str) -> None:
    first = await HookServer.start(path, Handler())
    assert isinstance(first, HookServer)
    second = await HookServer.start(path, Handler())
    assert isinstance(second, NotExclusive)
    assert path in second.reason
    await first.stop()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    third = await HookServer.start(path, Handler())
    assert isinstance(third, HookServer)
    await third.stop()


def test_a_node_agent_without_the_server_does_not_load_grpc() -> None:
    modules = "koord.cli.daemons.koordlet, koord.koordlet.hook_server.registered_server"
    script = f"import sys, {modules}; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
