"""Run a whole agent in virtual time: a fake machine whose counters move, and an API server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.host.cgroup.layout import CgroupLayout
from koord.koordlet.agent import Koordlet
from koord.koordlet.feature_gates import default_gates
from koord.koordlet.inputs.kubelet_client import PodSourceSettings
from koord.koordlet.reporters.node_metric_reporter import PredictorSettings
from koord.koordlet.settings import AuditSettings, KoordletSettings
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport, Unreachable, WatchStream
from koord.telemetry.clock import Clock, LoopClock, run_virtual
from koord.telemetry.http_routing import HttpCall
from tests.host.fake_kernel import FakeKernel
from tests.host.fake_machine import FakeMachine

NODE = "n1"
CPUS = 4
GI = 2**30
TOP = "kubepods/besteffort"
MEMINFO = "MemTotal: 16777216 kB\nMemFree: {free} kB\nMemAvailable: {free} kB\n"


class CuttableTransport:
    """A transport that can be cut; its user learns that after `silent_s`."""

    def __init__(self, inner: Transport, silent_s: float = 0.0) -> None:
        self._inner = inner
        self._silent_s = silent_s
        self.cut = False

    async def send(self, request: ApiRequest) -> ApiResponse:
        if self.cut:
            await asyncio.sleep(self._silent_s)
            raise Unreachable("the line is cut")
        return await self._inner.send(request)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        if self.cut:
            raise Unreachable("the line is cut")
        return await self._inner.watch(request)

    async def close(self) -> None:
        await self._inner.close()


class ShiftedClock:
    """A clock whose wall time somebody sets; what passes is the same."""

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self.ahead_s = 0.0

    def time(self) -> float:
        return self._inner.time() + self.ahead_s

    def monotonic(self) -> float:
        return self._inner.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class AgentFixture:
    def __init__(self, root: Path, clock: LoopClock) -> None:
        self.root = root
        self.clock: Clock = clock
        self.machine = FakeMachine(root, 2, CgroupLayout("cgroupfs"))
        self.kernel = FakeKernel(self.machine.paths, 2)
        self.machine.put("proc/sys/kernel/random/boot_id", "boot-one\n")
        self.machine.put("sys/devices/system/cpu/online", f"0-{CPUS - 1}\n")
        self.machine.put("sys/devices/system/node/node0/cpulist", f"0-{CPUS - 1}\n")
        self.machine.put("proc/cpuinfo", "processor: 0\nvendor_id: GenuineIntel\nmodel name: Test\nflags: sse\n")
        self.machine.put("var/lib/kubelet/cpu_manager_state", '{"policyName":"none","defaultCpuSet":""}')
        self.machine.put(
            "sys/bus/node/devices/node0/meminfo", "Node 0 MemTotal: 16777216 kB\nNode 0 MemFree: 8388608 kB\n"
        )
        self.cluster = EmbeddedCluster(ClusterSettings(http=False), clock=clock)
        self.used_cores = 1.0
        self.used_kb = 4 * 1024 * 1024
        self.beat_s = 0.25
        self._ticks = 0.0
        self._task: asyncio.Task[None] | None = None
        self._beat()

    @property
    def client(self) -> Client:
        assert self.cluster.client is not None
        return self.cluster.client

    def agent(
        self,
        gates: frozenset[str] = frozenset(),
        *,
        without: frozenset[str] = frozenset(),
        client: Client | None = None,
        informers: InformerFactory | None = None,
        **changes: Any,
    ) -> Koordlet:
        informers = informers or self.cluster.informers
        assert informers is not None
        settings = KoordletSettings(
            node=NODE,
            gates=((default_gates() - {"RdtResctrl"}) | {"AuditEvents", "AuditEventsHTTPHandler"} | gates) - without,
            state_dir=str(self.root / "state"),
            address=None,
            audit=AuditSettings(folder=str(self.root / "audit")),
            pods=PodSourceSettings(source="apiserver"),
            prediction=PredictorSettings(folder=str(self.root / "prediction")),
        )
        settings = msgspec.structs.replace(settings, **changes)
        return Koordlet(client or self.client, informers, self.clock, settings, self.kernel)

    async def furnish(self) -> None:
        amounts = {"cpu": str(CPUS), "memory": "16Gi", "pods": "110"}
        await expect_ok(self.client.create(NODES, {"metadata": {"name": NODE}}))
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        await expect_ok(self.client.patch(NODES, NODE, status, kind="merge", subresource="status"))
        await expect_ok(self.client.create(NODE_METRICS, {"metadata": {"name": NODE}, "spec": {}}))

    async def order(self, spec: dict[str, Any]) -> None:
        body = {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeSLO",
            "metadata": {"name": NODE},
            "spec": spec,
        }
        await expect_ok(self.client.apply(NODE_SLOS, body, field_manager="test", force=True))

    async def run_pod(self, name: str, qos: str, *, memory_bytes: int = 0, labels: dict[str, str] | None = None) -> str:
        """Create a running pod and its groups; return its group."""
        pod = await expect_ok(
            self.client.create(
                PODS,
                {
                    "metadata": {
                        "name": name,
                        "namespace": "default",
                        "labels": {"koordinator.sh/qosClass": qos, **(labels or {})},
                    },
                    "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "scratch"}]},
                },
            )
        )
        kube_qos = BEST_EFFORT if qos == "BE" else BURSTABLE
        group = self.machine.pod(kube_qos, pod.metadata.uid, f"containerd://{name}")
        self.use_memory(group, memory_bytes)
        running = {"name": "main", "image": "scratch", "imageID": "", "ready": True, "restartCount": 0}
        running |= {"containerID": f"containerd://{name}", "state": {"running": {}}}
        # A pod that is not ready counts for no disruption budget.
        status = {"phase": "Running", "qosClass": kube_qos, "containerStatuses": [running]}
        status["conditions"] = [{"type": "Ready", "status": "True"}]
        await expect_ok(
            self.client.patch(PODS, name, {"status": status}, "default", kind="merge", subresource="status")
        )
        return group

    def use_memory(self, group: str, used: int) -> None:
        text = (
            f"anon {used}\nfile 0\ninactive_anon {used}\nactive_anon 0\ninactive_file 0\nactive_file 0\nunevictable 0\n"
        )
        (Path(self.machine.tree.group_path("", group)) / "memory.stat").write_text(text)

    async def __aenter__(self) -> AgentFixture:
        await self.cluster.start()
        assert self.cluster.informers is not None
        self.cluster.informers.start()
        self._task = asyncio.create_task(self._move())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
        await self.cluster.stop()

    async def _move(self) -> None:
        """Advance the machine's counters, usually four times a second."""
        while True:
            await self.clock.sleep(self.beat_s)
            self._ticks += self.used_cores * 100 * self.beat_s
            self._beat()

    def _beat(self) -> None:
        busy = int(self._ticks)
        lines = [f"cpu {busy} 0 0 0 0 0 0 0", *(f"cpu{cpu} {busy // CPUS} 0 0 0 0 0 0 0" for cpu in range(CPUS))]
        self.machine.put("proc/stat", "\n".join(lines) + "\n")
        self.machine.put("proc/meminfo", MEMINFO.format(free=16 * 1024 * 1024 - self.used_kb))


async def expect_ok(answer: Awaitable[Any]) -> Any:
    found = await answer
    assert not isinstance(found, ApiError), found
    return found


async def ask(agent: Koordlet, path: str, **headers: str) -> bytes:
    """Return what the agent's port answers."""
    plain, _, query = path.partition("?")
    pairs = dict(part.partition("=")[::2] for part in query.split("&") if part)
    call = HttpCall(method="GET", path=plain, query={key: (value,) for key, value in pairs.items()}, headers=headers)
    reply = await agent.endpoint.answer(call)
    assert reply.status == 200, reply
    return reply.body


def in_virtual_time(root: Path, story: Callable[[AgentFixture], Awaitable[None]]) -> None:
    async def main(clock: LoopClock) -> None:
        async with AgentFixture(root, clock) as world:
            await story(world)

    run_virtual(main)
