"""Replicas of the webhook server on an embedded cluster, and a caller that trusts what the configurations say."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from koord.api.kubernetes.admission import AdmissionRequest
from koord.api.kubernetes.builtin_kinds import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    PODS,
    SECRETS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from koord.embedded.cluster import ADMIN, ClusterSettings, EmbeddedCluster, InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Requeue
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport, WatchStream
from koord.manager.reconcile_loop import NAMESPACE, ManagerContext, ManagerSettings
from koord.manager.webhook_server.cert_rotator import (
    MUTATING_NAME,
    SECRET_NAME,
    SERVICE_NAME,
    VALIDATING_NAME,
    CertRotator,
)
from koord.manager.webhook_server.cert_store import SecretCertStore
from koord.manager.webhook_server.handlers import AdmitFunction, WebhookHandler
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.manager.webhook_server.routes import ROUTES, WebhookAddress
from koord.manager.webhook_server.server import ServingIdentity, WebhookServer
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDecision
from koord.telemetry.clock import WallClock
from koord.telemetry.metrics import MetricRegistry

PLACE = WebhookAddress(namespace=NAMESPACE, service=SERVICE_NAME)
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


def label_object(request: AdmissionRequest) -> AdmissionDecision:
    assert request.object is not None
    return AdmissionAllowed({**request.object, "metadata": {**request.object["metadata"], "labels": {"seen": "yes"}}})


class Replica:
    """One koord-manager's share in serving webhooks."""

    def __init__(
        self, context: ManagerContext, name: str, admit: AdmitFunction = label_object, **cert_rotator: Any
    ) -> None:
        self.name = name
        self.metrics = WebhookMetrics(MetricRegistry())
        self.server = WebhookServer({PATH: WebhookHandler(MUTATE_POD, admit)}, self.metrics, context.clock)
        self.identity: ServingIdentity = self.server.identity
        self.cert_rotator = CertRotator(
            context,
            self.identity,
            SecretCertStore(context.client, NAMESPACE, SECRET_NAME),
            self.metrics,
            address=PLACE,
            paths=self.server.paths,
            replica=name,
            **cert_rotator,
        )

    async def start(self) -> None:
        await self.server.start("127.0.0.1", 0)
        await self.cert_rotator.start()
        await self.cert_rotator.initialised.wait()

    async def look(self) -> None:
        """One look of the upkeep, again at once where another replica was quicker."""
        while isinstance(await self.cert_rotator.reconcile("webhooks"), Requeue):
            pass

    async def stop(self) -> None:
        await self.cert_rotator.stop()
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
    return unwrap(await client.dynamic.get(MUTATING_WEBHOOK_CONFIGURATIONS, MUTATING_NAME))


async def bundle(client: Client) -> bytes:
    (entry,) = (await configuration(client))["webhooks"]
    return base64.b64decode(entry["clientConfig"].get("caBundle") or "")


def trusting(pem: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=pem.decode())


async def secret(client: Client) -> dict[str, Any]:
    return unwrap(await client.dynamic.get(SECRETS, SECRET_NAME, NAMESPACE))


async def add_pod(client: Client, name: str) -> None:
    pod = {
        "metadata": {"name": name, "labels": {"koord-app": "koord-manager"}},
        "spec": {"containers": [{"name": "m", "image": "m"}]},
    }
    unwrap(await client.create(PODS, pod, NAMESPACE))


class Killed(BaseException):
    """The process was ended without a word."""


class CutTransport:
    """The way to the API server of a process that is killed after some writes: the next one is never sent."""

    def __init__(self, writes: int) -> None:
        self.server: Transport | None = None
        self.left = writes

    async def send(self, request: ApiRequest) -> ApiResponse:
        if request.method != "GET":
            if not self.left:
                raise Killed
            self.left -= 1
        assert self.server is not None
        return await self.server.send(request)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        assert self.server is not None
        return await self.server.watch(request)

    async def close(self) -> None:
        """The cluster closes its own end."""


@asynccontextmanager
async def cluster_context(cut: CutTransport | None = None) -> AsyncIterator[ManagerContext]:
    """A cluster as the manifests leave it: namespace and webhook configurations, no certificate. `cut` leads to it."""
    clock = WallClock()
    cluster = EmbeddedCluster(ClusterSettings(http=False), clock=clock)
    await cluster.start()
    assert cluster.client is not None
    assert cluster.server is not None
    if cut is not None:
        cut.server = InProcessTransport(cluster.server, ADMIN)
    client = cluster.client
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}}))
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
    unwrap(await client.create(MUTATING_WEBHOOK_CONFIGURATIONS, made))
    unwrap(await client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": VALIDATING_NAME}}))
    informers = InformerFactory(client, clock)
    recorder = EventRecorder(client, clock, controller="koord-manager", instance="test")
    informers.start()
    try:
        yield ManagerContext(
            client=client, informers=informers, clock=clock, recorder=recorder, settings=ManagerSettings()
        )
    finally:
        await informers.stop()
        await cluster.stop()
