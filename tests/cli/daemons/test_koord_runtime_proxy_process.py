"""koord-runtime-proxy as a program: started, refused, killed at bad moments and started again."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import msgspec
import pytest

from koord.runtimeproxy.settings import RuntimeProxySettings
from koord.wire import raw_fields
from koord.wire.runtime_hook import LinuxContainerResources, RuntimeHookStage
from tests.runtimeproxy.cri_messages import RESOURCES, by_id, create_container, run_pod_sandbox, update_resources
from tests.runtimeproxy.fake_hook_server import FakeHookServer, register
from tests.runtimeproxy.fake_runtime import METHOD, FakeRuntime
from tests.runtimeproxy.proxy_process import COMMAND, ProxyProcess, arguments
from tools.controlplane import free_port


@pytest.fixture
def settings() -> Iterator[RuntimeProxySettings]:
    folder = Path(tempfile.mkdtemp(prefix="rp-"))
    yield RuntimeProxySettings(
        endpoint=str(folder / "proxy.sock"),
        runtime_endpoint=str(folder / "runtime.sock"),
        hook_config_dir=str(folder / "hooks"),
        state_dir=str(folder / "state"),
        hook_timeout_s=20.0,
        address=None,
    )
    shutil.rmtree(folder)


@pytest.fixture
async def runtime(settings: RuntimeProxySettings) -> AsyncIterator[FakeRuntime]:
    runtime = FakeRuntime()
    await runtime.start(settings.runtime_endpoint)
    yield runtime
    await runtime.stop()


@pytest.fixture
async def hooks(settings: RuntimeProxySettings) -> AsyncIterator[FakeHookServer]:
    hooks = FakeHookServer()
    path = f"{settings.state_dir}-hook.sock"
    await hooks.start(path)
    register(Path(settings.hook_config_dir), path)
    yield hooks
    await hooks.stop()


async def started(settings: RuntimeProxySettings, *more: str) -> ProxyProcess:
    proxy = ProxyProcess(settings, Path(settings.endpoint).parent, *more)
    await proxy.answers()
    return proxy


async def call(proxy: ProxyProcess, name: str, message: bytes) -> bytes:
    reply: bytes = await proxy.channel.unary_unary(METHOD(name))(message)
    return reply


async def id_of(proxy: ProxyProcess, name: str, message: bytes) -> str:
    return raw_fields.string_of(await call(proxy, name, message), 1)


async def refused(command: list[str]) -> str:
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    lines = [line for line in ended.stderr.splitlines() if line.startswith("koord-runtime-proxy: ")]
    assert len(lines) == 1, ended.stderr
    return lines[0]


async def test_it_serves_ends_cleanly_and_leaves_no_socket(
    settings: RuntimeProxySettings, runtime: FakeRuntime
) -> None:
    proxy = await started(settings)
    mode = os.stat(settings.endpoint).st_mode & 0o777
    assert mode == 0o660
    assert await proxy.end() == 0, proxy.log.read_text()
    assert "proxy.sock" not in os.listdir(os.path.dirname(settings.endpoint))


def event_engine_wakeups(process: int) -> int:
    """How often gRPC's own threads for sockets have been given a CPU."""
    tasks = [one for one in Path(f"/proc/{process}/task").iterdir() if (one / "comm").read_text() == "event_engine\n"]
    return sum(int((task / "schedstat").read_text().split()[2]) for task in tasks)


async def test_a_call_that_passes_wakes_few_threads(settings: RuntimeProxySettings, runtime: FakeRuntime) -> None:
    """A wake-up may wait for a CPU, so their number decides how long a call takes on a busy node."""
    proxy = await started(settings)
    before = event_engine_wakeups(proxy.process.pid)
    for _ in range(200):
        await call(proxy, "ListContainers", b"")
    # About 160 with the thread of completions that reads and writes itself, 3000 with gRPC's event engine.
    assert event_engine_wakeups(proxy.process.pid) - before < 1000
    assert await proxy.end() == 0
    assert "experiment" not in proxy.log.read_text(), "gRPC knows the names"


async def test_metrics_and_health(settings: RuntimeProxySettings, runtime: FakeRuntime, hooks: FakeHookServer) -> None:
    port = free_port()
    proxy = await started(settings, f"--addr=127.0.0.1:{port}")
    await id_of(proxy, "RunPodSandbox", run_pod_sandbox())
    texts = {}
    async with aiohttp.ClientSession() as session:
        for name in ("healthz", "readyz", "metrics"):
            async with session.get(f"http://127.0.0.1:{port}/{name}") as answer:
                assert answer.status == 200
                texts[name] = await answer.text()
    metrics = texts["metrics"]
    assert 'koord_runtime_proxy_hook_duration_seconds_count{outcome="ok",stage="PreRunPodSandbox"} 1' in metrics
    assert 'koord_runtime_proxy_requests_total{code="OK",method="RunPodSandbox"} 1' in metrics
    assert 'koord_runtime_proxy_checkpoint_records{kind="pod"} 1' in metrics
    assert await proxy.end() == 0


async def test_a_second_proxy_on_the_socket_or_the_state_says_why_it_does_not_start(
    settings: RuntimeProxySettings, runtime: FakeRuntime
) -> None:
    proxy = await started(settings)
    said = await refused(arguments(settings))
    assert settings.endpoint in said
    assert f"pid {proxy.process.pid}" in said
    elsewhere = msgspec.structs.replace(settings, endpoint=f"{settings.endpoint}2")
    assert f"another proxy uses --state-dir {settings.state_dir}" in await refused(arguments(elsewhere))
    await call(proxy, "Version", b"")  # the first one was not disturbed
    assert await proxy.end() == 0


async def test_a_runtime_that_does_not_serve_cri_v1_is_refused(settings: RuntimeProxySettings) -> None:
    runtime = FakeRuntime()
    runtime.failures[METHOD("Version")] = (grpc.StatusCode.UNIMPLEMENTED, "unknown service runtime.v1", ())
    await runtime.start(settings.runtime_endpoint)
    said = await refused(arguments(settings))
    assert "does not answer Version of CRI v1: UNIMPLEMENTED: unknown service runtime.v1" in said
    await runtime.stop()


async def test_docker_mode_is_refused_by_name() -> None:
    assert "Docker is not supported" in await refused([*COMMAND, "--backend-runtime-mode=Docker"])


def test_help_and_version_need_no_grpc_and_serving_says_what_is_missing() -> None:
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        script = (
            "import sys; sys.modules['grpc'] = None; from koord.cli.daemons.koord_runtime_proxy import run; "
            "sys.exit(run(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", script, *argv]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert "--remote-runtime-service-endpoint" in run("--help").stdout
    assert run("--version").stdout.startswith("koord-runtime-proxy v")
    serving = run()
    assert (serving.returncode, "install koord with its extra runtimeproxy" in serving.stderr) == (1, True)


async def test_killed_while_a_container_is_made_it_comes_back_and_makes_it(
    settings: RuntimeProxySettings, runtime: FakeRuntime, hooks: FakeHookServer
) -> None:
    proxy = await started(settings)
    sandbox = await id_of(proxy, "RunPodSandbox", run_pod_sandbox({"app": "web"}))
    method = METHOD("CreateContainer")
    runtime.held[method] = asyncio.Event()
    making = asyncio.ensure_future(call(proxy, "CreateContainer", create_container(sandbox)))
    while await runtime.arrived.get() != method:
        pass
    proxy.kill()
    with pytest.raises(grpc.aio.AioRpcError):
        await making
    assert await runtime.cancelled.get() == method  # the runtime learns that nobody waits any more
    await proxy.channel.close()
    del runtime.held[method]
    proxy = await started(settings)
    made = await id_of(proxy, "CreateContainer", create_container(sandbox))
    await call(proxy, "StartContainer", by_id(made))
    asked = hooks.last(RuntimeHookStage.PRE_CREATE_CONTAINER)
    assert (asked.pod_labels, asked.pod_cgroup_parent) == ({"app": "web"}, "/kubepods/podu")
    assert await proxy.end() == 0


async def test_killed_again_and_again_no_pod_is_lost_and_none_forgotten(
    settings: RuntimeProxySettings, runtime: FakeRuntime, hooks: FakeHookServer
) -> None:
    chance = random.Random(7)
    done: dict[str, str] = {}  # pods that the kubelet believes to run, and their containers
    finished: asyncio.Queue[str] = asyncio.Queue()
    proxy = await started(settings)

    async def run_pods() -> None:
        """Make pods one after the other, as a kubelet's worker does, until the proxy is gone."""
        while True:
            try:
                sandbox = await id_of(proxy, "RunPodSandbox", run_pod_sandbox({"app": "web"}))
                made = await id_of(proxy, "CreateContainer", create_container(sandbox))
                await call(proxy, "StartContainer", by_id(made))
            except grpc.aio.AioRpcError:
                return
            done[sandbox] = made
            finished.put_nowait(sandbox)

    for _ in range(4):
        workers = [asyncio.create_task(run_pods()) for _ in range(4)]
        for _ in range(chance.randint(1, 12)):
            await finished.get()
        proxy.kill()
        await asyncio.gather(*workers)
        await proxy.channel.close()
        proxy = await started(settings)
    for made in done.values():
        await call(proxy, "UpdateContainerResources", update_resources(made, LinuxContainerResources(cpu_shares=9)))
        resources = hooks.last(RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES).container_resources
        assert resources == msgspec.structs.replace(
            RESOURCES, cpu_shares=9
        )  # all of it, which no list of the runtime tells
    orphans = set(runtime.containers) - set(done.values())
    for made in orphans:  # made, and the answer lost: known by the list of the runtime
        hooks.calls.clear()
        await call(proxy, "StartContainer", by_id(made))
        assert hooks.stages() == ["PreStartContainer", "PostStartContainer"]
    assert await proxy.end() == 0
