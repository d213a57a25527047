"""Rotates the certificate and updates the webhook configurations on every replica, without a failing call.

A certificate of a new CA is served in three steps. First every configuration trusts the new CA beside the old one.
Then, when API servers have had time to see that, each replica serves the new certificate and says so on the Secret.
Last, when all replicas have said so, the old CA is dropped. The configurations themselves remember the CAs, so it does
not matter who replaced the certificate, or how.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.kubernetes.resource import Resource
from koord.api.model import Obj
from koord.kube.controller.controller import ReconcileResult, Requeue, RequeueAfter
from koord.kube.transport.api_error import ApiError
from koord.manager.reconcile_loop import NAMESPACE, ManagerContext, ReconcileLoop
from koord.manager.webhook_server import cert_store, routes
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.manager.webhook_server.routes import WebhookAddress
from koord.manager.webhook_server.server import ServingIdentity
from koord.telemetry.clock import now

_LOG = logging.getLogger(__name__)


MUTATING_NAME = "koordinator-mutating-webhook-configuration"
VALIDATING_NAME = "koordinator-validating-webhook-configuration"
SECRET_NAME = "koordinator-webhook-certs"
SERVICE_NAME = "koordinator-webhook-service"
_REGISTRATION_GROUP = "admissionregistration.k8s.io"
OWN_POD_SELECTOR = "koord-app=koord-manager"
SYNC_KEY = "webhooks"
SYNC_PERIOD_S = 60.0
SETTLE_S = 10.0  # API servers read configurations from a cache: time until all of them trust a new authority
OVERLAP_S = 600.0  # an old authority stays at least this long


class WebhookConfigurationError(Exception):
    """A webhook configuration is missing or cannot be written: nobody would call this server."""


class WebhookObjectNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the Secret and the webhook configurations; the environment may override them."""

    secret: str = SECRET_NAME
    mutating: str = MUTATING_NAME
    validating: str = VALIDATING_NAME


class CertRotator:
    """Runs beside the server on every replica, leader or not. `initialised` is set after the first success."""

    name: ClassVar[str] = "webhook-controller"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("secrets",), ("create",), namespace=NAMESPACE),  # a name cannot limit this verb
        RbacRule("", ("secrets",), (*READ_VERBS, "patch"), names=(SECRET_NAME,), namespace=NAMESPACE),
        RbacRule("", ("pods",), READ_VERBS, namespace=NAMESPACE),
        RbacRule(
            _REGISTRATION_GROUP, ("mutatingwebhookconfigurations",), (*READ_VERBS, "patch"), names=(MUTATING_NAME,)
        ),
        RbacRule(
            _REGISTRATION_GROUP, ("validatingwebhookconfigurations",), (*READ_VERBS, "patch"), names=(VALIDATING_NAME,)
        ),
    )

    def __init__(
        self,
        context: ManagerContext,
        identity: ServingIdentity,
        store: cert_store.CertStore,
        metrics: WebhookMetrics,
        *,
        address: WebhookAddress,
        paths: frozenset[str],
        replica: str,
        cert_dir: Path | None = None,
        names: WebhookObjectNames = WebhookObjectNames(),  # noqa: B008 - a frozen value
        excluded: Sequence[str] = (),
        excluding: frozenset[str] = frozenset(),
        settle_s: float = SETTLE_S,
        overlap_s: float = OVERLAP_S,
    ) -> None:
        """`cert_dir` is the directory that shows what is served; `excluded` namespaces are hidden from `excluding`."""
        self.initialised = asyncio.Event()
        self._context = context
        self._identity = identity
        self._store = store
        self._metrics = metrics
        self._address = address
        self._paths = paths
        self._replica = replica
        self._cert_dir = cert_dir
        self._names = names
        self._excluded_namespaces = tuple(excluded)
        self._excluding_paths = excluding
        self._settle_s = settle_s
        self._overlap_s = overlap_s
        self._adopted_at = 0.0
        self._acknowledged = ""  # the fingerprint that this replica last said it serves
        self._trusted_since: dict[bytes, float] = {}  # authority -> when all configurations were first seen to trust it
        self._loop: ReconcileLoop[str] = ReconcileLoop(self.name, context.clock, self.reconcile)
        self.last_error = "the first look has not ended"

    async def start(self) -> None:
        informers, names = self._context.informers, self._names
        named: Sequence[tuple[Resource[Any], str, str | None]] = (
            (builtin_kinds.SECRETS, names.secret, self._address.namespace),
            (builtin_kinds.MUTATING_WEBHOOK_CONFIGURATIONS, names.mutating, None),
            (builtin_kinds.VALIDATING_WEBHOOK_CONFIGURATIONS, names.validating, None),
        )
        watched = [
            informers.for_resource(resource, namespace, fields=f"metadata.name={name}")
            for resource, name, namespace in named
        ]
        self._loop.start((), [(informer, self._on_change) for informer in watched])
        self._on_change()

    async def stop(self) -> None:
        await self._loop.stop()

    def _on_change(self, _change: object = None) -> None:
        self._loop.queue.add(SYNC_KEY)

    async def reconcile(self, _key: str) -> ReconcileResult:
        try:
            outcome = await self._sync()
        except Exception as error:
            self.last_error = str(error) or type(error).__name__
            self._metrics.certificate_syncs.labels("failed").inc()
            raise
        self._metrics.certificate_syncs.labels("succeeded").inc()
        return outcome

    async def _sync(self) -> ReconcileResult:
        kept = await cert_store.ensure_certificate(self._store, self._address.dns_name, self._context.clock)
        configurations = await self._configurations()
        others = [] if await self._is_rotation_complete(kept, configurations) else [self._identity.material.ca_cert]
        if others:
            others += [routes.trusted_bundle(current) for _, current in configurations]
        trusted = routes.merge_authorities(kept.material.ca_cert, others, now(self._context.clock))
        self._metrics.trusted_authorities.labels().set(len(cert_store.parse_authorities(trusted)))
        for resource, current in configurations:
            if not await self._write(resource, current, trusted):
                return Requeue("another replica changed a configuration first")
        served = await self._serve(kept)
        self.initialised.set()
        self.last_error = ""
        overlapping = len(cert_store.parse_authorities(trusted)) > 1
        return RequeueAfter(min(SYNC_PERIOD_S, self._wait_s(kept, served=served, overlapping=overlapping)))

    def _wait_s(self, kept: cert_store.StoredCertificate, *, served: bool, overlapping: bool) -> float:
        """Return the seconds until the next step. Steps of other replicas show as changes of the Secret."""
        moment = self._context.clock.monotonic()
        if not served:
            return max(0.0, self._trusted_since[kept.material.ca_cert] + self._settle_s - moment)
        if overlapping and self._acknowledged != kept.material.fingerprint:
            return 0.0
        left_s = self._adopted_at + self._overlap_s - moment
        return left_s if overlapping and left_s > 0 else SYNC_PERIOD_S

    # Trust -------------------------------------------------------------------------------------------------------

    async def _configurations(self) -> list[tuple[Resource[Any], Obj]]:
        found: list[tuple[Resource[Any], Obj]] = []
        for resource, name in (
            (builtin_kinds.MUTATING_WEBHOOK_CONFIGURATIONS, self._names.mutating),
            (builtin_kinds.VALIDATING_WEBHOOK_CONFIGURATIONS, self._names.validating),
        ):
            current = await self._context.client.dynamic.get(resource, name)
            if isinstance(current, ApiError):
                why = f"not found {resource.kind} {name}" if current.not_found else f"{resource.kind} {name}: {current}"
                raise WebhookConfigurationError(why)
            found.append((resource, current))
        return found

    async def _write(self, resource: Resource[Object], current: Obj, trusted: bytes) -> bool:
        target = routes.desired_webhooks(
            current,
            self._address,
            trusted=trusted,
            paths=self._paths,
            excluded=self._excluded_namespaces,
            excluding=self._excluding_paths,
        )
        if routes.is_up_to_date(current, target):
            return True
        answer = await self._context.client.dynamic.patch(
            resource,
            current["metadata"]["name"],
            routes.build_patch(target),
            kind="merge",
            resource_version=current["metadata"]["resourceVersion"],
        )
        if isinstance(answer, ApiError):
            if answer.conflict:
                return False
            raise WebhookConfigurationError(f"cannot change {resource.kind} {current['metadata']['name']}: {answer}")
        _LOG.info("%s %s has %d entries now", resource.kind, current["metadata"]["name"], len(target.webhooks))
        return True

    async def _is_rotation_complete(
        self, kept: cert_store.StoredCertificate, configurations: Sequence[tuple[Resource[Any], Obj]]
    ) -> bool:
        """Return whether no replica can be left that serves a certificate of another CA than the present one."""
        present = routes.merge_authorities(kept.material.ca_cert, (), now(self._context.clock))
        bundles = [routes.trusted_bundle(current) for _, current in configurations]
        if all(bundle in (b"", present) for bundle in bundles) and self._identity.material.ca_cert in (b"", present):
            return True
        fingerprint = kept.material.fingerprint
        if self._identity.fingerprint != fingerprint:
            return False
        replicas = await self._replicas()
        serving = await cert_store.acknowledge_serving(self._store, self._replica, fingerprint, replicas)
        self._acknowledged = serving.get(self._replica, "")
        late = [name for name in {*replicas, self._replica} if serving.get(name) != fingerprint]
        if late:
            _LOG.info("the old authority stays trusted: %s still to serve the new certificate", ", ".join(sorted(late)))
            return False
        return self._context.clock.monotonic() - self._adopted_at >= self._overlap_s

    async def _replicas(self) -> list[str]:
        """Return the pods that may be called.

        One of an older release never says what it serves, so the old CA stays until it is gone.
        """
        listing = await self._context.client.list(builtin_kinds.PODS, self._address.namespace, labels=OWN_POD_SELECTOR)
        if isinstance(listing, ApiError):
            raise WebhookConfigurationError(f"cannot see the other replicas: {listing}")
        return [pod.metadata.name for pod in listing.items if pod.status.phase not in ("Succeeded", "Failed")]

    # Serving -----------------------------------------------------------------------------------------------------

    async def _serve(self, kept: cert_store.StoredCertificate) -> bool:
        """Serve the stored certificate, unless API servers may not trust it yet."""
        identity, material = self._identity, kept.material
        moment = self._context.clock.monotonic()
        since = self._trusted_since.get(material.ca_cert, moment)
        self._trusted_since = {material.ca_cert: since}
        if identity.fingerprint != material.fingerprint:
            replaces = bool(identity.fingerprint) and identity.material.ca_cert != material.ca_cert
            if replaces and moment < since + self._settle_s:
                return False
            identity.adopt(material)
            self._adopted_at = moment
            for part, pem in (("certificate", material.cert), ("authority", material.ca_cert)):
                self._metrics.certificate_not_after.labels(part).set(cert_store.not_after(pem).timestamp())
            _LOG.info("serving the certificate %s", material.fingerprint)
        if self._cert_dir is not None:
            await asyncio.to_thread(cert_store.write_cert_dir, self._cert_dir, material.files())
        return True
