"""koord-manager on a real control plane with RBAC, installed from `koord manifests` and run with that account's rights.

The API server calls its webhooks by URL. Every entry fails closed here, so that a call that fails cannot hide.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.koordinator.custom_kinds import (
    CLUSTER_COLOCATION_PROFILES,
    NODE_METRICS,
    NODE_SLOS,
    POD_MIGRATION_JOBS,
    RESERVATIONS,
)
from koord.api.kubernetes.builtin_kinds import (
    CONFIG_MAPS,
    EVENTS_EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICA_SETS,
    SECRETS,
)
from koord.cli.manifests.manifests import manifests
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.context import NAMESPACE
from tests.real.kubectl import kubectl
from tests.real.manager_process import ManagerProcess, account, running
from tests.real.reach import connect
from tools import assets, controlplane
from tools.controlplane import ControlPlane, free_port

pytestmark = pytest.mark.real

GATES = (
    "NodeMutatingWebhook=true,NodeValidatingWebhook=true,ConfigMapValidatingWebhook=true,"
    "ReservationMutatingWebhook=true,MultiQuotaTree=true,ColocationProfileController=true"
)
POLICY = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
PROFILE: dict[str, Any] = {
    "metadata": {"name": "batch"},
    "spec": {
        "selector": {"matchLabels": {"app": "job"}},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "labels": {"from-profile": "yes"},
    },
}


class Home:
    def __init__(self, plane: ControlPlane, folder: Path, audit: Path) -> None:
        self.plane = plane
        self.folder = folder
        self.audit = audit
        self.port = free_port()
        self.kubeconfig = Path()

    def apply(self, objects: list[dict[str, Any]], *args: str) -> str:
        text = yaml.safe_dump_all(objects)
        said = kubectl(
            self.plane.kubeconfig, "apply", "--server-side", "--force-conflicts", *args, "-f", "-", stdin=text
        )
        assert said.code == 0, said.err
        return said.out

    def requests(self, account: str = "koord-manager") -> list[dict[str, Any]]:
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        events = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [event for event in events if event["user"]["username"] == user and "responseStatus" in event]

    def denied(self, account: str = "koord-manager") -> list[str]:
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.requests(account)
            if event["responseStatus"]["code"] in (401, 403)
        ]


def objects(*components: str, failure_policy: str = "Fail") -> list[dict[str, Any]]:
    made = manifests(components=components, feature_gates=GATES)
    assert isinstance(made, list)
    for one in made:
        for webhook in one.get("webhooks", ()):
            webhook["failurePolicy"] = failure_policy
    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    missing = [name for name in ("etcd", "kube-apiserver") if not (assets.folder() / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} built: run `python -m tools.assets` first")
    folder = tmp_path_factory.mktemp("installed")
    policy, audit = folder / "policy.json", folder / "audit.log"
    policy.write_text(json.dumps(POLICY))
    args = ["--audit-policy-file", str(policy), "--audit-log-path", str(audit), "--audit-log-mode", "blocking-strict"]
    with controlplane.running(args, authorization="RBAC") as plane:
        home = Home(plane, folder, audit)
        home.apply(objects("namespace", "crds"))
        kubectl(plane.kubeconfig, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield home


@pytest.fixture(scope="class")
def manager(home: Home) -> Iterator[ManagerProcess]:
    home.apply(objects("settings", "manager"))
    home.kubeconfig = account(home.plane, home.folder, "koord-manager", NAMESPACE)
    environ = {"WEBHOOK_HOST": "127.0.0.1", "WEBHOOK_CERT_WRITER": "secret"}
    with running(
        home.kubeconfig, home.folder, f"--feature-gates={GATES}", environ=environ, webhook_port=home.port
    ) as manager:
        yield manager
    assert home.denied() == [], "a right is missing"


async def until(client: Client, done: Callable[[], Any]) -> Any:
    """What `done` comes to, once it is something."""
    deadline = time.monotonic() + 30
    while True:
        found = await done()
        if found:
            return found
        assert time.monotonic() < deadline, "did not happen within 30 s"
        await asyncio.sleep(0.05)


def pod(name: str, **labels: str) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
    spec = {"containers": [{"name": "c", "image": "i", "resources": resources}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


async def with_profile(client: Client, namespace: str) -> None:
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": namespace}}))
    made = await client.create(CLUSTER_COLOCATION_PROFILES, PROFILE)
    assert not isinstance(made, ApiError) or made.already_exists

    async def applies() -> bool:
        tried = unwrap(await client.create(PODS, pod("probe", app="job"), namespace, dry_run=True))
        return tried.metadata.labels.get("from-profile") == "yes"

    await until(client, applies)


def test_everything_that_is_printed_is_accepted(home: Home) -> None:
    made = manifests()
    assert isinstance(made, list)
    said = home.apply(made, "--dry-run=server")
    assert len(said.splitlines()) == len(made)
    strict = kubectl(
        home.plane.kubeconfig,
        *("apply", "--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=yaml.safe_dump_all(made),
    )
    assert strict.code == 0, strict.err


class TestRunning:
    async def test_the_api_server_asks_and_follows(self, home: Home, manager: ManagerProcess) -> None:
        async with connect(home.plane.kubeconfig) as client:
            await with_profile(client, "asked")
            made = unwrap(await client.create(PODS, pod("a", app="job"), "asked"))
            assert made.spec.priority == 5000
            assert made.metadata.labels["koordinator.sh/qosClass"] == "BE"
            assert set(made.spec.containers[0].resources.requests) == {
                "kubernetes.io/batch-cpu",
                "kubernetes.io/batch-memory",
            }
            bad = await client.create(PODS, pod("b", **{"koordinator.sh/qosClass": "BE"}), "asked")
            assert isinstance(bad, ApiError)
            assert bad.message == (
                'admission webhook "vpod.koordinator.sh" denied the request: Pod: Forbidden: '
                "koordinator.sh/qosClass=BE and priorityClass= cannot be used in combination"
            )
            config = {"data": {"colocation-config": '{"cpuReclaimThresholdPercent": -1}'}}
            refused = await client.patch(CONFIG_MAPS, "slo-controller-config", config, NAMESPACE, kind="merge")
            assert isinstance(refused, ApiError)
            assert "vconfigmap.koordinator.sh" in refused.message
            untouched = unwrap(await client.create(PODS, pod("own", app="job"), "kube-system"))
            assert "from-profile" not in untouched.metadata.labels

    async def test_controllers_work_with_the_rights_they_declare(self, home: Home, manager: ManagerProcess) -> None:
        async with connect(home.plane.kubeconfig) as client:
            unwrap(await client.create(NODES, {"metadata": {"name": "n1"}}))
            amounts = {"cpu": "10", "memory": "20Gi", "pods": "100"}
            status = {"status": {"capacity": amounts, "allocatable": amounts}}
            unwrap(await client.patch(NODES, "n1", status, kind="merge", subresource="status"))

            async def has_companions() -> bool:
                found = [await client.get(resource, "n1") for resource in (NODE_METRICS, NODE_SLOS)]
                return not any(isinstance(one, ApiError) for one in found)

            await until(client, has_companions)
            usage = {"resources": {"cpu": "1", "memory": "2Gi"}}
            report = {
                "updateTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "nodeMetric": {"nodeUsage": usage, "systemUsage": usage},
                "podsMetric": [],
            }
            unwrap(await client.patch(NODE_METRICS, "n1", {"status": report}, kind="merge", subresource="status"))

            async def lends() -> str:
                return str(unwrap(await client.get(NODES, "n1")).status.allocatable.get("kubernetes.io/batch-cpu", ""))

            assert await until(client, lends)
            assert home.denied() == []
            assert {event["verb"] for event in home.requests()} >= {"list", "watch", "create", "patch"}

    async def test_no_call_fails_while_the_certificate_is_replaced(self, home: Home, manager: ManagerProcess) -> None:
        """The policy is Fail, so every dry run that is answered proves a call that was."""
        async with connect(home.plane.kubeconfig) as client:
            await with_profile(client, "rotating")

            async def not_after() -> list[str]:
                return [line for line in manager.metrics().splitlines() if "certificate_not_after" in line]

            async def fingerprints() -> str:
                secret = await client.get(SECRETS, "koordinator-webhook-certs", NAMESPACE)
                return "" if isinstance(secret, ApiError) else secret.data.get("tls.crt", "")

            before = await fingerprints()
            assert len(await not_after()) == 4
            unwrap(await client.delete(SECRETS, "koordinator-webhook-certs", NAMESPACE))
            calls, deadline = 0, time.monotonic() + 60
            while manager.log.read_text().count("serving the certificate") < 2:
                tried = await client.create(PODS, pod("probe", app="job"), "rotating", dry_run=True)
                assert not isinstance(tried, ApiError), f"after {calls} calls: {tried}"
                assert tried.metadata.labels["from-profile"] == "yes"
                calls += 1
                assert time.monotonic() < deadline, "the certificate was not replaced within 60 s"
            for _ in range(20):
                unwrap(await client.create(PODS, pod("probe", app="job"), "rotating", dry_run=True))
            assert calls > 20
            assert await fingerprints() not in ("", before)


async def test_what_slips_through_while_it_is_away_is_told_of(home: Home, tmp_path: Path) -> None:
    async with connect(home.plane.kubeconfig) as client:
        for kind in ("mutating", "validating"):
            name = f"koordinator-{kind}-webhook-configuration"
            kubectl(home.plane.kubeconfig, "delete", f"{kind}webhookconfiguration", name)
        home.apply(objects("manager", failure_policy="Ignore"))
        if isinstance(await client.get(NAMESPACES, "slipping"), ApiError):
            unwrap(await client.create(NAMESPACES, {"metadata": {"name": "slipping"}}))
        environ = {"WEBHOOK_HOST": "127.0.0.1", "WEBHOOK_CERT_WRITER": "secret"}
        made = await client.create(CLUSTER_COLOCATION_PROFILES, PROFILE)
        assert not isinstance(made, ApiError) or made.already_exists
        await asyncio.sleep(1.1)  # creation times have whole seconds, and the pod has to be younger than the profile
        bare = unwrap(await client.create(PODS, pod("bare", app="job"), "slipping"))
        assert "from-profile" not in bare.metadata.labels
        with running(
            home.kubeconfig, tmp_path, "--enable-leader-election=false", f"--feature-gates={GATES}", environ=environ
        ) as again:

            async def told() -> list[str]:
                events = unwrap(await client.list(EVENTS_EVENTS, "slipping")).items
                return [event.regarding.name for event in events if event.reason == "WebhookBypassed"]

            assert await until(client, told) == ["bare"]
            assert 'koord_manager_webhook_bypassed_pods{namespace="slipping"} 1' in again.metrics()
            assert 'koord_manager_webhook_reachable{path="/mutate-pod"} 1' in again.metrics()


def scheduling(kubeconfig: Path, config: Path) -> AbstractContextManager[None]:
    """koord-scheduler as a child process, with the rights of the kubeconfig."""
    flags = [f"--port={free_port()}", "--address=127.0.0.1", "--secure-port=0"]
    return program("koord.cli.daemons.koord_scheduler", kubeconfig, config, *flags)


@contextmanager
def program(module: str, kubeconfig: Path, config: Path, *flags: str) -> Iterator[None]:
    command = [sys.executable, "-m", module, f"--config={config}", *flags]
    with config.with_suffix(".log").open("wb") as log:
        env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


async def test_the_scheduler_binds_with_the_rights_it_declares(home: Home, tmp_path: Path) -> None:
    made = objects("scheduler")
    home.apply(made)
    (config,) = [one["data"] for one in made if one["metadata"]["name"] == "koord-scheduler-config"]
    file = tmp_path / "koord-scheduler.config"
    file.write_text(config["koord-scheduler.config"])
    kubeconfig = account(home.plane, tmp_path, "koord-scheduler", NAMESPACE)
    with scheduling(kubeconfig, file):
        async with connect(home.plane.kubeconfig) as client:
            unwrap(await client.create(NAMESPACES, {"metadata": {"name": "placed"}}))
            unwrap(await client.create(NODES, {"metadata": {"name": "room"}}))
            amounts = {"cpu": "10", "memory": "20Gi", "pods": "100"}
            ready = {"type": "Ready", "status": "True", "reason": "R", "message": "m"}
            status = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
            unwrap(await client.patch(NODES, "room", status, kind="merge", subresource="status"))
            waiting = pod("a")
            waiting["spec"] |= {"schedulerName": "koord-scheduler", "nodeSelector": {"none": "such"}}
            unwrap(await client.create(PODS, waiting, "placed"))
            wanted = pod("b")
            wanted["spec"]["schedulerName"] = "koord-scheduler"
            unwrap(await client.create(PODS, wanted, "placed"))

            async def placed() -> bool:
                bound = unwrap(await client.get(PODS, "b", "placed"))
                refused = unwrap(await client.get(PODS, "a", "placed"))
                return bool(bound.spec.node_name and refused.status.conditions)

            try:
                await until(client, placed)
            finally:
                assert home.denied("koord-scheduler") == [], "a right is missing"
    assert home.denied("koord-scheduler") == [], "a right is missing"


async def test_the_descheduler_moves_pods_with_the_rights_it_declares(home: Home, tmp_path: Path) -> None:
    made = objects("descheduler")
    home.apply(made)
    (text,) = [one["data"] for one in made if one["metadata"]["name"] == "koord-descheduler-config"]
    config = yaml.safe_load(text["koord-descheduler.config"])
    address = f"127.0.0.1:{free_port()}"
    config |= {"healthzBindAddress": address, "metricsBindAddress": address}
    # So that everything that any evictor reads is read.
    config["profiles"][0]["plugins"]["filter"] = {"enabled": [{"name": "DefaultEvictor"}]}
    file = tmp_path / "koord-descheduler.config"
    file.write_text(yaml.safe_dump(config))
    kubeconfig = account(home.plane, tmp_path, "koord-descheduler", NAMESPACE)
    with program("koord.cli.daemons.koord_descheduler", kubeconfig, file, "--secure-port=0"):
        async with connect(home.plane.kubeconfig) as client:
            owner = await with_owned_pods(client, "moved", "goes", "stays")

            async def ask_for(name: str, mode: str) -> None:
                spec = {"podRef": {"namespace": "moved", "name": name}, "mode": mode, "ttl": "5m"}
                unwrap(await client.create(POD_MIGRATION_JOBS, {"metadata": {"name": name}, "spec": spec}))

            async def evicted() -> bool:
                return unwrap(await client.get(POD_MIGRATION_JOBS, "goes")).status.phase == "Succeeded"

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
            finally:
                assert home.denied("koord-descheduler") == [], "a right is missing"
    assert home.denied("koord-descheduler") == [], "a right is missing"


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
