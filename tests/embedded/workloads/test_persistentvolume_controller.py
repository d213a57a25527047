"""The persistent volume controller binds claims and volumes, reclaims volumes, and provisions those of its class."""

from __future__ import annotations

from typing import Any

from koord.api.kubernetes.builtin_kinds import (
    CORE_EVENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
)
from koord.api.kubernetes.volume import PersistentVolume, PersistentVolumeClaim
from koord.embedded.workloads.persistentvolume_controller import PROVISIONER
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import Plain, WorkloadCluster, workload_cluster

MINE = ("persistentvolume", "volume-protection")


def a_volume(name: str, size: str = "5Gi", **more: Any) -> Plain:
    spec = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/data"},
        "storageClassName": "manual",
        **more,
    }
    return {"metadata": {"name": name, "labels": {"disk": name}}, "spec": spec}


def a_claim(name: str, size: str = "1Gi", **more: Any) -> Plain:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
        "storageClassName": "manual",
        **more,
    }
    return {"metadata": {"name": name}, "spec": spec}


async def claim_in(here: WorkloadCluster, name: str, phase: str) -> PersistentVolumeClaim:
    async def reached() -> Any:
        found = await here.get(PERSISTENT_VOLUME_CLAIMS, name)
        return found if found.status.phase == phase else None

    claim: PersistentVolumeClaim = await here.until(reached)
    return claim


async def volume_in(here: WorkloadCluster, name: str, phase: str) -> PersistentVolume:
    async def reached() -> Any:
        found = await here.get(PERSISTENT_VOLUMES, name, None)
        return found if found is not None and found.status.phase == phase else None

    volume: PersistentVolume = await here.until(reached)
    return volume


async def gone(here: WorkloadCluster, name: str) -> None:
    async def is_gone() -> bool:
        return await here.get(PERSISTENT_VOLUMES, name, None) is None

    await here.until(is_gone)


def test_a_claim_gets_the_smallest_volume_that_suits() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0) as here:
            await here.create(PERSISTENT_VOLUMES, a_volume("large", "50Gi"))
            await here.create(PERSISTENT_VOLUMES, a_volume("tiny", "1Mi"))
            await here.create(PERSISTENT_VOLUMES, a_volume("shared", "2Gi", accessModes=["ReadOnlyMany"]))
            await here.create(PERSISTENT_VOLUMES, a_volume("other", "2Gi", storageClassName="other"))
            await volume_in(here, "large", "Available")
            await here.create(PERSISTENT_VOLUMES, a_volume("fits", "5Gi"))
            await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim("c"))
            claim = await claim_in(here, "c", "Bound")
            assert (claim.spec.volume_name, claim.status.capacity) == ("fits", {"storage": "5Gi"})
            assert claim.metadata.annotations["pv.kubernetes.io/bind-completed"] == "yes"
            volume = await volume_in(here, "fits", "Bound")
            assert volume.spec.claim_ref is not None
            assert volume.spec.claim_ref.uid == claim.metadata.uid
            assert volume.metadata.annotations["pv.kubernetes.io/bound-by-controller"] == "yes"

    run_virtual(story)


def test_claims_select_volumes_by_label_and_by_name_and_volumes_name_claims() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0) as here:
            for name in ("a", "b"):
                await here.create(PERSISTENT_VOLUMES, a_volume(name))
            reserved = {"namespace": "default", "name": "late"}
            await here.create(PERSISTENT_VOLUMES, a_volume("kept", claimRef=reserved))
            await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim("by-name", volumeName="b"))
            await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim("by-label", selector={"matchLabels": {"disk": "a"}}))
            assert (await claim_in(here, "by-label", "Bound")).spec.volume_name == "a"
            await claim_in(here, "by-name", "Bound")
            await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim("early"))
            await here.pass_time(5)
            assert (await here.get(PERSISTENT_VOLUME_CLAIMS, "early")).status.phase == "Pending"
            await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim("late"))
            assert (await claim_in(here, "late", "Bound")).spec.volume_name == "kept"
            await here.create(PERSISTENT_VOLUMES, a_volume("new"))
            assert (await claim_in(here, "early", "Bound")).spec.volume_name == "new"

    run_virtual(story)


def test_two_claims_never_share_a_volume() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0, faults=0.2) as here:
            for number in range(8):
                await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim(f"c{number}"))
                await here.create(PERSISTENT_VOLUMES, a_volume(f"v{number}"))
            bound = [(await claim_in(here, f"c{number}", "Bound")).spec.volume_name for number in range(8)]
            assert sorted(bound) == [f"v{number}" for number in range(8)]

    run_virtual(story)


def test_volumes_are_kept_emptied_or_fail_when_their_claim_is_deleted() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0) as here:
            ends = {"Retain": "Released", "Recycle": "Available", "Delete": "Failed"}
            for policy in ends:
                name = policy.lower()
                await here.create(PERSISTENT_VOLUMES, a_volume(name, persistentVolumeReclaimPolicy=policy))
                await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim(name, volumeName=name))
                await claim_in(here, name, "Bound")
            for policy, phase in ends.items():
                await here.delete(PERSISTENT_VOLUME_CLAIMS, policy.lower())
                await volume_in(here, policy.lower(), phase)
            # A released volume is nobody's until somebody removes its reference; the recycled one is free.
            await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim("next"))
            assert (await claim_in(here, "next", "Bound")).spec.volume_name == "recycle"

    run_virtual(story)


def test_a_claim_without_its_volume_is_lost() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, ("persistentvolume",), nodes=0) as here:
            await here.create(PERSISTENT_VOLUMES, a_volume("v"))
            await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim("c"))
            await claim_in(here, "c", "Bound")
            await here.merge(PERSISTENT_VOLUMES, "v", {"metadata": {"finalizers": None}}, None)
            await here.delete(PERSISTENT_VOLUMES, "v", None)
            await claim_in(here, "c", "Lost")

    run_virtual(story)


def test_the_default_class_provisions_once_a_node_is_selected_grows_and_deletes() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0) as here:

            async def default() -> Any:
                return await here.get(STORAGE_CLASSES, "standard", None)

            made = await here.until(default)
            assert made.metadata.annotations == {"storageclass.kubernetes.io/is-default-class": "true"}
            assert (made.provisioner, made.volume_binding_mode) == (PROVISIONER, "WaitForFirstConsumer")
            body = a_claim("c")
            body["spec"]["storageClassName"] = "standard"
            await here.create(PERSISTENT_VOLUME_CLAIMS, body)
            await here.pass_time(10)
            assert await here.list(PERSISTENT_VOLUMES, None) == []
            events = [event.reason for event in await here.list(CORE_EVENTS)]
            assert "WaitForFirstConsumer" in events
            selected = {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n1"}}}
            await here.merge(PERSISTENT_VOLUME_CLAIMS, "c", selected)
            claim = await claim_in(here, "c", "Bound")
            volume = await volume_in(here, f"pvc-{claim.metadata.uid}", "Bound")
            assert volume.spec.persistent_volume_reclaim_policy == "Delete"
            assert volume.metadata.annotations["pv.kubernetes.io/provisioned-by"] == PROVISIONER
            await here.merge(PERSISTENT_VOLUME_CLAIMS, "c", {"spec": {"resources": {"requests": {"storage": "3Gi"}}}})

            async def grown() -> bool:
                found = await here.get(PERSISTENT_VOLUME_CLAIMS, "c")
                return bool(found.status.capacity == {"storage": "3Gi"})

            await here.until(grown)
            await here.delete(PERSISTENT_VOLUME_CLAIMS, "c")
            await gone(here, volume.metadata.name)

    run_virtual(story)


def test_claims_of_other_provisioners_wait_and_are_marked_for_them() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE, nodes=0) as here:
            await here.create(STORAGE_CLASSES, {"metadata": {"name": "manual"}, "provisioner": "csi.example.com"})
            await here.create(PERSISTENT_VOLUME_CLAIMS, a_claim("c"))

            async def marked() -> bool:
                notes = (await here.get(PERSISTENT_VOLUME_CLAIMS, "c")).metadata.annotations
                return bool(notes.get("volume.kubernetes.io/storage-provisioner") == "csi.example.com")

            await here.until(marked)
            assert await here.list(PERSISTENT_VOLUMES, None) == []

    run_virtual(story)
