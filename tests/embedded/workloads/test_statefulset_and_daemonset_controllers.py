"""StatefulSet and DaemonSet controllers end to end, in virtual time against the embedded server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.kubernetes.builtin_kinds import (
    CONTROLLER_REVISIONS,
    DAEMON_SETS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    STATEFUL_SETS,
)
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.workloads.workload_cluster import WorkloadCluster, names, template, workload_cluster

MINE = ("statefulset", "daemonset", "garbage", "volume-protection")


def stateful(replicas: int = 3, image: str = "app:1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "db"},
        "spec": {
            "replicas": replicas,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(image=image),
            **spec,
        },
    }


def images(pods: list[Any]) -> dict[str, str]:
    return {pod.metadata.name: pod.spec.containers[0].image for pod in pods}


async def settled(here: WorkloadCluster, replicas: int, updated: int | None = None) -> Any:
    async def done() -> Any:
        found = await here.get(STATEFUL_SETS, "db")
        status = found.status
        good = status.replicas == status.available_replicas == replicas
        return found if good and (updated is None or status.updated_replicas == updated) else None

    await here.pass_time(0.5)
    return await here.until(done)


def test_pods_come_and_go_in_order() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(STATEFUL_SETS, stateful())
            seen: list[list[str]] = []

            async def up() -> bool:
                pods = await here.list(PODS)
                if not seen or names(pods) != seen[-1]:
                    seen.append(names(pods))
                return len(pods) == 3

            await here.until(up)
            assert [len(row) for row in seen if row] == [1, 2, 3]
            await settled(here, 3)
            pod = await here.get(PODS, "db-1")
            assert (pod.spec.hostname, pod.spec.subdomain) == ("db-1", "db")
            assert pod.metadata.labels["apps.kubernetes.io/pod-index"] == "1"
            await here.merge(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
            seen.clear()

            async def down() -> bool:
                pods = await here.list(PODS)
                if not seen or names(pods) != seen[-1]:
                    seen.append(names(pods))
                return len(pods) == 1

            await here.until(down)
            assert seen == [["db-0", "db-1", "db-2"], ["db-0", "db-1"], ["db-0"]]

    run_virtual(story)


def test_parallel_sets_do_not_wait() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(STATEFUL_SETS, stateful(podManagementPolicy="Parallel", ordinals={"start": 5}))
            await here.pass_time(0.5)
            assert names(await here.list(PODS)) == ["db-5", "db-6", "db-7"]

    run_virtual(story)


def test_rolling_update_stops_at_the_partition() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
            await here.create(STATEFUL_SETS, stateful(updateStrategy=rolling))
            first = await settled(here, 3)
            await here.merge(STATEFUL_SETS, "db", {"spec": {"template": template(image="app:2")}})
            await settled(here, 3, updated=1)
            assert images(await here.list(PODS)) == {"db-0": "app:1", "db-1": "app:1", "db-2": "app:2"}
            await here.delete(PODS, "db-0")
            await settled(here, 3, updated=1)
            assert images(await here.list(PODS))["db-0"] == "app:1"  # below the partition: as it was
            await here.merge(STATEFUL_SETS, "db", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
            last = await settled(here, 3, updated=3)
            assert set(images(await here.list(PODS)).values()) == {"app:2"}
            assert last.status.current_revision == last.status.update_revision != first.status.current_revision
            assert sorted(r.revision for r in await here.list(CONTROLLER_REVISIONS)) == [1, 2]

    run_virtual(story)


def test_on_delete_updates_nothing_by_itself() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(STATEFUL_SETS, stateful(updateStrategy={"type": "OnDelete"}))
            await settled(here, 3)
            await here.merge(STATEFUL_SETS, "db", {"spec": {"template": template(image="app:2")}})
            await here.pass_time(60)
            assert set(images(await here.list(PODS)).values()) == {"app:1"}
            await here.delete(PODS, "db-1")
            await settled(here, 3, updated=1)
            assert images(await here.list(PODS))["db-1"] == "app:2"

    run_virtual(story)


@pytest.mark.parametrize(
    ("policy", "after_scale", "after_delete"),
    [
        pytest.param(None, 3, 3, id="claims-stay-by-default"),
        pytest.param({"whenDeleted": "Delete", "whenScaled": "Retain"}, 3, 0, id="claims-go-with-the-set"),
        pytest.param({"whenDeleted": "Retain", "whenScaled": "Delete"}, 1, 1, id="claims-go-with-scaled-pods"),
    ],
)
def test_claims_follow_their_policy(policy: dict[str, str] | None, after_scale: int, after_delete: int) -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            claim = {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
            extra: dict[str, Any] = {"persistentVolumeClaimRetentionPolicy": policy} if policy else {}
            await here.create(STATEFUL_SETS, stateful(volumeClaimTemplates=[claim], **extra))
            await settled(here, 3)
            assert names(await here.list(PERSISTENT_VOLUME_CLAIMS)) == ["data-db-0", "data-db-1", "data-db-2"]
            volumes = (await here.get(PODS, "db-2")).spec.volumes
            assert [volume.persistent_volume_claim.claim_name for volume in volumes] == ["data-db-2"]
            await here.merge(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
            await settled(here, 1)
            await here.pass_time(10)
            assert len(await here.list(PERSISTENT_VOLUME_CLAIMS)) == after_scale
            await here.delete(STATEFUL_SETS, "db")
            await here.pass_time(10)
            assert len(await here.list(PERSISTENT_VOLUME_CLAIMS)) == after_delete
            assert await here.list(PODS) == []

    run_virtual(story)


def test_claims_have_their_set_as_controller_unless_they_have_another() -> None:
    stale = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "earlier", "controller": True}

    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            claim = {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
            await here.create(STATEFUL_SETS, stateful(volumeClaimTemplates=[claim]))
            await settled(here, 3)
            kept = {"finalizers": ["example.com/keep"], "ownerReferences": [stale]}  # or it would be collected
            await here.merge(PERSISTENT_VOLUME_CLAIMS, "data-db-1", {"metadata": kept})
            policy = {"whenDeleted": "Delete", "whenScaled": "Retain"}
            await here.merge(STATEFUL_SETS, "db", {"spec": {"persistentVolumeClaimRetentionPolicy": policy}})
            await here.pass_time(10)
            uid = (await here.get(STATEFUL_SETS, "db")).metadata.uid
            owners = [
                [(ref.uid, ref.controller, ref.block_owner_deletion) for ref in one.metadata.owner_references]
                for one in await here.list(PERSISTENT_VOLUME_CLAIMS)
            ]
            assert owners[0] == owners[2] == [(uid, True, True)]
            assert [one[0] for one in owners[1]] == ["earlier"]
            plain = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": uid, "controller": False}
            await here.merge(PERSISTENT_VOLUME_CLAIMS, "data-db-0", {"metadata": {"ownerReferences": [plain]}})
            policy["whenScaled"] = "Delete"
            await here.merge(STATEFUL_SETS, "db", {"spec": {"persistentVolumeClaimRetentionPolicy": policy}})
            await here.pass_time(10)
            (owner,) = (await here.get(PERSISTENT_VOLUME_CLAIMS, "data-db-0")).metadata.owner_references
            assert (owner.uid, owner.controller, owner.block_owner_deletion) == (uid, True, True)

    run_virtual(story)


# -- DaemonSets


def daemon(image: str = "agent:1", **spec: Any) -> dict[str, Any]:
    body = template({"app": "agent"}, image=image)
    body["spec"] |= spec.pop("pod", {})
    return {
        "metadata": {"name": "agent"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": body, **spec},
    }


async def covered(here: WorkloadCluster, count: int, updated: int | None = None) -> Any:
    async def done() -> Any:
        found = await here.get(DAEMON_SETS, "agent")
        status = found.status
        good = status.desired_number_scheduled == status.number_available == count
        return found if good and (updated is None or status.updated_number_scheduled == updated) else None

    await here.pass_time(0.5)
    return await here.until(done)


async def places(here: WorkloadCluster) -> list[str]:
    return sorted(pod.spec.node_name for pod in await here.list(PODS) if pod.metadata.deletion_timestamp is None)


def test_daemons_follow_the_nodes() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            here.kubelet.by_affinity = True
            await here.create(DAEMON_SETS, daemon(pod={"nodeSelector": {"disk": "ssd"}}))
            await here.pass_time(2)
            assert await places(here) == []
            await here.merge(NODES, "node-1", {"metadata": {"labels": {"disk": "ssd"}}}, None)
            await covered(here, 1)
            assert await places(here) == ["node-1"]
            await here.create(NODES, {"metadata": {"name": "node-9", "labels": {"disk": "ssd"}}})
            await covered(here, 2)
            assert await places(here) == ["node-1", "node-9"]
            await here.merge(NODES, "node-1", {"metadata": {"labels": {"disk": None}}}, None)
            await covered(here, 1)
            await here.pass_time(3)
            assert await places(here) == ["node-9"]

    run_virtual(story)


def test_daemons_shun_taints_but_stay_on_sick_nodes() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            here.kubelet.by_affinity = True
            mine = [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]
            await here.merge(NODES, "node-0", {"spec": {"taints": mine}}, None)
            await here.create(DAEMON_SETS, daemon())
            await covered(here, 2)
            assert await places(here) == ["node-1", "node-2"]
            sick = [
                {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            ]
            await here.merge(NODES, "node-1", {"spec": {"taints": sick}}, None)
            await here.pass_time(10)
            assert await places(here) == ["node-1", "node-2"]

    run_virtual(story)


@pytest.mark.parametrize(
    ("rolling", "most_missing", "most_pods"),
    [
        pytest.param({"maxUnavailable": 1}, 1, 3, id="one-at-a-time"),
        pytest.param({"maxSurge": 1, "maxUnavailable": 0}, 0, 4, id="surge-first"),
    ],
)
def test_daemon_updates_keep_to_their_bounds(rolling: dict[str, int], most_missing: int, most_pods: int) -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            here.kubelet.by_affinity = True
            update = {"type": "RollingUpdate", "rollingUpdate": rolling}
            await here.create(DAEMON_SETS, daemon(updateStrategy=update))
            await covered(here, 3)
            await here.merge(DAEMON_SETS, "agent", {"spec": {"template": daemon("agent:2")["spec"]["template"]}})
            least, most = 3, 0

            async def done() -> bool:
                nonlocal least, most
                pods = [pod for pod in await here.list(PODS) if pod.metadata.deletion_timestamp is None]
                ready = {
                    p.spec.node_name
                    for p in pods
                    if any(c.status == "True" for c in p.status.conditions if c.type == "Ready")
                }
                least, most = min(least, len(ready)), max(most, len(pods))
                return len(pods) == 3 and set(images(pods).values()) == {"agent:2"} and len(ready) == 3

            await here.until(done)
            assert 3 - least <= most_missing
            assert most <= most_pods
            await covered(here, 3, updated=3)

    run_virtual(story)


def test_revisions_carry_the_labels_of_their_kind_and_sorted_data() -> None:
    async def story(clock: LoopClock) -> None:
        async with workload_cluster(clock, MINE) as here:
            await here.create(DAEMON_SETS, daemon())
            await here.create(STATEFUL_SETS, stateful())
            await here.pass_time(5)
            found = {r.metadata.owner_references[0].kind: r for r in await here.list(CONTROLLER_REVISIONS)}
            digest = found["DaemonSet"].metadata.name.rpartition("-")[2]
            assert found["DaemonSet"].metadata.labels["controller-revision-hash"] == digest
            assert "controller.kubernetes.io/hash" not in found["DaemonSet"].metadata.labels
            annotations = found["DaemonSet"].metadata.annotations
            assert annotations == {"deprecated.daemonset.template.generation": "1"}
            digest = found["StatefulSet"].metadata.name.rpartition("-")[2]
            assert found["StatefulSet"].metadata.labels["controller.kubernetes.io/hash"] == digest
            for revision in found.values():
                stored = msgspec.json.encode(revision.data)
                assert stored == msgspec.json.encode(revision.data, order="sorted")

    run_virtual(story)
