"""What the descheduler says of itself: rounds, pods, nodes as LowNodeLoad sees them, jobs, and odd configurations."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.scheduling import PodMigrationJob, Reservation
from koord.api.koordinator.slo import NodeMetric
from koord.api.model import convert
from koord.descheduler.configuration import DeschedulerSetup, build_setup, config_warnings, load_config
from koord.descheduler.explain.migration_report import MigrationObstacles, MigrationReport, report_migration
from koord.descheduler.explain.round_report import report_pod, report_pool_loads, report_round
from koord.descheduler.framework.round import ready_nodes, run_round
from koord.descheduler.framework.snapshot import ClusterSnapshot, Workload
from koord.descheduler.plugins.low_node_load.plugin import LowNodeLoad
from tests.descheduler.cluster_builders import NOW_S, make_node, make_pod, make_snapshot

AT = "2027-01-15T07:59:00Z"  # a minute before the clusters' own now
THRESHOLDS = {"lowThresholds": {"cpu": 20}, "highThresholds": {"cpu": 50}}
AT_ONCE = {"consecutiveAbnormalities": 1, "consecutiveNormalities": 1}


def descheduler_setup(args: dict[str, Any], enabled: bool = True, **document: Any) -> DeschedulerSetup:
    profile: dict[str, Any] = {"pluginConfig": [{"name": "LowNodeLoad", "args": args}]}
    if enabled:
        profile["plugins"] = {"balance": {"enabled": [{"name": "LowNodeLoad"}]}}
    config = load_config({"deschedulingInterval": "10s", "profiles": [profile], **document})
    assert not isinstance(config, list), config
    made = build_setup(config)
    assert isinstance(made, DeschedulerSetup), made
    return made


def metric(node: str, pods: dict[str, str], at: str = AT) -> NodeMetric:
    used = [{"namespace": "default", "name": n, "podUsage": {"resources": {"cpu": cpu}}} for n, cpu in pods.items()]
    nothing = {"resources": {"cpu": "0", "memory": "0"}}
    status = {
        "updateTime": at,
        "nodeMetric": {"nodeUsage": nothing, "systemUsage": nothing},
        "podsMetric": used,
    }
    return convert({"metadata": {"name": node}, "status": status}, NodeMetric)


def hot_cluster() -> ClusterSnapshot:
    """a: 6 of 8 cpu; b: idle; c: never reported. Pods of one ReplicaSet with ten replicas, one of them bare."""
    spec = {"schedulerName": "koord-scheduler"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    pods = [make_pod(f"p{i}", "a", owner="ReplicaSet/web", spec=spec, status=ready) for i in range(3)]
    pods.append(make_pod("bare", "a", spec=spec, status=ready))
    used = {"p0": "1", "p1": "1", "p2": "1", "bare": "3"}
    web = Workload(kind="ReplicaSet", namespace="default", name="web", uid="ReplicaSet-web", replicas=10)
    return make_snapshot(
        [make_node("a"), make_node("b"), make_node("c")],
        pods,
        metrics=[metric("a", used), metric("b", {})],
        workloads={"ReplicaSet-web": web},
    )


def test_a_round_says_what_moves_who_stays_and_who_was_not_judged() -> None:
    made, snapshot = descheduler_setup({**THRESHOLDS, "anomalyCondition": AT_ONCE}), hot_cluster()
    account = report_round(run_round(made.profiles, snapshot, made.limits), made.plugins(), NOW_S)
    (first, second) = account.proposals
    assert (first.does, first.node, first.target, first.evictor) == ("evict", "a", "b", "MigrationController")
    assert first.reason == "node is overutilized, node cpu usage(75.00%)>threshold(50.00%)"
    assert second.reason == "node is overutilized, node cpu usage(62.50%)>threshold(50.00%)"
    assert {(no.pod, no.by, no.why) for no in account.passed_over} >= {
        ("default/bare", "MigrationController", "nothing would create it again: it has no owner")
    }
    assert [(out.node, out.plugin, out.why) for out in account.left_out] == [
        ("c", "LowNodeLoad", "it has no NodeMetric")
    ]


def test_limits_are_named_as_the_ones_that_declined() -> None:
    made = descheduler_setup({**THRESHOLDS, "anomalyCondition": AT_ONCE}, maxNoOfPodsToEvictTotal=1)
    account = report_round(run_round(made.profiles, hot_cluster(), made.limits), made.plugins(), NOW_S)
    assert len(account.proposals) == 1
    assert {(no.by, no.why) for no in account.refusals} == {("limits", "the limit of 1 evictions per round is reached")}


class TestNodes:
    def seen(self, args: dict[str, Any]) -> dict[str, Any]:
        made, snapshot = descheduler_setup(args), hot_cluster()
        (plugin,) = [one for one in made.plugins() if isinstance(one, LowNodeLoad)]
        (pool,) = report_pool_loads(plugin, ready_nodes(snapshot, None), snapshot)
        return {"stops": pool.stops, **{one.node: one for one in pool.nodes}}

    def test_used_and_thresholds_are_shares_of_the_node(self) -> None:
        seen = self.seen({**THRESHOLDS, "anomalyCondition": AT_ONCE})
        assert (seen["a"].standing, seen["b"].standing) == ("too full", "has room")
        assert (seen["a"].used["cpu"], seen["a"].low["cpu"], seen["a"].high["cpu"]) == (75.0, 20.0, 50.0)
        assert seen["a"].certain
        assert seen["stops"] == ""
        assert "c" not in seen

    @pytest.mark.parametrize(
        ("args", "why"),
        [
            pytest.param(
                {"lowThresholds": {"cpu": 20}, "highThresholds": {"cpu": 80}}, "no node is too full", id="calm"
            ),
            pytest.param(THRESHOLDS, "no node has been too full for long enough", id="not-yet-certain"),
            pytest.param(
                {**THRESHOLDS, "numberOfNodes": 1},
                "only 1 nodes have room, and numberOfNodes wants more than 1",
                id="too-few-with-room",
            ),
        ],
    )
    def test_it_is_told_why_nothing_follows(self, args: dict[str, Any], why: str) -> None:
        assert self.seen(args)["stops"] == why

    def test_looking_marks_nothing(self) -> None:
        made, snapshot = descheduler_setup(THRESHOLDS), hot_cluster()
        (plugin,) = [one for one in made.plugins() if isinstance(one, LowNodeLoad)]
        for _ in range(20):
            report_pool_loads(plugin, ready_nodes(snapshot, None), snapshot)
        assert not run_round(made.profiles, snapshot, made.limits).effects
        (pool,) = report_pool_loads(plugin, ready_nodes(snapshot, None), snapshot)
        assert [one.rounds for one in pool.nodes if one.node == "a"] == [1]


class TestPods:
    def test_one_that_may_go(self) -> None:
        made, snapshot = descheduler_setup(THRESHOLDS), hot_cluster()
        told = report_pod(snapshot.by_name["default", "p0"], snapshot, made.profiles)
        assert (told.pod, told.node, told.forbidden, told.limited, told.refused) == ("default/p0", "a", "", "", {})

    def test_one_that_may_not(self) -> None:
        made, snapshot = descheduler_setup(THRESHOLDS), hot_cluster()
        told = report_pod(snapshot.by_name["default", "bare"], snapshot, made.profiles)
        assert told.forbidden == "nothing would create it again: it has no owner"
        assert told.refused == {"koord-descheduler": told.forbidden}


class TestJobs:
    def told(self, known: MigrationObstacles | None = None, place: str = "", **given: Any) -> MigrationReport:
        passed = {"descheduler.koordinator.sh/passed-arbitration": "true"} if given.pop("passed", True) else {}
        spec = {"podRef": {"namespace": "default", "name": "p0", "uid": "default-p0"}, **given.pop("spec", {})}
        job = convert(
            {"metadata": {"name": "j", "annotations": passed}, "spec": spec, "status": given}, PodMigrationJob
        )
        reservation = convert({"metadata": {"name": "r"}, "status": {"nodeName": place}}, Reservation)
        return report_migration(job, make_pod("p0", "a"), reservation, known or MigrationObstacles())

    @pytest.mark.parametrize(
        ("given", "waits"),
        [
            pytest.param({"passed": False}, "arbitration", id="new"),
            pytest.param(
                {"passed": False, "known": MigrationObstacles(waits="2 pods of its node are migrating")},
                "its turn: 2 pods of its node are migrating",
                id="in-line",
            ),
            pytest.param({"spec": {"paused": True}}, "approval: it is paused", id="paused"),
            pytest.param(
                {"known": MigrationObstacles(limited="another was evicted")},
                "its turn: another was evicted",
                id="limited",
            ),
            pytest.param({}, "a node for its reservation", id="reserving"),
            pytest.param(
                {
                    "conditions": [
                        {"type": "ReservationScheduled", "status": "False", "message": "0/3 nodes are available"}
                    ]
                },
                "a node for its reservation: 0/3 nodes are available",
                id="unschedulable",
            ),
            pytest.param(
                {"place": "b", "conditions": [{"type": "Eviction", "status": "False", "reason": "Evicting"}]},
                "the pod to be gone: it was asked to leave",
                id="leaving",
            ),
            pytest.param(
                {"place": "b", "conditions": [{"type": "Eviction", "status": "True"}]},
                "a new pod in its reservation",
                id="gone",
            ),
            pytest.param(
                {
                    "conditions": [
                        {"type": "Eviction", "status": "True"},
                        {"type": "ReservationBound", "status": "True"},
                    ]
                },
                "the new pod to be ready",
                id="bound",
            ),
        ],
    )
    def test_what_one_waits_for(self, given: dict[str, Any], waits: str) -> None:
        told = self.told(phase="Running", **given)
        assert (told.blocked, told.ended) == (waits, "")

    def test_how_one_ended(self) -> None:
        done = self.told(phase="Succeeded", podRef={"namespace": "default", "name": "new"}, nodeName="b")
        assert (done.blocked, done.ended, done.target) == ("", "done: default/new lives there", "b")
        forbidden = self.told(
            MigrationObstacles(forbidden="it has local storage"), phase="Failed", reason="ForbiddenMigratePod"
        )
        assert forbidden.ended == "ForbiddenMigratePod: it has local storage"
        late = self.told(phase="Failed", reason="Timeout", message="Abort job caused by timeout")
        assert late.ended == "Timeout: Abort job caused by timeout"


class TestSurprises:
    @pytest.mark.parametrize(
        ("made", "about"),
        [
            pytest.param(descheduler_setup(THRESHOLDS), [], id="a-good-one"),
            pytest.param(
                descheduler_setup(THRESHOLDS, deschedulingInterval="0s"), ["deschedulingInterval"], id="one-round-only"
            ),
            pytest.param(descheduler_setup({}), ["profiles[0].pluginConfig[0].args"], id="no-thresholds"),
            pytest.param(
                descheduler_setup({**THRESHOLDS, "highThresholds": {"cpu": 50, "memory": 60}}),
                ["profiles[0].pluginConfig[0].args.highThresholds.memory"],
                id="a-high-without-its-low",
            ),
            pytest.param(
                descheduler_setup({**THRESHOLDS, "lowThresholds": {"cpu": 20, "pods": 60}}),
                ["profiles[0].pluginConfig[0].args.lowThresholds.pods"],
                id="a-low-without-its-high",
            ),
            pytest.param(
                descheduler_setup(THRESHOLDS, enabled=False),
                ["profiles[0].pluginConfig[0].args"],
                id="arguments-of-nobody",
            ),
            pytest.param(
                descheduler_setup({**THRESHOLDS, "anomalyCondition": AT_ONCE}),
                ["profiles[0].pluginConfig[0].args.anomalyCondition.consecutiveAbnormalities"],
                id="certain-at-once",
            ),
        ],
    )
    def test_each_names_its_field(self, made: DeschedulerSetup, about: list[str]) -> None:
        assert [path for path, _ in config_warnings(made)] == about
