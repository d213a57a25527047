"""This module is the stories of `koord up --demo`: what is created, what is read back, and what must hold then."""

from __future__ import annotations

import json
from typing import Any

from koord.api.koordinator import protocol
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS, POD_GROUPS, POD_MIGRATION_JOBS
from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, PODS
from koord.cli.up.demo_story import NAMESPACE, Stage, Story, a_pod
from koord.embedded.kubelet.node_profile import GpuLayout, SimulatedPool
from koord.kube.transport.api_error import unwrap

GANG_LABEL = "pod-group.scheduling.sigs.k8s.io"
QUOTA_LABEL = "quota.scheduling.koordinator.sh/name"


def _pool(count: int, cpu: int, **more: Any) -> tuple[SimulatedPool, ...]:
    return (SimulatedPool(name="node", count=count, cpu=cpu, memory="64Gi", **more),)


async def _bound(stage: Stage, app: str) -> int:
    return sum(bool(pod.spec.node_name) for pod in await stage.pods(app))


async def tell_gang(stage: Stage) -> None:
    stage.say("Two nodes of 10 CPUs. Two gangs of four pods with 3.5 CPUs each arrive together: there is room for one.")
    for gang in ("red", "blue"):
        group = {"metadata": {"name": gang}, "spec": {"minMember": 4, "scheduleTimeoutSeconds": 60}}
        await stage.create(POD_GROUPS, group)
    for number in range(4):
        for gang in ("red", "blue"):
            await stage.create(PODS, a_pod(f"{gang}-{number}", gang, "3500m", labels={GANG_LABEL: gang}))

    async def one_runs() -> bool:
        return 4 in (await _bound(stage, "red"), await _bound(stage, "blue"))

    await stage.until("one gang runs", one_runs)
    await stage.sleep(30)
    await stage.show_pods()
    counts = {gang: await _bound(stage, gang) for gang in ("red", "blue")}
    stage.check(sorted(counts.values()) == [0, 4], f"one gang has all of its pods on nodes, the other none: {counts}")
    first, second = sorted(counts, key=lambda gang: -counts[gang])
    stage.say(f"All of {first} runs, nothing of {second}: no CPU is held by half a gang. Now {first} ends.")
    for pod in await stage.pods(first):
        unwrap(await stage.client.delete(PODS, pod.metadata.name, NAMESPACE))

    async def other_runs() -> bool:
        return await _bound(stage, second) == 4

    await stage.until(f"{second} runs", other_runs)
    await stage.show_pods()
    stage.say(f"{second} started whole as soon as there was room for all of it.")


async def tell_quota(stage: Stage) -> None:
    stage.say("16 CPUs, two quotas: team-a is guaranteed 4 of them, team-b 8; either may use 16 while nobody asks.")
    for team, guaranteed in (("team-a", 4), ("team-b", 8)):
        limits = {"min": {"cpu": guaranteed, "memory": "16Gi"}, "max": {"cpu": 16, "memory": "64Gi"}}
        await stage.create(ELASTIC_QUOTAS, {"metadata": {"name": team}, "spec": limits})

    async def submit(team: str, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            await stage.create(PODS, a_pod(f"{team}-{number}", team, "2", labels={QUOTA_LABEL: team}))

    await submit("team-a", 4)

    async def borrowed() -> bool:
        return await _bound(stage, "team-a") == 4

    await stage.until("team-a borrows", borrowed)
    stage.say("team-a runs four pods of 2 CPUs: 8 CPUs, 4 of them borrowed from team-b, which asks for nothing.")
    await submit("team-b", 4)
    stage.say(
        "team-b asks for its 8 CPUs. Its quota lets it in at once; nodes take its pods once the load of team-a's is "
        "measured, because koord-scheduler fills no node past 65 % of estimated load."
    )
    await stage.sleep(5)
    await stage.show_pods("team-b")

    async def served() -> bool:
        return await _bound(stage, "team-b") == 4

    await stage.until("team-b gets its guarantee", served)
    stage.say("team-b has its 8 CPUs. Now team-a wants one more pod.")
    await submit("team-a", 1, first=4)
    await stage.sleep(15)
    await stage.show_pods()
    last = (await stage.pods("team-a"))[-1]
    why = next((one.message for one in last.status.conditions if one.type == "PodScheduled"), "")
    stage.check(not last.spec.node_name, "the fifth pod of team-a waits")
    stage.check("Insufficient quotas" in why or "Insufficient cpu" in why, f"the reason is its quota: {why}")
    stage.check(await _bound(stage, "team-b") == 4, "team-b keeps what it is guaranteed")


async def tell_gpu(stage: Stage) -> None:
    stage.say("One node with two GPUs. Five pods ask for half a GPU each (koordinator.sh/gpu: 50).")
    half = {"requests": {"cpu": "1", "koordinator.sh/gpu": "50"}, "limits": {"koordinator.sh/gpu": "50"}}
    for number in range(5):
        await stage.create(PODS, a_pod(f"infer-{number}", "infer", "1", resources=half))

    async def four_run() -> bool:
        return await _bound(stage, "infer") == 4

    await stage.until("four pods have a place", four_run)
    await stage.sleep(10)
    shares: dict[int, int] = {}
    rows = []
    for pod in await stage.pods("infer"):
        allocated = json.loads(pod.metadata.annotations.get(protocol.A_DEVICE_ALLOCATED, "{}")).get("gpu", ())
        for device in allocated:
            core = int(device["resources"]["koordinator.sh/gpu-core"])
            shares[device["minor"]] = shares.get(device["minor"], 0) + core
            rows.append((pod.metadata.name, f"gpu {device['minor']}", f"{core} %"))
        if not allocated:
            rows.append((pod.metadata.name, "-", "waits"))
    stage.table(("POD", "DEVICE", "SHARE"), rows)
    stage.check(shares == {0: 100, 1: 100}, f"both GPUs are shared by two pods and neither is given twice: {shares}")
    stage.check(await _bound(stage, "infer") == 4, "the fifth pod waits")
    stage.say("Four pods share two GPUs, half each; the fifth waits for a share to become free.")


async def tell_migration(stage: Stage) -> None:
    stage.say("Three nodes, a Deployment of two pods. One of them is to move: a place first, then the eviction.")
    template = a_pod("", "web", "2")
    template["metadata"].pop("name")
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    await stage.create(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})

    async def ready() -> bool:
        return sum(pod.status.phase == "Running" for pod in await stage.pods("web")) == 2

    await stage.until("the Deployment runs", ready)
    await stage.show_pods("web")
    moved = (await stage.pods("web"))[0]
    ref = {"namespace": NAMESPACE, "name": moved.metadata.name}
    body = {"metadata": {"name": "move"}, "spec": {"mode": "ReservationFirst", "ttl": "5m", "podRef": ref}}
    await stage.create(POD_MIGRATION_JOBS, body)
    least = 2

    async def succeeded() -> bool:
        nonlocal least
        running = [pod for pod in await stage.pods("web") if pod.status.phase == "Running"]
        least = min(least, len(running))
        job = unwrap(await stage.client.get(POD_MIGRATION_JOBS, "move"))
        return job.status.phase == "Succeeded"

    await stage.until("the migration succeeds", succeeded, 300.0)
    await stage.until("the Deployment is whole again", ready)
    await stage.show_pods("web")
    nodes = {pod.metadata.name: pod.spec.node_name for pod in await stage.pods("web")}
    stage.check(moved.metadata.name not in nodes, "the pod that was to move is gone")
    stage.check(len(nodes) == 2 and all(nodes.values()), "its workload has two pods again, both on nodes")
    stage.check(least >= 1, "at most one pod was away at a time")
    job = unwrap(await stage.client.get(POD_MIGRATION_JOBS, "move"))
    order = [one.type for one in job.status.conditions if one.type in ("ReservationScheduled", "Eviction")]
    stage.check(order == ["ReservationScheduled", "Eviction"], f"the place came before the eviction: {order}")
    stage.say(f"{moved.metadata.name} left {moved.spec.node_name} after a Reservation held a place for its successor.")


async def tell_preemption(stage: Stage) -> None:
    stage.say("One node of 8 CPUs, full of four batch pods of 2 CPUs. A production pod of 3 CPUs arrives.")
    for number in range(4):
        pod = a_pod(f"batch-{number}", "batch", "2", priorityClassName="koord-batch")
        pod["metadata"]["labels"]["koordinator.sh/qosClass"] = "LS"  # plain CPU: nothing is lent in this story
        await stage.create(PODS, pod)

    async def full() -> bool:
        return await _bound(stage, "batch") == 4

    await stage.until("batch pods fill the node", full)
    await stage.create(PODS, a_pod("checkout", "prod", "3", priorityClassName="koord-prod"))

    async def placed() -> bool:
        return await _bound(stage, "prod") == 1

    await stage.until("the production pod has a place", placed)
    await stage.sleep(10)
    await stage.show_pods()
    left = len(await stage.pods("batch"))
    stage.check(left == 2, f"two victims are enough for 3 CPUs, and no more went: {left} of 4 are left")
    stage.say("Two batch pods were evicted, as few as give 3 CPUs; the other two run on.")


STORIES: dict[str, Story] = {
    story.name: story
    for story in (
        Story(
            name="gang",
            claim="of two gangs with room for one, one starts whole and the other not at all",
            pools=_pool(2, 10),
            tell=tell_gang,
        ),
        Story(
            name="quota",
            claim="a team borrows what another does not use, and the other still gets its guarantee",
            pools=_pool(2, 8),
            tell=tell_quota,
        ),
        Story(
            name="gpu",
            claim="pods share GPUs, and no share is given twice",
            pools=_pool(1, 16, gpus=GpuLayout(count=2, model="A10", memory="24Gi")),
            tell=tell_gpu,
        ),
        Story(
            name="migration",
            claim="a pod moves only once a place is reserved for it, and its workload stays up",
            pools=_pool(3, 8),
            tell=tell_migration,
        ),
        Story(
            name="preemption",
            claim="a pod of higher priority gets its place at the cost of as few others as possible",
            pools=_pool(1, 8),
            tell=tell_preemption,
        ),
    )
}
