"""The tutorials on load-aware descheduling and on migration jobs, as people follow them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Pod
from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest
from tests.journeys.colocation_cluster import pod
from tests.journeys.descheduling_cluster import DeschedulingCluster, descheduler_assembly, run_on_descheduling_cluster

POOL = SimulatedPool(name="n", count=3, cpu=4, memory="16Gi", system=SystemDaemonUsage(cpu="160m", memory="1Gi"))
SMALL = pod("", {"cpu": "200m", "memory": "400Mi"}, uses={"cpu": "10m"}, schedulerName="koord-scheduler")
LOAD_AWARE = descheduler_assembly(
    deschedulingInterval="60s",
    profiles=[
        {
            "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
            "pluginConfig": [
                {
                    "name": "LowNodeLoad",
                    "args": {
                        "evictableNamespaces": {"exclude": ["kube-system", "koordinator-system"]},
                        "lowThresholds": {"cpu": 20, "memory": 30},
                        "highThresholds": {"cpu": 50, "memory": 60},
                        "nodeFit": True,
                    },
                }
            ],
        }
    ],
)


def test_a_pod_moves_from_a_node_that_is_too_busy() -> None:
    """One pod of a Deployment makes its node 98% busy and fits nowhere; the other, at 55%, fits the third node (4%)."""

    async def journey(j: DeschedulingCluster) -> None:
        stress = pod("", {"cpu": "1"}, uses={"cpu": "1"}, schedulerName="koord-scheduler")
        del stress["spec"]["containers"][0]["resources"]["limits"]
        await j.deploy("stress-demo", 2, stress)
        huge, movable = await j.pods("stress-demo")
        idle = next(f"n-{i}" for i in range(3) if f"n-{i}" not in (huge.spec.node_name, movable.spec.node_name))
        assert huge.spec.node_name != movable.spec.node_name
        noise = pod("noise", {"cpu": "100m"}, uses={"cpu": "240m"}, nodeName=movable.spec.node_name)
        del noise["spec"]["containers"][0]["resources"]["limits"]
        unwrap(await j.client.create(PODS, noise))
        for one, cpu in ((huge, "3760m"), (movable, "1800m")):
            usage = {"sim.koord.sh/usage": json.dumps({"model": "constant", "cpu": cpu})}
            patch = {"metadata": {"annotations": usage}}
            unwrap(await j.client.patch(PODS, one.metadata.name, patch, "default", kind="merge"))

        async def moved() -> list[PodMigrationJob]:
            return [one for one in await j.jobs() if one.status.phase == "Succeeded"]

        (job,) = await j.until(moved, 900)
        assert job.metadata.annotations["koordinator.sh/evict-trigger"] == "LowNodeLoad"
        assert job.spec.pod_ref is not None
        assert job.spec.pod_ref.uid == movable.metadata.uid
        assert job.status.node_name == idle
        reasons = [reason for reason, _ in await j.events("PodMigrationJob", job.metadata.name)]
        assert reasons == ["ReservationCreated", "ReservationScheduled", "Evicting", "EvictComplete", "Complete"]
        told = dict(await j.events("Pod", movable.metadata.name))["Descheduled"]
        assert "node is overutilized, node cpu usage(55.00%)>threshold(50.00%)" in told
        assert {one.spec.node_name for one in await j.pods("stress-demo")} == {huge.spec.node_name, idle}
        left = await explained(j, "round")
        assert ("default/" + huge.metadata.name, "it fits no node that has room") in {
            (one["pod"], one["why"]) for one in left["passed_over"]
        }

    run_on_descheduling_cluster(journey, POOL, LOAD_AWARE)


async def explained(j: DeschedulingCluster, what: str) -> dict[str, Any]:
    path = f"/koord/koord-descheduler/apis/v1/explain/{what}"
    answer = await j.client.raw(ApiRequest(method="GET", path=path))
    assert answer.ok
    found: dict[str, Any] = json.loads(answer.body.raw())
    return found


class TestJobsByHand:
    def test_a_place_comes_first(self) -> None:
        async def journey(j: DeschedulingCluster) -> None:
            one = await started(j)
            await j.job("migrationjob-demo", one)
            done = await j.wait_for_job_end("migrationjob-demo")
            assert (done.status.phase, done.status.status) == ("Succeeded", "Complete")
            assert done.status.node_name not in ("", one.spec.node_name)
            assert done.status.pod_ref is not None
            successor = unwrap(await j.client.get(PODS, done.status.pod_ref.name, "default"))
            assert successor.spec.node_name == done.status.node_name
            reasons = [reason for reason, _ in await j.events("PodMigrationJob", "migrationjob-demo")]
            assert reasons == ["ReservationCreated", "ReservationScheduled", "Evicting", "EvictComplete", "Complete"]
            assert len(await j.pods("pod-demo")) == 2

        run_on_descheduling_cluster(journey, POOL, descheduler_assembly())

    def test_a_paused_one_waits_for_approval(self) -> None:
        async def journey(j: DeschedulingCluster) -> None:
            one = await started(j)
            await j.job("later", one, paused=True)
            await j.clock.sleep(60)
            assert not unwrap(await j.client.list(RESERVATIONS)).items
            assert one.metadata.uid in {p.metadata.uid for p in await j.pods("pod-demo")}
            unwrap(await j.client.patch(POD_MIGRATION_JOBS, "later", {"spec": {"paused": False}}, kind="merge"))
            assert (await j.wait_for_job_end("later")).status.phase == "Succeeded"

        run_on_descheduling_cluster(journey, POOL, descheduler_assembly())

    @pytest.mark.parametrize("phase", ["Failed", "Aborted"])
    def test_one_whose_phase_a_person_ends_does_nothing_more(self, phase: str) -> None:
        async def journey(j: DeschedulingCluster) -> None:
            one = await started(j)
            await j.job("stopped", one, paused=True)
            await j.clock.sleep(1)
            patch = {"status": {"phase": phase}}
            unwrap(await j.client.patch(POD_MIGRATION_JOBS, "stopped", patch, kind="merge", subresource="status"))
            unwrap(await j.client.patch(POD_MIGRATION_JOBS, "stopped", {"spec": {"paused": False}}, kind="merge"))
            await j.clock.sleep(60)
            assert one.metadata.uid in {p.metadata.uid for p in await j.pods("pod-demo")}
            assert not unwrap(await j.client.list(RESERVATIONS)).items

        run_on_descheduling_cluster(journey, POOL, descheduler_assembly())

    def test_directly_there_is_no_reservation(self) -> None:
        async def journey(j: DeschedulingCluster) -> None:
            one = await started(j)
            await j.job("direct", one, mode="EvictDirectly", deleteOptions={"gracePeriodSeconds": 60})
            done = await j.wait_for_job_end("direct")
            assert (done.status.phase, done.status.status) == ("Succeeded", "Complete")
            assert not unwrap(await j.client.list(RESERVATIONS)).items

        run_on_descheduling_cluster(journey, POOL, descheduler_assembly())

    def test_into_a_reservation_that_a_person_made(self) -> None:
        async def journey(j: DeschedulingCluster) -> None:
            one = await started(j)
            target = next(f"n-{i}" for i in range(3) if f"n-{i}" != one.spec.node_name)
            await reserve(j, "reservation-0", one, target)
            await j.job("into", one, reservationOptions={"reservationRef": {"name": "reservation-0"}})
            done = await j.wait_for_job_end("into")
            assert (done.status.phase, done.status.node_name) == ("Succeeded", target)
            unwrap(await j.client.delete(POD_MIGRATION_JOBS, "into"))
            await j.clock.sleep(10)
            kept = await j.client.get(RESERVATIONS, "reservation-0")
            assert not isinstance(kept, ApiError), "it is the person's, not the job's"

        run_on_descheduling_cluster(journey, POOL, descheduler_assembly())

    def test_the_only_pod_of_a_workload_stays_unless_it_says_otherwise(self) -> None:
        async def journey(j: DeschedulingCluster) -> None:
            await j.deploy("pod-demo", 1, SMALL)
            (one,) = await j.pods("pod-demo")
            await j.job("alone", one)
            done = await j.wait_for_job_end("alone")
            assert (done.status.phase, done.status.reason) == ("Failed", "ForbiddenMigratePod")
            (_, note) = (await j.events("PodMigrationJob", "alone"))[0]
            assert "Deployment pod-demo has 1 replica," in note
            allowed = {"metadata": {"annotations": {"descheduler.alpha.kubernetes.io/evict": "true"}}}
            unwrap(await j.client.patch(PODS, one.metadata.name, allowed, "default", kind="merge"))
            await j.job("allowed", one)
            assert (await j.wait_for_job_end("allowed")).status.phase == "Succeeded"

        run_on_descheduling_cluster(journey, POOL, descheduler_assembly())


async def started(j: DeschedulingCluster) -> Pod:
    await j.deploy("pod-demo", 2, SMALL)
    return (await j.pods("pod-demo"))[0]


async def reserve(j: DeschedulingCluster, name: str, one: Pod, node: str) -> None:
    owner = one.metadata.owner_references[0]
    reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
    template = {"spec": {**SMALL["spec"], "nodeName": node}}
    controller = {**reference, "controller": True, "namespace": "default"}
    spec = {"template": template, "owners": [{"controller": controller}], "ttl": "1h"}
    unwrap(await j.client.create(RESERVATIONS, {"metadata": {"name": name}, "spec": spec}))

    async def available() -> bool:
        return unwrap(await j.client.get(RESERVATIONS, name)).status.node_name == node

    await j.until(available, 30)
