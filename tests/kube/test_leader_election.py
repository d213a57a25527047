"""What a candidate writes into a Lease, when it begins to lead and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import LEASES
from koord.kube.client.retrying_caller import NEVER_RETRY
from koord.kube.client.typed_client import Client
from koord.kube.leader_election import LeaderElector, LeaseConfig
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.scripted_server import ScriptedServer


class Candidate:
    def __init__(self, server: ScriptedServer, clock: LoopClock, name: str) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []
        self.leaders: list[str] = []
        self.work_s = 1e9
        self._clock = clock
        self.election = LeaderElector(
            Client(server, clock=clock, burst=0, retry=NEVER_RETRY),
            clock,
            LeaseConfig(name="koord-scheduler", namespace="kube-system", identity=name),
            on_started=self._work,
            on_stopped=lambda: self.ended.append(clock.monotonic()),
            on_new_leader=self.leaders.append,
            rng=Random(name),
        )

    async def _work(self) -> None:
        self.began.append(self._clock.monotonic())
        await asyncio.sleep(self.work_s)


def spec(server: ScriptedServer) -> dict[str, Any]:
    found: dict[str, Any] = server.objects[LEASES.path(), "kube-system", "koord-scheduler"]["spec"]
    return found


async def stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run_scenario(scenario: Callable[[ScriptedServer, LoopClock], Any]) -> None:
    async def main(clock: LoopClock) -> None:
        await scenario(ScriptedServer(), clock)
        assert len(asyncio.all_tasks()) == 1, "a task was left behind"

    run_virtual(main)


def test_the_lease_reads_like_client_go_wrote_it() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        a = Candidate(server, clock, "a")
        task = asyncio.create_task(a.election.run())
        await asyncio.sleep(1)
        leading = [a.election.is_leading]
        assert spec(server) == {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.000000Z",
            "renewTime": "2026-01-01T00:00:00.000000Z",
            "leaseTransitions": 0,
        }
        await asyncio.sleep(2)
        assert spec(server)["renewTime"] == "2026-01-01T00:00:02.000000Z"
        assert spec(server)["acquireTime"] == "2026-01-01T00:00:00.000000Z"
        await stop(task)
        assert spec(server) == {
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "acquireTime": "2026-01-01T00:00:03.000000Z",
            "renewTime": "2026-01-01T00:00:03.000000Z",
            "leaseTransitions": 0,
        }
        leading.append(a.election.is_leading)
        assert leading == [True, False]
        assert a.ended == [3.0]

    run_scenario(scenario)


def test_renewing_costs_one_request_and_leaves_other_fields_alone() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        a = Candidate(server, clock, "a")
        task = asyncio.create_task(a.election.run())
        await asyncio.sleep(1)
        spec(server)["strategy"] = "OldestEmulationVersion"
        server.requests.clear()
        await asyncio.sleep(20)
        assert {request.method for request in server.requests} == {"PUT"}
        assert 9 <= len(server.requests) <= 10
        assert spec(server)["strategy"] == "OldestEmulationVersion"
        await stop(task)

    run_scenario(scenario)


def test_a_released_lease_is_taken_at_the_next_look_and_counts_a_transition() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        a, b = Candidate(server, clock, "a"), Candidate(server, clock, "b")
        first = asyncio.create_task(a.election.run())
        await asyncio.sleep(1)
        second = asyncio.create_task(b.election.run())
        await asyncio.sleep(60)
        assert b.began == []
        assert b.election.leader == "a"
        await stop(first)
        await asyncio.sleep(2 * 2.2)
        assert len(b.began) == 1
        assert spec(server)["leaseTransitions"] == 1
        assert b.leaders == ["a", "", "b"] or b.leaders == ["a", "b"]
        await stop(second)

    run_scenario(scenario)


def test_a_renewal_that_was_cut_short_does_not_keep_the_lease_from_being_released() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        a = Candidate(server, clock, "a")
        task = asyncio.create_task(a.election.run())
        await asyncio.sleep(1)
        stored = server.objects[LEASES.path(), "kube-system", "koord-scheduler"]
        other = Client(server, clock=clock, burst=0, retry=NEVER_RETRY)
        changed = {**stored, "spec": {**stored["spec"], "renewTime": "2026-01-01T00:00:01.000000Z"}}
        await other.dynamic.replace(LEASES, changed, "kube-system")  # as the renewal would have written it
        await stop(task)
        assert not spec(server)["holderIdentity"]

    run_scenario(scenario)


def test_a_leader_that_cannot_renew_stops_before_another_may_begin() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        a = Candidate(server, clock, "a")
        cut_off = False

        def fail(request: ApiRequest) -> None:
            server.down = cut_off

        server.before = fail
        task = asyncio.create_task(a.election.run())
        await asyncio.sleep(5)  # renewed at 2 and 4
        cut_off = True
        assert await task == "lost"
        assert a.ended == [14.0], "ten seconds after the last renewal was sent; the lease itself lasts until 19"

    run_scenario(scenario)


def test_an_answer_that_comes_too_late_does_not_make_a_leader() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        a = Candidate(server, clock, "a")
        server.latency_s = 5.5  # a read and a write take longer than the deadline together
        task = asyncio.create_task(a.election.run())
        await asyncio.sleep(200)
        assert a.began == []
        server.latency_s = 0
        await asyncio.sleep(60)
        assert len(a.began) == 1
        await stop(task)

    run_scenario(scenario)


def test_a_stranger_in_the_lease_ends_leadership_at_once() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        a = Candidate(server, clock, "a")
        task = asyncio.create_task(a.election.run())
        await asyncio.sleep(3)
        server.update("kube-system", "koord-scheduler", LEASES, spec={**spec(server), "holderIdentity": "thief"})
        assert await task == "lost"
        assert a.ended == [4.0]
        assert spec(server)["holderIdentity"] == "thief", "what is another's is not released"

    run_scenario(scenario)


def test_a_dead_leader_is_followed_after_the_duration_by_the_watchers_own_clock() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        # Its clock is a year ahead: times in the lease are no reason to believe anything.
        server.create(
            "kube-system",
            "koord-scheduler",
            LEASES,
            spec={
                "holderIdentity": "dead",
                "leaseDurationSeconds": 15,
                "acquireTime": "2027-01-01T00:00:00.000000Z",
                "renewTime": "2027-01-01T00:00:00.000000Z",
                "leaseTransitions": 3,
            },
        )
        b = Candidate(server, clock, "b")
        task = asyncio.create_task(b.election.run())
        await asyncio.sleep(14.9)
        assert b.began == []
        await asyncio.sleep(4.5)
        assert len(b.began) == 1
        assert spec(server)["leaseTransitions"] == 4
        await stop(task)

    run_scenario(scenario)


def test_a_namesake_of_a_dead_process_waits_like_everyone() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        first = Candidate(server, clock, "a")
        task = asyncio.create_task(first.election.run())
        await asyncio.sleep(1)
        server.down = True
        await stop(task)  # it cannot release
        server.down = False
        second = Candidate(server, clock, "a")
        task = asyncio.create_task(second.election.run())
        await asyncio.sleep(14)
        assert second.began == []
        await asyncio.sleep(6)
        assert len(second.began) == 1
        await stop(task)

    run_scenario(scenario)


def test_a_lease_deleted_by_hand_does_not_make_two_leaders() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        a, b = Candidate(server, clock, "a"), Candidate(server, clock, "b")
        tasks = [asyncio.create_task(a.election.run())]
        await asyncio.sleep(1)
        tasks.append(asyncio.create_task(b.election.run()))
        await asyncio.sleep(10)
        server.delete("kube-system", "koord-scheduler", LEASES)
        await asyncio.sleep(30)
        assert (len(a.began), len(a.ended), len(b.began)) == (1, 0, 0)
        assert spec(server)["holderIdentity"] == "a"
        await stop(*tasks)

    run_scenario(scenario)


def test_work_that_ends_releases_and_work_that_fails_is_heard_of() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        a = Candidate(server, clock, "a")
        a.work_s = 7
        assert await a.election.run() == "finished"
        assert spec(server)["holderIdentity"] == ""

        async def fail() -> None:
            raise ZeroDivisionError("in the work")

        config = LeaseConfig(name="koord-scheduler", namespace="kube-system", identity="b")
        b = LeaderElector(Client(server, clock=clock, burst=0), clock, config, on_started=fail)
        with pytest.raises(ZeroDivisionError):
            await b.run()
        assert spec(server)["holderIdentity"] == ""

    run_scenario(scenario)


def test_work_that_takes_its_time_to_end_keeps_the_lease_meanwhile() -> None:
    async def scenario(server: ScriptedServer, clock: LoopClock) -> None:
        ended: list[float] = []

        async def slow_to_end() -> None:
            try:
                await asyncio.sleep(1e9)
            finally:
                await asyncio.sleep(40)
                ended.append(clock.monotonic())

        config = LeaseConfig(name="koord-scheduler", namespace="kube-system", identity="a")
        election = LeaderElector(Client(server, clock=clock, burst=0), clock, config, on_started=slow_to_end)
        a = asyncio.create_task(election.run())
        await asyncio.sleep(1)
        b = Candidate(server, clock, "b")
        other = asyncio.create_task(b.election.run())
        await asyncio.sleep(4)
        await stop(a)
        await asyncio.sleep(10)
        assert ended == [45.0]
        assert len(b.began) == 1
        assert b.began[0] >= 45
        await stop(other)

    run_scenario(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"identity": ""}, id="no-identity"),
        pytest.param({"duration_s": 10}, id="duration-not-above-deadline"),
        pytest.param({"renew_deadline_s": 2.4}, id="deadline-not-above-retry"),
    ],
)
def test_settings_that_could_make_two_leaders_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="lease ns/l"):
        LeaseConfig(**{"name": "l", "namespace": "ns", "identity": "a", **wrong})
