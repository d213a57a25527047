"""This module sends one call for a client: it waits for the request throttle, retries where the policy allows,
and returns the response.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from koord.kube.retry import RetryPolicy, pause_s
from koord.kube.throttle import TokenBucket
from koord.kube.transport import Answer, Request, Transport, Unreachable, WatchStream
from koord.telemetry.clock import Clock

R = TypeVar("R")


class Caller:
    """RetryingCaller is what the typed and the dynamic view of one client share."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        bucket: TokenBucket,
        retry: RetryPolicy,
        user_agent: str,
        chance: random.Random,
    ) -> None:
        self.transport = transport
        self._clock = clock
        self._bucket = bucket
        self._retry = retry
        self._user_agent = user_agent
        self._chance = chance

    async def send(self, request: Request) -> Answer:
        return await self._try(self.transport.send, request)

    async def watch(self, request: Request) -> WatchStream | Answer:
        return await self._try(self.transport.watch, request)

    async def _try(self, attempt: Callable[[Request], Awaitable[R | Answer]], request: Request) -> R | Answer:
        if not request.user_agent:
            request = msgspec.structs.replace(request, user_agent=self._user_agent)
        tried = 0
        while True:
            wait = self._bucket.reserve(self._clock.monotonic())
            if wait > 0:
                await self._clock.sleep(wait)
            tried += 1
            try:
                outcome = await attempt(request)
            except Unreachable as failure:
                pause = pause_s(self._retry, tried, request, failure, self._chance.random())
                if pause is None:
                    raise
            else:
                if not isinstance(outcome, Answer) or outcome.ok:
                    return outcome
                pause = pause_s(self._retry, tried, request, outcome, self._chance.random())
                if pause is None:
                    return outcome
            await self._clock.sleep(pause)
