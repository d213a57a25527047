"""This module runs a co-locating cluster in this process and in virtual time: reporting nodes, manager,
scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from koord.api.config import gates
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, NODES, PODS
from koord.api.kubernetes.pod import Pod
from koord.cli.up import local_scheduler
from koord.cli.up.local_manager import LocalManager
from koord.embedded.cluster import ClusterSettings, ComponentContext, EmbeddedCluster
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import NAMESPACE, ManagerSettings
from koord.telemetry.clock import LoopClock, run_virtual

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
MID_CPU, MID_MEMORY = "kubernetes.io/mid-cpu", "kubernetes.io/mid-memory"
CONFIG = "slo-controller-config"
REPORT_S = 60.0  # how often nodes report, unless configured otherwise


class ColocationCluster(msgspec.Struct, frozen=True):
    clock: LoopClock
    client: Client
    fleet: SimulatedFleet
    manager: LocalManager

    async def configure(self, **documents: Any) -> None:
        """Write documents of slo-controller-config; underscores in their names stand for dashes."""
        data = {
            key.replace("_", "-"): value if isinstance(value, str) else json.dumps(value)
            for key, value in documents.items()
        }
        unwrap(await self.client.patch(CONFIG_MAPS, CONFIG, {"data": data}, NAMESPACE, kind="merge"))
        await self.settle()

    async def settle(self) -> None:
        """Wait a second: virtual time passes only when every task waits, so all caches know of all writes after it."""
        await self.clock.sleep(1)

    async def wait_for_reports(self, times: int = 1) -> None:
        """Wait until every node has reported again."""
        await self.clock.sleep(times * REPORT_S + 1)

    async def lent_resources(self, node: str) -> dict[str, str]:
        """Return the node's allocatable without what a kubelet states."""
        listed = unwrap(await self.client.get(NODES, node)).status.allocatable
        return {name: str(amount) for name, amount in listed.items() if name.startswith("kubernetes.io/")}

    async def pod(self, name: str, namespace: str = "default") -> Pod | None:
        found = await self.client.get(PODS, name, namespace)
        return None if isinstance(found, ApiError) else found

    async def node_of_pod(self, name: str, namespace: str = "default") -> str:
        """Return the pod's node; empty while it waits."""
        found = await self.pod(name, namespace)
        assert found is not None, f"no pod {name}"
        return found.spec.node_name


def run_on_colocation_cluster(
    main: Callable[[ColocationCluster], Awaitable[None]],
    *pools: SimulatedPool,
    switches: str = "",
    settings: ManagerSettings | None = None,
    seed: int = 1,
) -> None:
    """Run `main` on such a cluster; `switches` are feature gates of koord-manager, `settings` all of its settings."""
    switched = gates.parse_feature_gates(switches, MANAGER_GATES)
    assert isinstance(switched, dict)

    async def run(clock: LoopClock) -> None:
        made: dict[str, Any] = {}

        def fleet(c: ComponentContext) -> SimulatedFleet:
            made["fleet"] = SimulatedFleet(
                c.client, c.informers, c.clock, c.seed, pools, FleetSettings(reports_node_metrics=True)
            )
            return made["fleet"]  # type: ignore[no-any-return]

        def manager(c: ComponentContext) -> LocalManager:
            made["manager"] = LocalManager(c, settings or ManagerSettings(gates=switched))
            return made["manager"]  # type: ignore[no-any-return]

        cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=seed),
            [
                ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
                ("nodes", fleet),
                ("manager", manager),
                ("scheduler", local_scheduler.make_scheduler),
            ],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        try:
            await main(ColocationCluster(clock, cluster.client, made["fleet"], made["manager"]))
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
