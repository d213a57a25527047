"""A job's delete options are honoured whole, by every eviction policy; without any, those of the configuration are."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.annotations import pod_codecs
from koord.api.annotations.pod_codecs import SoftEviction
from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS
from koord.api.koordinator.protocol import A_SOFT_EVICTION
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS
from koord.api.model import to_dict
from koord.cli.commands.migration import build_migration_job
from koord.kube.transport.api_error import unwrap
from tests.descheduler.descheduler_harness import DeschedulerHarness, Replica, run_in_harness
from tests.descheduler.migration.test_migration_controller import STUCK, place_of, protect, stuck

POLICIES = ["Eviction", "Delete", "SoftEviction"]
ALL: dict[str, Any] = {"dryRun": ["All"]}


def sent_options(one: Replica, name: str = "a") -> dict[str, Any]:
    """Return the delete options of the one request that removes the pod."""
    found = [
        request.body.get("deleteOptions", {}) if request.path.endswith("/eviction") else request.body
        for request in one.wire.requests
        if isinstance(request.body, dict)
        and (
            request.path.endswith(f"/pods/{name}/eviction")
            or (request.method, request.path[-7:]) == ("DELETE", f"/pods/{name}")
        )
    ]
    (options,) = found
    return {key: value for key, value in options.items() if key not in ("apiVersion", "kind")}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_dry_run_evicts_nobody_and_ends_the_job(policy: str) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(evictionPolicy=policy)
        await harness.add_pod("a")
        await harness.add_job(mode="EvictDirectly", deleteOptions=ALL)
        await harness.settle(10)
        pod = await harness.pod("a")
        assert pod is not None
        assert pod.metadata.deletion_timestamp is None
        assert A_SOFT_EVICTION not in pod.metadata.annotations
        status = (await harness.job()).status
        assert (status.phase, status.reason) == ("Succeeded", "DryRun")
        assert status.message == 'Dry run: Pod "default/a" would be evicted from node "n1"'
        assert [record.outcome for record in one.descheduler.ledger] == ["dry-run"]
        events = unwrap(await harness.client.list(EVENTS_EVENTS, "default")).items
        assert "Descheduled" not in {event.reason for event in events}

    run_in_harness(story)


def test_a_dry_run_reserves_a_place_and_gives_it_back() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await harness.add_job(deleteOptions=ALL)
        await harness.settle()
        assert (await harness.job()).status.phase == "Running"
        await harness.place((await place_of(harness)).metadata.name)
        await harness.settle(10)
        status = (await harness.job()).status
        assert (status.phase, status.reason, status.node_name) == ("Succeeded", "DryRun", "n2")
        assert await harness.pod("a") is not None
        assert await harness.reservations() == []
        assert sent_options(one)["dryRun"] == ["All"]

    run_in_harness(story)


def test_a_dry_run_that_a_disruption_budget_refuses_fails_and_says_so() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start()
        await harness.add_pod("a")
        await protect(harness)
        await harness.add_job(mode="EvictDirectly", deleteOptions=ALL)
        await harness.settle(10)
        status = (await harness.job()).status
        assert (status.phase, status.reason) == ("Failed", "DryRun")
        assert status.message.startswith('Dry run: Failed evict Pod "default/a" caused by 429')
        assert "disruption budget" in status.message
        assert len(one.evictions()) == 1

    run_in_harness(story)


@pytest.mark.parametrize("policy", POLICIES)
def test_all_options_reach_whoever_removes_the_pod(policy: str) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(evictionPolicy=policy, defaultDeleteOptions={"gracePeriodSeconds": 11})
        pod = await harness.add_pod("a", grace=30)
        meta = pod.metadata
        stated = {
            "gracePeriodSeconds": 7,
            "propagationPolicy": "Background",
            "preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        }
        await harness.add_job(mode="EvictDirectly", deleteOptions=stated)
        await harness.settle(2)
        left = await harness.pod("a")
        assert left is not None
        if policy == "SoftEviction":
            found = pod_codecs.parse_soft_eviction(left.metadata.annotations)
            assert isinstance(found, SoftEviction)
            assert found.delete_options is not None
            assert to_dict(found.delete_options) == stated
        else:
            assert sent_options(one) == stated
            assert left.metadata.deletion_grace_period_seconds == 7

    run_in_harness(story)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("own", "grace"), [(None, 11), ({}, 30), ({"gracePeriodSeconds": 5}, 5)])
def test_a_job_without_options_has_those_of_the_configuration(
    policy: str, own: dict[str, Any] | None, grace: int
) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        harness.start(evictionPolicy=policy, defaultDeleteOptions={"gracePeriodSeconds": 11})
        await harness.add_pod("a", grace=30)
        spec: dict[str, Any] = {} if own is None else {"deleteOptions": own}
        await harness.add_job(mode="EvictDirectly", **spec)
        await harness.settle(2)
        pod = await harness.pod("a")
        assert pod is not None
        if policy == "SoftEviction":
            found = pod_codecs.parse_soft_eviction(pod.metadata.annotations)
            assert isinstance(found, SoftEviction)
            asked = found.delete_options.grace_period_seconds if found.delete_options is not None else None
            assert (30 if asked is None else asked) == grace
        else:
            assert pod.metadata.deletion_grace_period_seconds == grace

    run_in_harness(story)


@pytest.mark.parametrize("policy", ["Eviction", "Delete"])
@pytest.mark.parametrize(
    "stated",
    [
        pytest.param({"preconditions": {"uid": "another"}}, id="uid"),
        pytest.param({"preconditions": {"resourceVersion": "1"}}, id="resource-version"),
        pytest.param({"propagationPolicy": "Background", "orphanDependents": True}, id="contradiction"),
        pytest.param({"dryRun": ["Some"]}, id="unknown-dry-run"),
    ],
)
def test_options_that_can_never_be_met_end_the_job_and_the_pod_stays(policy: str, stated: dict[str, Any]) -> None:
    async def story(harness: DeschedulerHarness) -> None:
        one = harness.start(evictionPolicy=policy)
        pod = await harness.add_pod("a")
        await harness.add_job(deleteOptions=stated)
        await harness.settle()
        await harness.place((await place_of(harness)).metadata.name)
        await harness.settle(60)
        left = await harness.pod("a")
        assert left is not None
        assert (left.metadata.uid, left.metadata.deletion_timestamp) == (pod.metadata.uid, None)
        status = (await harness.job()).status
        assert (status.phase, status.reason) == ("Failed", "DryRun" if "dryRun" in stated else "FailedEvict")
        assert 'Failed evict Pod "default/a" caused by' in status.message
        assert await harness.reservations() == []
        sent_options(one)  # asked once

    run_in_harness(story)


def test_dry_runs_of_a_plugin_follow_each_other_as_evictions_would() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        await harness.add_pod("a")
        await stuck(harness, "a")
        one = harness.start(interval="2s", deschedule=STUCK, defaultJobMode="EvictDirectly", defaultDeleteOptions=ALL)
        await harness.settle(120)
        (job,) = await harness.jobs()
        assert (job.status.phase, job.status.reason) == ("Succeeded", "DryRun")
        assert await harness.pod("a") is not None
        assert [record.outcome for record in one.descheduler.ledger] == ["dry-run"]

    run_in_harness(story)


def test_a_dry_run_by_hand() -> None:
    async def story(harness: DeschedulerHarness) -> None:
        harness.start(defaultDeleteOptions={"gracePeriodSeconds": 11})
        pod = to_dict(await harness.add_pod("a"))
        job = build_migration_job(pod, mode="EvictDirectly", at_once=True, grace_seconds=3, dry_run=True)
        assert job["spec"]["deleteOptions"] == {"gracePeriodSeconds": 3, "dryRun": ["All"]}
        assert "deleteOptions" not in build_migration_job(pod, mode="EvictDirectly")["spec"]
        made = unwrap(await harness.client.create(POD_MIGRATION_JOBS, job))
        await harness.settle(10)
        status = (await harness.job(made.metadata.name)).status
        assert (status.phase, status.reason) == ("Succeeded", "DryRun")
        assert await harness.pod("a") is not None

    run_in_harness(story)
