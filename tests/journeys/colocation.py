"""This module runs a co-locating cluster in this process and in virtual time: reporting nodes, manager,
scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from koord.api.builtin import CONFIG_MAPS, NODES, PODS
from koord.api.config import gates
from koord.api.config.gate_tables import MANAGER
from koord.api.pod import Pod
from koord.cli import local_scheduler
from koord.cli.local_manager import LocalManager
from koord.embedded.cluster import Cluster, Context, Settings
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.fleet import Settings as FleetSettings
from koord.embedded.kubelet.profile import Pool
from koord.embedded.workloads.workloads import Workloads
from koord.kube.client import Client
from koord.kube.refused import Refused, ok
from koord.manager.world import NAMESPACE
from koord.manager.world import Settings as ManagerSettings
from koord.telemetry.clock import LoopClock, run_virtual

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
MID_CPU, MID_MEMORY = "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"
CONFIG = "slo-controller-config"
REPORT_S = 60.0  # how often nodes report, unless configured otherwise


class Journey(msgspec.Struct, frozen=True):
    clock: LoopClock
    client: Client
    fleet: Fleet
    manager: LocalManager

    async def configure(self, **documents: Any) -> None:
        """Write documents of slo-controller-config; underscores in their names stand for dashes."""
        data = {
            key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
            for key, value in documents.items()
        }
        ok(await self.client.patch(CONFIG_MAPS, CONFIG, {"data": data}, NAMESPACE, kind="merge"))
        await self.settle()

    async def settle(self) -> None:
        """Wait a second: virtual time passes only when every task waits, so all caches know of all writes after it."""
        await self.clock.sleep(1)

    async def reported(self, times: int = 1) -> None:
        """Wait until every node has reported again."""
        await self.clock.sleep(times * REPORT_S + 1)

    async def lent(self, node: str) -> dict[str, str]:
        """Return the node's allocatable without what a kubelet states."""
        listed = ok(await self.client.get(NODES, node)).status.allocatable
        return {name: str(amount) for name, amount in listed.items() if name.startswith("kubernetes.io/")}

    async def pod(self, name: str, namespace: str = "default") -> Pod | None:
        found = await self.client.get(PODS, name, namespace)
        return None if isinstance(found, Refused) else found

    async def placed(self, name: str, namespace: str = "default") -> str:
        """Return the pod's node; empty while it waits."""
        found = await self.pod(name, namespace)
        assert found is not None, f"no pod {name}"
        return found.spec.node_name


def travel(main: Callable[[Journey], Awaitable[None]], *pools: Pool, switches: str = "", seed: int = 1) -> None:
    """Run `main` on such a cluster; `switches` are feature gates of koord-manager."""
    switched = gates.parse(switches, MANAGER)
    assert isinstance(switched, dict)

    async def run(clock: LoopClock) -> None:
        made: dict[str, Any] = {}

        def fleet(c: Context) -> Fleet:
            made["fleet"] = Fleet(c.client, c.informers, c.clock, c.seed, pools, FleetSettings(reports=True))
            return made["fleet"]  # type: ignore[no-any-return]

        def manager(c: Context) -> LocalManager:
            made["manager"] = LocalManager(c, ManagerSettings(gates=switched))
            return made["manager"]  # type: ignore[no-any-return]

        cluster = Cluster(
            Settings(http=False, seed=seed),
            [
                ("workloads", lambda c: Workloads(c.client, c.informers, c.clock, c.seed)),
                ("nodes", fleet),
                ("manager", manager),
                ("scheduler", local_scheduler.make),
            ],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        try:
            await main(Journey(clock, cluster.client, made["fleet"], made["manager"]))
        finally:
            await cluster.stop()

    run_virtual(run)


def pod(
    name: str,
    requests: Mapping[str, str],
    *,
    uses: Mapping[str, object] | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = "default",
    **spec: Any,
) -> dict[str, Any]:
    """Make a pod; `uses` is the model of its usage; what it requests is its limit as well."""
    annotations = {} if uses is None else {"sim.koord.sh/usage": json.dumps({"model": "constant", **uses})}
    amounts = {"requests": dict(requests), "limits": dict(requests)}
    container = {"name": "app", "image": "nginx:1.15.1", "resources": amounts}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {}), "annotations": annotations},
        "spec": {"containers": [container], **spec},
    }


def batch_pod(name: str, cpu_milli: int, memory: str = "1Gi", **rest: Any) -> dict[str, Any]:
    """Make a pod as a user writes it who knows of batch resources."""
    requests = {BATCH_CPU: str(cpu_milli), BATCH_MEMORY: memory}
    labels = {"koordinator.sh/qosClass": "BE"}
    made = pod(name, requests, labels=labels, priorityClassName="koord-batch", **rest)
    made["spec"].setdefault("schedulerName", "koord-scheduler")
    return made
