"""Reports on a cluster: each is what its command prints, and what ends a command is a failure here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest

from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import cluster_access
from koord.cli.cluster_access import CommandFailure
from koord.cli.commands.dashboard.cluster_watch import ClusterWatch
from koord.cli.commands.dashboard.reports import DashboardReports
from koord.cli.commands.explain.node import ManagerPlace, explain_node
from koord.dashboard.fleet import FleetTable
from koord.dashboard.report import WHAT_IF, Report, ReportFailure
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from tests.cli.cluster_with_agents import with_agents

EMPTY = ("quotas", "gangs", "reservations", "evictions", "migrations", "interference", "pods")
OF_NODE = ("node", "cpus", "hooks", "capabilities", "containers", "node-interference")
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"containers": [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "999"}}}]},
}


def with_reports(story: Callable[[Mapping[str, Report], Client, LoopClock], Awaitable[None]]) -> None:
    async def run(client: Client, clock: LoopClock) -> None:
        async with InformerFactory(client, clock) as informers:
            watch = ClusterWatch(client, informers, clock, FleetTable("epoch", clock.time()))
            watch.start()
            await clock.sleep(1)
            try:
                await story(DashboardReports(client, clock, watch).table(), client, clock)
            finally:
                await watch.stop()

    with_agents(run)


def test_every_report_answers_on_a_cluster_with_koords_programs() -> None:
    async def story(reports: Mapping[str, Report], client: Client, clock: LoopClock) -> None:
        for name in EMPTY:
            assert not isinstance(await reports[name]({}), ReportFailure), name
        for name in OF_NODE:
            found = await reports[name]({"name": "node-0"})
            assert not isinstance(found, ReportFailure), (name, found)
            msgspec.json.encode(found)
        at = await explain_node(client, clock, "node-0", ManagerPlace())
        assert (await reports["node"]({"name": "node-0"})).account.lines == at.account.lines

    with_reports(story)


def test_what_does_not_exist_is_a_failure_in_the_commands_words() -> None:
    async def story(reports: Mapping[str, Report], client: Client, clock: LoopClock) -> None:
        for name in ("node", "cpus", "hooks", "containers", "node-interference"):
            assert await reports[name]({"name": "none"}) == ReportFailure("there is no node none"), name
        assert "Device object" in (await reports["devices"]({"name": "node-0"})).text
        assert await reports["pod"]({"namespace": "default", "name": "no"}) == ReportFailure('pods "no" not found')
        assert await reports["manifest"]({"namespace": "default", "name": "no"}) == ReportFailure('pods "no" not found')
        assert await reports["node"]({}) == ReportFailure("the query lacks name")
        assert isinstance(await reports["pods"]({"offset": "x"}), ReportFailure)

    with_reports(story)


def test_a_pending_pod_is_explained_and_tried_without_a_change() -> None:
    async def story(reports: Mapping[str, Report], client: Client, clock: LoopClock) -> None:
        unwrap(await client.dynamic.create(PODS, POD))
        await clock.sleep(5)
        found = await reports["pod"]({"namespace": "default", "name": "web"})
        assert found.state == "unschedulable"
        manifest = await reports["manifest"]({"namespace": "default", "name": "web"})
        (outcome,) = await reports[WHAT_IF]({"manifest": msgspec.json.encode(manifest).decode()})
        assert (outcome.pod, outcome.node) == ("default/web-what-if", "")
        manifest["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
        (outcome,) = await reports[WHAT_IF]({"manifest": msgspec.json.encode(manifest).decode()})
        assert outcome.node in ("node-0", "node-1")
        assert [one.metadata.name for one in unwrap(await client.list(PODS, "default")).items] == ["web"]

    with_reports(story)


def test_a_quota_that_refused_a_pod_says_why() -> None:
    async def story(reports: Mapping[str, Report], client: Client, clock: LoopClock) -> None:
        quota = {"metadata": {"name": "team", "namespace": "default"}, "spec": {"min": {"cpu": 1}, "max": {"cpu": 1}}}
        unwrap(await client.dynamic.create(ELASTIC_QUOTAS, quota))
        await clock.sleep(2)
        labels = {"quota.scheduling.koordinator.sh/name": "team"}
        spec = {**POD["spec"], "schedulerName": "koord-scheduler"}
        unwrap(
            await client.dynamic.create(PODS, {**POD, "metadata": {**POD["metadata"], "labels": labels}, "spec": spec})
        )
        await clock.sleep(5)
        (team,) = [one for one in (await reports["quotas"]({}))["quotas"] if one["quota"] == "team"]
        assert team["last_refusal"]["pod"] == "default/web"
        assert team["last_refusal"]["message"].startswith("Insufficient quotas, quotaName: team, runtime: cpu:1")

    with_reports(story)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("{", "not YAML"),
        ("kind: ConfigMap\nmetadata: {name: a}", "there is no Pod"),
        ("[1]", "the manifest"),
    ],
)
def test_a_manifest_that_is_none_is_refused_with_a_reason(manifest: str, said: str) -> None:
    async def story(reports: Mapping[str, Report], client: Client, clock: LoopClock) -> None:
        found: Any = await reports[WHAT_IF]({"manifest": manifest})
        assert isinstance(found, ReportFailure)
        assert said in found.text

    with_reports(story)


def test_a_failure_ends_a_command_and_is_raised_where_a_server_asks() -> None:
    with pytest.raises(SystemExit):
        cluster_access.fail("gone")
    with cluster_access.raise_failures(), pytest.raises(CommandFailure, match="gone"):
        cluster_access.fail("gone")
    with pytest.raises(SystemExit):
        cluster_access.fail("gone")
