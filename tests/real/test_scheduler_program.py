"""The koord-scheduler program on a real control plane with RBAC, with the rights that its manifests give it.

The server's audit log is the witness: who sent which binding when, and whether anything was denied.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.koordinator.protocol import NAMESPACE, SCHEDULER
from koord.api.kubernetes.builtin_kinds import (
    EVENTS_EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
)
from koord.cli.manifests.manifests import manifests
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import TRANSIENT_ERRORS
from tests.real import volume_keeper
from tests.real.kubectl import kubectl
from tests.real.manager_process import account
from tests.real.reach import connect
from tests.real.scheduler_process import QUICK_ELECTION, running
from tools import assets, controlplane
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

PATIENCE_S = 180
USER = f"system:serviceaccount:{NAMESPACE}:koord-scheduler"
HEIR = "system:serviceaccount:kube-system:heir"  # has kube-scheduler's rights and no others
CREDENTIAL = "authentication.kubernetes.io/credential-id"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "users": [USER, HEIR]}, {"level": "None"}],
}
LEASE_NAMESPACE = "kube-system"  # kube-scheduler's own lease is what a file that names none gets
NODE_COUNT = 20
DRAIN = 300
SLOW_QPS = 30  # slow enough to be caught in the middle of it


class Home:
    def __init__(self, plane: ControlPlane, folder: Path, audit: Path) -> None:
        self.plane = plane
        self.folder = folder
        self._audit = audit
        self.outage: tuple[datetime, datetime] | None = None

    def account(self, name: str = "koord-scheduler", namespace: str = NAMESPACE) -> Path:
        """A token of the account, different each time, so that requests tell who sent them."""
        folder = self.folder / f"account-{time.monotonic_ns()}"
        folder.mkdir()
        return account(self.plane, folder, name, namespace)

    def do(self, *args: str, stdin: str = "") -> None:
        said = kubectl(self.plane.kubeconfig, *args, stdin=stdin)
        assert said.code == 0, said.err

    def requests(self) -> list[dict[str, Any]]:
        whole, _, _ = self._audit.read_text().rpartition("\n")  # the last line may be half written
        return [json.loads(line) for line in whole.splitlines()]

    def bindings(self) -> list[dict[str, Any]]:
        return [each for each in self.requests() if each["objectRef"].get("subresource") == "binding"]

    def bound_once(self, space: str) -> None:
        won = Counter(
            each["objectRef"]["name"]
            for each in self.bindings()
            if each["objectRef"]["namespace"] == space and each["responseStatus"]["code"] == 201
        )
        assert not {name: count for name, count in won.items() if count > 1}

    def denied(self) -> list[str]:
        """Except by a server that has just started and has not read its own rules yet."""
        found = [each for each in self.requests() if each["responseStatus"]["code"] in (401, 403)]
        return [each["requestURI"] for each in found if not self._in_outage(received(each))]

    def _in_outage(self, moment: datetime) -> bool:
        return self.outage is not None and self.outage[0] <= moment <= self.outage[1]


def received(request: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(request["requestReceivedTimestamp"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    folder = tmp_path_factory.mktemp("scheduler")
    policy, audit = folder / "policy.json", folder / "audit.log"
    policy.write_text(json.dumps(POLICY))
    args = ["--audit-policy-file", str(policy), "--audit-log-path", str(audit), "--audit-log-mode", "blocking"]
    with controlplane.running(args, authorization="RBAC") as plane:
        made = manifests(components=("namespace", "crds", "scheduler"))
        assert isinstance(made, list), made
        home = Home(plane, folder, audit)
        home.do("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(made))
        yield home
        assert home.denied() == [], "a right is missing"


@pytest.fixture
async def client(home: Home) -> AsyncIterator[Client]:
    async with connect(home.plane.kubeconfig) as made:
        known = {node.metadata.name for node in unwrap(await made.list(NODES)).items}
        for name in sorted({f"node{i}" for i in range(NODE_COUNT)} - known):
            room = {"cpu": "32", "memory": "64Gi", "pods": "110"}
            unwrap(await made.create(NODES, {"metadata": {"name": name}, "status": {"allocatable": room}}))
        yield made
        await made.delete_collection(LEASES, LEASE_NAMESPACE)


async def until(done: Callable[[], Awaitable[Any]], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = await done()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.05)  # another process works, and cannot set an event here


def pod(name: str, cpu: str = "100m", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": {"name": name}, "spec": {"schedulerName": SCHEDULER, "containers": [container], **spec}}


async def crowd(client: Client, space: str, count: int = DRAIN) -> None:
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": space}}))
    for start in range(0, count, 50):
        made = (client.create(PODS, pod(f"p{i}"), space) for i in range(start, min(start + 50, count)))
        assert not [each for each in await asyncio.gather(*made) if isinstance(each, ApiError)]


async def bound(client: Client, space: str) -> int:
    try:
        return sum(bool(each.spec.node_name) for each in unwrap(await client.list(PODS, space)).items)
    except TRANSIENT_ERRORS:
        return 0


async def all_bound(client: Client, space: str, count: int = DRAIN) -> None:
    async def done() -> bool:
        return await bound(client, space) == count

    await until(done, f"{count} pods of {space} bound, is {await bound(client, space)}")


async def some_bound(client: Client, space: str, least: int) -> None:
    async def done() -> bool:
        return await bound(client, space) >= least

    await until(done, f"{least} pods of {space} bound")


# One process -----------------------------------------------------------------------------------------------------


async def test_it_binds_serves_and_makes_room(home: Home, client: Client) -> None:
    space = "one"
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": space}}))
    with running(home.account(), home.folder, name="one") as scheduler:
        await odd_objects(client, space)
        unwrap(await client.create(PODS, pod("first"), space))
        await some_bound(client, space, 1)
        assert scheduler.get("/healthz") == scheduler.get("/livez") == scheduler.get("/readyz") == "ok"

        async def counted() -> bool:  # after the answer to the binding, which others see before
            return scheduler.metric(r'scheduler_schedule_attempts_total\{.*result="scheduled"\}') >= 1

        await until(counted, "the attempt is counted")
        await volumes_are_bound(client, space)
        await room_is_made(client, space)
        scheduler.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(scheduler.process.wait, 30) == 0
    home.bound_once(space)


async def test_kube_schedulers_own_rights_are_enough(home: Home, client: Client) -> None:
    """Its place is taken with its account, its lease and its name."""
    home.do("create", "serviceaccount", "heir", "-n", "kube-system")
    for role in ("system:kube-scheduler", "system:volume-scheduler"):
        home.do(
            "create", "clusterrolebinding", f"heir-{role}", f"--clusterrole={role}", "--serviceaccount=kube-system:heir"
        )
    profiles = {"profiles": [{"schedulerName": "default-scheduler"}]}
    space, kubeconfig = "heir", home.account("heir", "kube-system")
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": space}}))
    with running(kubeconfig, home.folder, name="heir", config=profiles, election=QUICK_ELECTION) as scheduler:
        unwrap(await client.create(PODS, pod("first", schedulerName="default-scheduler"), space))
        unwrap(await client.create(PODS, pod("large", "1000", schedulerName="default-scheduler"), space))
        await some_bound(client, space, 1)
        held = unwrap(await client.get(LEASES, "kube-scheduler", LEASE_NAMESPACE))

        async def renewed() -> bool:
            lease = unwrap(await client.get(LEASES, "kube-scheduler", LEASE_NAMESPACE))
            return lease.spec.renew_time != held.spec.renew_time

        await until(renewed, "the lease is renewed")

        async def told() -> bool:
            return {"Scheduled", "FailedScheduling"} <= {
                e.reason for e in unwrap(await client.list(EVENTS_EVENTS, space)).items
            }

        await until(told, "events tell of it")
        assert scheduler.leads()


async def test_kube_scheduler_hands_over_by_its_lease(home: Home, client: Client) -> None:
    binary = assets.folder() / "kube-scheduler"
    if not binary.is_file():
        pytest.skip("no kube-scheduler built: run `python -m tools.assets` first")
    space, file = "handed", home.folder / "kube.yaml"
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": space}}))
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    reach = {"kubeconfig": str(home.plane.kubeconfig)}
    file.write_text(yaml.safe_dump({**head, "leaderElection": dict(QUICK_ELECTION), "clientConnection": reach}))
    with (home.folder / "kube.log").open("wb") as log:
        theirs = await asyncio.create_subprocess_exec(
            str(binary), f"--config={file}", "--secure-port=0", stdout=log, stderr=log
        )
    try:
        unwrap(await client.create(PODS, pod("before", schedulerName="default-scheduler"), space))
        await some_bound(client, space, 1)
        profiles = {"profiles": [{"schedulerName": "default-scheduler"}]}
        with running(home.account(), home.folder, name="next", config=profiles, election=QUICK_ELECTION) as ours:
            assert not ours.leads()
            theirs.terminate()
            await theirs.wait()
            unwrap(await client.create(PODS, pod("after", schedulerName="default-scheduler"), space))
            await some_bound(client, space, 2)
            assert ours.leads()
    finally:
        if theirs.returncode is None:
            theirs.kill()
            await theirs.wait()
    names = [each["objectRef"]["name"] for each in home.bindings() if each["objectRef"]["namespace"] == space]
    assert names == ["after"], "ours bound what it was to bind, and nothing before"


async def odd_objects(client: Client, space: str) -> None:
    """What a server accepts and nobody expects must not keep others from being served."""
    odd = {"cpu": "0.1", "memory": "1e3", "pods": "12E", "example.com/odd": "9223372036854775807"}
    status = {"allocatable": odd, "images": [{"names": None, "sizeBytes": -1}, {"names": [""]}]}
    taint = {"key": "odd", "effect": "NoSchedule"}
    unwrap(await client.create(NODES, {"metadata": {"name": "odd"}, "spec": {"taints": [taint]}, "status": status}))
    terms = [{"matchExpressions": [{"key": "x", "operator": "Gt", "values": ["not-a-number"]}]}]
    near = {"required": {"nodeSelectorTerms": terms}}
    volume = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "nodeAffinity": near}
    volume |= {"storageClassName": "shelf", "hostPath": {"path": "/x"}}
    unwrap(await client.create(PERSISTENT_VOLUMES, {"metadata": {"name": "odd"}, "spec": volume}))
    want = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    unwrap(await client.create(PODS, pod("odd", affinity=want), space))


async def volumes_are_bound(client: Client, space: str) -> None:
    waits = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    unwrap(await client.create(STORAGE_CLASSES, {"metadata": {"name": "shelf"}, **waits}))
    spec: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "storageClassName": "shelf"}
    free = {**spec, "capacity": {"storage": "2Gi"}, "hostPath": {"path": "/y"}}
    await volume_keeper.offer(client, {"metadata": {"name": "free"}, "spec": free})
    claim = {**spec, "resources": {"requests": {"storage": "1Gi"}}}
    unwrap(await client.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": {"name": "claim"}, "spec": claim}, space))
    async with volume_keeper.keeping(client, {}):
        held = [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}]
        unwrap(await client.create(PODS, pod("with-volume", volumes=held), space))
        await some_bound(client, space, 2)
    made = unwrap(await client.get(PERSISTENT_VOLUMES, "free"))
    assert made.spec.claim_ref is not None
    assert made.spec.claim_ref.name == "claim"


async def room_is_made(client: Client, space: str) -> None:
    for name, value in (("least", 1), ("most", 1000)):
        unwrap(await client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
    room = {"cpu": "2", "memory": "4Gi", "pods": "110"}
    node = {"metadata": {"name": "small", "labels": {"size": "small"}}, "status": {"allocatable": room}}
    unwrap(await client.create(NODES, node))
    there = {"nodeSelector": {"size": "small"}, "terminationGracePeriodSeconds": 3600}
    unwrap(await client.create(PODS, pod("victim", "2", priorityClassName="least", **there), space))
    await some_bound(client, space, 3)
    unwrap(await client.create(PODS, pod("preemptor", "2", priorityClassName="most", **there), space))

    async def leaving() -> bool:
        return unwrap(await client.get(PODS, "victim", space)).metadata.deletion_timestamp is not None

    await until(leaving, "the victim leaves")
    victim = unwrap(await client.get(PODS, "victim", space))
    (target,) = (each for each in victim.status.conditions if each.type == "DisruptionTarget")
    assert (target.status, target.reason) == ("True", "PreemptionByScheduler")

    async def promised() -> bool:
        return unwrap(await client.get(PODS, "preemptor", space)).status.nominated_node_name == "small"

    await until(promised, "the node is promised")
    await client.delete(PODS, "victim", space, grace_seconds=0)

    async def placed() -> bool:
        return unwrap(await client.get(PODS, "preemptor", space)).spec.node_name == "small"

    await until(placed, "the preemptor is bound")

    async def told() -> bool:
        events = unwrap(await client.list(EVENTS_EVENTS, space)).items
        seen = {(event.regarding.name, event.reason) for event in events if event.regarding is not None}
        wanted = {("victim", "Preempted"), ("preemptor", "FailedScheduling"), ("preemptor", "Scheduled")}
        return seen >= wanted

    await until(told, "events tell of it")


# Two processes ---------------------------------------------------------------------------------------------------


async def test_a_standby_goes_on_where_a_killed_leader_was(home: Home, client: Client) -> None:
    space = "killed"
    with running(home.account(), home.folder, name="killed", election=QUICK_ELECTION, qps=SLOW_QPS) as first:
        await until(lambda: asyncio.to_thread(first.leads), "the first leads")
        with running(home.account(), home.folder, name="heir", election=QUICK_ELECTION) as second:
            assert not second.leads()
            await crowd(client, space)
            await some_bound(client, space, 60)
            first.process.kill()
            assert await bound(client, space) < DRAIN
            await all_bound(client, space)
            assert second.leads()
            second.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.process.wait, 30) == 0
    home.bound_once(space)


async def test_a_leader_that_slept_too_long_ends_without_another_binding(home: Home, client: Client) -> None:
    space = "asleep"
    token = home.account()
    with running(token, home.folder, name="asleep", election=QUICK_ELECTION, qps=SLOW_QPS) as first:
        await until(lambda: asyncio.to_thread(first.leads), "the first leads")
        with running(home.account(), home.folder, name="awake", election=QUICK_ELECTION) as second:
            await crowd(client, space)
            await some_bound(client, space, 60)
            first.process.send_signal(signal.SIGSTOP)
            await until(lambda: asyncio.to_thread(second.leads), "the second leads")
            await all_bound(client, space)
            resumed = datetime.now(UTC)
            first.process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(first.process.wait, 30) == 1
            assert second.leads()
    assert "leaderelection lost" in first.words()
    late = [each for each in home.bindings() if received(each) > resumed]
    assert not late, f"{len(late)} bindings by one that no longer led"
    senders = {each["user"]["extra"][CREDENTIAL][0] for each in home.bindings()}
    assert len(senders) >= 2
    home.bound_once(space)


async def test_it_outlives_its_api_server(home: Home, client: Client) -> None:
    space = "outage"
    with running(home.account(), home.folder, name="outage", qps=60) as scheduler:
        await crowd(client, space)
        await some_bound(client, space, 60)
        began = datetime.now(UTC)
        home.plane.kill("kube-apiserver")
        home.plane.start("kube-apiserver")
        await asyncio.to_thread(home.plane.wait)
        await all_bound(client, space)
        home.outage = (began, datetime.now(UTC))
        assert scheduler.process.poll() is None
        assert scheduler.ready()
    home.bound_once(space)
