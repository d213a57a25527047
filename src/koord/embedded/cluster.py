"""Run one cluster in one process: the API server with its HTTPS server, and the components that run on it.

Components are programs that know only the Kubernetes API. The cluster hands each of them a client and
stops them in reverse order. It knows nothing of flags or files beyond what its settings say. Objects of clients in this
process go in and out as they are, without JSON in between.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import yaml

from koord.api.kubernetes.builtin_kinds import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, SERVICE_ACCOUNTS
from koord.api.schema import crd_manifests
from koord.embedded.apiserver import data_directory
from koord.embedded.apiserver.admission.hooks import AdmissionHooks
from koord.embedded.apiserver.admission.namespace_limits import DEFAULT_ACCOUNT
from koord.embedded.apiserver.data_directory import (
    DEFAULT_HOSTS,
    ApiServerCertificates,
    DataDirectoryError,
    create_certificates,
    load_or_create_certificates,
    prepare_data_directory,
)
from koord.embedded.apiserver.http_server import HttpServer, ServerAddress, kubeconfig_document
from koord.embedded.apiserver.rest.discovery import ComponentRoutes
from koord.embedded.apiserver.rest.virtual_resources import metrics_resources
from koord.embedded.apiserver.server import ApiServer
from koord.embedded.apiserver.store.journal import StoreJournal
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable, WatchStream
from koord.telemetry.certificates import write_private_file
from koord.telemetry.clock import Clock, WallClock

ADMIN = "system:admin"
MIN_TOKEN_CHARS = 16
_TOKEN = re.compile(rf"[A-Za-z0-9._~+/=-]{{{MIN_TOKEN_CHARS},}}")

# A program that writes in a loop must not keep the others from running: every so many calls it lets them.
CALLS_PER_YIELD = 8


class InProcessTransport:
    """Sends requests to a server in this process and lets other tasks run every few calls.

    `track_managed_fields` keeps managedFields for objects that this program creates; it is off because
    nobody reads them.
    """

    def __init__(self, server: ApiServer, user: str = "system:admin", *, track_managed_fields: bool = False) -> None:
        self._server = server
        self._user = user
        self._track_managed_fields = track_managed_fields
        self._calls = 0
        self._closed = False

    async def send(self, request: ApiRequest) -> ApiResponse:
        await self._yield_now_and_then()
        return await self._server.handle(self._with_user(request), track_managed_fields=self._track_managed_fields)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        await self._yield_now_and_then()
        return await self._server.watch(self._with_user(request))

    async def close(self) -> None:
        self._closed = True

    def _with_user(self, request: ApiRequest) -> ApiRequest:
        return request if request.user == self._user else msgspec.structs.replace(request, user=self._user)

    async def _yield_now_and_then(self) -> None:
        if self._closed or self._server.closed:
            raise Unreachable("the API server in this process is closed")
        self._calls += 1
        if self._calls % CALLS_PER_YIELD == 0:
            await asyncio.sleep(0)


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 6443  # 0: the system chooses
    http: bool = True  # False: only programs in this process can reach the server
    allow_remote: bool = False
    tls_certificate: Path | None = None  # with its chain; None: a certificate of the cluster's own
    tls_key: Path | None = None
    data_dir: Path | None = None  # None: everything is in memory
    durable: bool = False
    seed: int | None = None  # for uids and names: a run in virtual time repeats when its seed does
    component_seed: int | None = None  # for what is random in components; uids stay unpredictable
    service_accounts: bool = False  # pods get their account and its token's volume; a controller must make accounts


class ComponentContext(msgspec.Struct, frozen=True, kw_only=True):
    """Carries what a component of the cluster is given when it is made."""

    client: Client
    informers: InformerFactory
    clock: Clock
    seed: int
    hooks: AdmissionHooks  # for components that decide about writes before they are stored
    component_routes: ComponentRoutes  # for components that serve HTTP paths
    root_ca: bytes = b""  # PEM of the authority behind the server's certificate; empty without HTTPS
    data_dir: Path | None = None  # where the cluster is kept; None: in memory only


class Component(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


ComponentFactory = Callable[[ComponentContext], Awaitable[Component] | Component]


class EmbeddedCluster:
    """Runs the API server and its components; `start` returns when all run, `stop` ends them in reverse order."""

    def __init__(
        self,
        settings: ClusterSettings,
        components: Sequence[tuple[str, ComponentFactory]] = (),
        *,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._factories = tuple(components)
        self._running: list[tuple[str, Component]] = []
        self.clock = clock or WallClock()
        self._certificates: ApiServerCertificates | None = None
        self.token = ""
        self.server: ApiServer | None = None
        self.http_server: HttpServer | None = None
        self.client: Client | None = None
        self.informers: InformerFactory | None = None

    @property
    def url(self) -> str:
        return self.http_server.url if self.http_server else ""

    def running_component(self, name: str) -> Component | None:
        return dict(self._running).get(name)

    async def start(self) -> None:
        settings = self._settings
        self.token = self._load_or_create_token()
        chance = random.Random(settings.seed) if settings.seed is not None else None
        self.server = ApiServer(
            await self._open_store(),
            clock=self.clock,
            chance=chance,
            tokens={self.token: ADMIN},
            service_accounts=settings.service_accounts,
        )
        try:
            await self.server.start()
            await self._start_http_server()
            self.client = Client(InProcessTransport(self.server, ADMIN), clock=self.clock, qps=0, burst=0)
            self.informers = InformerFactory(self.client, self.clock, seed=settings.seed)
            await self._install_crds()
            if settings.service_accounts:
                await self._create_default_accounts()
            await self._start_components()
        except BaseException:
            await self.stop()
            raise

    async def _open_store(self) -> ObjectStore:
        settings = self._settings
        if settings.data_dir is None:
            return ObjectStore()
        journal = StoreJournal(settings.data_dir, durable=settings.durable)
        try:
            return ObjectStore(journal)
        except BaseException:
            await journal.close()
            raise

    async def _start_http_server(self) -> None:
        settings = self._settings
        assert self.server is not None
        if not settings.http:
            return
        if settings.tls_certificate is not None and settings.tls_key is not None:
            self._certificates = data_directory.load_certificates(settings.tls_certificate, settings.tls_key)
        else:
            self._certificates = self._own_certificates()
        http_server = HttpServer(self.server)
        await http_server.start(
            settings.host, settings.port, self._certificates.ssl_context(), allow_remote=settings.allow_remote
        )
        self.http_server = http_server
        await self.server.publish_address(http_server.url)

    def _own_certificates(self) -> ApiServerCertificates:
        settings = self._settings
        hosts = [
            *DEFAULT_HOSTS,
            *({settings.host} - {"0.0.0.0", "::"} - set(DEFAULT_HOSTS)),
        ]
        pki = settings.data_dir / "pki" if settings.data_dir else None
        return load_or_create_certificates(pki, hosts) if pki else create_certificates(hosts)

    async def _install_crds(self) -> None:
        assert self.client is not None
        for manifest in crd_manifests():
            answer = await self.client.apply(CUSTOM_RESOURCE_DEFINITIONS, manifest, field_manager="koord", force=True)
            if isinstance(answer, ApiError):
                raise RuntimeError(f"cannot install {manifest['metadata']['name']}: {answer.message}")
        assert self.server is not None
        for resource in metrics_resources():
            self.server.catalog.add(resource)

    async def _create_default_accounts(self) -> None:
        """Create the accounts of the namespaces that exist, so that a cluster that is ready takes pods. Those of later
        namespaces are made by the controller of ServiceAccounts.
        """
        assert self.client is not None
        for namespace in unwrap(await self.client.list(NAMESPACES)).items:
            body = {"metadata": {"name": DEFAULT_ACCOUNT}}
            answer = await self.client.create(SERVICE_ACCOUNTS, body, namespace.metadata.name)
            if isinstance(answer, ApiError) and not (answer.already_exists or answer.forbidden):
                raise RuntimeError(f"cannot create the ServiceAccount of {namespace.metadata.name}: {answer.message}")

    async def _start_components(self) -> None:
        assert self.client is not None
        assert self.informers is not None
        settings = self._settings
        chosen = settings.component_seed if settings.component_seed is not None else settings.seed
        seed = chosen if chosen is not None else secrets.randbits(32)
        assert self.server is not None
        context = ComponentContext(
            client=self.client,
            informers=self.informers,
            clock=self.clock,
            seed=seed,
            hooks=self.server.hooks,
            component_routes=self.server.component_routes,
            root_ca=self._certificates.authority.certificate if self._certificates else b"",
            data_dir=self._settings.data_dir,
        )
        for name, maker in self._factories:
            made = maker(context)
            component = await made if asyncio.iscoroutine(made) else made
            self._running.append((name, component))  # type: ignore[arg-type]
            await component.start()  # type: ignore[union-attr]
        self.informers.start()

    async def stop(self) -> None:
        """Stop the components, the informers, the HTTPS server and the API server, whichever of them had started."""
        while self._running:
            _, component = self._running.pop()
            await component.stop()
        if self.informers is not None:
            await self.informers.stop()
        if self.client is not None:
            await self.client.close()
        if self.server is not None:
            self.server.closed = True
        if self.http_server is not None:
            await self.http_server.close()
        if self.server is not None:
            await self.server.close()

    def _load_or_create_token(self) -> str:
        """Return a random bearer token. One in a data directory stays, so that kubeconfigs survive a restart."""
        folder = self._settings.data_dir
        if folder is None:
            return secrets.token_urlsafe(24)
        kept = folder / "token"
        prepare_data_directory(folder)
        try:
            if not kept.exists():
                write_private_file(kept, secrets.token_urlsafe(24).encode())
            token = kept.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DataDirectoryError(f"cannot use {kept}: {error}") from error
        if not _TOKEN.fullmatch(token):
            raise DataDirectoryError(
                f"{kept} holds no token of {MIN_TOKEN_CHARS} letters or more: remove it, and the next start makes one"
            )
        return token

    def rotate_token(self) -> None:
        """Make a new token and forget the old one at once: whoever is connected with it is cut off."""
        assert self.server is not None, "the cluster runs"
        token = secrets.token_urlsafe(24)
        if self._settings.data_dir is not None:
            write_private_file(self._settings.data_dir / "token", token.encode())
        self.token = token
        self.server.tokens.clear()
        self.server.tokens[token] = ADMIN
        if self.http_server is not None:
            self.http_server.drop_clients()

    def kubeconfig(self) -> str:
        """Return a kubeconfig for this cluster with the token in it: write it where only its owner can read."""
        if self._certificates is None:
            raise RuntimeError("this cluster has no HTTP door, so a kubeconfig would lead nowhere")
        address = ServerAddress(self.url, self.token, self._certificates.authority.certificate)
        return yaml.safe_dump(kubeconfig_document(address), sort_keys=False)
