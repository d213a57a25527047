"""A descheduler that is killed at any write: the next one finishes the job, evicts nobody twice and leaks nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.protocol import DESCHEDULER_NAME
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from tests.descheduler.descheduler_harness import DeschedulerHarness, Replica, run_in_harness
from tests.scheduler.faulty_cluster import WRITES, RequestFate

MOST_WRITES = 15  # more than any job has


def is_ours(request: ApiRequest) -> bool:
    return request.method in WRITES and "/events" not in request.path


def dies_at(one: Replica, write: int, fate: RequestFate) -> Callable[[], bool]:
    """Cut the process off at its write of this number, which arrives or does not. Return whether it came to that."""
    count = 0

    def decide(request: ApiRequest) -> RequestFate:
        nonlocal count
        if is_ours(request):
            count += 1
            if count == write:
                one.wire.cut = True
                return fate
        return "well"

    one.wire.fate = decide
    return lambda: count >= write


class Cluster:
    """The rest of the cluster: it places reservations, replaces a pod that is gone, and binds it into its place."""

    def __init__(self, harness: DeschedulerHarness, *, replacement: str) -> None:
        self._harness = harness
        self._replacement = replacement
        self.new_uid = ""

    async def act(self) -> None:
        harness = self._harness
        for place in await harness.reservations():
            if not place.status.node_name:
                await harness.place(place.metadata.name)
        old = await harness.pod("a")
        if old is not None and old.metadata.deletion_timestamp is not None:
            await harness.remove_pod("a")  # as kubelet does when the containers have ended
            old = None
        if old is None and not self.new_uid:
            new = await harness.add_pod(self._replacement, "n2")
            self.new_uid = new.metadata.uid
            for place in await harness.reservations():
                if place.status.phase == "Available":
                    await harness.arrive(place.metadata.name, new)


@pytest.mark.parametrize("replacement", ["b", "a"], ids=["new-name", "same-name"])
@pytest.mark.parametrize("fate", ["lost", "lost-after"], ids=["before", "after"])
@pytest.mark.parametrize("mode", ["ReservationFirst", "EvictDirectly"])
@pytest.mark.parametrize("write", range(1, MOST_WRITES + 1))
def test_the_next_process_finishes_the_job(write: int, mode: str, fate: RequestFate, replacement: str) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        cluster = Cluster(harness, replacement=replacement)
        uid = (await harness.add_pod("a", grace=write % 2)).metadata.uid
        one = harness.start("one")
        died = dies_at(one, write, fate)
        await harness.add_job(mode=mode, ttl="30m")
        for _ in range(4):
            await harness.settle()
            await cluster.act()
        if not died():
            assert (await harness.job()).status.phase == "Succeeded", "there are fewer writes than that"
            return
        await one.kill()
        await harness.settle(20)
        await cluster.act()
        harness.start("two")
        for _ in range(5):
            await harness.settle()
            await cluster.act()
        status = (await harness.job()).status
        assert status.phase == "Succeeded", status
        assert harness.gone[uid] == 1
        assert harness.gone[cluster.new_uid] == 0
        assert (await harness.pod(replacement)) is not None
        assert len(await harness.reservations()) == (mode == "ReservationFirst")
        await harness.settle(40 * 60)
        assert (await harness.jobs(), await harness.reservations()) == ([], [])

    run_in_harness(story)


@pytest.mark.parametrize("fate", ["lost", "lost-after", "500", "500-after", "503"])
def test_an_eviction_whose_answer_is_lost_is_no_failure(fate: RequestFate) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start("one")
        await harness.add_pod("a")
        failed: list[str] = []

        def once(request: ApiRequest) -> RequestFate:
            if request.path.endswith("/eviction") and not failed:
                failed.append(request.path)
                return fate
            return "well"

        one.wire.fate = once
        await harness.add_job(mode="EvictDirectly")
        await harness.settle(30)
        assert failed
        assert (await harness.job()).status.phase == "Succeeded"
        assert await harness.pod("a") is None

    run_in_harness(story)


def test_a_pod_that_somebody_else_removed_is_missing() -> None:
    """The process saw it before, and knows that it evicted nobody."""

    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start("one")
        await harness.add_pod("a")
        one.wire.fate = lambda request: "429" if request.path.endswith("/eviction") else "well"
        await harness.add_job(mode="EvictDirectly")
        await harness.settle(10)
        await harness.remove_pod("a")
        await harness.settle(20)
        status = (await harness.job()).status
        assert (status.phase, status.reason) == ("Failed", "MissingPod")

    run_in_harness(story)


def test_a_job_that_had_reached_its_goal_is_no_timeout_however_long_nobody_looked() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start("one")
        cluster = Cluster(harness, replacement="b")
        await harness.add_pod("a")
        await harness.add_job(ttl="5m")
        for _ in range(2):
            await harness.settle()
            if await harness.pod("a") is not None:
                await cluster.act()
        assert await harness.pod("a") is None
        await one.kill()
        await cluster.act()
        await harness.settle(400)
        harness.start("two")
        await harness.settle(10)
        assert (await harness.job()).status.phase == "Succeeded"

    run_in_harness(story)


def test_a_place_whose_job_was_deleted_while_nobody_watched_is_given_back() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start("one")
        await harness.add_pod("a")
        await harness.add_job("j")
        await harness.add_pod("c")
        await harness.add_job("k", "c")
        await harness.settle()
        await one.kill()
        template = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
        own = {"spec": {"template": template, "owners": [{"labelSelector": {}}], "ttl": "24h"}}
        unwrap(await harness.client.create(RESERVATIONS, {"metadata": {"name": "mine"}, **own}))
        unwrap(await harness.client.delete(POD_MIGRATION_JOBS, "j"))
        harness.start("two")
        await harness.settle(600)
        kept = unwrap(await harness.client.get(POD_MIGRATION_JOBS, "k")).metadata.uid
        labels = {r.metadata.name: r.metadata.labels for r in await harness.reservations()}
        assert sorted(labels) == sorted([kept, "mine"])
        assert labels[kept]["app.kubernetes.io/created-by"] == DESCHEDULER_NAME

    run_in_harness(story)
