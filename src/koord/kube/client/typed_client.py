"""This module is the client of the API server: verbs that return the object, or the server's error as a value.

Throttling and retries are the retrying caller's, bytes are the transport's; the verbs take the parameters of
their request builders. Reads are typed; writes are patches or whole unstructured objects, never a decoded
model, because a model has lost the fields that it does not know.
"""

from __future__ import annotations

import random

from koord.api.model import Model
from koord.kube.client import request_builder, verbs
from koord.kube.client.retrying_caller import RetryingCaller, RetryPolicy, request_throttle
from koord.kube.client.verbs import action, verb
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport
from koord.telemetry.clock import Clock, WallClock

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

    get = verb(request_builder.get, verbs.read_unstructured)
    list = verb(request_builder.listing, verbs.read_unstructured_list)
    watch = verb(request_builder.watch, verbs.read_unstructured_watch)
    create = verb(request_builder.create, verbs.read_unstructured)
    replace = verb(request_builder.replace, verbs.read_unstructured)
    patch = verb(request_builder.patch, verbs.read_unstructured)
    apply = verb(request_builder.apply, verbs.read_unstructured)
    delete = verb(request_builder.delete, verbs.read_unstructured)
    delete_collection = verb(request_builder.delete_collection, verbs.read_nothing)


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
        throttle = request_throttle(qps, burst, clock.monotonic())
        self.caller = RetryingCaller(transport, clock, throttle, retry, user_agent, chance or random.Random())
        self.dynamic = DynamicClient(self.caller)

    get = verb(request_builder.get, verbs.read_object)
    list = verb(request_builder.listing, verbs.read_list)
    watch = verb(request_builder.watch, verbs.read_watch)
    create = verb(request_builder.create, verbs.read_object)
    replace = verb(request_builder.replace, verbs.read_object)
    patch = verb(request_builder.patch, verbs.read_object)
    apply = verb(request_builder.apply, verbs.read_object)
    delete = verb(request_builder.delete, verbs.read_deletion)
    delete_collection = verb(request_builder.delete_collection, verbs.read_nothing)
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
