"""Scheduler, descheduler, manager, YARN operator on a real API server with RBAC, with the roles of `koord manifests`.

Every kind of write that they make is accepted, and no role may write more than that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.config.descheduler.plugin_args import DELETE, SOFT_EVICTION
from koord.api.koordinator.custom_kinds import (
    CLUSTER_COLOCATION_PROFILES,
    ELASTIC_QUOTA_PROFILES,
    ELASTIC_QUOTAS,
    NODE_METRICS,
    NODE_RESOURCE_TOPOLOGIES,
    NODE_SLOS,
    POD_GROUPS,
    POD_MIGRATION_JOBS,
    RECOMMENDATIONS,
    RESERVATIONS,
)
from koord.api.koordinator.protocol import A_SOFT_EVICTION, A_THIRD_PARTY_ALLOCATIONS, L_EVICT_POLICY
from koord.api.koordinator.yarn import OPERATOR_PROGRAM
from koord.api.kubernetes.builtin_kinds import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    EVENTS_EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    REPLICA_SETS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koord_yarn_operator import YARN_OPERATOR_FLAGS, YarnOperatorPlan, plan_operator, serve_operator
from koord.kube.client.typed_client import Client
from koord.kube.config.loader import load_connection
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.reconcile_loop import NAMESPACE
from koord.telemetry.clock import WallClock
from koord.telemetry.logs import Logs
from koord.wire.hadoop_yarn import ResourceMessage
from tests.real.installed_plane import GATES, InstalledPlane, installed_plane, objects, pod, program, until
from tests.real.manager_process import account, running
from tests.real.reach import connect
from tests.yarn.fake_resource_manager import FakeResourceManager, FakeYarn
from tests.yarn.fake_resource_manager import running as resource_managers
from tools.controlplane import free_port

pytestmark = pytest.mark.real

Right = tuple[str, str, str]  # group, resource, verb
_READS = {"get", "list", "watch"}
_GANG = "pod-group.scheduling.sigs.k8s.io"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledPlane]:
    with installed_plane(tmp_path_factory.mktemp("roles")) as running:
        yield running


def written_rights(made: list[dict[str, Any]]) -> set[Right]:
    """What the roles allow beyond reading."""
    rules = [rule for one in made if one["kind"] in ("Role", "ClusterRole") for rule in one["rules"]]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in _READS
    }


def used_rights(events: list[dict[str, Any]]) -> set[Right]:
    found = set()
    for event in events:
        target = event.get("objectRef", {})
        part = f"/{target['subresource']}" if target.get("subresource") else ""
        found.add((target.get("apiGroup", ""), target.get("resource", "") + part, event["verb"]))
    return found


def placed_by_koord(name: str, **labels: str) -> dict[str, Any]:
    made = pod(name, **labels)
    made["spec"]["schedulerName"] = "koord-scheduler"
    return made


async def test_the_scheduler_works_with_the_rights_it_declares(installed: InstalledPlane, tmp_path: Path) -> None:
    made = objects("scheduler")
    installed.apply(made)
    (config,) = [one["data"] for one in made if one["metadata"]["name"] == "koord-scheduler-config"]
    file = tmp_path / "koord-scheduler.config"
    file.write_text(config["koord-scheduler.config"])
    kubeconfig = account(installed.plane, tmp_path, "koord-scheduler", NAMESPACE)
    flags = (f"--port={free_port()}", "--address=127.0.0.1", "--secure-port=0")
    with program("koord.cli.daemons.koord_scheduler", kubeconfig, file, *flags):
        async with connect(installed.plane.kubeconfig) as client:
            try:
                await schedule_all_sorts(client)
            finally:
                assert installed.denied("koord-scheduler") == [], "a right is missing"
    assert installed.denied("koord-scheduler") == [], "a right is missing"
    unused = written_rights(made) - used_rights(installed.requests("koord-scheduler"))
    assert unused <= {
        ("", "persistentvolumeclaims", "patch"),  # no volume is bound here
        ("", "persistentvolumes", "patch"),
        ("", "pods", "patch"),  # labels that plugins set, and the marks of a Reservation that is gone
        ("", "pods/eviction", "create"),  # overused quotas, which is off as shipped
        ("authentication.k8s.io", "tokenreviews", "create"),  # of the secure port, which is closed here
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
        ("scheduling.koordinator.sh", "clusternetworktopologies/status", "patch"),  # there is none
        ("scheduling.koordinator.sh", "reservations", "delete"),  # a day after they ended
        ("scheduling.koordinator.sh", "reservations", "patch"),  # CPUs and devices that one holds
        ("events.k8s.io", "events", "patch"),  # of an event that happens again
    }


async def schedule_all_sorts(client: Client) -> None:
    """A plain pod, one that fits nowhere, one with a claim, a Reservation and its owner, a gang, a quota, and a
    preemption.
    """
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": "placed"}}))
    unwrap(await client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 1000}))
    unwrap(await client.create(NODES, {"metadata": {"name": "room"}}))
    amounts = {"cpu": "6", "memory": "20Gi", "pods": "100"}
    ready = {"type": "Ready", "status": "True", "reason": "R", "message": "m"}
    status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
    unwrap(await client.patch(NODES, "room", status, kind="merge", subresource="status"))

    async def bound(name: str) -> bool:
        return bool(unwrap(await client.get(PODS, name, "placed")).spec.node_name)

    nowhere = placed_by_koord("nowhere")
    nowhere["spec"]["nodeSelector"] = {"none": "such"}
    unwrap(await client.create(PODS, nowhere, "placed"))
    unwrap(await client.create(PODS, placed_by_koord("plain"), "placed"))
    await until(client, lambda: bound("plain"))

    async def refused() -> bool:
        return bool(unwrap(await client.get(PODS, "nowhere", "placed")).status.conditions)

    await until(client, refused)

    unwrap(await client.create(DEVICE_CLASSES, {"metadata": {"name": "card"}, "spec": {}}))
    pool = {"name": "room", "generation": 1, "resourceSliceCount": 1}
    cards = {"driver": "cards.example.com", "nodeName": "room", "pool": pool, "devices": [{"name": "card-0"}]}
    unwrap(await client.create(RESOURCE_SLICES, {"metadata": {"name": "room-cards"}, "spec": cards}))
    request = {"name": "one", "exactly": {"deviceClassName": "card"}}
    claim = {"metadata": {"name": "card"}, "spec": {"devices": {"requests": [request]}}}
    unwrap(await client.create(RESOURCE_CLAIMS, claim, "placed"))
    claiming = placed_by_koord("claiming")
    claiming["spec"] |= {"resourceClaims": [{"name": "card", "resourceClaimName": "card"}]}
    claiming["spec"]["containers"][0].setdefault("resources", {})["claims"] = [{"name": "card"}]
    unwrap(await client.create(PODS, claiming, "placed"))
    await until(client, lambda: bound("claiming"))
    unwrap(await client.delete(PODS, "claiming", "placed"))

    held = {
        "metadata": {"name": "held"},
        "spec": {
            "template": {"spec": placed_by_koord("x")["spec"]},
            "owners": [{"labelSelector": {"matchLabels": {"app": "owner"}}}],
            "ttl": "1h",
            "allocateOnce": True,
        },
    }
    unwrap(await client.create(RESERVATIONS, held))

    async def reservation_is(phase: str) -> bool:
        return unwrap(await client.get(RESERVATIONS, "held")).status.phase == phase

    await until(client, lambda: reservation_is("Available"))
    unwrap(await client.create(PODS, placed_by_koord("owner", app="owner"), "placed"))
    await until(client, lambda: bound("owner"))
    await until(client, lambda: reservation_is("Succeeded"))
    unwrap(await client.delete(RESERVATIONS, "held"))

    group = {"metadata": {"name": "gang"}, "spec": {"minMember": 2}}
    unwrap(await client.create(POD_GROUPS, group, "placed"))
    quota = {"metadata": {"name": "team"}, "spec": {"min": {"cpu": "1"}, "max": {"cpu": "4", "memory": "20Gi"}}}
    unwrap(await client.create(ELASTIC_QUOTAS, quota, "placed"))
    for name in ("one", "two"):
        labels = {_GANG: "gang", "quota.scheduling.koordinator.sh/name": "team"}
        unwrap(await client.create(PODS, placed_by_koord(name, **labels), "placed"))
    await until(client, lambda: bound("one"))
    await until(client, lambda: bound("two"))

    async def gang_is_told() -> bool:
        return bool(unwrap(await client.get(POD_GROUPS, "gang", "placed")).status.phase)

    async def quota_is_told() -> bool:
        return bool(unwrap(await client.get(ELASTIC_QUOTAS, "team", "placed")).metadata.annotations)

    await until(client, gang_is_told)
    await until(client, quota_is_told)

    urgent = placed_by_koord("urgent")
    urgent["spec"] |= {"priorityClassName": "urgent"}
    urgent["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "5"}, "limits": {"cpu": "5"}}
    unwrap(await client.create(PODS, urgent, "placed"))

    async def made_room() -> bool:
        pods = unwrap(await client.list(PODS, "placed")).items
        return any(one.metadata.deletion_timestamp is not None for one in pods)

    await until(client, made_room)

    async def preemption_is_told() -> bool:
        events = unwrap(await client.list(EVENTS_EVENTS, "placed")).items
        return any(event.reason == "Preempted" for event in events)

    await until(client, preemption_is_told)


async def test_the_yarn_operator_works_with_the_rights_it_declares(installed: InstalledPlane, tmp_path: Path) -> None:
    made = objects("yarn-operator")
    installed.apply(made)
    kubeconfig = account(installed.plane, tmp_path, OPERATOR_PROGRAM, NAMESPACE)
    yarn = FakeYarn()
    node_id = yarn.add("nm-0")
    yarn.use(node_id, 512, 1)
    manager = FakeResourceManager(yarn)
    async with resource_managers(manager), connect(installed.plane.kubeconfig) as client:
        properties = {"address": manager.address.client, "admin.address": manager.address.admin}
        site = "".join(
            f"<property><name>yarn.resourcemanager.{name}</name><value>{place}</value></property>"
            for name, place in properties.items()
        )
        (tmp_path / "yarn-site.xml").write_text(f"<configuration>{site}</configuration>")
        unwrap(await client.create(NODES, {"metadata": {"name": "shared"}}))
        lent = {"kubernetes.io/batch-cpu": "2000", "kubernetes.io/batch-memory": "2Gi"}
        status = {"status": {"capacity": lent, "allocatable": lent}}
        unwrap(await client.patch(NODES, "shared", status, kind="merge", subresource="status"))
        unwrap(await client.create(NAMESPACES, {"metadata": {"name": "hadoop-yarn"}}))
        daemon = pod("nm-0", **{"app.kubernetes.io/component": "node-manager"})
        daemon["metadata"]["annotations"] = {"yarn.hadoop.apache.org/node-id": str(node_id)}
        daemon["spec"]["nodeName"] = "shared"
        unwrap(await client.create(PODS, daemon, "hadoop-yarn"))
        flags = YARN_OPERATOR_FLAGS.parse(["--metrics-addr=0", "--health-probe-addr=0", "--sync-interval=200ms"])
        assert isinstance(flags, FlagValues)
        plan = plan_operator(flags, {"HADOOP_CONF_DIR": str(tmp_path), "HADOOP_USER_NAME": "yarn"}, "host")
        assert isinstance(plan, YarnOperatorPlan), plan
        stop = asyncio.Event()
        connection = load_connection({}, WallClock(), path=str(kubeconfig))
        task = asyncio.create_task(serve_operator(plan, connection, Logs(), stop))

        async def told() -> bool:
            annotations = unwrap(await client.get(NODES, "shared")).metadata.annotations
            return "hadoop-yarn" in annotations.get(A_THIRD_PARTY_ALLOCATIONS, "")

        try:
            await until(client, told)
            assert yarn.capability(node_id) == ResourceMessage(2048, 2)
        finally:
            assert installed.denied(OPERATOR_PROGRAM) == [], "a right is missing"
            stop.set()
            assert await task == 0
    assert installed.denied(OPERATOR_PROGRAM) == [], "a right is missing"
    assert written_rights(made) - used_rights(installed.requests(OPERATOR_PROGRAM)) == set()


async def test_the_descheduler_moves_pods_with_the_rights_it_declares(
    installed: InstalledPlane, tmp_path: Path
) -> None:
    made = objects("descheduler")
    installed.apply(made)
    (text,) = [one["data"] for one in made if one["metadata"]["name"] == "koord-descheduler-config"]
    config = yaml.safe_load(text["koord-descheduler.config"])
    address = f"127.0.0.1:{free_port()}"
    config |= {"healthzBindAddress": address, "metricsBindAddress": address}
    # So that everything that any evictor reads is read.
    config["profiles"][0]["plugins"]["filter"] = {"enabled": [{"name": "DefaultEvictor"}]}
    file = tmp_path / "koord-descheduler.config"
    file.write_text(yaml.safe_dump(config))
    kubeconfig = account(installed.plane, tmp_path, "koord-descheduler", NAMESPACE)
    with program("koord.cli.daemons.koord_descheduler", kubeconfig, file, "--secure-port=0"):
        async with connect(installed.plane.kubeconfig) as client:
            owner = await with_owned_pods(client, "moved", "goes", "stays")
            await with_owned_pods(client, "removed", "deleted")
            await with_owned_pods(client, "warned", "asked")

            async def ask_for(name: str, mode: str, namespace: str = "moved", **labels: str) -> None:
                spec = {"podRef": {"namespace": namespace, "name": name}, "mode": mode, "ttl": "5m"}
                job = {"metadata": {"name": name, "labels": labels}, "spec": spec}
                unwrap(await client.create(POD_MIGRATION_JOBS, job))

            async def evicted() -> bool:
                return unwrap(await client.get(POD_MIGRATION_JOBS, "goes")).status.phase == "Succeeded"

            async def deleted() -> bool:
                return isinstance(await client.get(PODS, "deleted", "removed"), ApiError)

            async def asked() -> bool:
                return A_SOFT_EVICTION in unwrap(await client.get(PODS, "asked", "warned")).metadata.annotations

            async def reserved() -> Any:
                options = unwrap(await client.get(POD_MIGRATION_JOBS, "stays")).spec.reservation_options
                return options is not None and options.reservation_ref is not None

            async def given_back() -> bool:
                return not unwrap(await client.list(RESERVATIONS)).items

            try:
                await ask_for("stays", "ReservationFirst")
                await until(client, reserved)
                (place,) = unwrap(await client.list(RESERVATIONS)).items
                assert [one.controller.uid for one in place.spec.owners if one.controller is not None] == [owner]
                unwrap(await client.delete(POD_MIGRATION_JOBS, "stays"))
                await until(client, given_back)
                await ask_for("goes", "EvictDirectly")
                await until(client, evicted)
                assert isinstance(await client.get(PODS, "goes", "moved"), ApiError)
                await ask_for("deleted", "EvictDirectly", "removed", **{L_EVICT_POLICY: DELETE})
                await until(client, deleted)
                await ask_for("asked", "EvictDirectly", "warned", **{L_EVICT_POLICY: SOFT_EVICTION})
                await until(client, asked)
            finally:
                assert installed.denied("koord-descheduler") == [], "a right is missing"
    assert installed.denied("koord-descheduler") == [], "a right is missing"
    unused = written_rights(made) - used_rights(installed.requests("koord-descheduler"))
    assert unused <= {
        ("", "nodes", "patch"),  # cordons, of plugins that are off as shipped
        ("authentication.k8s.io", "tokenreviews", "create"),  # of the secure port, which is closed here
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
        ("scheduling.koordinator.sh", "podmigrationjobs", "create"),  # of plugins that propose moves
        ("scheduling.koordinator.sh", "podmigrationjobs", "delete"),  # of jobs whose time to live is over
        ("scheduling.koordinator.sh", "reservations", "patch"),  # a longer life, where the job's became longer
        ("events.k8s.io", "events", "patch"),  # of an event that happens again
    }


async def with_owned_pods(client: Client, namespace: str, *names: str) -> str:
    """Running pods of one ReplicaSet that no controller looks after; its uid."""
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": namespace}}))
    labels = {"app": namespace}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    spec = {"replicas": 10, "selector": {"matchLabels": labels}, "template": template}
    owner = unwrap(await client.create(REPLICA_SETS, {"metadata": {"name": "owner"}, "spec": spec}, namespace)).metadata
    for name in names:
        one = pod(name, **labels)
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner", "uid": owner.uid}
        one["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
        one["spec"] |= {"nodeName": "n", "schedulerName": "koord-scheduler", "terminationGracePeriodSeconds": 0}
        unwrap(await client.create(PODS, one, namespace))
        ready = {"type": "Ready", "status": "True"}
        status = {"status": {"phase": "Running", "conditions": [ready]}}
        unwrap(await client.patch(PODS, name, status, namespace, kind="merge", subresource="status"))
    return owner.uid


async def test_the_manager_works_with_the_rights_it_declares(installed: InstalledPlane, tmp_path: Path) -> None:
    made = objects("settings", "manager")
    installed.apply(made)
    kubeconfig = account(installed.plane, tmp_path, "koord-manager", NAMESPACE)
    environ = {"WEBHOOK_HOST": "127.0.0.1", "WEBHOOK_CERT_WRITER": "secret"}
    with running(kubeconfig, tmp_path, f"--feature-gates={GATES}", environ=environ):
        async with connect(installed.plane.kubeconfig) as client:
            try:
                await manage_all_sorts(client)
            finally:
                assert installed.denied() == [], "a right is missing"
    assert installed.denied() == [], "a right is missing"
    unused = written_rights(made) - used_rights(installed.requests())
    assert unused <= {
        ("", "secrets", "patch"),  # of a certificate that is replaced
        ("analysis.koordinator.sh", "recommendations", "patch"),  # what was learnt, every ten minutes
        ("events.k8s.io", "events", "patch"),  # of an event that happens again
    }


async def manage_all_sorts(client: Client) -> None:
    """A node that comes, reports, has zones and goes; other settings; a pool's quota, a profile, a recommendation."""
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": "managed"}}))
    waiting = pod("waiting", app="managed")
    waiting["spec"]["schedulerName"] = "nobody"
    unwrap(await client.create(PODS, waiting, "managed"))
    unwrap(await client.create(NODES, {"metadata": {"name": "lender", "labels": {"pool": "managed"}}}))
    amounts = {"cpu": "10", "memory": "20Gi", "pods": "100"}
    status = {"status": {"capacity": amounts, "allocatable": amounts}}
    unwrap(await client.patch(NODES, "lender", status, kind="merge", subresource="status"))

    async def has_objects() -> bool:
        found = [await client.get(resource, "lender") for resource in (NODE_METRICS, NODE_SLOS)]
        return not any(isinstance(one, ApiError) for one in found)

    await until(client, has_objects)
    zone = {
        "name": "node-0",
        "type": "Node",
        "resources": [
            {"name": name, "capacity": amounts[name], "allocatable": amounts[name], "available": amounts[name]}
            for name in ("cpu", "memory")
        ],
    }
    topology = {"metadata": {"name": "lender"}, "topologyPolicies": ["None"], "zones": [zone]}
    unwrap(await client.create(NODE_RESOURCE_TOPOLOGIES, topology))
    usage = {"resources": {"cpu": "1", "memory": "2Gi"}}
    report = {
        "updateTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "nodeMetric": {"nodeUsage": usage, "systemUsage": usage},
        "podsMetric": [],
    }
    unwrap(await client.patch(NODE_METRICS, "lender", {"status": report}, kind="merge", subresource="status"))

    async def lends() -> bool:
        zones = (await client.dynamic.get(NODE_RESOURCE_TOPOLOGIES, "lender"))["zones"]  # type: ignore[index]
        node = unwrap(await client.get(NODES, "lender"))
        listed = [entry["name"] for entry in zones[0]["resources"]]
        return "kubernetes.io/batch-cpu" in node.status.allocatable and "kubernetes.io/batch-cpu" in listed

    await until(client, lends)

    async def configure(key: str, text: str) -> None:
        unwrap(await client.patch(CONFIG_MAPS, "slo-controller-config", {"data": {key: text}}, NAMESPACE, kind="merge"))

    await configure("colocation-config", '{"enable":true,"metricReportIntervalSeconds":30}')
    await configure("resource-threshold-config", '{"clusterStrategy":{"enable":true,"cpuSuppressThresholdPercent":50}}')
    await configure("host-application-config", "{")  # told in an event

    async def follows() -> bool:
        slo, metric = unwrap(await client.get(NODE_SLOS, "lender")), unwrap(await client.get(NODE_METRICS, "lender"))
        threshold, policy = slo.spec.resource_used_threshold_with_be, metric.spec.metric_collect_policy
        assert threshold is not None
        assert policy is not None
        return threshold.cpu_suppress_threshold_percent == 50 and policy.report_interval_seconds == 30

    await until(client, follows)
    pool = {"quotaName": "pool", "nodeSelector": {"matchLabels": {"pool": "managed"}}}
    unwrap(await client.create(ELASTIC_QUOTA_PROFILES, {"metadata": {"name": "pool"}, "spec": pool}, "managed"))

    async def pool_has(cpu: str) -> bool:
        quota = await client.get(ELASTIC_QUOTAS, "pool", "managed")
        return not isinstance(quota, ApiError) and quota.spec.min.get("cpu") == cpu

    await until(client, lambda: pool_has("10"))
    grown = {"status": {"capacity": {"cpu": "12"}, "allocatable": {"cpu": "12"}}}
    unwrap(await client.patch(NODES, "lender", grown, kind="merge", subresource="status"))
    await until(client, lambda: pool_has("12"))

    selector = {"matchLabels": {"app": "managed"}}
    managed = {"name": "late", "labels": {"config.koordinator.sh/controller-managed": "true"}}
    profile = {"metadata": managed, "spec": {"selector": selector, "labels": {"from-profile": "yes"}}}
    unwrap(await client.create(CLUSTER_COLOCATION_PROFILES, profile))

    async def relabelled() -> bool:
        return unwrap(await client.get(PODS, "waiting", "managed")).metadata.labels.get("from-profile") == "yes"

    await until(client, relabelled)
    target = {"type": "podSelector", "podSelector": selector}
    unwrap(await client.create(RECOMMENDATIONS, {"metadata": {"name": "r"}, "spec": {"target": target}}, "managed"))

    async def recommended() -> bool:
        return bool(unwrap(await client.get(RECOMMENDATIONS, "r", "managed")).status.conditions)

    await until(client, recommended)
    unwrap(await client.delete(NODES, "lender"))

    async def gone() -> bool:
        found = [await client.get(resource, "lender") for resource in (NODE_METRICS, NODE_SLOS)]
        return all(isinstance(one, ApiError) for one in found)

    await until(client, gone)
