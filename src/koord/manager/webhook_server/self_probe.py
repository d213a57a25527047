"""All of webhook serving on one replica: server, certificate rotation, readiness, and the self probe, which calls the
webhooks the way an API server does, so that a failure policy of Ignore does not hide an outage.

Address and CA are taken from the stored webhook configurations, and the review goes through the service: a wrong
caBundle, a missing endpoint or a closed port show here before they show as pods without a profile.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import ClassVar

import aiohttp
import msgspec

from koord.api.kubernetes.builtin_kinds import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS
from koord.api.kubernetes.rbac import RbacRule
from koord.api.model import Obj, ObjectReference
from koord.kube.controller.process import StartupError
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.manager.reconcile_loop import ManagerContext
from koord.manager.webhook_server import routes
from koord.manager.webhook_server.cert_rotator import MUTATING_NAME, VALIDATING_NAME, CertRotator, WebhookObjectNames
from koord.manager.webhook_server.cert_store import CertStore, DirectoryCertStore, SecretCertStore
from koord.manager.webhook_server.handlers import WebhookHandler
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.manager.webhook_server.routes import WebhookAddress
from koord.manager.webhook_server.server import DebugPage, WebhookServer

_LOG = logging.getLogger(__name__)


PROBE_PERIOD_S = 60.0
PROBE_TIMEOUT_S = 10.0
UNREACHABLE_REASON = "WebhookUnreachable"
REACHABLE_REASON = "WebhookReachable"
_PROBE_UID = "00000000-0000-0000-0000-00000000c4ec"
_CALL_ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class ProbeTarget(msgspec.Struct, frozen=True):
    url: str
    server_name: str | None  # that the certificate must prove, where it is not the URL's host
    ca_bundle: bytes
    path: str


class NameNotResolved(msgspec.Struct, frozen=True):
    """This pod's DNS does not know the service. That says nothing of API servers, which find it without DNS."""

    why: str


class WebhookSelfProbe:
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("admissionregistration.k8s.io", ("mutatingwebhookconfigurations",), ("get",), (MUTATING_NAME,)),
        RbacRule("admissionregistration.k8s.io", ("validatingwebhookconfigurations",), ("get",), (VALIDATING_NAME,)),
        RbacRule("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(
        self,
        context: ManagerContext,
        metrics: WebhookMetrics,
        names: WebhookObjectNames = WebhookObjectNames(),  # noqa: B008 - a frozen value
        *,
        tells: Callable[[], bool] = lambda: True,
        resolve: Callable[[str, str], str | None] = lambda _namespace, _service: None,
    ) -> None:
        """`tells`: whether this replica records the event. `resolve` finds a service that no DNS knows."""
        self._context = context
        self._metrics = metrics
        self._names = names
        self._records_events = tells
        self._resolve = resolve
        self._unreachable_paths: set[str] = set()
        self._told_unresolved = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="webhook-reach")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self.probe_all()
            except TRANSIENT_ERRORS as error:
                _LOG.warning("the webhooks were not called for a check: %s", error)
            await self._context.clock.sleep(PROBE_PERIOD_S)

    async def probe_all(self) -> dict[str, str]:
        """Call every registered path once. Return the error by path, "" without one; nothing of a path that this pod
        cannot judge.
        """
        found: dict[str, str] = {}
        for resource, name in (
            (MUTATING_WEBHOOK_CONFIGURATIONS, self._names.mutating),
            (VALIDATING_WEBHOOK_CONFIGURATIONS, self._names.validating),
        ):
            current = await self._context.client.dynamic.get(resource, name)
            if isinstance(current, ApiError):
                _LOG.warning("%s %s cannot be read: %s", resource.kind, name, current)
                continue
            about = ObjectReference(
                api_version=resource.api_version, kind=resource.kind, name=name, uid=current["metadata"]["uid"]
            )
            for target in self._targets(current.get("webhooks") or []):
                why = await self._probe(target)
                if isinstance(why, NameNotResolved):
                    self._log_unresolved(target, why)
                    continue
                found[target.path] = why
                self._report(about, target, why)
        return found

    def _targets(self, entries: Iterable[Obj]) -> Iterable[ProbeTarget]:
        seen: set[str] = set()
        for entry in entries:
            path = routes.entry_path(entry)
            if path in seen:
                continue
            seen.add(path)
            client = entry["clientConfig"]
            trust = base64.b64decode(client.get("caBundle") or "")
            service = client.get("service")
            if not service:
                yield ProbeTarget(client["url"], None, trust, path)
                continue
            name = f"{service['name']}.{service['namespace']}.svc"
            known = self._resolve(service["namespace"], service["name"])
            place = known or f"{name}:{service.get('port') or 443}"
            yield ProbeTarget(f"https://{place}{path}", name, trust, path)

    async def _probe(self, target: ProbeTarget) -> str | NameNotResolved:
        try:
            trust = ssl.create_default_context(cadata=target.ca_bundle.decode())
            async with (
                asyncio.timeout(PROBE_TIMEOUT_S),
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
                session.post(
                    target.url, data=synthetic_review(), ssl=trust, server_hostname=target.server_name
                ) as answer,
            ):
                body = msgspec.json.decode(await answer.read()) if answer.status == 200 else {}
                if (body.get("response") or {}).get("uid") == _PROBE_UID:
                    return ""
                return f"answered {answer.status} without an AdmissionReview"
        except TimeoutError:
            return f"no answer within {PROBE_TIMEOUT_S:.0f} s"
        except aiohttp.ClientConnectorCertificateError as error:
            return str(error.certificate_error)
        except aiohttp.ClientConnectorDNSError as error:
            return NameNotResolved(error.os_error.strerror or str(error.os_error))
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            return "connection refused" if refused else error.os_error.strerror or str(error.os_error)
        except _CALL_ERRORS as error:
            return str(error) or type(error).__name__

    def _log_unresolved(self, target: ProbeTarget, found: NameNotResolved) -> None:
        if not self._told_unresolved:
            _LOG.warning("whether API servers can call webhooks is not checked: %s: %s", target.server_name, found.why)
        self._told_unresolved = True

    def _report(self, about: ObjectReference, target: ProbeTarget, why: str) -> None:
        self._metrics.reachable.labels(target.path).set(0.0 if why else 1.0)
        if why:
            _LOG.warning("API servers cannot call %s: %s", target.url, why)
            self._unreachable_paths.add(target.path)
        elif target.path not in self._unreachable_paths:
            return
        else:
            self._unreachable_paths.discard(target.path)
        if not self._records_events():
            return
        if why:
            message = f"{target.url} cannot be called as an API server calls it: {why}"
            self._context.recorder.record(about, "Warning", UNREACHABLE_REASON, message, action="Check")
        else:
            message = f"{target.url} can be called again"
            self._context.recorder.record(about, "Normal", REACHABLE_REASON, message, action="Check")


def synthetic_review() -> bytes:
    """Return a review of a kind that no webhook decides on, so that it changes and counts nothing."""
    kind = {"group": "koordinator.sh", "version": "v1", "kind": "SelfCheck"}
    resource = {"group": "koordinator.sh", "version": "v1", "resource": "selfchecks"}
    request = {
        "uid": _PROBE_UID,
        "kind": kind,
        "resource": resource,
        "name": "self-check",
        "operation": "CREATE",
        "userInfo": {"username": "koord-manager"},
        "object": {"apiVersion": "koordinator.sh/v1", "kind": "SelfCheck", "metadata": {"name": "self-check"}},
        "dryRun": True,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


READINESS_PERIOD_S = 5.0


class WebhooksNotReady(StartupError):
    """The webhooks could not be made ready in time; the message says what was missing."""


class WebhookServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: WebhookAddress
    names: WebhookObjectNames = WebhookObjectNames()
    cert_dir: Path
    writer: str = ""  # "fs", "secret"; "" chooses by whether there is a host
    replica: str
    host: str = "0.0.0.0"
    port: int = 9876
    start_timeout_s: float = 20.0  # after which a server that is not ready gives up

    @property
    def uses_directory(self) -> bool:
        return self.writer == "fs" or (not self.writer and bool(self.address.host))


class WebhookServing:
    def __init__(
        self,
        context: ManagerContext,
        handlers: Mapping[str, WebhookHandler],
        metrics: WebhookMetrics,
        serving: WebhookServingSettings,
        *,
        excluded: frozenset[str],
        pages: Mapping[str, DebugPage] | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock = context.clock
        self._serving = serving
        self.server = WebhookServer(handlers, metrics, context.clock, pages=pages)
        store: CertStore = DirectoryCertStore(serving.cert_dir)
        if not serving.uses_directory:
            store = SecretCertStore(context.client, serving.address.namespace, serving.names.secret)
        self.cert_rotator = CertRotator(
            context,
            self.server.identity,
            store,
            metrics,
            address=serving.address,
            paths=self.server.paths,
            replica=serving.replica,
            cert_dir=serving.cert_dir,
            names=serving.names,
            excluded=sorted(excluded),
            excluding=frozenset(path for path, handler in handlers.items() if handler.route.excludes_system),
        )
        self.self_probe = WebhookSelfProbe(context, metrics, serving.names, tells=leads)
        self._probe: asyncio.Task[None] | None = None
        self._not_ready_reason: str | None = "the webhook server has not started"

    async def start(self) -> None:
        """Return when calls are answered. Raise WebhooksNotReady."""
        try:
            await self.server.start(self._serving.host, self._serving.port)
        except OSError as error:
            raise WebhooksNotReady(f"cannot listen on port {self._serving.port}: {error.strerror or error}") from error
        await self.cert_rotator.start()
        ready = asyncio.ensure_future(self.cert_rotator.initialised.wait())
        deadline = asyncio.ensure_future(self._clock.sleep(self._serving.start_timeout_s))
        try:
            await asyncio.wait({ready, deadline}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                waited = f"not ready to serve within {self._serving.start_timeout_s:.0f} s"
                raise WebhooksNotReady(f"{waited}: {self.cert_rotator.last_error}")
        finally:
            ready.cancel()
            deadline.cancel()
        await self.probe()
        self._probe = asyncio.create_task(self._probe_forever(), name="webhook-ready")
        await self.self_probe.start()
        _LOG.info("webhooks at port %d: %s", self.server.port, ", ".join(sorted(self.server.paths)))

    async def stop(self) -> None:
        self._not_ready_reason = "the webhook server is stopping"
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
            self._probe = None
        await self.self_probe.stop()
        await self.cert_rotator.stop()
        await self.server.stop()

    def check_ready(self) -> str | None:
        """Run the health check `webhook-ready`: return what is wrong, or None."""
        return self._not_ready_reason

    async def probe(self) -> None:
        """Call the own port, with the CA that callers trust."""
        try:
            trust = ssl.create_default_context(cadata=self.server.identity.material.ca_cert.decode())
            url = f"https://127.0.0.1:{self.server.port}/healthz"
            async with (
                asyncio.timeout(READINESS_PERIOD_S),
                aiohttp.ClientSession() as session,
                session.get(url, ssl=trust, server_hostname="localhost") as answer,
            ):
                self._not_ready_reason = None if answer.status == 200 else f"/healthz answered {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._not_ready_reason = f"/healthz did not answer: {error or type(error).__name__}"

    async def _probe_forever(self) -> None:
        while True:
            await self._clock.sleep(READINESS_PERIOD_S)
            await self.probe()
