"""This module is the client of the API server: verbs that return the object, or the server's error as a value.

A verb builds a request, sends it, and decodes the response: the request's builder gives it its parameters, the
decoding gives it its result (`read_*` decode to the resource's model, `read_unstructured*` leave dicts and lists).
Throttling and retries are the retrying caller's, bytes are the transport's. Reads are typed; writes are patches or
whole unstructured objects, never a decoded model, because a model has lost the fields that it does not know.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from koord.api.kubernetes.meta import Object, Status, TypeMeta
from koord.api.kubernetes.resource import Resource
from koord.api.model import Model
from koord.kube.client import list_watch, request_builder
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.retrying_caller import RetryingCaller, RetryPolicy, request_throttle
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport
from koord.telemetry.clock import Clock, WallClock

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Object)


class HasCaller(Protocol):
    @property
    def caller(self) -> RetryingCaller: ...


def verb(
    build: Callable[Concatenate[Resource[Object], P], ApiRequest],
    read: Callable[[RetryingCaller, ApiRequest, type[T]], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[HasCaller, Resource[T], P], Coroutine[Any, Any, R]]:
    """Return a method that takes the parameters of `build` and returns what `read` makes of the response."""

    async def call(self: HasCaller, resource: Resource[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await read(self.caller, build(resource, *args, **kwargs), resource.model)

    call.__name__ = build.__name__
    call.__doc__ = build.__doc__
    return call


def action(build: Callable[P, ApiRequest]) -> Callable[Concatenate[HasCaller, P], Coroutine[Any, Any, ApiError | None]]:
    """Return a method that takes the parameters of `build`, whose kind is fixed, and returns the error, if any."""

    async def call(self: HasCaller, /, *args: P.args, **kwargs: P.kwargs) -> ApiError | None:
        return await read_nothing(self.caller, build(*args, **kwargs))

    call.__name__ = build.__name__
    call.__doc__ = build.__doc__
    return call


async def read_nothing(caller: RetryingCaller, request: ApiRequest, _: type[Object] | None = None) -> ApiError | None:
    answer = await caller.send(request)
    return None if answer.ok else error_from_response(answer)


async def read_object(caller: RetryingCaller, request: ApiRequest, model: type[T]) -> T | ApiError:
    answer = await caller.send(request)
    return answer.body.typed(model) if answer.ok else error_from_response(answer)


async def read_unstructured(caller: RetryingCaller, request: ApiRequest, _: type[Object]) -> Unstructured | ApiError:
    answer = await caller.send(request)
    if not answer.ok:
        return error_from_response(answer)
    plain: Unstructured = answer.body.plain()
    return plain


async def read_list(caller: RetryingCaller, first: ApiRequest, model: type[T]) -> list_watch.Listing[T] | ApiError:
    return await list_watch.list_all_pages(caller, first, functools.partial(list_watch.decode_typed_page, model=model))


async def read_unstructured_list(
    caller: RetryingCaller, first: ApiRequest, _: type[Object]
) -> list_watch.Listing[Unstructured] | ApiError:
    return await list_watch.list_all_pages(caller, first, list_watch.decode_unstructured_page)


async def read_watch(caller: RetryingCaller, request: ApiRequest, model: type[T]) -> list_watch.Watch[T] | ApiError:
    stream = await caller.watch(request)
    return error_from_response(stream) if isinstance(stream, ApiResponse) else list_watch.Watch(stream, model)


async def read_unstructured_watch(
    caller: RetryingCaller, request: ApiRequest, _: type[Object]
) -> list_watch.DynamicWatch | ApiError:
    stream = await caller.watch(request)
    return error_from_response(stream) if isinstance(stream, ApiResponse) else list_watch.DynamicWatch(stream)


class DeleteResult(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """DeleteResult holds the object, if the server returned it: as it was, or waiting for its finalizers."""

    object: T | None
    uid: str

    @property
    def is_terminating(self) -> bool:
        """Return whether the object is still served and waits for its finalizers or its grace period."""
        return self.object is not None and self.object.metadata.deletion_timestamp is not None


async def read_deletion(caller: RetryingCaller, request: ApiRequest, model: type[T]) -> DeleteResult[T] | ApiError:
    """Read the response of a delete: the object for some kinds, a Status for others."""
    answer = await caller.send(request)
    if not answer.ok:
        return error_from_response(answer)
    if answer.body.typed(TypeMeta).kind == "Status":
        details = answer.body.typed(Status).details
        return DeleteResult(object=None, uid=details.uid if details else "")
    obj = answer.body.typed(model)
    return DeleteResult(object=obj, uid=obj.metadata.uid)


USER_AGENT = "koord"


class ServerVersion(Model, frozen=True, kw_only=True):
    major: str = ""
    minor: str = ""
    git_version: str = ""
    platform: str = ""


class DynamicClient:
    """DynamicClient is `Client.dynamic`, for objects that are written back whole and for kinds without a model.

    Returned objects may be shared: copy them before changing them. `delete` returns the server's response: the
    object for some kinds, a Status for others.
    """

    def __init__(self, caller: RetryingCaller) -> None:
        self.caller = caller

    get = verb(request_builder.get, read_unstructured)
    list = verb(request_builder.listing, read_unstructured_list)
    watch = verb(request_builder.watch, read_unstructured_watch)
    create = verb(request_builder.create, read_unstructured)
    replace = verb(request_builder.replace, read_unstructured)
    patch = verb(request_builder.patch, read_unstructured)
    apply = verb(request_builder.apply, read_unstructured)
    delete = verb(request_builder.delete, read_unstructured)
    delete_collection = verb(request_builder.delete_collection, read_nothing)


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
        """Create a client. A `burst` of 0 lifts the rate limit; a seeded `chance` makes retries repeat."""
        clock = clock or WallClock()
        throttle = request_throttle(qps, burst, clock.monotonic())
        self.caller = RetryingCaller(transport, clock, throttle, retry, user_agent, chance or random.Random())
        self.dynamic = DynamicClient(self.caller)

    get = verb(request_builder.get, read_object)
    list = verb(request_builder.listing, read_list)
    watch = verb(request_builder.watch, read_watch)
    create = verb(request_builder.create, read_object)
    replace = verb(request_builder.replace, read_object)
    patch = verb(request_builder.patch, read_object)
    patch_object = verb(request_builder.patch_object, read_object)
    apply = verb(request_builder.apply, read_object)
    delete = verb(request_builder.delete, read_deletion)
    delete_collection = verb(request_builder.delete_collection, read_nothing)
    bind = action(request_builder.bind)
    evict = action(request_builder.evict)

    async def raw(self, request: ApiRequest) -> ApiResponse:
        """Send any request, throttled and retried like the verbs; error responses are returned as they are."""
        return await self.caller.send(request)

    async def server_version(self) -> ServerVersion | ApiError:
        answer = await self.caller.send(ApiRequest(method="GET", path="/version"))
        return answer.body.typed(ServerVersion) if answer.ok else error_from_response(answer)

    async def close(self) -> None:
        await self.caller.transport.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
