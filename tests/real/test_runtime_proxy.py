"""koord-runtime-proxy between a real kubelet and a real containerd: pods run, are changed by hooks, and outlive it."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

import aiohttp
import msgspec
import pytest

from koord.host.cgroup.detection import LayoutNotDetected, open_tree
from koord.host.filesystem import Host
from koord.wire.runtime_hook import (
    ContainerDevice,
    ContainerResourceHookRequest,
    ContainerResourceHookResponse,
    LinuxContainerResources,
    RuntimeHookStage,
    echo_container,
)
from tests.real.real_node import QUOTA, SHARES, Site
from tools import realnode
from tools.controlplane import free_port
from tools.nodeagent import PODS, is_running, pod, until

grpc = pytest.importorskip("grpc", reason="no gRPC installed: install koord with its extra runtimeproxy")

from tests.runtimeproxy.fake_hook_server import FakeHookServer, register  # noqa: E402 - needs gRPC

pytestmark = [pytest.mark.real, pytest.mark.machine]

HOOKED = {"hooked": "yes"}
STAGES = ("PreCreateContainer", "PreUpdateContainerResources", "PostStopContainer")


class Proxy:
    """The proxy as a process, with one socket and one state over all its lives."""

    def __init__(self, node: realnode.Node) -> None:
        self._node = node
        self.endpoint = node.folder / "proxy.sock"
        self.configs = node.folder / "hookserver.d"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.log = node.folder / "proxy.log"
        self.container_before = ""  # of a pod that ran before the kubelet talked to the proxy

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "koord.cli.daemons.koord_runtime_proxy"),
            f"--koord-runtimeproxy-endpoint={self.endpoint}",
            f"--remote-runtime-service-endpoint={self._node.runtime_socket}",
            f"--runtime-hooks-config-path={self.configs}",
            f"--state-dir={self._node.folder}/proxy-state",
            f"--addr=127.0.0.1:{self._port}",
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: self.fetch("/readyz") == "ok", f"the proxy is ready; its log is {self.log}")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=10)

    def stop(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=30)

    def fetch(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=5) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.URLError:
            return ""

    def passed(self, method: str) -> bool:
        line = f'koord_runtime_proxy_requests_total{{code="OK",method="{method}"}}'
        return line in self.fetch("/metrics")


class HookThread:
    """A hook server beside the test. It gives containers of labelled pods 333 CPU shares and a device."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.server: FakeHookServer | None = None
        self._thread.start()
        assert self._ready.wait(30)

    async def _run(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        self.server = FakeHookServer()
        for stage in (RuntimeHookStage.PRE_CREATE_CONTAINER, RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES):
            self.server.answers[stage] = _answer
        await self.server.start(self._path)
        self._ready.set()
        await self._end.wait()
        await self.server.stop()

    def asked(self, stage: RuntimeHookStage, name: str) -> list[ContainerResourceHookRequest]:
        assert self.server is not None
        calls = [request for one, request in list(self.server.calls) if one is stage]
        return [
            one
            for one in calls
            if isinstance(one, ContainerResourceHookRequest) and one.pod_meta is not None and one.pod_meta.name == name
        ]

    def stop(self) -> None:
        assert self._loop is not None
        assert self._end is not None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(30)


def _answer(request: ContainerResourceHookRequest) -> ContainerResourceHookResponse:
    if request.pod_labels.get("hooked") != "yes":
        return echo_container(request)
    resources = msgspec.structs.replace(request.container_resources or LinuxContainerResources(), cpu_shares=333)
    device = ContainerDevice(container_path="/dev/given", host_path="/dev/full", permissions="rw")
    return msgspec.structs.replace(echo_container(request), container_resources=resources, container_devices=(device,))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A node whose kubelet was pointed at the proxy after it had run without."""
    reason = realnode.missing()
    if reason:
        pytest.skip(reason)
    with realnode.running() as node:
        tree = open_tree(Host.local())
        assert not isinstance(tree, LayoutNotDetected), tree
        yield Site(node, tree, tmp_path_factory.mktemp("proxy"))


@pytest.fixture(scope="module")
def hooks(site: Site) -> Iterator[HookThread]:
    thread = HookThread(str(site.node.folder / "hook.sock"))
    yield thread
    thread.stop()


@pytest.fixture(scope="module")
def proxy(site: Site, hooks: HookThread) -> Iterator[Proxy]:
    node = site.node
    site.run(pod("before"))
    proxy = Proxy(node)
    proxy.container_before = site.container("before")
    register(proxy.configs, str(node.folder / "hook.sock"), "Ignore", STAGES)
    proxy.start()
    node.stop("kubelet")
    path = node.folder / "kubelet.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "containerRuntimeEndpoint": f"unix://{proxy.endpoint}"}))
    node.start("kubelet")
    until(lambda: proxy.passed("ListPodSandbox"), "the kubelet talks to the proxy", 60)
    yield proxy
    node.stop("kubelet")  # first, so that it does not miss its runtime
    proxy.stop()


def kubelet(site: Site, path: str, method: str = "GET") -> str:
    request = urllib.request.Request(f"{site.node.kubelet_url}{path}", method=method)
    with urllib.request.urlopen(request, context=unverified(), timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def exec_over_websocket(site: Site, name: str, *words: str) -> str:
    """Run a command by CRI's Exec, whose URL the kubelet then streams from."""
    query = urllib.parse.urlencode([("output", "1"), ("error", "1"), *(("command", word) for word in words)])
    url = f"{site.node.kubelet_url}/exec/default/{name}/main?{query}"
    out = b""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=["v5.channel.k8s.io", "v4.channel.k8s.io"], ssl=unverified()) as socket,
    ):
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == b"\x01":
                out += message.data[1:]
    return out.decode()


def test_a_pod_runs_with_its_logs_and_commands(site: Site, proxy: Proxy) -> None:
    site.run(pod("talks", command="echo said by the pod; exec sleep 1000"))
    until(lambda: "said by the pod" in kubelet(site, "/containerLogs/default/talks/main"), "the log is there")
    assert kubelet(site, "/run/default/talks/main?cmd=echo%20synchronous", "POST").strip() == "synchronous"
    assert asyncio.run(exec_over_websocket(site, "talks", "echo", "streamed")).strip() == "streamed"
    for method in ("RunPodSandbox", "CreateContainer", "StartContainer", "ExecSync", "Exec", "ImageStatus"):
        assert proxy.passed(method), method


def test_a_hook_that_sets_shares_and_gives_a_device_is_obeyed(site: Site, proxy: Proxy, hooks: HookThread) -> None:
    amounts = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m", "memory": "64Mi"}}
    site.run(pod("hooked", amounts, labels=HOOKED), pod("plain", amounts))
    assert site.value(SHARES, site.container("hooked")) == "333"
    assert site.value(SHARES, site.container("plain")) == "102"
    assert site.value(QUOTA, site.container("hooked")) == "20000"
    listed = kubelet(site, "/run/default/hooked/main?cmd=ls%20-l%20/dev/given", "POST").split()
    assert (listed[0][0], listed[4:6]) == ("c", ["1,", "7"]), "/dev/full of the host"
    (asked,) = hooks.asked(RuntimeHookStage.PRE_CREATE_CONTAINER, "hooked")
    assert asked.container_resources is not None
    assert asked.container_resources.cpu_shares == 102
    assert asked.pod_cgroup_parent.endswith(f"pod{site.api.seen(f'{PODS}/hooked')['metadata']['uid']}")


def test_a_resize_in_place_asks_the_hook_after_a_restart_of_the_proxy(
    site: Site, proxy: Proxy, hooks: HookThread
) -> None:
    proxy.kill()
    proxy.start()
    (container,) = site.api.seen(f"{PODS}/hooked")["spec"]["containers"]
    container["resources"]["requests"]["cpu"] = "150m"
    container["resources"]["limits"]["cpu"] = "300m"
    site.api.merge(f"{PODS}/hooked/resize", {"spec": {"containers": [container]}})
    until(lambda: site.value(QUOTA, site.container("hooked")) == "30000", "the quota is larger", 90)
    asked = hooks.asked(RuntimeHookStage.PRE_UPDATE_CONTAINER_RESOURCES, "hooked")
    assert asked
    assert asked[-1].container_resources is not None
    assert asked[-1].container_resources.memory_limit_in_bytes == 64 << 20  # known from before the kill
    assert site.value(SHARES, site.container("hooked")) == "333"


def test_container_events_reach_whoever_streams_them(site: Site, proxy: Proxy) -> None:
    with grpc.insecure_channel(f"unix://{proxy.endpoint}") as channel:
        events = channel.unary_stream("/runtime.v1.RuntimeService/GetContainerEvents")(b"", wait_for_ready=True)
        site.run(pod("event"))
        assert next(iter(events))
        events.cancel()


def test_a_pod_that_was_there_before_ends_through_the_proxy(site: Site, proxy: Proxy, hooks: HookThread) -> None:
    status = site.api.seen(f"{PODS}/before")["status"]["containerStatuses"][0]
    assert (site.container("before"), status["restartCount"]) == (proxy.container_before, 0)
    site.remove("before")
    assert hooks.asked(RuntimeHookStage.POST_STOP_CONTAINER, "before")


def test_killed_while_pods_are_made_all_of_them_run(site: Site, proxy: Proxy) -> None:
    names = [f"many-{number}" for number in range(6)]
    for name in names:
        site.api.create(PODS, pod(name, labels=HOOKED))
    for wanted in (1, 3):
        until(lambda: sum(is_running(site.pod(name)) for name in names) >= wanted, f"{wanted} pods run", 120)  # noqa: B023
        proxy.kill()
        proxy.start()
    until(lambda: all(is_running(site.pod(name)) for name in names), "all pods run", 180)
    for name in names:
        assert site.value(SHARES, site.container(name)) == "333", name
    site.remove(*names)


def test_nothing_waits_for_a_hook_server_that_is_gone(site: Site, proxy: Proxy, hooks: HookThread) -> None:
    hooks.stop()
    site.run(pod("without", labels=HOOKED))
    assert site.value(SHARES, site.container("without")) == "2"
    site.remove("without")
