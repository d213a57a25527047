"""Random histories of pods, nodes and failing requests end with the scheduler holding what the server shows."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.api.kubernetes.builtin_kinds import NODES, PODS, PRIORITY_CLASSES
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import WRITES, FaultyCluster, RequestFate, faulty_cluster

FATES: tuple[RequestFate, ...] = ("lost", "lost-after", "409", "429", "500", "500-after", "503")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(0, 11), st.sampled_from(["500m", "1", "2", "9"]), st.integers(0, 2)),
        st.tuples(st.just("unpod"), st.integers(0, 11)),
        st.tuples(st.just("finish"), st.integers(0, 11)),
        st.tuples(st.just("node"), st.integers(0, 3)),
        st.tuples(st.just("unnode"), st.integers(0, 3)),
        st.tuples(st.just("cordon"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("fate"), st.sampled_from(FATES), st.integers(1, 6)),
        st.tuples(st.just("cut"), st.booleans()),
        st.tuples(st.just("break")),
        st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.01, 1.0, 20.0])),
    ),
    max_size=40,
)


async def act(world: FaultyCluster, step: tuple[Any, ...]) -> None:
    client = world.client
    match step:
        case ("pod", n, cpu, rank):
            container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
            spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 0}
            if rank:
                spec["priorityClassName"] = f"rank-{rank}"
            body: dict[str, Any] = {"metadata": {"name": f"p{n}", "namespace": "default"}, "spec": spec}
            await client.create(PODS, body)
        case ("unpod", n):
            await world.remove_pod(f"p{n}")
        case ("finish", n):
            patch = {"status": {"phase": "Succeeded"}}
            seen = await client.get(PODS, f"p{n}", "default")
            if not isinstance(seen, ApiError) and seen.spec.node_name:
                await client.patch(PODS, f"p{n}", patch, "default", kind="merge", subresource="status")
        case ("node", n):
            room = {"cpu": "4", "memory": "16Gi", "pods": "110"}
            body = {"metadata": {"name": f"n{n}"}, "status": {"allocatable": room, "capacity": room}}
            await client.create(NODES, body)
        case ("unnode", n):
            await client.delete(NODES, f"n{n}")
        case ("cordon", n, on):
            await client.patch(NODES, f"n{n}", {"spec": {"unschedulable": on}}, kind="merge")
        case ("fate", fate, times):
            left = times

            def fail(request: ApiRequest) -> RequestFate:
                nonlocal left
                if request.method in WRITES and left:
                    left -= 1
                    return fate  # type: ignore[no-any-return]
                return "well"

            world.wire.fate = fail
        case ("cut", on):
            world.wire.cut = on
            if on:
                await world.wire.break_watches()
        case ("break",):
            await world.wire.break_watches()
        case ("sleep", seconds):
            await world.clock.sleep(seconds)


async def check(world: FaultyCluster) -> None:
    """Check as for one binding, but pods that ended hold nothing and nodes may be gone under their pods."""
    live = {}
    for pod in (await world.client.list(PODS)).items:  # type: ignore[union-attr]
        live[pod.metadata.uid] = pod
    assert not {uid: nodes for uid, nodes in world.nodes_of.items() if len(nodes) > 1}
    state, queue = world.scheduler.state, world.scheduler.queue
    assert world.scheduler.binder.in_progress == 0
    assert not [p for p in state.pods() if state.is_assumed(p.uid)]
    running = {uid: p for uid, p in live.items() if p.status.phase not in ("Succeeded", "Failed")}
    assert {p.uid: p.node_name for p in state.pods()} == {
        uid: p.spec.node_name for uid, p in running.items() if p.spec.node_name
    }
    assert {q.uid for q in queue.pods()} == {uid for uid, p in running.items() if not p.spec.node_name}
    assert not len(world.scheduler.waiting_pods)
    fits = [p for p in running.values() if not p.spec.node_name]
    assert all(any(c.status == "False" for c in p.status.conditions if c.type == "PodScheduled") for p in fits)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_every_story_ends_in_the_servers_truth(story: list[tuple[Any, ...]]) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            for rank in (1, 2):
                body = {"metadata": {"name": f"rank-{rank}"}, "value": 1000 * rank}
                await world.client.create(PRIORITY_CLASSES, body)
            await act(world, ("node", 0))
            for step in story:
                await act(world, step)
            world.wire.cut = False
            world.wire.fate = lambda _: "well"
            await world.settle(700)
            await check(world)

    run_virtual(main)
