"""The ephemeral volume controller makes the claims of pods' ephemeral volumes, and takes nobody else's."""

from __future__ import annotations

from typing import Any

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, PERSISTENT_VOLUME_CLAIMS, PODS
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import Plain, template, workload_cluster

MINE = ("ephemeral-volume", "garbage", "volume-protection")
SPEC = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}


def a_pod(name: str) -> Plain:
    made = template()
    wanted = {"metadata": {"labels": {"a": "b"}}, "spec": SPEC}
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": wanted}}
    return {"metadata": {"name": name, **made["metadata"]}, "spec": {**made["spec"], "volumes": [volume]}}


def test_a_claim_comes_and_goes_with_its_pod() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            pod = await here.create(PODS, a_pod("p"))

            async def made() -> Any:
                return await here.get(PERSISTENT_VOLUME_CLAIMS, "p-scratch")

            claim = await here.until(made)
            assert claim.metadata.labels == {"a": "b"}
            assert [owner.uid for owner in claim.metadata.owner_references] == [pod.metadata.uid]
            await here.delete(PODS, "p")

            async def gone() -> bool:
                return await here.get(PERSISTENT_VOLUME_CLAIMS, "p-scratch") is None

            await here.until(gone)

    run_virtual(story)


def test_a_claim_of_somebody_else_is_left_alone_and_told_of() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0) as here:
            before = await here.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "p-scratch"}, "spec": SPEC})
            await here.create(PODS, a_pod("p"))

            async def told() -> list[str]:
                return [event.message for event in await here.list(CORE_EVENTS) if event.reason == "FailedBinding"]

            assert "pod is not owner" in (await here.until(told))[0]
            after = await here.get(PERSISTENT_VOLUME_CLAIMS, "p-scratch")
            assert after.metadata.resource_version == before.metadata.resource_version

    run_virtual(story)
