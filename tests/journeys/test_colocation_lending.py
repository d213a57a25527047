"""From the load that a node reports to a batch pod that runs in the gap, and back when the services need it."""

from __future__ import annotations

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, PODS
from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.kube.transport.api_error import unwrap
from tests.journeys.colocation_cluster import (
    BATCH_CPU,
    BATCH_MEMORY,
    MID_CPU,
    MID_MEMORY,
    ColocationCluster,
    batch_pod,
    pod,
    run_on_colocation_cluster,
)

# 100 CPUs and 128 GiB, of which the system uses 7 CPUs and 12 GiB. Without reservation, so that the sums are short.
LARGE = SimulatedPool(name="n", count=1, cpu=100, memory="128Gi", system=SystemDaemonUsage(cpu=7, memory="12Gi"))
GI = 1 << 30


async def steady(j: ColocationCluster) -> None:
    """A service of 40 CPUs that uses 26, and the thresholds of the examples."""
    await j.configure(
        colocation_config={"enable": True, "cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65}
    )
    service = pod("service", {"cpu": "40", "memory": "40Gi"}, uses={"cpu": "26", "memory": "21Gi"})
    unwrap(await j.client.create(PODS, service))
    await j.wait_for_reports(2)


def test_a_node_lends_what_services_leave() -> None:
    async def journey(j: ColocationCluster) -> None:
        await steady(j)
        lent = await j.lent_resources("n-0")
        assert lent[BATCH_CPU] == "32k"  # 100000 - 35000 - 7000 - 26000
        # 128 - 44.8 - 12 - 21 GiB; the margin is cut to whole bytes
        assert int(lent[BATCH_MEMORY]) == 128 * GI - int(128 * GI * 0.35) - 33 * GI
        # Of the 40 CPUs asked for, 26 used and a tenth on top are expected; 11.4 are left.
        assert lent[MID_CPU] == "11400"
        assert int(lent[MID_MEMORY]) == 40 * GI - 21 * GI * 110 // 100

    run_on_colocation_cluster(journey, LARGE)


def test_a_batch_pod_lives_in_the_gap_and_does_not_shrink_it() -> None:
    async def journey(j: ColocationCluster) -> None:
        await steady(j)
        unwrap(await j.client.create(PODS, batch_pod("job", 30_000, uses={"cpu": "25", "memory": "1Gi"})))
        unwrap(await j.client.create(PODS, batch_pod("late", 10_000)))
        await j.settle()
        assert await j.node_of_pod("job") == "n-0"
        assert await j.node_of_pod("late") == ""  # 2000m are left of 32000m
        before = await j.lent_resources("n-0")
        await j.wait_for_reports(2)
        assert await j.lent_resources("n-0") == before

        unwrap(await j.client.delete(PODS, "job", "default"))
        await j.wait_for_reports()
        assert await j.node_of_pod("late") == "n-0"

    run_on_colocation_cluster(journey, LARGE)


def test_more_load_takes_back_what_was_lent() -> None:
    async def journey(j: ColocationCluster) -> None:
        await steady(j)
        busy = {
            "metadata": {"annotations": {"sim.koord.sh/usage": '{"cpu": "40", "memory": "21Gi", "model": "constant"}'}}
        }
        unwrap(await j.client.patch(PODS, "service", busy, "default", kind="merge"))
        await j.wait_for_reports()
        assert (await j.lent_resources("n-0"))[BATCH_CPU] == "18k"

        (latest, *_) = j.manager.manager.controllers[1].history.changes_of("n-0")  # type: ignore[attr-defined]
        moved = {one.term: one.after - one.before for one in latest.moved if one.resource == BATCH_CPU}
        assert moved == {"used by prod and mid pods": 14_000}

    run_on_colocation_cluster(journey, LARGE)


def test_a_silent_node_lends_nothing_and_says_so_once() -> None:
    async def journey(j: ColocationCluster) -> None:
        await steady(j)
        j.fleet.fail_node("n-0", "partition")
        await j.clock.sleep(14 * 60)
        assert BATCH_CPU in await j.lent_resources("n-0")
        await j.clock.sleep(3 * 60)
        assert await j.lent_resources("n-0") == {}

        j.fleet.heal_node("n-0")
        await j.wait_for_reports(2)
        assert (await j.lent_resources("n-0"))[BATCH_CPU] == "32k"
        told = [e.reason for e in unwrap(await j.client.list(CORE_EVENTS)).items if e.reason.startswith("NodeMetric")]
        assert told == ["NodeMetricAbnormal", "NodeMetricRestored"]

    run_on_colocation_cluster(journey, LARGE)


def test_switched_off_everything_goes() -> None:
    async def journey(j: ColocationCluster) -> None:
        await steady(j)
        await j.configure(colocation_config={"enable": False})
        assert await j.lent_resources("n-0") == {}

    run_on_colocation_cluster(journey, LARGE)


def test_a_node_that_is_not_to_lend() -> None:
    async def journey(j: ColocationCluster) -> None:
        off = {"name": "quiet", "nodeSelector": {"matchLabels": {"quiet": "true"}}, "enable": False}
        await j.configure(colocation_config={"enable": True, "nodeConfigs": [off]})
        await j.wait_for_reports()
        assert BATCH_CPU in await j.lent_resources("n-0")
        assert await j.lent_resources("q-0") == {}

    run_on_colocation_cluster(journey, LARGE, SimulatedPool(name="q", count=1, labels={"quiet": "true"}))
