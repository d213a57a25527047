"""The resource claim controller makes claims of templates, and gives back the devices of pods that have ended."""

from __future__ import annotations

from typing import Any

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from koord.api.kubernetes.dynamic_resources import ResourceClaim
from koord.api.kubernetes.pod import Pod
from koord.embedded.workloads.resourceclaim_controller import DELETE_PROTECTION, POD_CLAIM_NAME
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import Plain, WorkloadCluster, template, workload_cluster

MINE = ("resourceclaim", "garbage")
SPEC = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
ALLOCATION = {"devices": {"results": [{"request": "gpu", "driver": "d.example.com", "pool": "n", "device": "x"}]}}


def a_pod(name: str, *claims: Plain, ends: bool = False) -> Plain:
    made = template(toy__exit="0") if ends else template()
    spec = {**made["spec"], "restartPolicy": "Never", "resourceClaims": list(claims)}
    return {"metadata": {"name": name, **made["metadata"]}, "spec": spec}


OF_TEMPLATE = {"name": "devices", "resourceClaimTemplateName": "two-gpus"}
SHARED = {"name": "devices", "resourceClaimName": "shared"}


async def make_template(here: WorkloadCluster) -> None:
    meta = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    await here.create(
        RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "two-gpus"}, "spec": {"metadata": meta, "spec": SPEC}}
    )


async def named_claim(here: WorkloadCluster, pod: str) -> ResourceClaim:
    """Return the claim that the pod's status names, once it does."""

    async def named() -> Any:
        found: Pod = await here.get(PODS, pod)
        made = found.status.resource_claim_statuses
        return made and await here.get(RESOURCE_CLAIMS, made[0].resource_claim_name or "")

    claim: ResourceClaim = await here.until(named)
    return claim


async def allocate(here: WorkloadCluster, claim: str, *pods: str) -> None:
    """Do what the scheduler does for these pods."""
    await here.merge(RESOURCE_CLAIMS, claim, {"metadata": {"finalizers": [DELETE_PROTECTION]}})
    found = [await here.get(PODS, pod) for pod in pods]
    consumers = [{"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid} for pod in found]
    status = {"status": {"allocation": ALLOCATION, "reservedFor": consumers}}
    unwrap(await here.client.patch(RESOURCE_CLAIMS, claim, status, "default", kind="merge", subresource="status"))


def test_a_claim_is_made_of_the_template_and_named_in_the_pod() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0) as here:
            await make_template(here)
            pod = await here.create(PODS, a_pod("train", OF_TEMPLATE))
            claim = await named_claim(here, "train")
            meta = claim.metadata
            assert meta.name.startswith("train-devices-")
            assert len(meta.name) == len("train-devices-") + 5
            assert (meta.labels, meta.annotations) == ({"team": "a"}, {"note": "b", POD_CLAIM_NAME: "devices"})
            owner = meta.owner_references[0]
            assert (owner.kind, owner.uid) == ("Pod", pod.metadata.uid)
            assert (owner.controller, owner.block_owner_deletion) == (True, True)
            assert claim.spec.devices.requests[0].name == "gpu"
            await here.pass_time(30)
            assert len(await here.list(RESOURCE_CLAIMS)) == 1

    run_virtual(story)


def test_a_pod_waits_for_its_template_and_is_told_so() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0) as here:
            await here.create(PODS, a_pod("train", OF_TEMPLATE))

            async def told() -> list[str]:
                events = await here.list(CORE_EVENTS)
                return [event.message for event in events if event.reason == "FailedResourceClaimCreation"]

            assert 'resource claim template "two-gpus"' in (await here.until(told))[0]
            await make_template(here)
            await named_claim(here, "train")

    run_virtual(story)


def test_the_claim_of_a_pod_that_ends_is_freed_and_deleted() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, start_s=20) as here:
            await make_template(here)
            await here.create(PODS, a_pod("train", OF_TEMPLATE, ends=True))
            claim = await named_claim(here, "train")
            await allocate(here, claim.metadata.name, "train")

            async def gone() -> bool:
                return not await here.list(RESOURCE_CLAIMS)

            await here.until(gone)
            assert await here.get(PODS, "train") is not None

    run_virtual(story)


def test_a_shared_claim_is_freed_when_its_last_pod_is_gone_and_stays() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared"}, "spec": SPEC})
            for name in ("a", "b"):
                await here.create(PODS, a_pod(name, SHARED))
            await allocate(here, "shared", "a", "b")
            await here.delete(PODS, "a")

            async def consumers(count: int) -> ResourceClaim | None:
                found: ResourceClaim = await here.get(RESOURCE_CLAIMS, "shared")
                return found if len(found.status.reserved_for) == count else None

            kept = await here.until(lambda: consumers(1))
            assert kept.status.reserved_for[0].name == "b"
            assert kept.status.allocation is not None
            await here.delete(PODS, "b")
            freed = await here.until(lambda: consumers(0))

            async def unprotected() -> bool:
                return not (await here.get(RESOURCE_CLAIMS, "shared")).metadata.finalizers

            await here.until(unprotected)
            assert freed.status.allocation is None

    run_virtual(story)


def test_a_deleted_claim_goes_when_nobody_uses_it() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared"}, "spec": SPEC})
            await here.create(PODS, a_pod("a", SHARED))
            await allocate(here, "shared", "a")
            await here.delete(RESOURCE_CLAIMS, "shared")
            await here.pass_time(20)
            assert await here.get(RESOURCE_CLAIMS, "shared") is not None
            await here.delete(PODS, "a")

            async def gone() -> bool:
                return await here.get(RESOURCE_CLAIMS, "shared") is None

            await here.until(gone)

    run_virtual(story)


def test_a_pod_bound_past_the_scheduler_gets_its_allocated_claim_reserved() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0) as here:
            await here.create(RESOURCE_CLAIMS, {"metadata": {"name": "shared"}, "spec": SPEC})
            await here.create(PODS, a_pod("a", SHARED))
            await allocate(here, "shared", "a")
            body = a_pod("placed", SHARED)
            body["spec"]["nodeName"] = "somewhere"
            pod = await here.create(PODS, body)

            async def reserved() -> bool:
                claim: ResourceClaim = await here.get(RESOURCE_CLAIMS, "shared")
                return pod.metadata.uid in {consumer.uid for consumer in claim.status.reserved_for}

            await here.until(reserved)

    run_virtual(story)


def test_claims_are_made_once_over_a_faulty_connection() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0, faults=0.3) as here:
            await make_template(here)
            for number in range(10):
                await here.create(PODS, a_pod(f"p{number}", OF_TEMPLATE))
            for number in range(10):
                await named_claim(here, f"p{number}")
            assert len(await here.list(RESOURCE_CLAIMS)) == 10

    run_virtual(story)
