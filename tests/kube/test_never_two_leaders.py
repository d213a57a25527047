"""Many candidates, one lease, a network that loses, delays and splits, clocks that disagree: never two leaders."""

from __future__ import annotations

import asyncio
import random
from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.kube.client.typed_client import Client
from koord.kube.leader_election import LeaderElector, LeaseConfig
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.scripted_server import ScriptedServer, ScriptedWatchStream

# Rates differ by up to 1.35; the lease allows 1.5 less what the work takes to end.
SLOWEST, FASTEST = 0.85, 1.15
WIND_DOWN_S = 1.0
STORY_S = 600

LinkState = Literal["well", "slow", "lossy", "cut"]


class DriftingClock:
    """Wrong by an offset and running at its own rate; nothing may depend on either."""

    def __init__(self, true: LoopClock, rate: float, offset: float) -> None:
        self._true = true
        self._rate = rate
        self._offset = offset

    def time(self) -> float:
        return self._offset + self._true.time() * self._rate

    def monotonic(self) -> float:
        return self._offset + self._true.monotonic() * self._rate

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)


class UnreliableTransport:
    """A candidate's way to the server. What was sent may arrive late, after the sender has given up."""

    def __init__(self, server: ScriptedServer, rng: random.Random) -> None:
        self.state: LinkState = "well"
        self._server = server
        self._rng = rng

    async def send(self, request: ApiRequest) -> ApiResponse:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[ApiResponse] = loop.create_future()
        there, back = self._delay(), self._delay()
        lost_there = self.state == "cut" or (self.state == "lossy" and self._rng.random() < 0.3)
        lost_back = lost_there or (self.state == "lossy" and self._rng.random() < 0.5)

        def arrive() -> None:
            answer = self._server.handle(request)
            if not lost_back:
                loop.call_later(back, settle, answer)

        def settle(answer: ApiResponse | None) -> None:
            if reply.done():
                return  # the sender has given up
            if answer is None:
                reply.set_exception(Unreachable("lost"))
            else:
                reply.set_result(answer)

        if not lost_there:
            loop.call_later(there, arrive)
        if lost_back:
            loop.call_later(there + self._rng.choice([0.0, 1.0, 30.0]), settle, None)
        return await reply

    async def watch(self, request: ApiRequest) -> ScriptedWatchStream | ApiResponse:
        raise AssertionError("an election does not watch")

    async def close(self) -> None:
        return None

    def _delay(self) -> float:
        return self._rng.choice([0.0, 0.5, 4.0, 11.0, 25.0]) if self.state in ("slow", "lossy") else 0.01


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), candidates=st.integers(2, 5), restarts=st.booleans())
def test_never_two_leaders_and_someone_leads_after_healing(seed: int, candidates: int, restarts: bool) -> None:
    async def story(true: LoopClock) -> None:
        rng = random.Random(seed)
        server = ScriptedServer()
        leading: set[str] = set()
        links: list[UnreliableTransport] = []
        clocks: list[DriftingClock] = []
        tasks: list[asyncio.Task[None]] = []

        def candidate(number: int) -> asyncio.Task[None]:
            name = f"c{number}-{rng.random()}"

            async def work() -> None:
                assert not leading, f"{name} leads beside {leading}"
                leading.add(name)
                try:
                    await asyncio.sleep(rng.choice([30, 200, 10_000]))
                except asyncio.CancelledError:
                    await asyncio.sleep(WIND_DOWN_S)
                    raise
                finally:
                    leading.remove(name)

            async def stand() -> None:
                client = Client(links[number], clock=clocks[number], burst=0, chance=random.Random(rng.random()))
                config = LeaseConfig(name="l", namespace="ns", identity=name)
                election = LeaderElector(
                    client, clocks[number], config, on_started=work, rng=random.Random(rng.random())
                )
                while True:
                    await election.run()

            return asyncio.create_task(stand())

        for number in range(candidates):
            links.append(UnreliableTransport(server, rng))
            clocks.append(DriftingClock(true, rng.choice([SLOWEST, 1.0, FASTEST]), rng.uniform(-1e6, 1e6)))
            tasks.append(candidate(number))
        while true.monotonic() < STORY_S:
            await asyncio.sleep(rng.uniform(0, 20))
            leaders = [number for number in range(candidates) if any(who.startswith(f"c{number}-") for who in leading)]
            victim = rng.choice(leaders) if leaders and rng.random() < 0.5 else rng.randrange(candidates)
            states: list[LinkState] = ["well", "well", "slow", "lossy", "cut"]
            links[victim].state = rng.choice(states)
            if restarts and rng.random() < 0.3:
                tasks[victim].cancel()
                await asyncio.wait({tasks[victim]})
                assert tasks[victim].cancelled(), tasks[victim].exception()
                tasks[victim] = candidate(victim)
            _none_failed(tasks)
        for link in links:
            link.state = "well"
        for _ in range(240):
            await asyncio.sleep(1)
            if leading:
                break
        assert leading, "the network is well again and nobody leads"
        _none_failed(tasks)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    run_virtual(story)


def _none_failed(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
