"""Who may be moved at all, who may be moved now, and how many at a time."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.config.descheduler.plugin_args import NamespaceFilter, ObjectLimiter, PriorityThreshold
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.api.model import IntOrString
from koord.descheduler.framework.plugin import RoundState
from koord.descheduler.framework.snapshot import Workload
from koord.descheduler.migration.plugin import (
    EVICT_ANNOTATION,
    EvictionRateLimiter,
    InFlightMigrations,
    MigrationBudget,
    MigrationControllerPlugin,
    MigrationProtection,
    max_disrupted_replicas,
    migration_of_job,
    migration_of_pod,
)
from koord.descheduler.migration.writer import is_garbage
from tests.descheduler.cluster_builders import NOW_S, make_node, make_pod, make_snapshot
from tests.descheduler.migration_builders import arguments, make_job, make_workload, ready_pod


@pytest.mark.parametrize(
    ("replicas", "given", "expected"),
    [
        (6, "80%", 4),
        (6, "150%", 6),
        (6, 5, 5),
        (6, 7, 6),
        (6, None, 2),
        (50, "0%", 1),
        (6, 0, 1),
        (3, None, 1),
        (4, None, 2),
        (10, None, 2),
        (11, None, 1),
        (29, None, 2),
        (100, None, 10),
        (0, None, 0),
        (0, 5, 0),
    ],
)
def test_how_many_of_a_workload(replicas: int, given: IntOrString | None, expected: int) -> None:
    assert max_disrupted_replicas(replicas, given) == expected


# At all ------------------------------------------------------------------------------------------------------------

EVERYBODY = {"ReplicaSet-rs": make_workload()}


def refusal(pod: Pod, workloads: dict[str, Workload] | None = None, **args: Any) -> str | None:
    snapshot = make_snapshot((make_node("n1"),), (pod,), workloads=EVERYBODY if workloads is None else workloads)
    return MigrationProtection(arguments(**args)).rejection_reason(pod, snapshot)


CLAIM = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
LOCAL = {"volumes": [{"name": "v", "emptyDir": {}}]}
HOST = {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}


@pytest.mark.parametrize(
    ("pod", "args", "words"),
    [
        pytest.param(ready_pod("a"), {}, None, id="an-ordinary-one"),
        pytest.param(
            ready_pod("a"), {"namespaces": NamespaceFilter(exclude=("default",))}, "namespace", id="namespace"
        ),
        pytest.param(ready_pod("a"), {"namespaces": NamespaceFilter(include=("x",))}, "namespace", id="not-included"),
        pytest.param(
            ready_pod("a"),
            {"namespaces": NamespaceFilter(include=("x",)), "skip_eviction_gates": ("Namespaces",)},
            None,
            id="namespaces-skipped",
        ),
        pytest.param(
            ready_pod("a", metadata={"annotations": {"scheduling.koordinator.sh/eviction-cost": "2147483647"}}),
            {},
            "cost",
            id="cost-forbids",
        ),
        pytest.param(
            ready_pod("a", metadata={"annotations": {"scheduling.koordinator.sh/eviction-cost": "-5"}}),
            {},
            None,
            id="negative-cost",
        ),
        pytest.param(ready_pod("a", owner="DaemonSet/d"), {}, "DaemonSet", id="daemon"),
        pytest.param(
            ready_pod("a", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}), {}, "mirror", id="mirror"
        ),
        pytest.param(
            ready_pod("a", metadata={"annotations": {"kubernetes.io/config.source": "file"}}),
            {},
            "static",
            id="static",
        ),
        pytest.param(
            ready_pod("a", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), {}, "terminating", id="terminating"
        ),
        pytest.param(make_pod("a", "n1"), {}, "no owner", id="bare"),
        pytest.param(make_pod("a", "n1"), {"evict_all_bare_pods": True}, None, id="bare-allowed"),
        pytest.param(make_pod("a", "n1"), {"skip_eviction_gates": ("BarePods",)}, None, id="bare-skipped"),
        pytest.param(make_pod("a", "n1"), {"evict_failed_bare_pods": True}, "not failed", id="bare-but-running"),
        pytest.param(
            make_pod("a", "n1", status={"phase": "Failed"}), {"evict_failed_bare_pods": True}, None, id="bare-failed"
        ),
        pytest.param(ready_pod("a", spec={"priority": 2_000_000_000}), {}, "critical", id="critical"),
        pytest.param(
            ready_pod("a", spec={"priority": 2_000_000_000}),
            {"evict_system_critical_pods": True, "priority_threshold": PriorityThreshold(value=5)},
            None,
            id="critical-allowed",
        ),
        pytest.param(
            ready_pod("a", spec={"priority": 5}),
            {"priority_threshold": PriorityThreshold(value=5)},
            "threshold",
            id="at-the-priority",
        ),
        pytest.param(
            ready_pod("a", spec={"priority": 4}), {"priority_threshold": PriorityThreshold(value=5)}, None, id="below"
        ),
        pytest.param(
            ready_pod("a", spec={"priority": 5}),
            {"priority_threshold": PriorityThreshold(value=5), "skip_eviction_gates": ("PriorityThreshold",)},
            None,
            id="priority-skipped",
        ),
        pytest.param(
            ready_pod("a", spec={"priority": 2_000_000_000}),
            {"skip_eviction_gates": ("SystemCritical",)},
            None,
            id="critical-skipped",
        ),
        pytest.param(ready_pod("a", spec=LOCAL), {}, "local storage", id="empty-dir"),
        pytest.param(ready_pod("a", spec=HOST), {}, "local storage", id="host-path"),
        pytest.param(ready_pod("a", spec=LOCAL), {"evict_local_storage_pods": True}, None, id="local-allowed"),
        pytest.param(ready_pod("a", spec=LOCAL), {"skip_eviction_gates": ("LocalStorage",)}, None, id="local-skipped"),
        pytest.param(ready_pod("a", spec=CLAIM), {}, None, id="claims-do-not-matter"),
        pytest.param(ready_pod("a", spec=CLAIM), {"ignore_pvc_pods": True}, "claims", id="unless-said"),
        pytest.param(
            ready_pod("a", spec=CLAIM),
            {"ignore_pvc_pods": True, "skip_eviction_gates": ("PVC",)},
            None,
            id="claims-skipped",
        ),
        pytest.param(
            ready_pod("a"), {"label_selector": LabelSelector(match_labels={"x": "y"})}, "labels", id="not-selected"
        ),
        pytest.param(
            ready_pod("a"),
            {"label_selector": LabelSelector(match_labels={"x": "y"}), "skip_eviction_gates": ("LabelSelector",)},
            None,
            id="selector-skipped",
        ),
    ],
)
def test_protection(pod: Pod, args: dict[str, Any], words: str | None) -> None:
    why = refusal(pod, **args)
    assert why is None if words is None else why is not None and words in why


def test_a_pod_that_may_go_by_its_own_word_passes_everything() -> None:
    pod = make_pod("a", "n1", metadata={"annotations": {EVICT_ANNOTATION: ""}}, spec={"priority": 2_000_000_001})
    assert refusal(pod, {}) is None


@pytest.mark.parametrize(
    ("replicas", "args", "may"),
    [
        (1, {}, False),
        (2, {}, True),
        (0, {}, False),
        (100, {"max_unavailable_per_workload": 100}, False),
        (100, {"max_unavailable_per_workload": "100%"}, False),
        (100, {"max_migrating_per_workload": 100}, False),
        (100, {"max_unavailable_per_workload": 10}, True),
        (1, {"skip_check_expected_replicas": True}, True),
        (1, {"skip_eviction_gates": ("ExpectedReplicas",)}, True),
    ],
)
def test_nobody_takes_all_replicas(replicas: int, args: dict[str, Any], may: bool) -> None:
    workloads = {"ReplicaSet-rs": make_workload(replicas=replicas)}
    assert (refusal(ready_pod("a"), workloads, **args) is None) is may


def test_a_workload_that_is_not_known_has_no_replicas_to_spare() -> None:
    assert "not found" in (refusal(ready_pod("a"), {}) or "")


# Now ---------------------------------------------------------------------------------------------------------------

PODS = [
    ready_pod("a"),
    ready_pod("b"),
    ready_pod("c", "n2"),
    ready_pod("d", "n2", owner="ReplicaSet/other"),
    ready_pod("e", "n1", namespace="x", owner="ReplicaSet/third"),
]
WORKLOADS = {
    "ReplicaSet-rs": make_workload(),
    "ReplicaSet-other": make_workload("other"),
    "ReplicaSet-third": make_workload("third"),
}


def held_back(pod: str, moving: tuple[str, ...], pods: list[Pod] | None = None, **args: Any) -> str | None:
    known = {p.metadata.name: p for p in pods or PODS}
    snapshot = make_snapshot((make_node("n1"), make_node("n2")), tuple(known.values()), workloads=WORKLOADS)
    moves = InFlightMigrations(migration_of_pod(known[name]) for name in moving)
    return MigrationBudget(arguments(**{"max_migrating_per_node": 0, **args})).rejection_reason(
        known[pod], snapshot, moves
    )


@pytest.mark.parametrize(
    ("args", "moving", "may"),
    [
        pytest.param({"max_migrating_globally": 2}, ("d",), True, id="one-of-two-in-all"),
        pytest.param({"max_migrating_globally": 2}, ("d", "e"), False, id="two-of-two-in-all"),
        pytest.param({"max_migrating_globally": 1}, ("a",), True, id="its-own-does-not-count"),
        pytest.param(
            {"max_migrating_globally": 1, "skip_eviction_gates": ("MaxMigratingGlobally",)}, ("d",), True, id="skipped"
        ),
        pytest.param({"max_migrating_globally": 0}, ("d", "e"), True, id="zero-is-no-limit"),
        pytest.param({"max_migrating_per_node": 1}, ("d",), True, id="another-node"),
        pytest.param({"max_migrating_per_node": 1}, ("e",), False, id="the-same-node"),
        pytest.param(
            {"max_migrating_per_node": 1, "skip_eviction_gates": ("MaxMigratingPerNode",)}, ("e",), True, id="any-node"
        ),
        pytest.param({"max_migrating_per_namespace": 1}, ("e",), True, id="another-namespace"),
        pytest.param({"max_migrating_per_namespace": 1}, ("d",), False, id="the-same-namespace"),
        pytest.param(
            {"max_migrating_per_namespace": 1, "skip_eviction_gates": ("MaxMigratingPerNamespace",)},
            ("d",),
            True,
            id="any-namespace",
        ),
        pytest.param({"max_migrating_per_workload": 1}, (), True, id="none-of-the-workload"),
        pytest.param({"max_migrating_per_workload": 1}, ("a",), True, id="the-same-pod"),
        pytest.param({"max_migrating_per_workload": 1}, ("b",), False, id="the-same-workload"),
        pytest.param({"max_migrating_per_workload": 1}, ("d",), True, id="another-workload"),
        pytest.param(
            {"max_migrating_per_workload": 1, "skip_eviction_gates": ("MaxMigratingPerWorkload",)},
            ("b",),
            True,
            id="workload-skipped",
        ),
        pytest.param({"max_unavailable_per_workload": 1}, ("b",), False, id="moving-is-away"),
        pytest.param({"max_migrating_per_workload": 5, "max_unavailable_per_workload": 2}, ("b",), True, id="room"),
    ],
)
def test_budgets(args: dict[str, Any], moving: tuple[str, ...], may: bool) -> None:
    assert (held_back("a", moving, **args) is None) is may


@pytest.mark.parametrize(
    ("most", "moving", "sick", "may"),
    [
        (1, (), ("b",), False),
        (2, (), ("b",), True),
        (2, ("c",), ("b",), False),
        (2, ("b",), ("b",), True),
        (3, ("c",), ("b",), True),
        (1, (), ("a",), True),
    ],
)
def test_pods_that_are_not_ready_are_away(most: int, moving: tuple[str, ...], sick: tuple[str, ...], may: bool) -> None:
    pods = [ready_pod(n, status={"conditions": []}) if n in sick else ready_pod(n) for n in ("a", "b", "c")]
    args = {"max_migrating_per_workload": 9, "max_unavailable_per_workload": most}
    assert (held_back("a", moving, pods, **args) is None) is may


def test_two_replica_sets_of_one_deployment_are_one_workload() -> None:
    """Half-way through a rollout its pods have two controllers."""
    both = Workload(
        kind="Deployment",
        namespace="default",
        name="d",
        uid="d",
        replicas=10,
        controller_uids=frozenset(("ReplicaSet-old", "ReplicaSet-new")),
    )
    old, new = ready_pod("old", owner="ReplicaSet/old"), ready_pod("new", owner="ReplicaSet/new")
    workloads = {"ReplicaSet-old": both, "ReplicaSet-new": both}
    snapshot = make_snapshot((), (old, new), workloads=workloads)
    budget = MigrationBudget(arguments(max_migrating_per_workload=1))
    assert (
        budget.rejection_reason(new, snapshot, InFlightMigrations((migration_of_pod(old),)))
        == "1 pods of Deployment d are migrating, and 1 may"
    )


def test_a_pod_whose_workload_is_not_known_waits_and_a_bare_one_has_none() -> None:
    assert held_back("a", (), [ready_pod("a", owner="ReplicaSet/lost")]) is not None
    assert held_back("a", (), [make_pod("a", "n1")]) is None


def test_the_evict_annotation_beats_every_budget() -> None:
    pods = [ready_pod("a", metadata={"annotations": {EVICT_ANNOTATION: ""}}), ready_pod("b")]
    assert held_back("a", ("b",), pods, max_migrating_globally=1) is None


def test_a_job_for_the_former_pod_of_a_name_counts_and_has_no_place() -> None:
    snapshot = make_snapshot((), (ready_pod("a"),))
    old = migration_of_job(make_job(uid="former"), snapshot)
    assert old is not None
    assert (old.uid, old.node, old.owner) == ("former", "", "")
    moves = InFlightMigrations((old,))
    own = migration_of_pod(ready_pod("a"))
    assert (moves.others(own), moves.others_on_node(own)) == (1, 0)
    assert moves.has_pod_named("default", "a")
    unnamed = migration_of_job(make_job(uid=""), snapshot)
    assert unnamed == own


# The filter of rounds ----------------------------------------------------------------------------------------------


def in_round(pod: Pod, *jobs: Any, **args: Any) -> str | None:
    snapshot = make_snapshot((make_node("n1"),), (pod,), jobs=jobs, workloads=WORKLOADS)
    return MigrationControllerPlugin(arguments(**args)).filter(pod, RoundState(snapshot))


@pytest.mark.parametrize(
    ("jobs", "may"),
    [
        pytest.param((), True, id="none"),
        pytest.param((make_job(phase="Running"),), False, id="running"),
        pytest.param((make_job(),), False, id="waiting"),
        pytest.param((make_job(uid=""),), False, id="by-name"),
        pytest.param((make_job(uid="former", phase="Running"),), False, id="its-predecessor-is-still-being-moved"),
        pytest.param(
            (make_job(phase="Failed"), make_job(phase="Succeeded"), make_job(phase="Aborted")), True, id="over"
        ),
        pytest.param((make_job(pod="z", phase="Running", status={"podRef": {"uid": "default-a"}}),), False, id="new"),
    ],
)
def test_one_job_for_a_pod(jobs: tuple[Any, ...], may: bool) -> None:
    assert (in_round(ready_pod("a"), *jobs) is None) is may


@pytest.mark.parametrize(
    ("scheduler", "args", "may"),
    [
        ("koord-scheduler", {}, True),
        ("default-scheduler", {}, False),
        ("default-scheduler", {"scheduler_names": ("default-scheduler",)}, True),
        ("default-scheduler", {"default_job_mode": "EvictDirectly"}, True),
    ],
)
def test_reservations_need_a_scheduler_that_knows_them(scheduler: str, args: dict[str, Any], may: bool) -> None:
    assert (in_round(ready_pod("a", spec={"schedulerName": scheduler}), **args) is None) is may


def test_node_fit_is_asked_last_and_only_if_wanted() -> None:
    pod = ready_pod("a")
    full = make_snapshot((make_node("n1"), make_node("n2", unschedulable=True)), (pod,), workloads=WORKLOADS)
    assert MigrationControllerPlugin(arguments()).pre_eviction_filter(pod, RoundState(full)) is None
    assert (
        MigrationControllerPlugin(arguments(node_fit=True)).pre_eviction_filter(pod, RoundState(full))
        == "it fits no other node"
    )
    skipped = arguments(node_fit=True, skip_eviction_gates=("NodeFit",))
    assert MigrationControllerPlugin(skipped).pre_eviction_filter(pod, RoundState(full)) is None
    free = make_snapshot((make_node("n1"), make_node("n2")), (pod,), workloads=WORKLOADS)
    assert MigrationControllerPlugin(arguments(node_fit=True)).pre_eviction_filter(pod, RoundState(free)) is None
    assert (
        MigrationControllerPlugin(arguments(node_fit=True, node_selector="a=b")).pre_eviction_filter(
            pod, RoundState(free)
        )
        is not None
    )


# Buckets -----------------------------------------------------------------------------------------------------------

HUNDRED = make_workload(replicas=100)


def limiter(**given: Any) -> EvictionRateLimiter:
    return EvictionRateLimiter(arguments(**given))


@pytest.mark.parametrize(
    ("given", "after_s", "may"),
    [
        pytest.param({}, 1.0, False, id="default-of-five-minutes"),
        pytest.param({}, 31.0, True, id="ten-in-five-minutes"),
        pytest.param({"object_limiters": {"workload": ObjectLimiter(duration="1s", max_migrating=10)}}, 0.11, True),
        pytest.param({"object_limiters": {"workload": ObjectLimiter(duration="1s", max_migrating=10)}}, 0.01, False),
        pytest.param(
            {"object_limiters": {"workload": ObjectLimiter(duration="1s", max_migrating=10, burst=2)}}, 0.0, True
        ),
        pytest.param({"object_limiters": {"workload": ObjectLimiter(duration="0s")}}, 0.0, True, id="switched-off"),
        pytest.param(
            {"object_limiters": {"namespace": ObjectLimiter(duration="1m", max_migrating=1)}}, 59.0, False, id="space"
        ),
        pytest.param(
            {"object_limiters": {"namespace": ObjectLimiter(duration="1m", max_migrating="10%")}}, 0.0, True, id="part"
        ),
        pytest.param({"max_migrating_per_workload": 100}, 3.1, True, id="rate-of-the-budget"),
    ],
)
def test_evictions_of_one_workload_or_namespace_follow_each_other(
    given: dict[str, Any], after_s: float, may: bool
) -> None:
    buckets = limiter(**given)
    assert buckets.rejection_reason(ready_pod("b"), NOW_S) is None
    buckets.record_eviction(ready_pod("a"), HUNDRED, NOW_S)
    assert (buckets.rejection_reason(ready_pod("b"), NOW_S + after_s) is None) is may


def test_other_workloads_are_not_held_up_and_the_limits_stand_beside_each_other() -> None:
    both = {
        "workload": ObjectLimiter(duration="1s", max_migrating=100),
        "namespace": ObjectLimiter(duration="1h", max_migrating=1),
    }
    buckets = limiter()
    buckets.record_eviction(ready_pod("a"), HUNDRED, NOW_S)
    assert buckets.rejection_reason(ready_pod("z", owner="ReplicaSet/other"), NOW_S) is None
    buckets = limiter(object_limiters=both)
    buckets.record_eviction(ready_pod("a"), HUNDRED, NOW_S)
    assert "namespace" in (buckets.rejection_reason(ready_pod("b"), NOW_S + 10) or "")
    # What is not known of a workload does not switch the other limit off.
    buckets = limiter(object_limiters=both)
    buckets.record_eviction(ready_pod("a"), None, NOW_S)
    assert "namespace" in (buckets.rejection_reason(ready_pod("b"), NOW_S) or "")


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    buckets = limiter(object_limiters={"workload": ObjectLimiter(duration="10s", max_migrating=10)})
    buckets.record_eviction(ready_pod("a"), HUNDRED, NOW_S)
    assert buckets.rejection_reason(ready_pod("b"), NOW_S - 3600) is not None
    assert buckets.rejection_reason(ready_pod("b"), NOW_S - 3600 + 1.1) is None  # and from there on it counts as ever


# Leftovers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ttl", "age_s", "phase", "expected"),
    [
        ("5m", 599, "Running", False),
        ("5m", 600, "Running", True),
        ("5m", 600, "Succeeded", True),
        (None, 29 * 60, "Running", False),
        (None, 30 * 60, "Running", True),
        ("0s", 30 * 60, "", True),
    ],
)
def test_jobs_are_cleared_away_some_time_after_their_end(
    ttl: str | None, age_s: float, phase: str, expected: bool
) -> None:
    assert is_garbage(make_job(ttl=ttl, age_s=age_s, phase=phase), NOW_S) is expected
