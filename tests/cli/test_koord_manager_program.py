"""koord-manager as its own program, with ports and certificates, against the embedded API server over HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from koord.api.builtin import LEASES, MUTATING_WEBHOOK_CONFIGURATIONS, NAMESPACES, NODES, PODS, SECRETS
from koord.api.builtin import VALIDATING_WEBHOOK_CONFIGURATIONS as VALIDATING
from koord.api.config.gate_tables import MANAGER
from koord.api.config.gates import defaults
from koord.api.custom import CLUSTER_COLOCATION_PROFILES, NODE_METRICS
from koord.cli.flags import Values
from koord.cli.koord_manager import Program
from koord.cli.local_manager import install_defaults
from koord.cli.manager_flags import FLAGS, Plan, planned
from koord.cli.manifest_webhook import webhook_configurations
from koord.embedded.cluster import Cluster, Settings
from koord.kube.client import Client
from koord.kube.loader import load
from koord.kube.refused import Refused, ok
from koord.manager.world import NAMESPACE
from koord.manager.world import Settings as ManagerSettings
from koord.telemetry.clock import WallClock
from koord.telemetry.logs import Logs
from tools.controlplane import free_port

PROFILE = {"metadata": {"name": "p"}, "spec": {"selector": {"matchLabels": {"app": "job"}}, "labels": {"hit": "yes"}}}
GATES = defaults(MANAGER)


class Running:
    def __init__(self, client: Client, plan: Plan) -> None:
        self.client = client
        self._plan = plan

    async def get(self, path: str) -> tuple[int, str]:
        place = self._plan.metrics if "metrics" in path else self._plan.health
        assert place is not None
        async with aiohttp.ClientSession() as session, session.get(f"http://{place[0]}:{place[1]}{path}") as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Client]:
    running = Cluster(Settings(port=0))
    await running.start()
    (folder / "kubeconfig").write_text(running.kubeconfig())
    assert running.client is not None
    try:
        yield running.client
    finally:
        await running.stop()


def plan_of(folder: Path, *argv: str, **environ: str) -> Plan:
    values = FLAGS.read(
        [f"--metrics-addr=127.0.0.1:{free_port()}", f"--health-probe-addr=127.0.0.1:{free_port()}", *argv]
    )
    assert isinstance(values, Values)
    environ = {
        "WEBHOOK_HOST": "127.0.0.1",
        "WEBHOOK_PORT": str(free_port()),
        "WEBHOOK_CERT_DIR": str(folder / "certs"),
        **environ,
    }
    plan = planned(values, environ, "host1")
    assert isinstance(plan, Plan)
    return plan


def program(plan: Plan, folder: Path) -> Program:
    clock = WallClock()
    return Program(plan, load({}, clock, path=str(folder / "kubeconfig")), clock, Logs(), "host1")


async def install(client: Client) -> None:
    await install_defaults(client, ManagerSettings(gates=GATES))
    for resource, config in zip(
        (MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING), webhook_configurations(NAMESPACE, GATES), strict=True
    ):
        ok(await client.create(resource, config))


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
        task = asyncio.create_task(program(plan, tmp_path).run(stop))
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
        ok(await client.create(NAMESPACES, {"metadata": {"name": "work"}}))
        ok(await client.create(CLUSTER_COLOCATION_PROFILES, PROFILE))
        spec = {"containers": [{"name": "c", "image": "i"}]}
        pod = {"metadata": {"name": "a", "labels": {"app": "job"}}, "spec": spec}

        async def mutated() -> bool:
            made = ok(await client.create(PODS, pod, "work", dry_run=True))
            return made.metadata.labels.get("hit") == "yes"

        await until(mutated)
        ok(await client.create(NODES, {"metadata": {"name": "n1"}}))

        async def controlled() -> bool:
            return not isinstance(await client.get(NODE_METRICS, "n1"), Refused)

        await until(controlled)
        lease = ok(await client.get(LEASES, "koordinator-manager", NAMESPACE))
        assert (lease.spec.holder_identity or "").startswith("host1_")
        status, text = await running.get("/metrics")
        assert status == 200
        assert "koord_manager_webhook_webhook_duration_milliseconds_count" in text
        assert "slo_controller_nodemetric_reconcile_count" in text
        for path in ("/internal-metrics", "/external-metrics", "/all-metrics"):
            assert (await running.get(path))[0] == 200
        assert isinstance(await client.get(SECRETS, "koordinator-webhook-certs", NAMESPACE), Refused), "a host: files"
        stop.set()
        assert await task == 0
        lease = ok(await client.get(LEASES, "koordinator-manager", NAMESPACE))
        assert not lease.spec.holder_identity, "the next replica need not wait"


async def test_without_its_configurations_it_says_so_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path)
    assert plan.serving is not None
    hasty = msgspec.structs.replace(plan, serving=msgspec.structs.replace(plan.serving, start_s=1.0))
    async with cluster(tmp_path):
        assert await program(hasty, tmp_path).run(asyncio.Event()) == 1
    said = capsys.readouterr().err
    assert "not found MutatingWebhookConfiguration koordinator-mutating-webhook-configuration" in said


async def test_a_taken_port_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with cluster(tmp_path):
        first = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = first.sockets[0].getsockname()[1]
        plan = plan_of(tmp_path, f"--metrics-addr=127.0.0.1:{port}")
        assert await program(plan, tmp_path).run(asyncio.Event()) == 1
        first.close()
        await first.wait_closed()
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
