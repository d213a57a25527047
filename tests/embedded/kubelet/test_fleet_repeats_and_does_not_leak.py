"""Many nodes and pods over a long time: nothing leaks, and a seed makes the run repeatable."""

from __future__ import annotations

import random

import pytest

from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.pod import Pod
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.informer.cache import ObjectChange
from koord.kube.transport.api_error import ApiError, unwrap
from tests.embedded.kubelet.fleet_harness import Sim, pod, simulate


async def churn(sim: Sim, *, nodes: int, pods: int, minutes: int, seed: int) -> None:
    """Services and jobs arrive evenly, services leave after a while, nodes fail and heal."""
    rng = random.Random(seed)
    leaving: list[tuple[int, str]] = []
    for minute in range(minutes):
        for number in range(pods // minutes):
            name, node = f"p-{minute}-{number}", f"n-{rng.randrange(nodes)}"
            if rng.random() < 0.5:
                says = {"run-seconds": rng.randrange(5, 300), "exit-code": int(rng.random() < 0.1)}
                await sim.put(pod(name, node, says=says, restartPolicy="Never"))
            else:
                await sim.put(pod(name, node))
            leaving.append((minute + rng.randrange(1, 10), name))
        node = f"n-{rng.randrange(nodes)}"
        if minute % 3 == 0:
            sim.fleet.fail_node(node, rng.choice(["machine", "kubelet", "partition"]))
        else:
            for failed in [host.name for host in sim.fleet.hosts.values() if host.failure]:
                sim.fleet.heal_node(failed)
        for _, name in [pair for pair in leaving if pair[0] <= minute]:
            gone = await sim.client.delete(PODS, name, "default")
            assert not isinstance(gone, ApiError) or gone.not_found
        leaving = [pair for pair in leaving if pair[0] > minute]
        await sim.clock.sleep(60)
    for host in sim.fleet.hosts.values():
        sim.fleet.heal_node(host.name)
    for _, name in leaving:
        await sim.client.delete(PODS, name, "default")
    await sim.clock.sleep(120)


def test_two_thousand_pods_come_and_go_on_two_hundred_nodes() -> None:
    async def story(sim: Sim) -> None:
        await churn(sim, nodes=200, pods=2000, minutes=60, seed=3)
        assert unwrap(await sim.client.list(PODS, "default")).items == ()
        assert len(unwrap(await sim.client.list(NODES)).items) == 200
        for host in sim.fleet.hosts.values():
            assert not host.sim_pods
            assert not host.ports
            assert set(host.used.values()) <= {0}

    simulate(story, [SimulatedPool(name="n", count=200)])


def history(seed: int) -> list[str]:
    seen: list[str] = []

    async def story(sim: Sim) -> None:
        def note(change: ObjectChange[Pod]) -> None:
            found = change.object
            seen.append(f"{sim.clock.time()} {change.kind} {found.metadata.name} {found.metadata.uid} {found.status}")

        sim.informers.for_resource(PODS).add_event_handler(note)
        await churn(sim, nodes=20, pods=200, minutes=10, seed=3)

    simulate(story, [SimulatedPool(name="n", count=20)], seed=seed)
    return seen


def test_one_seed_gives_one_history() -> None:
    first = history(1)
    assert len(first) > 1000
    assert first == history(1)


def test_another_seed_gives_another_history() -> None:
    assert history(1) != history(2)


@pytest.mark.parametrize("how", ["machine", "kubelet", "partition"])
def test_pods_bound_to_a_node_that_is_down_wait_for_it(how: str) -> None:
    async def story(sim: Sim) -> None:
        sim.fleet.fail_node("n-0", how)  # type: ignore[arg-type]
        for number in range(20):
            await sim.put(pod(f"p{number}"))
        await sim.clock.sleep(600)
        sim.fleet.heal_node("n-0")
        await sim.clock.sleep(10)
        assert {found.status.phase for found in unwrap(await sim.client.list(PODS, "default")).items} == {"Running"}

    simulate(story, [SimulatedPool(name="n", count=1)])
