"""Calls the webhooks the way an API server does, so that a failure policy of Ignore does not hide an outage.

Address and CA are taken from the stored webhook configurations, and the review goes through the service: a
wrong
caBundle, a missing endpoint or a closed port show here before they show as pods without a profile.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import aiohttp
import msgspec

from koord.api.builtin import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS
from koord.api.part import ObjectReference
from koord.api.right import Right
from koord.kube.outage import OUTAGE
from koord.kube.refused import Refused
from koord.manager.metrics import Metrics
from koord.manager.serving import registration
from koord.manager.serving.upkeep import MUTATING_NAME, VALIDATING_NAME, Names
from koord.manager.world import World

_LOG = logging.getLogger(__name__)

Obj = dict[str, Any]

EVERY_S = 60.0
ANSWER_S = 10.0
UNREACHABLE = "WebhookUnreachable"
REACHABLE = "WebhookReachable"
_UID = "00000000-0000-0000-0000-00000000c4ec"
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class Target(msgspec.Struct, frozen=True):
    url: str
    server_name: str | None  # that the certificate must prove, where it is not the URL's host
    trust: bytes
    path: str


class Reach:
    rights: ClassVar[tuple[Right, ...]] = (
        Right("admissionregistration.k8s.io", ("mutatingwebhookconfigurations",), ("get",), (MUTATING_NAME,)),
        Right("admissionregistration.k8s.io", ("validatingwebhookconfigurations",), ("get",), (VALIDATING_NAME,)),
        Right("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(
        self,
        world: World,
        metrics: Metrics,
        names: Names = Names(),  # noqa: B008 - a frozen value
        *,
        tells: Callable[[], bool] = lambda: True,
        resolve: Callable[[str, str], str | None] = lambda _namespace, _service: None,
    ) -> None:
        """`tells`: whether this replica records the event. `resolve` finds a service that no DNS knows."""
        self._world = world
        self._metrics = metrics
        self._names = names
        self._tells = tells
        self._resolve = resolve
        self._down: set[str] = set()
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
                await self.look()
            except OUTAGE as error:
                _LOG.warning("the webhooks were not called for a check: %s", error)
            await self._world.clock.sleep(EVERY_S)

    async def look(self) -> dict[str, str]:
        """Call every registered path once. Return the error by path, "" without one."""
        found: dict[str, str] = {}
        for resource, name in (
            (MUTATING_WEBHOOK_CONFIGURATIONS, self._names.mutating),
            (VALIDATING_WEBHOOK_CONFIGURATIONS, self._names.validating),
        ):
            current = await self._world.client.plain.get(resource, name)
            if isinstance(current, Refused):
                _LOG.warning("%s %s cannot be read: %s", resource.kind, name, current)
                continue
            about = ObjectReference(
                api_version=resource.api_version, kind=resource.kind, name=name, uid=current["metadata"]["uid"]
            )
            for target in self._targets(current.get("webhooks") or []):
                why = found[target.path] = await self._call(target)
                self._report(about, target, why)
        return found

    def _targets(self, entries: Iterable[Obj]) -> Iterable[Target]:
        seen: set[str] = set()
        for entry in entries:
            path = registration.path_of(entry)
            if path in seen:
                continue
            seen.add(path)
            client = entry["clientConfig"]
            trust = base64.b64decode(client.get("caBundle") or "")
            service = client.get("service")
            if not service:
                yield Target(client["url"], None, trust, path)
                continue
            name = f"{service['name']}.{service['namespace']}.svc"
            known = self._resolve(service["namespace"], service["name"])
            place = known or f"{name}:{service.get('port') or 443}"
            yield Target(f"https://{place}{path}", name, trust, path)

    async def _call(self, target: Target) -> str:
        try:
            trust = ssl.create_default_context(cadata=target.trust.decode())
            async with (
                asyncio.timeout(ANSWER_S),
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
                session.post(
                    target.url, data=synthetic_review(), ssl=trust, server_hostname=target.server_name
                ) as answer,
            ):
                body = msgspec.json.decode(await answer.read()) if answer.status == 200 else {}
                if (body.get("response") or {}).get("uid") == _UID:
                    return ""
                return f"answered {answer.status} without an AdmissionReview"
        except TimeoutError:
            return f"no answer within {ANSWER_S:.0f} s"
        except aiohttp.ClientConnectorCertificateError as error:
            return str(error.certificate_error)
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            return "connection refused" if refused else error.os_error.strerror or str(error.os_error)
        except _FAILURES as error:
            return str(error) or type(error).__name__

    def _report(self, about: ObjectReference, target: Target, why: str) -> None:
        self._metrics.reachable.labels(target.path).set(0.0 if why else 1.0)
        if why:
            _LOG.warning("API servers cannot call %s: %s", target.url, why)
            self._down.add(target.path)
        elif target.path not in self._down:
            return
        else:
            self._down.discard(target.path)
        if not self._tells():
            return
        if why:
            message = f"{target.url} cannot be called as an API server calls it: {why}"
            self._world.recorder.record(about, "Warning", UNREACHABLE, message, action="Check")
        else:
            message = f"{target.url} can be called again"
            self._world.recorder.record(about, "Normal", REACHABLE, message, action="Check")


def synthetic_review() -> bytes:
    """Return a review of a kind that no webhook decides on, so that it changes and counts nothing."""
    kind = {"group": "koordinator.sh", "version": "v1", "kind": "SelfCheck"}
    resource = {"group": "koordinator.sh", "version": "v1", "resource": "selfchecks"}
    request = {
        "uid": _UID,
        "kind": kind,
        "resource": resource,
        "name": "self-check",
        "operation": "CREATE",
        "userInfo": {"username": "koord-manager"},
        "object": {"apiVersion": "koordinator.sh/v1", "kind": "SelfCheck", "metadata": {"name": "self-check"}},
        "dryRun": True,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
