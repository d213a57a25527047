"""Certificates are replaced while two replicas are being called: no call fails, and all replicas end up the same."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koord.api.kubernetes.builtin_kinds import MUTATING_WEBHOOK_CONFIGURATIONS, PODS, SECRETS
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.manager.reconcile_loop import NAMESPACE, ManagerContext
from koord.manager.webhook_server import cert_store
from koord.manager.webhook_server.cert_rotator import MUTATING_NAME, OVERLAP_S, SECRET_NAME, WebhookConfigurationError
from koord.manager.webhook_server.cert_store import (
    CertStoreError,
    DirectoryCertStore,
    ensure_certificate,
    material_from_files,
)
from koord.telemetry.clock import ManualClock
from tests.manager.webhook_server.replica_fixture import (
    Replica,
    add_pod,
    bundle,
    cluster_context,
    configuration,
    secret,
    trusting,
)

ROUND_S = 6.0
QUICK: dict[str, Any] = {"settle_s": 0.05, "overlap_s": 0.05}


@pytest.fixture
async def context() -> AsyncIterator[ManagerContext]:
    async with cluster_context() as context:
        yield context


@asynccontextmanager
async def running(context: ManagerContext, *names: str, **settings: Any) -> AsyncIterator[list[Replica]]:
    replicas = [Replica(context, name, **{**QUICK, **settings}) for name in names]
    for name in names:
        await add_pod(context.client, name)
    try:
        await asyncio.gather(*(replica.start() for replica in replicas))
        yield replicas
    finally:
        for replica in replicas:
            await replica.stop()


class Lagging:
    """An API server that calls the replicas with the trust of a while ago, as one whose cache lags behind would.

    Rounds take ROUND_S of the replicas' time. What it trusts is what the configuration said at the start of the round
    before, so a change that is acted upon in less than that makes a call fail here.
    """

    def __init__(self, client: Client, clock: ManualClock, replicas: list[Replica]) -> None:
        self.client = client
        self.clock = clock
        self.replicas = replicas
        self.failures: list[str] = []
        self.bundles: list[bytes] = []

    async def round(self) -> None:
        self.bundles.append(await bundle(self.client))
        trust = trusting(self.bundles[-2:][0])
        calls = [self._call(replica, trust) for replica in self.replicas for _ in range(3)]
        await asyncio.gather(*(replica.look() for replica in self.replicas), *calls)
        self.clock.advance(ROUND_S)

    async def rounds(self, number: int) -> None:
        for _ in range(number):
            await self.round()

    async def _call(self, replica: Replica, trust: ssl.SSLContext) -> None:
        try:
            status, answer = await replica.call(trust)
            assert status == 200
            assert answer["response"]["allowed"]
        except (OSError, AssertionError) as error:
            self.failures.append(f"round {len(self.bundles)}, {replica.name}: {error!r}")


@asynccontextmanager
async def called(context: ManagerContext, *names: str) -> AsyncIterator[Lagging]:
    """Replicas whose upkeep looks once in each round, with the times that they have in production."""
    clock = ManualClock(context.clock.time())
    replicas = [Replica(msgspec.structs.replace(context, clock=clock), name) for name in names]
    for replica in replicas:
        await add_pod(context.client, replica.name)
        await replica.server.start("127.0.0.1", 0)
    try:
        await asyncio.gather(*(replica.look() for replica in replicas))
        yield Lagging(context.client, clock, replicas)
    finally:
        for replica in replicas:
            await replica.server.stop()


def count(pem: bytes) -> int:
    return pem.count(b"BEGIN CERTIFICATE")


async def test_two_replicas_that_start_together_serve_the_same_pair(context: ManagerContext) -> None:
    async with running(context, "r1", "r2") as (one, two):
        assert one.identity.material == two.identity.material
        kept = await secret(context.client)
        assert base64.b64decode(kept["data"]["tls.crt"]) == one.identity.material.cert
        assert set(kept["data"]) == {"ca-key.pem", "ca-cert.pem", "cert.pem", "tls.crt", "key.pem", "tls.key"}
        assert await bundle(context.client) == one.identity.material.ca_cert


async def replace_authority(client: Client, way: str) -> None:
    if way == "deleted":
        unwrap(await client.delete(SECRETS, SECRET_NAME, NAMESPACE))
    else:  # what an upgrade with a careless chart does
        unwrap(await client.patch(SECRETS, SECRET_NAME, {"data": None}, NAMESPACE, kind="merge"))


@pytest.mark.parametrize("way", ["deleted", "emptied"])
async def test_no_call_fails_while_the_authority_is_replaced(context: ManagerContext, way: str) -> None:
    async with called(context, "r1", "r2") as server:
        await server.rounds(2)
        before = server.replicas[0].identity.material
        await replace_authority(context.client, way)
        await server.rounds(6)
        server.clock.advance(OVERLAP_S)
        await server.rounds(4)
        assert server.failures == []
        one, two = (replica.identity.material for replica in server.replicas)
        assert one == two
        assert one.ca_cert != before.ca_cert
        assert [count(pem) for pem in dict.fromkeys(server.bundles)] == [1, 2, 1]
        assert server.bundles[-1] == one.ca_cert


async def test_a_replica_that_starts_meanwhile_is_called_without_failure(context: ManagerContext) -> None:
    async with called(context, "r1", "r2") as server:
        await server.rounds(2)
        await replace_authority(context.client, "deleted")
        await server.round()
        late = Replica(msgspec.structs.replace(context, clock=server.clock), "r3")
        await add_pod(context.client, "r3")
        await late.server.start("127.0.0.1", 0)
        try:
            await late.look()
            await server.round()  # the time that it takes until a pod is ready and its address known
            server.replicas.append(late)
            await server.rounds(8)
            assert server.failures == []
        finally:
            await late.server.stop()
            server.replicas.remove(late)


async def test_the_old_authority_stays_while_a_replica_has_not_spoken(context: ManagerContext) -> None:
    await add_pod(context.client, "of-an-older-release")
    async with called(context, "r1", "r2") as server:
        old = server.replicas[0].identity.material.ca_cert
        await replace_authority(context.client, "deleted")
        await server.rounds(4)
        server.clock.advance(10 * OVERLAP_S)
        await server.rounds(2)
        assert old in await bundle(context.client)
        spoken = json.loads((await secret(context.client))["metadata"]["annotations"]["webhook.koordinator.sh/serving"])
        assert set(spoken) == {"r1", "r2"}
        unwrap(await context.client.delete(PODS, "of-an-older-release", NAMESPACE, grace_seconds=0))
        await server.rounds(3)
        assert old not in await bundle(context.client)
        assert server.failures == []


async def test_the_replicas_do_all_of_it_by_themselves(context: ManagerContext) -> None:
    async with running(context, "r1", "r2") as replicas:
        before = replicas[0].identity.material
        await replace_authority(context.client, "deleted")
        changed = asyncio.Event()
        context.informers.for_resource(MUTATING_WEBHOOK_CONFIGURATIONS).add_event_handler(lambda _: changed.set())
        async with asyncio.timeout(30):
            while before.ca_cert in await bundle(context.client):
                await changed.wait()
                changed.clear()
        assert replicas[0].identity.material == replicas[1].identity.material != before


async def test_a_new_certificate_is_not_served_before_it_can_be_trusted(context: ManagerContext) -> None:
    async with running(context, "r1", settle_s=3600.0) as (replica,):
        old = replica.identity.material
        unwrap(await context.client.delete(SECRETS, SECRET_NAME, NAMESPACE))
        await replica.cert_rotator.reconcile("webhooks")
        assert count(await bundle(context.client)) == 2
        assert replica.identity.material == old


async def test_a_certificate_of_the_same_authority_is_served_at_once(context: ManagerContext) -> None:
    async with running(context, "r1", settle_s=3600.0) as (replica,):
        old = replica.identity.material
        await context.client.patch(
            SECRETS, SECRET_NAME, {"data": {"tls.crt": None, "cert.pem": None}}, NAMESPACE, kind="merge"
        )
        await replica.cert_rotator.reconcile("webhooks")
        assert replica.identity.material.ca_cert == old.ca_cert
        assert replica.identity.material.cert != old.cert
        assert await bundle(context.client) == old.ca_cert


async def test_a_second_look_writes_nothing(context: ManagerContext) -> None:
    async with running(context, "r1") as (replica,):
        await replica.cert_rotator.reconcile("webhooks")
        versions = [await configuration(context.client), await secret(context.client)]
        await replica.cert_rotator.reconcile("webhooks")
        assert [await configuration(context.client), await secret(context.client)] == versions


async def test_a_missing_configuration_is_named(context: ManagerContext) -> None:
    unwrap(await context.client.delete(MUTATING_WEBHOOK_CONFIGURATIONS, MUTATING_NAME))
    replica = Replica(context, "r1")
    with pytest.raises(WebhookConfigurationError, match=f"not found MutatingWebhookConfiguration {MUTATING_NAME}"):
        await replica.cert_rotator.reconcile("webhooks")
    assert not replica.cert_rotator.initialised.is_set()
    assert replica.metrics.certificate_syncs.labels("failed").value == 1


async def test_files_and_metrics_show_what_is_served(context: ManagerContext, tmp_path: Path) -> None:
    replica = Replica(context, "r1", cert_dir=tmp_path)
    await replica.cert_rotator.reconcile("webhooks")
    assert material_from_files(cert_store.read_cert_dir(tmp_path)) == replica.identity.material
    left_s = replica.metrics.certificate_not_after.labels("certificate").value - context.clock.time()
    assert 3640 < left_s / 86400 < 3651


async def test_a_folder_keeps_it_for_the_next_start(context: ManagerContext, tmp_path: Path) -> None:
    first = await ensure_certificate(DirectoryCertStore(tmp_path / "certs"), "10.1.2.3", context.clock)
    again = await ensure_certificate(DirectoryCertStore(tmp_path / "certs"), "10.1.2.3", context.clock)
    assert first.material == again.material


async def test_a_keep_that_never_keeps_is_given_up(context: ManagerContext, tmp_path: Path) -> None:
    class Sieve(DirectoryCertStore):
        async def read(self) -> None:
            return None

    with pytest.raises(CertStoreError, match="there is none"):
        await ensure_certificate(Sieve(tmp_path), "x", context.clock)
