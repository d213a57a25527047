"""One eviction call for every program: each answer of the API server, and none, is an outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from koord.kube.client.eviction import EvictionResult, delete_pod, evict_pod
from koord.kube.client.retrying_caller import NEVER_RETRY
from koord.kube.client.typed_client import Client
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable, UnstructuredBody
from koord.telemetry.clock import LoopClock, run_virtual


class OneAnswer:
    """A transport that gives one answer to every request and keeps the requests."""

    def __init__(self, answer: ApiResponse | Exception, delay_s: float = 0.0) -> None:
        self.answer = answer
        self.delay_s = delay_s
        self.requests: list[ApiRequest] = []

    async def send(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        await asyncio.sleep(self.delay_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def close(self) -> None:
        return None


def status(code: int, reason: str = "", message: str = "m") -> ApiResponse:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return ApiResponse(status=code, body=UnstructuredBody(body))


def result_of(transport: OneAnswer, call: Callable[[Client], Awaitable[EvictionResult]]) -> EvictionResult:
    async def main(clock: LoopClock) -> EvictionResult:
        return await call(Client(transport, clock=clock, burst=0, retry=NEVER_RETRY))  # type: ignore[arg-type]

    return run_virtual(main)


@pytest.mark.parametrize(
    ("answer", "outcome", "detail", "was_gone"),
    [
        (status(404, "NotFound"), "evicted", "it was gone: m", True),
        (status(409, "Conflict"), "evicted", "it was gone: m", True),
        (status(429, "TooManyRequests"), "refused", "m", False),
        (status(403, "Forbidden"), "failed", "m", False),
        (status(500, "InternalError"), "failed", "m", False),
        (Unreachable("no route"), "failed", "no route", False),
    ],
    ids=["gone", "another-pod", "budget", "forbidden", "broken", "unreachable"],
)
def test_outcomes_of_the_eviction_api(
    answer: ApiResponse | Exception, outcome: str, detail: str, was_gone: bool
) -> None:
    transport = OneAnswer(answer)
    found = result_of(transport, lambda client: evict_pod(client, "ns", "p", uid="u"))
    assert (found.outcome, found.detail, found.was_gone) == (outcome, detail, was_gone)
    assert transport.requests[0].path == "/api/v1/namespaces/ns/pods/p/eviction"


def test_a_conflict_is_a_failure_for_a_caller_that_retries() -> None:
    for call in (evict_pod, delete_pod):
        found = result_of(
            OneAnswer(status(409, "Conflict")),
            lambda client, call=call: call(client, "ns", "p", uid="u", retries_conflict=True),  # type: ignore[misc]
        )
        assert (found.outcome, found.was_gone) == ("failed", False)


def test_a_deletion_that_is_throttled_is_not_a_refusal_by_a_budget() -> None:
    found = result_of(OneAnswer(status(429, "TooManyRequests")), lambda client: delete_pod(client, "ns", "p", uid="u"))
    assert (found.outcome, found.may_pass, found.error_text) == ("failed", True, "429 TooManyRequests: m")


def test_no_answer_in_time_is_a_failure() -> None:
    transport = OneAnswer(status(404), delay_s=60)
    found = result_of(transport, lambda client: evict_pod(client, "ns", "p", uid="u", timeout_s=10))
    assert (found.outcome, found.detail) == ("failed", "no answer within 10 s")
