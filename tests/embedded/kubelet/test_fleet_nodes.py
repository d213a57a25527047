"""Nodes register, send heartbeats, fail, heal, come and go."""

from __future__ import annotations

from koord.api.kubernetes.builtin_kinds import LEASES, NODES, PODS
from koord.api.kubernetes.node import Node
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.transport.api_error import ApiError, unwrap
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.kubelet.fleet_harness import SMALL, Sim, pod, simulate, simulation


def condition(node: Node, type: str) -> str:
    return next(c.status for c in node.status.conditions if c.type == type)


async def renewed(sim: Sim, node: str) -> float:
    lease = unwrap(await sim.client.get(LEASES, node, "kube-node-lease"))
    assert lease.spec.renew_time is not None
    return sim.clock.time() - lease.spec.renew_time.timestamp()


def test_node_is_registered_as_a_kubelet_would() -> None:
    async def story(sim: Sim) -> None:
        node = await sim.node("n-1")
        assert node.status.capacity["cpu"] == "4"
        assert node.status.allocatable["memory"] == "8092Mi"  # less the eviction threshold
        assert node.metadata.labels["kubernetes.io/hostname"] == "n-1"
        assert [address.address for address in node.status.addresses] == ["172.16.0.2", "n-1"]
        assert condition(node, "Ready") == "True"
        assert node.spec.pod_cidr == "10.0.1.0/24"
        lease = unwrap(await sim.client.get(LEASES, "n-1", "kube-node-lease"))
        assert lease.spec.holder_identity == "n-1"
        assert lease.metadata.owner_references[0].uid == node.metadata.uid

    simulate(story)


def test_every_lease_is_renewed_within_its_period() -> None:
    async def story(sim: Sim) -> None:
        for _ in range(20):
            await sim.clock.sleep(7)
            assert max([await renewed(sim, f"n-{number}") for number in range(30)]) <= 10.5

    simulate(story, [SimulatedPool(name="n", count=30)])


def test_node_status_is_repeated_every_five_minutes() -> None:
    async def story(sim: Sim) -> None:
        await sim.clock.sleep(1000)
        for number in range(30):
            beat = (await sim.node(f"n-{number}")).status.conditions[0].last_heartbeat_time
            assert beat is not None
            assert sim.clock.time() - beat.timestamp() <= 311

    simulate(story, [SimulatedPool(name="n", count=30)])


def test_lost_lease_is_made_again() -> None:
    async def story(sim: Sim) -> None:
        unwrap(await sim.client.delete(LEASES, "n-0", "kube-node-lease"))
        await sim.clock.sleep(15)
        assert await renewed(sim, "n-0") <= 10.5

    simulate(story)


def test_failed_node_falls_silent_and_its_pods_with_it() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("before", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        sim.fleet.fail_node("n-0")
        await sim.put(pod("after", says={"start-seconds": 0}))
        unwrap(await sim.client.delete(PODS, "before", "default"))
        await sim.clock.sleep(120)
        assert await renewed(sim, "n-0") > 110
        assert (await sim.shown("after")).status.start_time is None
        assert await sim.pod("before") is not None
        assert await renewed(sim, "n-1") <= 10.5
        sim.fleet.heal_node("n-0")
        await sim.clock.sleep(20)
        assert await renewed(sim, "n-0") <= 10.5
        assert (await sim.shown("after")).status.phase == "Running"
        assert await sim.pod("before") is None

    simulate(story)


def test_crash_restarts_containers_and_partition_does_not() -> None:
    async def story(sim: Sim) -> None:
        for number in (0, 1):
            await sim.put(pod(f"p{number}", node=f"n-{number}", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        sim.fleet.fail_node("n-0", "machine")
        sim.fleet.fail_node("n-1", "partition")
        await sim.clock.sleep(60)
        for node in ("n-0", "n-1"):
            sim.fleet.heal_node(node)
        await sim.clock.sleep(5)
        crashed, parted = await sim.shown("p0"), await sim.shown("p1")
        assert crashed.status.container_statuses[0].restart_count == 1
        end = crashed.status.container_statuses[0].last_state.terminated
        assert end is not None
        assert end.exit_code == 255
        assert parted.status.container_statuses[0].restart_count == 0

    simulate(story)


def test_work_goes_on_during_a_partition() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("job", says={"start-seconds": 0, "run-seconds": 30}, restartPolicy="Never"))
        await sim.clock.sleep(1)
        sim.fleet.fail_node("n-0", "partition")
        await sim.clock.sleep(100)
        assert (await sim.shown("job")).status.phase == "Running"
        sim.fleet.heal_node("n-0")
        await sim.clock.sleep(1)
        end = (await sim.shown("job")).status.container_statuses[0].state.terminated
        assert end is not None
        assert end.started_at is not None
        assert end.finished_at is not None
        assert (end.finished_at - end.started_at).total_seconds() == 30

    simulate(story)


def test_pod_removed_during_a_partition_is_stopped_when_it_ends() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("web", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        sim.fleet.fail_node("n-0", "partition")
        unwrap(await sim.client.delete(PODS, "web", "default", grace_seconds=0))
        await sim.clock.sleep(5)
        assert sim.fleet.hosts["n-0"].used["pods"] == 1  # it runs on, unknown to the server
        sim.fleet.heal_node("n-0")
        await sim.clock.sleep(1)
        assert sim.fleet.hosts["n-0"].used["pods"] == 0

    simulate(story)


def test_node_condition_and_pod_readiness_are_put_right_after_a_heal() -> None:
    """A node controller declares what it cannot hear: nodes Unknown, pods not ready."""

    async def story(sim: Sim) -> None:
        await sim.put(pod("web", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        sim.fleet.fail_node("n-0", "partition")
        unknown = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
        unwrap(await sim.client.patch(NODES, "n-0", unknown, kind="strategic", subresource="status"))
        unready = {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "NodeNotReady"}]}}
        unwrap(await sim.client.patch(PODS, "web", unready, "default", kind="strategic", subresource="status"))
        await sim.clock.sleep(60)
        assert condition(await sim.node("n-0"), "Ready") == "Unknown"
        sim.fleet.heal_node("n-0")
        await sim.clock.sleep(2)
        assert condition(await sim.node("n-0"), "Ready") == "True"
        ready = next(c for c in (await sim.shown("web")).status.conditions if c.type == "Ready")
        assert (ready.status, ready.reason) == ("True", "")

    simulate(story)


def test_kubelet_restart_disturbs_nothing() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("web", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        before = await sim.shown("web")
        await sim.fleet.restart_kubelet("n-0")
        await sim.clock.sleep(30)
        assert (await sim.shown("web")).metadata.resource_version == before.metadata.resource_version
        assert await renewed(sim, "n-0") <= 10.5

    simulate(story)


def test_pressure_comes_and_goes() -> None:
    async def story(sim: Sim) -> None:
        sim.fleet.set_pressure("n-0", "MemoryPressure")
        await sim.clock.sleep(1)
        assert condition(await sim.node("n-0"), "MemoryPressure") == "True"
        sim.fleet.set_pressure("n-0", "MemoryPressure", on=False)
        await sim.clock.sleep(1)
        assert condition(await sim.node("n-0"), "MemoryPressure") == "False"

    simulate(story)


def test_nodes_are_added_and_removed_while_pods_run() -> None:
    async def story(sim: Sim) -> None:
        await sim.put(pod("early", node="extra-0", says={"start-seconds": 0}))
        await sim.clock.sleep(1)
        assert await sim.fleet.add_pool(SimulatedPool(name="extra", count=1)) == ["extra-0"]
        assert await sim.fleet.add_pool(SimulatedPool(name="extra", count=1)) == ["extra-1"]
        await sim.clock.sleep(1)
        assert (await sim.shown("early")).status.phase == "Running"
        await sim.fleet.remove_node("extra-0")
        assert isinstance(await sim.client.get(NODES, "extra-0"), ApiError)
        assert isinstance(await sim.client.get(LEASES, "extra-0", "kube-node-lease"), ApiError)
        await sim.clock.sleep(30)
        assert isinstance(await sim.client.get(LEASES, "extra-0", "kube-node-lease"), ApiError)

    simulate(story)


def test_deleted_node_does_not_come_back_by_itself() -> None:
    async def story(sim: Sim) -> None:
        unwrap(await sim.client.delete(NODES, "n-0"))
        await sim.clock.sleep(600)
        assert isinstance(await sim.client.get(NODES, "n-0"), ApiError)

    simulate(story)


def test_next_fleet_takes_over_nodes_and_running_pods() -> None:
    async def main(clock: LoopClock) -> None:
        async with simulation(clock) as first:
            await first.put(pod("web", says={"start-seconds": 0}))
            await first.put(pod("job", says={"start-seconds": 0, "run-seconds": 60}, restartPolicy="Never"))
            await first.put(pod("slow", says={"start-seconds": 500}))
            await clock.sleep(10)
            before = await first.shown("web")
            await first.fleet.stop()
            async with simulation(clock, server=first.server) as second:
                await clock.sleep(10)
                after = await second.shown("web")
                assert after.metadata.resource_version == before.metadata.resource_version
                assert second.fleet.hosts["n-0"].used["pods"] == 3
                assert await renewed(second, "n-0") <= 10.5
                await second.put(pod("new", says={"start-seconds": 0}))
                await clock.sleep(60)
                assert (await second.shown("job")).status.phase == "Succeeded"
                assert (await second.shown("slow")).status.phase == "Running"
                addresses = {(await second.shown(name)).status.pod_ip for name in ("web", "slow", "new")}
                assert len(addresses) == 3

    run_virtual(main)


def test_silence_of_a_stopped_fleet_is_complete() -> None:
    async def main(clock: LoopClock) -> None:
        async with simulation(clock, (SMALL,)) as sim:
            await sim.clock.sleep(5)
            await sim.fleet.stop()
            revision = sim.server.store.revision
            await sim.clock.sleep(600)
            assert sim.server.store.revision == revision

    run_virtual(main)
