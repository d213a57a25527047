"""This module is the typed client: verbs that return the object, or the server's error as a value.

Throttling and retries are the retrying caller's, bytes are the transport's. Reads are typed; writes are
patches or whole unstructured objects, never a decoded model, because a model has lost the fields that it
does not know.
"""

from __future__ import annotations

import builtins
import functools
import random
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.meta import Object, Status, TypeMeta
from koord.api.model import Model
from koord.api.resource import Resource
from koord.kube import verb
from koord.kube.caller import Caller
from koord.kube.listing import Listing, typed_page
from koord.kube.paging import collect
from koord.kube.plain import PlainClient
from koord.kube.refused import Refused, from_answer
from koord.kube.retry import RetryPolicy
from koord.kube.throttle import TokenBucket
from koord.kube.transport import Answer, Body, Request, Transport
from koord.kube.verb import FieldValidation, PatchKind, Plain, Propagation, VersionMatch
from koord.kube.watch import Watch
from koord.telemetry.clock import Clock, WallClock

T = TypeVar("T", bound=Object)

USER_AGENT = "koord"


class Deleted(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """DeleteResult holds the object as the server returned it, if it did: as it was, or as it waits for its
    finalizers.
    """

    object: T | None
    uid: str

    @property
    def lingering(self) -> bool:
        """Return whether the object is still served and waits for its finalizers or its grace period."""
        return self.object is not None and self.object.metadata.deletion_timestamp is not None


class ServerVersion(Model, frozen=True, kw_only=True):
    major: str = ""
    minor: str = ""
    git_version: str = ""
    platform: str = ""


class Client:
    """Client offers typed verbs over one transport. `dynamic` has the same verbs over unstructured objects.

    Every verb raises Unreachable when no response came within the retries, and msgspec.ValidationError when a
    single object does not fit its model; lists and watches report such objects and go on.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock | None = None,
        qps: float = 50,
        burst: int = 100,
        user_agent: str = USER_AGENT,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - a frozen value
        chance: random.Random | None = None,
    ) -> None:
        """Create a client. A `burst` of 0 lifts the rate limit; `chance` spreads retries and is seeded where runs must
        repeat.
        """
        clock = clock or WallClock()
        bucket = TokenBucket(qps, burst, clock.monotonic())
        self._caller = Caller(transport, clock, bucket, retry, user_agent, chance or random.Random())
        self.plain = PlainClient(self._caller)

    async def _object(self, request: Request, model: type[T]) -> T | Refused:
        answer = await self._caller.send(request)
        return answer.body.typed(model) if answer.ok else from_answer(answer)

    async def _done(self, request: Request) -> Refused | None:
        answer = await self._caller.send(request)
        return None if answer.ok else from_answer(answer)

    async def get(
        self,
        resource: Resource[T],
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        resource_version: str | None = None,
    ) -> T | Refused:
        request = verb.get(resource, name, namespace, subresource=subresource, resource_version=resource_version)
        return await self._object(request, resource.model)

    async def list(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = 0,
        resource_version: str | None = None,
        resource_version_match: VersionMatch | None = None,
    ) -> Listing[T] | Refused:
        """List all objects that match, in pages of `limit` (0: one page)."""
        first = verb.listing(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            limit=limit,
            resource_version=resource_version,
            resource_version_match=resource_version_match,
        )
        return await collect(self._caller, first, functools.partial(typed_page, model=resource.model))

    async def create(
        self,
        resource: Resource[T],
        obj: Model | Plain,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> T | Refused:
        """Create an object. `obj` may omit apiVersion and kind, and `namespace` may be omitted when `obj` names it."""
        request = verb.create(
            resource,
            obj,
            namespace,
            name=name,
            subresource=subresource,
            dry_run=dry_run,
            field_manager=field_manager,
            field_validation=field_validation,
        )
        return await self._object(request, resource.model)

    async def replace(
        self,
        resource: Resource[T],
        obj: Plain,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> T | Refused:
        request = verb.replace(
            resource,
            obj,
            namespace,
            name=name,
            subresource=subresource,
            dry_run=dry_run,
            field_manager=field_manager,
            field_validation=field_validation,
        )
        return await self._object(request, resource.model)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Plain | builtins.list[Any],
        namespace: str | None = None,
        *,
        kind: PatchKind,
        subresource: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> T | Refused:
        """Patch an object. `uid` and `resource_version` are preconditions: a write for another object or version is
        refused.
        """
        request = verb.patch(
            resource,
            name,
            patch,
            namespace,
            kind=kind,
            subresource=subresource,
            uid=uid,
            resource_version=resource_version,
            dry_run=dry_run,
            field_manager=field_manager,
            field_validation=field_validation,
        )
        return await self._object(request, resource.model)

    async def apply(
        self,
        resource: Resource[T],
        obj: Plain,
        *,
        field_manager: str,
        force: bool = False,
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> T | Refused:
        request = verb.apply(
            resource,
            obj,
            field_manager=field_manager,
            force=force,
            namespace=namespace,
            subresource=subresource,
            dry_run=dry_run,
        )
        return await self._object(request, resource.model)

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
    ) -> Deleted[T] | Refused:
        request = verb.delete(
            resource,
            name,
            namespace,
            uid=uid,
            resource_version=resource_version,
            grace_seconds=grace_seconds,
            propagation=propagation,
            dry_run=dry_run,
        )
        answer = await self._caller.send(request)
        return _deleted(answer.body, resource.model) if answer.ok else from_answer(answer)

    async def delete_collection(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
    ) -> Refused | None:
        request = verb.delete_collection(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            grace_seconds=grace_seconds,
            propagation=propagation,
            dry_run=dry_run,
        )
        return await self._done(request)

    async def watch(
        self,
        resource: Resource[T],
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        send_initial_events: bool = False,
        timeout_s: int | None = None,
    ) -> Watch[T] | Refused:
        request = verb.watch(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            resource_version=resource_version,
            bookmarks=bookmarks,
            send_initial_events=send_initial_events,
            timeout_s=timeout_s,
        )
        stream = await self._caller.watch(request)
        return from_answer(stream) if isinstance(stream, Answer) else Watch(stream, resource.model)

    async def bind(
        self, namespace: str, pod: str, node: str, *, uid: str, annotations: Mapping[str, str] | None = None
    ) -> Refused | None:
        return await self._done(verb.bind(namespace, pod, node, uid=uid, annotations=annotations))

    async def evict(
        self,
        namespace: str,
        pod: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
    ) -> Refused | None:
        """Evict a pod. An error with `too_many` is an exhausted disruption budget; it is never retried here."""
        return await self._done(verb.evict(namespace, pod, uid=uid, grace_seconds=grace_seconds, dry_run=dry_run))

    async def raw(self, request: Request) -> Answer:
        """Send any request, throttled and retried like the verbs; error responses are returned as they are."""
        return await self._caller.send(request)

    async def server_version(self) -> ServerVersion | Refused:
        answer = await self._caller.send(Request(method="GET", path="/version"))
        return answer.body.typed(ServerVersion) if answer.ok else from_answer(answer)

    async def close(self) -> None:
        await self._caller.transport.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _deleted(body: Body, model: type[T]) -> Deleted[T]:
    """Decode the response of a delete: the object for some kinds, a Status for others."""
    status = body.typed(Status) if _says_status(body) else None
    if status is not None:
        return Deleted(object=None, uid=status.details.uid if status.details else "")
    obj = body.typed(model)
    return Deleted(object=obj, uid=obj.metadata.uid)


def _says_status(body: Body) -> bool:
    return body.typed(TypeMeta).kind == "Status"
