"""koord-manager on a real control plane with RBAC, installed from `koord manifests` and run with that account's rights.

The API server calls its webhooks by URL. Every entry fails closed here, so that a call that fails cannot hide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from koord.api.koordinator.custom_kinds import (
    CLUSTER_COLOCATION_PROFILES,
    NODE_METRICS,
    NODE_SLOS,
)
from koord.api.kubernetes.builtin_kinds import (
    CONFIG_MAPS,
    EVENTS_EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
)
from koord.cli.manifests.manifests import manifests
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError, unwrap
from koord.manager.reconcile_loop import NAMESPACE
from tests.real.installed_plane import GATES, InstalledPlane, installed_plane, objects, pod, until
from tests.real.kubectl import kubectl
from tests.real.manager_process import ManagerProcess, account, running
from tests.real.reach import connect

pytestmark = pytest.mark.real

PROFILE: dict[str, Any] = {
    "metadata": {"name": "batch"},
    "spec": {
        "selector": {"matchLabels": {"app": "job"}},
        "qosClass": "BE",
        "priorityClassName": "koord-batch",
        "labels": {"from-profile": "yes"},
    },
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InstalledPlane]:
    with installed_plane(tmp_path_factory.mktemp("installed")) as running:
        yield running


@pytest.fixture(scope="class")
def manager(installed: InstalledPlane) -> Iterator[ManagerProcess]:
    installed.apply(objects("settings", "manager"))
    installed.kubeconfig = account(installed.plane, installed.folder, "koord-manager", NAMESPACE)
    environ = {"WEBHOOK_HOST": "127.0.0.1", "WEBHOOK_CERT_WRITER": "secret"}
    with running(
        installed.kubeconfig, installed.folder, f"--feature-gates={GATES}", environ=environ, webhook_port=installed.port
    ) as manager:
        yield manager
    assert installed.denied() == [], "a right is missing"


async def with_profile(client: Client, namespace: str) -> None:
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": namespace}}))
    made = await client.create(CLUSTER_COLOCATION_PROFILES, PROFILE)
    assert not isinstance(made, ApiError) or made.already_exists

    async def applies() -> bool:
        tried = unwrap(await client.create(PODS, pod("probe", app="job"), namespace, dry_run=True))
        return tried.metadata.labels.get("from-profile") == "yes"

    await until(client, applies)


def test_everything_that_is_printed_is_accepted(installed: InstalledPlane) -> None:
    made = manifests()
    assert isinstance(made, list)
    said = installed.apply(made, "--dry-run=server")
    assert len(said.splitlines()) == len(made)
    strict = kubectl(
        installed.plane.kubeconfig,
        *("apply", "--dry-run=server", "--validate=strict", "-f", "-"),
        stdin=yaml.safe_dump_all(made),
    )
    assert strict.code == 0, strict.err


class TestRunning:
    async def test_the_api_server_asks_and_follows(self, installed: InstalledPlane, manager: ManagerProcess) -> None:
        async with connect(installed.plane.kubeconfig) as client:
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

    async def test_controllers_work_with_the_rights_they_declare(
        self, installed: InstalledPlane, manager: ManagerProcess
    ) -> None:
        async with connect(installed.plane.kubeconfig) as client:
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
            assert installed.denied() == []
            assert {event["verb"] for event in installed.requests()} >= {"list", "watch", "create", "patch"}

    async def test_no_call_fails_while_the_certificate_is_replaced(
        self, installed: InstalledPlane, manager: ManagerProcess
    ) -> None:
        """The policy is Fail, so every dry run that is answered proves a call that was."""
        async with connect(installed.plane.kubeconfig) as client:
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


async def test_what_slips_through_while_it_is_away_is_told_of(installed: InstalledPlane, tmp_path: Path) -> None:
    async with connect(installed.plane.kubeconfig) as client:
        for kind in ("mutating", "validating"):
            name = f"koordinator-{kind}-webhook-configuration"
            kubectl(installed.plane.kubeconfig, "delete", f"{kind}webhookconfiguration", name)
        installed.apply(objects("manager", failure_policy="Ignore"))
        if isinstance(await client.get(NAMESPACES, "slipping"), ApiError):
            unwrap(await client.create(NAMESPACES, {"metadata": {"name": "slipping"}}))
        environ = {"WEBHOOK_HOST": "127.0.0.1", "WEBHOOK_CERT_WRITER": "secret"}
        made = await client.create(CLUSTER_COLOCATION_PROFILES, PROFILE)
        assert not isinstance(made, ApiError) or made.already_exists
        await asyncio.sleep(1.1)  # creation times have whole seconds, and the pod has to be younger than the profile
        bare = unwrap(await client.create(PODS, pod("bare", app="job"), "slipping"))
        assert "from-profile" not in bare.metadata.labels
        with running(
            installed.kubeconfig,
            tmp_path,
            "--enable-leader-election=false",
            f"--feature-gates={GATES}",
            environ=environ,
        ) as again:

            async def told() -> list[str]:
                events = unwrap(await client.list(EVENTS_EVENTS, "slipping")).items
                return [event.regarding.name for event in events if event.reason == "WebhookBypassed"]

            assert await until(client, told) == ["bare"]
            assert 'koord_manager_webhook_bypassed_pods{namespace="slipping"} 1' in again.metrics()
            assert 'koord_manager_webhook_reachable{path="/mutate-pod"} 1' in again.metrics()
