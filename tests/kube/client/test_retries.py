"""What is tried again, how often, after how long; and what never is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.kube.client.retrying_caller import RetryPolicy, is_idempotent, request_throttle, retry_delay_s
from koord.kube.client.typed_client import Client
from koord.kube.transport.interface import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    ApiRequest,
    ApiResponse,
    Unreachable,
    UnstructuredBody,
    WatchStream,
)
from koord.telemetry.clock import ManualClock, run_virtual

GET = ApiRequest(method="GET", path="/x")
POST = ApiRequest(method="POST", path="/x", body={})
EVICTION = ApiRequest(method="POST", path="/api/v1/namespaces/n/pods/p/eviction", body={})
POLICY = RetryPolicy(attempts=4, first_s=1, factor=2, cap_s=3, jitter=0)


def answer(code: int, **headers: str) -> ApiResponse:
    return ApiResponse(
        status=code, body=UnstructuredBody({"code": code}), headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


class ScriptedTransport:
    """A transport that gives its outcomes in order and keeps the requests, with the time of each."""

    def __init__(self, outcomes: Sequence[ApiResponse | Unreachable], clock: ManualClock) -> None:
        self._outcomes = list(outcomes)
        self._clock = clock
        self.requests: list[ApiRequest] = []
        self.times_s: list[float] = []

    async def send(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        self.times_s.append(self._clock.monotonic())
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Unreachable):
            raise outcome
        return outcome

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        return await self.send(request)

    async def close(self) -> None:
        pass


async def called(request: ApiRequest, *outcomes: ApiResponse | Unreachable) -> tuple[ApiResponse, list[float]]:
    clock = ManualClock(0)
    transport = ScriptedTransport(outcomes, clock)
    result = await Client(transport, clock=clock, burst=0, retry=POLICY).raw(request)
    return result, transport.times_s


@pytest.mark.parametrize(
    ("request_", "outcomes", "code", "times_s"),
    [
        pytest.param(GET, [answer(200)], 200, [0], id="good-at-once"),
        pytest.param(GET, [answer(500), answer(503), answer(200)], 200, [0, 1, 3], id="read-through-trouble"),
        pytest.param(GET, [answer(504)] * 4, 504, [0, 1, 3, 6], id="bounded-with-a-capped-pause"),
        pytest.param(GET, [answer(404)], 404, [0], id="a-refusal-stands"),
        pytest.param(GET, [Unreachable("x"), answer(200)], 200, [0, 1], id="read-after-a-cut"),
        pytest.param(POST, [answer(429), answer(201)], 201, [0, 1], id="turned-away-create"),
        pytest.param(POST, [answer(429, retry_after="7"), answer(201)], 201, [0, 7], id="as-long-as-asked"),
        pytest.param(GET, [answer(503, Retry_After="2"), answer(200)], 200, [0, 2], id="asked-in-any-case"),
        pytest.param(GET, [answer(429, retry_after="0"), answer(200)], 200, [0, 1], id="never-hotter-than-back-off"),
        pytest.param(GET, [answer(429, retry_after="61")], 429, [0], id="longer-than-patience"),
        pytest.param(POST, [answer(500)], 500, [0], id="failed-create-stands"),
        pytest.param(POST, [Unreachable("x", sent=False), answer(201)], 201, [0, 1], id="create-never-sent"),
        pytest.param(EVICTION, [answer(429, retry_after="1")], 429, [0], id="budget-is-a-verdict"),
    ],
)
async def test_tries(
    request_: ApiRequest, outcomes: list[ApiResponse | Unreachable], code: int, times_s: list[float]
) -> None:
    result, when = await called(request_, *outcomes)
    assert (result.status, when) == (code, times_s)


@pytest.mark.parametrize(
    ("request_", "failure", "tries"),
    [
        pytest.param(POST, Unreachable("cut"), 1, id="create-that-may-have-run"),
        pytest.param(GET, Unreachable("cut"), 4, id="read"),
        pytest.param(POST, Unreachable("refused", sent=False), 4, id="create-never-sent"),
    ],
)
async def test_unreachable_is_raised_after_the_last_try(request_: ApiRequest, failure: Unreachable, tries: int) -> None:
    clock = ManualClock(0)
    transport = ScriptedTransport([failure] * tries, clock)
    with pytest.raises(Unreachable):
        await Client(transport, clock=clock, burst=0, retry=POLICY).raw(request_)
    assert len(transport.requests) == tries


def change(method: str, body: Any, content_type: str = "application/json") -> ApiRequest:
    return ApiRequest(method=method, path="/x", body=body, content_type=content_type)


@pytest.mark.parametrize(
    ("request_", "may"),
    [
        pytest.param(GET, True, id="get"),
        pytest.param(POST, False, id="post"),
        pytest.param(change("PUT", {"metadata": {"resourceVersion": "1"}}), True, id="put-of-a-version"),
        pytest.param(change("PUT", {"metadata": {}}), False, id="put-over-anything"),
        pytest.param(change("PUT", b"{}"), False, id="put-of-bytes"),
        pytest.param(change("PATCH", {"metadata": {"uid": "u"}}, MERGE_PATCH), True, id="merge-for-a-uid"),
        pytest.param(change("PATCH", {"metadata": None}, MERGE_PATCH), False, id="merge-for-a-name"),
        pytest.param(change("PATCH", {}, APPLY_PATCH), True, id="apply"),
        pytest.param(
            change("PATCH", [{"op": "test", "path": "/metadata/uid", "value": "u"}], JSON_PATCH),
            False,
            id="json-for-a-uid",
        ),
        pytest.param(
            change("PATCH", [{"op": "test", "path": "/metadata/resourceVersion", "value": "1"}], JSON_PATCH),
            True,
            id="json-for-a-version",
        ),
        pytest.param(change("DELETE", {"preconditions": {"uid": "u"}}), True, id="delete-of-a-uid"),
        pytest.param(change("DELETE", None), False, id="delete-of-a-name"),
    ],
)
def test_repeatable(request_: ApiRequest, may: bool) -> None:
    assert is_idempotent(request_) is may


@given(
    tried=st.integers(1, 10),
    chance=st.floats(0, 1, exclude_max=True),
    attempts=st.integers(1, 10),
    asked=st.none() | st.integers(0, 100),
)
def test_a_pause_is_bounded_and_never_shorter_than_asked(
    tried: int, chance: float, attempts: int, asked: int | None
) -> None:
    policy = RetryPolicy(attempts=attempts)
    outcome = answer(503) if asked is None else answer(503, retry_after=str(asked))
    pause = retry_delay_s(policy, tried, GET, outcome, chance)
    if tried >= attempts or (asked is not None and asked > policy.max_retry_after_s):
        assert pause is None
        return
    assert pause is not None
    assert max(asked or 0, policy.first_s) <= pause <= max(asked or 0, policy.cap_s * (1 + policy.jitter))


async def test_the_same_seed_pauses_alike_and_another_does_not() -> None:
    async def times(seed: int) -> list[float]:
        clock = ManualClock(0)
        transport = ScriptedTransport([answer(500)] * 5, clock)
        await Client(transport, clock=clock, burst=0, chance=random.Random(seed)).raw(GET)
        return transport.times_s

    assert await times(1) == await times(1)
    assert await times(1) != await times(2)


class TestThrottle:
    @given(
        gaps=st.lists(st.floats(0, 2), max_size=60),
        rate=st.floats(0.5, 100),
        burst=st.integers(1, 20),
    )
    def test_no_window_ever_holds_more_than_its_share(self, gaps: list[float], rate: float, burst: int) -> None:
        bucket = request_throttle(rate, burst, 0.0)
        assert bucket is not None
        now, starts = 0.0, []
        for gap in gaps:
            now += gap
            starts.append(now + bucket.reserve(now))
        assert starts == sorted(starts)
        for first, begin in enumerate(starts):
            for last in range(first, len(starts)):
                assert last - first + 1 <= burst + rate * (starts[last] - begin) + 1e-6

    def test_zero_burst_is_no_limit(self) -> None:
        assert request_throttle(1, 0, 0.0) is None

    def test_a_limit_without_a_rate_is_a_mistake(self) -> None:
        with pytest.raises(ValueError, match="rate above zero"):
            request_throttle(0, 5, 0.0)

    def test_calls_wait_their_turn_in_virtual_time(self) -> None:
        async def main(clock: Any) -> list[float]:
            transport = ScriptedTransport([answer(200)] * 6, clock)
            client = Client(transport, clock=clock, qps=2, burst=3)
            for _ in range(6):
                await client.raw(GET)
            return transport.times_s

        assert run_virtual(main) == pytest.approx([0, 0, 0, 0.5, 1.0, 1.5])
