"""This module makes the verbs of the clients: a verb builds a request, sends it, and decodes the response.

The request's builder gives a verb its parameters, the decoding gives it its result: `read_*` decode to the
resource's model, `read_unstructured*` leave dicts and lists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

import msgspec

from koord.api.kubernetes.meta import Object, Status, TypeMeta
from koord.api.kubernetes.resource import Resource
from koord.kube.client.listing import Listing, decode_typed_page, decode_unstructured_page, list_all_pages
from koord.kube.client.request_builder import Unstructured
from koord.kube.client.retrying_caller import RetryingCaller
from koord.kube.client.watch import DynamicWatch, Watch
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest, ApiResponse, ResponseBody

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


async def read_list(caller: RetryingCaller, first: ApiRequest, model: type[T]) -> Listing[T] | ApiError:
    return await list_all_pages(caller, first, functools.partial(decode_typed_page, model=model))


async def read_unstructured_list(
    caller: RetryingCaller, first: ApiRequest, _: type[Object]
) -> Listing[Unstructured] | ApiError:
    return await list_all_pages(caller, first, decode_unstructured_page)


async def read_watch(caller: RetryingCaller, request: ApiRequest, model: type[T]) -> Watch[T] | ApiError:
    stream = await caller.watch(request)
    return error_from_response(stream) if isinstance(stream, ApiResponse) else Watch(stream, model)


async def read_unstructured_watch(
    caller: RetryingCaller, request: ApiRequest, _: type[Object]
) -> DynamicWatch | ApiError:
    stream = await caller.watch(request)
    return error_from_response(stream) if isinstance(stream, ApiResponse) else DynamicWatch(stream)


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


async def read_deletion(caller: RetryingCaller, request: ApiRequest, model: type[T]) -> DeleteResult[T] | ApiError:
    """Read the response of a delete: the object for some kinds, a Status for others."""
    answer = await caller.send(request)
    if not answer.ok:
        return error_from_response(answer)
    if _is_status(answer.body):
        details = answer.body.typed(Status).details
        return DeleteResult(object=None, uid=details.uid if details else "")
    obj = answer.body.typed(model)
    return DeleteResult(object=obj, uid=obj.metadata.uid)


def _is_status(body: ResponseBody) -> bool:
    return body.typed(TypeMeta).kind == "Status"
