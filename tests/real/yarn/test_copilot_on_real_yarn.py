"""koord-yarn-copilot and koordlet beside Hadoop's own NodeManager: an application with a master and tasks runs in the
cgroups of best-effort work, keeps what it has within YARN's timeout, and loses what the copilot or koordlet kill.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.kubernetes.builtin_kinds import NODES
from koord.cli.commands.evictions import explain_eviction
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.host.cgroup import usage
from koord.host.filesystem import Host
from koord.koordlet.agent import Koordlet
from koord.koordlet.feature_gates import default_gates
from koord.koordlet.inputs.kubelet_client import PodSourceSettings
from koord.koordlet.inputs.yarn_containers import YarnCopilotSettings
from koord.koordlet.reporters.node_metric_reporter import PredictorSettings
from koord.koordlet.series import metric_kind
from koord.koordlet.settings import AuditSettings, KoordletSettings
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import WallClock
from koord.wire.yarn_copilot import is_application_master
from koord.yarn.operator import OperatorSettings
from tests.real.yarn.real_yarn import needs_yarn
from tests.real.yarn.yarn_node import (
    GROUP,
    KUBEPODS,
    MASTER_MB,
    TASK_MB,
    Copilot,
    YarnNode,
    eventually,
    needs_cgroups,
    tree,
    yarn_node,
)
from tests.yarn.operator_site import operating, operator_site

pytestmark = [pytest.mark.real, needs_yarn(), needs_cgroups(), pytest.mark.asyncio(loop_scope="module")]
TASKS = 4
TIMEOUT_S = 8.0
EATEN_MB = 1000
NODE = "n1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[YarnNode, Copilot]]:
    async with yarn_node(tmp_path_factory.mktemp("yarn"), TASKS) as (yarn, copilot):

        async def runs() -> bool:
            return len(await copilot.names()) == 1 + TASKS

        await eventually(runs, lambda: f"{yarn.log('nm')}\n{yarn.log('master')}\n{copilot.log.read_text()}")
        yield yarn, copilot


async def tasks_of(copilot: Copilot) -> list[str]:
    return [name for name in await copilot.names() if not is_application_master(name)]


async def test_containers_run_in_the_groups_of_best_effort_work(node: tuple[YarnNode, Copilot]) -> None:
    _, copilot = node
    names = await copilot.names()
    assert sum(map(is_application_master, names)) == 1
    status, listed = await copilot.call("GET", "/v1/containers")
    assert status == 200
    assert {one["cgroupDir"] for one in listed} == {f"{GROUP}/{name}" for name in names}
    for one in listed:
        memory = str((MASTER_MB if is_application_master(one["name"]) else TASK_MB) * 2**20)
        assert one["resources"]["requests"] == {"cpu": "1", "memory": memory}
        assert tree().value("memory.limit_in_bytes", one["cgroupDir"]) == memory  # by the NodeManager


async def test_the_copilot_kills_one_container_and_no_other(node: tuple[YarnNode, Copilot]) -> None:
    yarn, copilot = node
    before = await copilot.names()
    victim = (await tasks_of(copilot))[0]
    status, answer = await copilot.call("POST", "/v1/killContainer", {"containerID": victim})
    assert (status, [one["name"] for one in answer["items"]]) == (200, [victim])
    pids = usage.processes_below(tree(), f"{GROUP}/{victim}")
    assert not isinstance(pids, list) or pids == []

    async def is_seen() -> bool:
        return yarn.exit_code(victim) == "137" or victim not in await copilot.names()

    await eventually(is_seen, lambda: yarn.log("nm"))
    assert set(before) - {victim} <= set(await copilot.names())


async def test_when_less_is_lent_containers_stay_for_the_timeout_and_only_what_is_over_goes(
    node: tuple[YarnNode, Copilot],
) -> None:
    yarn, copilot = node
    settings = OperatorSettings(
        interval_s=0.5, longest_wait_s=1.0, absence_grace_s=2.0, over_commit_timeout_ms=int(TIMEOUT_S * 1000)
    )
    before = await copilot.names()
    assert len(before) == TASKS  # the master, and all tasks but the one that was killed
    async with operator_site() as site:
        await site.add_node(NODE, 8000, "2Gi")
        await site.add_pod("nm", NODE, node_id=str(yarn.node_id))
        async with operating(site, yarn.cluster, settings=settings, user="root"):
            await asyncio.sleep(2 * settings.interval_s)
            lent_mb = MASTER_MB + (len(before) - 2) * TASK_MB + 10  # one task is over
            await site.lend(NODE, 8000, f"{lent_mb}Mi")
            begun_s = time.monotonic()

            async def is_told() -> bool:
                report = await yarn.report()
                return report is not None and report.capability is not None and report.capability.memory_mib == lent_mb

            await eventually(is_told, lambda: yarn.log("rm1"))
            told_s = time.monotonic()
            while time.monotonic() - begun_s < TIMEOUT_S - 2.0:
                assert await copilot.names() == before
                await asyncio.sleep(0.5)

            async def is_within() -> bool:
                return len(await copilot.names()) < len(before)

            await eventually(is_within, lambda: yarn.log("rm1"))
            assert time.monotonic() - told_s > TIMEOUT_S - 3.0
            await asyncio.sleep(3.0)  # nothing more goes
            left = await copilot.names()
            assert len(left) == len(before) - 1
            assert any(map(is_application_master, left))
            await site.lend(NODE, 8000, "2Gi")


async def test_koordlet_counts_them_and_evicts_the_largest(node: tuple[YarnNode, Copilot], tmp_path: Path) -> None:
    yarn, copilot = node
    victim, *others = await tasks_of(copilot)
    # The NodeManager's limit would have the kernel kill it first.
    assert tree().host.write(f"{tree().group_path('memory', f'{GROUP}/{victim}')}/memory.limit_in_bytes", "-1") is None
    (yarn.memory_folder / victim).write_text(str(EATEN_MB))
    clock = WallClock()
    async with EmbeddedClusterNode(clock) as cluster:
        agent = Koordlet(cluster.client, cluster.informers, clock, _settings(copilot, tmp_path), Host.local())
        await agent.start()
        try:
            # Each has a collector of its own, with its own period.
            async def is_measured() -> bool:
                now_s = clock.time()
                held = agent.store.latest((metric_kind.THIRD_PARTY_MEMORY, victim), now_s)
                application = agent.store.latest((metric_kind.APPLICATION_MEMORY, "yarn-task"), now_s)
                requested = agent.store.latest((metric_kind.NODE_BE, metric_kind.BE_REQUEST), now_s)
                is_held = held is not None and held > 0.9 * EATEN_MB * 2**20
                return is_held and application is not None and requested == 1000 * (2 + len(others))

            await eventually(is_measured, lambda: str(agent.state()))
            await cluster.evict_at_present_use()

            async def is_recorded() -> bool:
                return bool(agent.ledger.records())

            await eventually(is_recorded, lambda: str(agent.control_loop and agent.control_loop.strategy_statuses()))
            (record,) = agent.ledger.records()
            assert (record.key, record.outcome, record.rule) == (f"yarn/{victim}", "evicted", "BEMemoryEvict")
            assert set(others) <= set(await copilot.names())
            assert victim not in await copilot.names()

            async def is_explained() -> bool:
                told = await explain_eviction(cluster.client, "yarn", victim, "koordinator-system", 9316)
                return list(told.records) == [record]

            await eventually(is_explained, lambda: "no Event tells of it")
        finally:
            await agent.stop()


def _settings(copilot: Copilot, folder: Path) -> KoordletSettings:
    return KoordletSettings(
        node=NODE,
        gates=(default_gates() - {"RdtResctrl"}) | {"BEMemoryEvict"},
        state_dir=str(folder / "state"),
        address=None,
        kubepods=KUBEPODS,
        audit=AuditSettings(folder=str(folder / "audit")),
        pods=PodSourceSettings(source="apiserver"),
        prediction=PredictorSettings(folder=str(folder / "prediction")),
        yarn=YarnCopilotSettings(endpoint=copilot.socket, interval_s=1.0),
    )


class EmbeddedClusterNode:
    """An API server in this process with this machine as its node."""

    def __init__(self, clock: WallClock) -> None:
        self._cluster = EmbeddedCluster(ClusterSettings(http=False), clock=clock)

    async def __aenter__(self) -> EmbeddedClusterNode:
        await self._cluster.start()
        assert self._cluster.client is not None
        assert self._cluster.informers is not None
        self.client, self.informers = self._cluster.client, self._cluster.informers
        self.informers.start()
        amounts = {"cpu": "2", "memory": str(_total_bytes()), "pods": "110"}
        unwrap(await self.client.create(NODES, {"metadata": {"name": NODE}}))
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        unwrap(await self.client.patch(NODES, NODE, status, kind="merge", subresource="status"))
        unwrap(await self.client.create(NODE_METRICS, {"metadata": {"name": NODE}, "spec": {}}))
        await self._order({"enable": True, "memoryEvictThresholdPercent": 99})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cluster.stop()

    async def evict_at_present_use(self) -> None:
        """Order the node to free about two percent of its memory."""
        percent = max(1, 100 * (_total_bytes() - _meminfo("MemAvailable")) // _total_bytes() - 1)
        await self._order(
            {"enable": True, "memoryEvictThresholdPercent": percent, "memoryEvictLowerPercent": percent - 1}
        )

    async def _order(self, threshold: dict[str, Any]) -> None:
        body = {
            "apiVersion": "slo.koordinator.sh/v1alpha1",
            "kind": "NodeSLO",
            "metadata": {"name": NODE},
            "spec": {"resourceUsedThresholdWithBE": threshold},
        }
        unwrap(await self.client.apply(NODE_SLOS, body, field_manager="test", force=True))


def _total_bytes() -> int:
    return _meminfo("MemTotal")


def _meminfo(name: str) -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
