"""Replicas of the webhook server on an embedded cluster, and a caller that trusts what the configurations say."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from koord.api.admission import AdmissionRequest
from koord.api.builtin import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from koord.embedded.cluster import Cluster, Settings
from koord.kube.client import Client
from koord.kube.controller import Requeue
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder
from koord.kube.refused import ok
from koord.manager.metrics import Metrics
from koord.manager.serving.door import Admit, Door
from koord.manager.serving.keep import SecretKeep
from koord.manager.serving.registration import Place
from koord.manager.serving.route import ROUTES
from koord.manager.serving.server import WebhookServer
from koord.manager.serving.tls import Identity
from koord.manager.serving.upkeep import MUTATING_NAME, SECRET_NAME, SERVICE_NAME, VALIDATING_NAME, Upkeep
from koord.manager.webhooks.verdict import Allowed, Verdict
from koord.manager.world import NAMESPACE, World
from koord.manager.world import Settings as ManagerSettings
from koord.telemetry.clock import WallClock
from koord.telemetry.metrics.registry import Registry

PLACE = Place(namespace=NAMESPACE, service=SERVICE_NAME)
MUTATE_POD = ROUTES[0]
PATH = MUTATE_POD.path


def review(**changes: Any) -> bytes:
    request = {
        "uid": "u1",
        "operation": "CREATE",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "default",
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}},
        **changes,
    }
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(body).encode()


def label(request: AdmissionRequest) -> Verdict:
    assert request.object is not None
    return Allowed({**request.object, "metadata": {**request.object["metadata"], "labels": {"seen": "yes"}}})


class Replica:
    """One koord-manager's share in serving webhooks."""

    def __init__(self, world: World, name: str, admit: Admit = label, **upkeep: Any) -> None:
        self.name = name
        self.metrics = Metrics(Registry())
        self.server = WebhookServer({PATH: Door(MUTATE_POD, admit)}, self.metrics, world.clock)
        self.identity: Identity = self.server.identity
        self.upkeep = Upkeep(
            world,
            self.identity,
            SecretKeep(world.client, NAMESPACE, SECRET_NAME),
            self.metrics,
            place=PLACE,
            paths=self.server.paths,
            replica=name,
            **upkeep,
        )

    async def start(self) -> None:
        await self.server.start("127.0.0.1", 0)
        await self.upkeep.start()
        await self.upkeep.initialised.wait()

    async def look(self) -> None:
        """One look of the upkeep, again at once where another replica was quicker."""
        while isinstance(await self.upkeep.reconcile("webhooks"), Requeue):
            pass

    async def stop(self) -> None:
        await self.upkeep.stop()
        await self.server.stop()

    async def call(self, trust: ssl.SSLContext, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
        """On a connection of its own, so that each call is a handshake."""
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
            session.post(
                f"https://127.0.0.1:{self.server.port}{PATH}",
                data=body or review(),
                ssl=trust,
                server_hostname=PLACE.dns_name,
            ) as answer,
        ):
            return answer.status, json.loads(await answer.read())


async def configuration(client: Client) -> dict[str, Any]:
    return ok(await client.plain.get(MUTATING_WEBHOOK_CONFIGURATIONS, MUTATING_NAME))


async def bundle(client: Client) -> bytes:
    (entry,) = (await configuration(client))["webhooks"]
    return base64.b64decode(entry["clientConfig"].get("caBundle") or "")


def trusting(pem: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=pem.decode())


async def secret(client: Client) -> dict[str, Any]:
    return ok(await client.plain.get(SECRETS, SECRET_NAME, NAMESPACE))


async def add_pod(client: Client, name: str) -> None:
    pod = {
        "metadata": {"name": name, "labels": {"koord-app": "koord-manager"}},
        "spec": {"containers": [{"name": "m", "image": "m"}]},
    }
    ok(await client.create(PODS, pod, NAMESPACE))


@asynccontextmanager
async def cluster_world() -> AsyncIterator[World]:
    """A cluster as the manifests leave it: namespace and webhook configurations, no certificate."""
    clock = WallClock()
    cluster = Cluster(Settings(http=False), clock=clock)
    await cluster.start()
    assert cluster.client is not None
    client = cluster.client
    ok(await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}}))
    path = {"service": {"namespace": "x", "name": "x", "path": PATH}}
    entry = {
        "name": "mpod-create.koordinator.sh",
        "clientConfig": path,
        "rules": [{"operations": ["CREATE"], "apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"]}],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    made = {"metadata": {"name": MUTATING_NAME}, "webhooks": [entry]}
    ok(await client.create(MUTATING_WEBHOOK_CONFIGURATIONS, made))
    ok(await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": VALIDATING_NAME}}))
    informers = Informers(client, clock)
    recorder = Recorder(client, clock, controller="koord-manager", instance="test")
    informers.start()
    try:
        yield World(client=client, informers=informers, clock=clock, recorder=recorder, settings=ManagerSettings())
    finally:
        await informers.stop()
        await cluster.stop()
