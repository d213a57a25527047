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

from koord.api.kubernetes.meta import Object, Status, TypeMeta
from koord.api.kubernetes.resource import Resource
from koord.api.model import Model
from koord.kube.client import request_builder
from koord.kube.client.dynamic_client import DynamicClient
from koord.kube.client.listing import Listing, decode_typed_page, list_all_pages
from koord.kube.client.request_builder import FieldValidation, PatchKind, Propagation, Unstructured, VersionMatch
from koord.kube.client.retrying_caller import RequestThrottle, RetryingCaller, RetryPolicy
from koord.kube.client.watch import Watch
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest, ApiResponse, ResponseBody, Transport
from koord.telemetry.clock import Clock, WallClock

T = TypeVar("T", bound=Object)

USER_AGENT = "koord"


class DeleteResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """DeleteResult holds the object as the server returned it, if it did: as it was, or as it waits for its
    finalizers.
    """

    object: T | None
    uid: str

    @property
    def is_terminating(self) -> bool:
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
        bucket = RequestThrottle(qps, burst, clock.monotonic())
        self._caller = RetryingCaller(transport, clock, bucket, retry, user_agent, chance or random.Random())
        self.dynamic = DynamicClient(self._caller)

    async def _object(self, request: ApiRequest, model: type[T]) -> T | ApiError:
        answer = await self._caller.send(request)
        return answer.body.typed(model) if answer.ok else error_from_response(answer)

    async def _done(self, request: ApiRequest) -> ApiError | None:
        answer = await self._caller.send(request)
        return None if answer.ok else error_from_response(answer)

    async def get(
        self,
        resource: Resource[T],
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
        resource_version: str | None = None,
    ) -> T | ApiError:
        request = request_builder.get(
            resource, name, namespace, subresource=subresource, resource_version=resource_version
        )
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
    ) -> Listing[T] | ApiError:
        """List all objects that match, in pages of `limit` (0: one page)."""
        first = request_builder.listing(
            resource,
            namespace,
            labels=labels,
            fields=fields,
            limit=limit,
            resource_version=resource_version,
            resource_version_match=resource_version_match,
        )
        return await list_all_pages(self._caller, first, functools.partial(decode_typed_page, model=resource.model))

    async def create(
        self,
        resource: Resource[T],
        obj: Model | Unstructured,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> T | ApiError:
        """Create an object. `obj` may omit apiVersion and kind, and `namespace` may be omitted when `obj` names it."""
        request = request_builder.create(
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
        obj: Unstructured,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> T | ApiError:
        request = request_builder.replace(
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
        patch: Unstructured | builtins.list[Any],
        namespace: str | None = None,
        *,
        kind: PatchKind,
        subresource: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
        dry_run: bool = False,
        field_manager: str | None = None,
        field_validation: FieldValidation | None = None,
    ) -> T | ApiError:
        """Patch an object. `uid` and `resource_version` are preconditions: a write for another object or version is
        refused.
        """
        request = request_builder.patch(
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
        obj: Unstructured,
        *,
        field_manager: str,
        force: bool = False,
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> T | ApiError:
        request = request_builder.apply(
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
    ) -> DeleteResult[T] | ApiError:
        request = request_builder.delete(
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
        return _delete_result(answer.body, resource.model) if answer.ok else error_from_response(answer)

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
    ) -> ApiError | None:
        request = request_builder.delete_collection(
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
    ) -> Watch[T] | ApiError:
        request = request_builder.watch(
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
        return error_from_response(stream) if isinstance(stream, ApiResponse) else Watch(stream, resource.model)

    async def bind(
        self, namespace: str, pod: str, node: str, *, uid: str, annotations: Mapping[str, str] | None = None
    ) -> ApiError | None:
        return await self._done(request_builder.bind(namespace, pod, node, uid=uid, annotations=annotations))

    async def evict(
        self,
        namespace: str,
        pod: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
    ) -> ApiError | None:
        """Evict a pod. An error with `too_many` is an exhausted disruption budget; it is never retried here."""
        return await self._done(
            request_builder.evict(namespace, pod, uid=uid, grace_seconds=grace_seconds, dry_run=dry_run)
        )

    async def raw(self, request: ApiRequest) -> ApiResponse:
        """Send any request, throttled and retried like the verbs; error responses are returned as they are."""
        return await self._caller.send(request)

    async def server_version(self) -> ServerVersion | ApiError:
        answer = await self._caller.send(ApiRequest(method="GET", path="/version"))
        return answer.body.typed(ServerVersion) if answer.ok else error_from_response(answer)

    async def close(self) -> None:
        await self._caller.transport.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _delete_result(body: ResponseBody, model: type[T]) -> DeleteResult[T]:
    """Decode the response of a delete: the object for some kinds, a Status for others."""
    status = body.typed(Status) if _is_status(body) else None
    if status is not None:
        return DeleteResult(object=None, uid=status.details.uid if status.details else "")
    obj = body.typed(model)
    return DeleteResult(object=obj, uid=obj.metadata.uid)


def _is_status(body: ResponseBody) -> bool:
    return body.typed(TypeMeta).kind == "Status"
