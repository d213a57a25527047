"""koord-manager as its own program, with ports and certificates, against the embedded API server over HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.api.config.gates import default_feature_gates
from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES, NODE_METRICS
from koord.api.kubernetes.builtin_kinds import LEASES, MUTATING_WEBHOOK_CONFIGURATIONS, NAMESPACES, NODES, PODS, SECRETS
from koord.api.kubernetes.builtin_kinds import VALIDATING_WEBHOOK_CONFIGURATIONS as VALIDATING
from koord.cli.daemons.flag_set import FlagValues
from koord.cli.daemons.koord_manager import build_manager, serve_manager
from koord.cli.daemons.manager_flags import MANAGER_FLAGS, ManagerPlan, plan_manager
from koord.cli.manifests.cluster_objects import webhook_configurations
from koord.cli.up.local_manager import install_defaults
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.config.loader import load_connection
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import Unreachable
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import NAMESPACE, ManagerSettings
from koord.telemetry.clock import Clock, WallClock
from koord.telemetry.logs import Logs
from tools.controlplane import free_port

PROFILE = {"metadata": {"name": "p"}, "spec": {"selector": {"matchLabels": {"app": "job"}}, "labels": {"hit": "yes"}}}
GATES = default_feature_gates(MANAGER_GATES)


class Running:
    def __init__(self, client: Client, plan: ManagerPlan) -> None:
        self.client = client
        self._plan = plan

    async def get(self, path: str) -> tuple[int, str]:
        place = self._plan.metrics if "metrics" in path else self._plan.health
        assert place is not None
        async with aiohttp.ClientSession() as session, session.get(f"http://{place[0]}:{place[1]}{path}") as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Client]:
    running = EmbeddedCluster(ClusterSettings(port=0))
    await running.start()
    (folder / "kubeconfig").write_text(running.kubeconfig())
    assert running.client is not None
    try:
        yield running.client
    finally:
        await running.stop()


def plan_of(folder: Path, *argv: str, **environ: str) -> ManagerPlan:
    values = MANAGER_FLAGS.parse(
        [f"--metrics-addr=127.0.0.1:{free_port()}", f"--health-probe-addr=127.0.0.1:{free_port()}", *argv]
    )
    assert isinstance(values, FlagValues)
    environ = {
        "WEBHOOK_HOST": "127.0.0.1",
        "WEBHOOK_PORT": str(free_port()),
        "WEBHOOK_CERT_DIR": str(folder / "certs"),
        **environ,
    }
    plan = plan_manager(values, environ, "host1")
    assert isinstance(plan, ManagerPlan)
    return plan


async def run(plan: ManagerPlan, folder: Path, stop: asyncio.Event, clock: Clock | None = None) -> int:
    connection = load_connection({}, WallClock(), path=str(folder / "kubeconfig"))
    return await serve_manager(plan, connection, Logs(), stop, clock)


async def install(client: Client) -> None:
    await install_defaults(client, ManagerSettings(gates=GATES))
    for resource, config in zip(
        (MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING), webhook_configurations(NAMESPACE, GATES), strict=True
    ):
        unwrap(await client.create(resource, config))


async def until(done: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async with asyncio.timeout(30):
        while True:
            if found := await done():
                return found
            await asyncio.sleep(0.02)


async def test_it_serves_leads_and_ends(tmp_path: Path) -> None:
    async with cluster(tmp_path) as client:
        await install(client)
        plan, stop = plan_of(tmp_path), asyncio.Event()
        task = asyncio.create_task(run(plan, tmp_path, stop))
        running = Running(client, plan)

        async def ready() -> bool:
            if task.done():
                pytest.fail(f"ended with {task.result()}")
            try:
                return (await running.get("/readyz"))[0] == 200
            except aiohttp.ClientError:
                return False

        await until(ready)
        assert "[+]webhook-ready ok" in (await running.get("/readyz?verbose"))[1]
        unwrap(await client.create(NAMESPACES, {"metadata": {"name": "work"}}))
        unwrap(await client.create(CLUSTER_COLOCATION_PROFILES, PROFILE))
        spec = {"containers": [{"name": "c", "image": "i"}]}
        pod = {"metadata": {"name": "a", "labels": {"app": "job"}}, "spec": spec}

        async def mutated() -> bool:
            made = unwrap(await client.create(PODS, pod, "work", dry_run=True))
            return made.metadata.labels.get("hit") == "yes"

        await until(mutated)
        unwrap(await client.create(NODES, {"metadata": {"name": "n1"}}))

        async def controlled() -> bool:
            return not isinstance(await client.get(NODE_METRICS, "n1"), ApiError)

        await until(controlled)
        lease = unwrap(await client.get(LEASES, "koordinator-manager", NAMESPACE))
        assert (lease.spec.holder_identity or "").startswith("host1_")
        status, text = await running.get("/metrics")
        assert status == 200
        assert "koord_manager_webhook_webhook_duration_milliseconds_count" in text
        assert "slo_controller_nodemetric_reconcile_count" in text
        assert "koordinator_manager_is_leader 1" in text
        for path in ("/internal-metrics", "/external-metrics", "/all-metrics"):
            assert (await running.get(path))[0] == 200
        assert isinstance(await client.get(SECRETS, "koordinator-webhook-certs", NAMESPACE), ApiError), "a host: files"
        stop.set()
        assert await task == 0
        lease = unwrap(await client.get(LEASES, "koordinator-manager", NAMESPACE))
        assert not lease.spec.holder_identity, "the next replica need not wait"


class DeadlineClock(WallClock):
    """The time of the machine, but the start's deadline passes when `passed` is set."""

    def __init__(self, deadline_s: float) -> None:
        self.passed = asyncio.Event()
        self._deadline_s = deadline_s

    async def sleep(self, seconds: float) -> None:
        await (self.passed.wait() if seconds == self._deadline_s else super().sleep(seconds))


async def test_without_its_configurations_it_says_so_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path)
    assert plan.serving is not None
    clock = DeadlineClock(plan.serving.start_timeout_s)
    async with cluster(tmp_path) as client:
        running = Running(client, plan)
        task = asyncio.create_task(run(plan, tmp_path, asyncio.Event(), clock))

        async def tried() -> bool:
            try:
                text = (await running.get("/metrics"))[1]
            except aiohttp.ClientError:
                return False
            return 'koord_manager_webhook_certificate_syncs_total{status="failed"}' in text

        await until(tried)
        assert not task.done(), "it waits for the configurations until the deadline"
        clock.passed.set()
        assert await task == 1
    said = capsys.readouterr().err
    assert "not ready to serve within 20 s" in said
    assert "not found MutatingWebhookConfiguration koordinator-mutating-webhook-configuration" in said


async def test_a_taken_port_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster(tmp_path):
        first = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = first.sockets[0].getsockname()[1]
        plan = plan_of(tmp_path, f"--metrics-addr=127.0.0.1:{port}")
        assert await run(plan, tmp_path, asyncio.Event()) == 1
        first.close()
        await first.wait_closed()
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


async def test_a_standby_serves_webhooks_and_writes_nothing_else(tmp_path: Path) -> None:
    async with cluster(tmp_path) as client:
        await install(client)
        held = {"holderIdentity": "another", "leaseDurationSeconds": 3600, "renewTime": "2030-01-01T00:00:00.000000Z"}
        unwrap(await client.create(LEASES, {"metadata": {"name": "koordinator-manager"}, "spec": held}, NAMESPACE))
        unwrap(await client.create(NODES, {"metadata": {"name": "n1"}}))
        plan, stop = plan_of(tmp_path, WEBHOOK_CERT_WRITER="secret"), asyncio.Event()
        task = asyncio.create_task(run(plan, tmp_path, stop))
        running = Running(client, plan)

        async def ready() -> bool:
            if task.done():
                pytest.fail(f"ended with {task.result()}")
            try:
                return (await running.get("/readyz"))[0] == 200
            except aiohttp.ClientError:
                return False

        await until(ready)
        unwrap(await client.get(SECRETS, "koordinator-webhook-certs", NAMESPACE))
        assert isinstance(await client.get(NODE_METRICS, "n1"), ApiError)
        metrics = (await running.get("/metrics"))[1]
        assert 'leader_election_master_status{name="koordinator-manager"} 0' in metrics
        assert "koordinator_manager_is_leader 0" in metrics
        stop.set()
        assert await task == 0


async def test_what_the_controllers_write_is_fenced_by_the_lease(tmp_path: Path) -> None:
    async with cluster(tmp_path) as client:
        await install(client)
        connection = load_connection({}, WallClock(), path=str(tmp_path / "kubeconfig"))
        process, manager = build_manager(plan_of(tmp_path), connection, WallClock())
        assert not process.may_write()
        body = {"metadata": {"name": "n1"}}
        with pytest.raises(Unreachable, match="held back"):
            await manager.context.client.create(NODE_METRICS, body)
        unwrap(await manager.everywhere.client.create(NODE_METRICS, body))
        assert unwrap(await manager.context.client.get(NODE_METRICS, "n1")).metadata.name == "n1"
        await process.client.close()
