"""The plugins of the Kubernetes descheduler: whom each proposes, in which order, and which arguments it refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.descheduler.framework.plugin import (
    DeschedulerPlugin,
    DeschedulingProfile,
    EvictionProposal,
    RoundLimits,
    RoundState,
    overrides_method,
)
from koord.descheduler.framework.round import run_round
from koord.descheduler.plugins.kube.default_evictor import build_default_evictor
from koord.descheduler.plugins.registry import REGISTRY
from tests.descheduler.cluster_builders import NOW_S, make_node, make_pod, make_snapshot


class Yes(DeschedulerPlugin):
    name: ClassVar[str] = "Yes"

    def evict(self, proposal: EvictionProposal, round_state: RoundState) -> str | None:
        return None


class Keeps(Yes):
    name: ClassVar[str] = "Keeps"

    def __init__(self, *names: str) -> None:
        self._names = names

    def filter(self, pod: Pod, round_state: RoundState) -> str | None:
        return "kept" if pod.metadata.name in self._names else None


def ago(seconds: float) -> str:
    return datetime.fromtimestamp(NOW_S - seconds, UTC).isoformat().replace("+00:00", "Z")


def proposed(name: str, args: dict[str, Any], nodes: list[Node], pods: list[Pod], *keep: str) -> list[str]:
    made = REGISTRY[name](args)
    assert isinstance(made, DeschedulerPlugin), made
    point = "deschedule" if overrides_method(made, "deschedule") else "balance"
    guard = Keeps(*keep)
    points: dict[str, Any] = {point: (made,)}
    outcome = run_round(
        [DeschedulingProfile(name="p", evict=guard, filter=(guard,), **points)],
        make_snapshot(nodes, pods),
        RoundLimits(),
    )
    assert outcome.error == ""
    return [e.pod.metadata.name for e in outcome.effects if isinstance(e, EvictionProposal)]


TWO = [make_node("n1"), make_node("n2")]


def started(restarts: int, init: int = 0, *, waiting: str = "", reason: str = "", code: int = 0) -> dict[str, Any]:
    state: dict[str, Any] = {"waiting": {"reason": waiting}} if waiting else {}
    if reason:
        state = {"terminated": {"reason": reason, "exitCode": code}}
    return {
        "containerStatuses": [{"name": "c", "restartCount": restarts, "state": state}],
        "initContainerStatuses": [{"name": "i", "restartCount": init}],
    }


# Deschedule --------------------------------------------------------------------------------------------------------

RESTARTED = [
    make_pod("few", "n1", status=started(4)),
    make_pod("some", "n1", status=started(5)),
    make_pod("many", "n1", status=started(9, waiting="CrashLoopBackOff")),
    make_pod("early", "n1", status=started(1, init=4)),
    make_pod("over", "n1", status={**started(7), "phase": "Failed"}),
]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param({}, ["many", "over", "some"], id="most-first-in-any-phase"),
        pytest.param({"includingInitContainers": True}, ["many", "over", "early", "some"], id="init"),
        pytest.param({"states": ["CrashLoopBackOff"]}, ["many"], id="by-reason"),
        pytest.param({"states": ["Running"]}, ["many", "some"], id="by-phase"),
        pytest.param({"namespaces": {"exclude": ["default"]}}, [], id="namespaces"),
        pytest.param({"labelSelector": {"matchLabels": {"a": "b"}}}, [], id="labels"),
    ],
)
def test_too_many_restarts(args: dict[str, Any], expected: list[str]) -> None:
    name = "RemovePodsHavingTooManyRestarts"
    assert proposed(name, {"podRestartThreshold": 5, **args}, TWO, RESTARTED) == expected


def test_filters_of_the_profile_are_asked_for_all_of_them() -> None:
    args = {"podRestartThreshold": 5}
    assert proposed("RemovePodsHavingTooManyRestarts", args, TWO, RESTARTED, "many", "over") == ["some"]


def tolerating(*keys: str) -> dict[str, Any]:
    return {"tolerations": [{"key": key, "operator": "Exists"} for key in keys]}


TAINTED = [
    make_node("n1", taints=[{"key": "a", "value": "1", "effect": "NoSchedule"}]),
    make_node("n2", taints=[{"key": "b", "effect": "PreferNoSchedule"}]),
    make_node("n3", taints=[{"key": "c", "effect": "NoExecute"}]),
]
ON_TAINTED = [
    make_pod("one", "n1"),
    make_pod("bears", "n1", spec=tolerating("a")),
    make_pod("two", "n2"),
    make_pod("three", "n3"),
]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, ["one"]),
        ({"includePreferNoSchedule": True}, ["one", "two"]),
        ({"excludedTaints": ["a"]}, []),
        ({"excludedTaints": ["a=1"]}, []),
        ({"excludedTaints": ["a=2"]}, ["one"]),
        ({"includedTaints": ["b"], "includePreferNoSchedule": True}, ["two"]),
    ],
)
def test_taints(args: dict[str, Any], expected: list[str]) -> None:
    assert proposed("RemovePodsViolatingNodeTaints", args, TAINTED, ON_TAINTED) == expected


def wanting(required: bool, value: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]}
    if required:
        return {
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
            }
        }
    return {
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "preference": term}]}
        }
    }


ZONES = [make_node("n1", labels={"zone": "a"}), make_node("n2", labels={"zone": "b"})]
REQUIRED, PREFERRED = (f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred"))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [([REQUIRED], ["must"]), ([PREFERRED], ["would"]), ([REQUIRED, PREFERRED], ["must", "would"])],
)
def test_node_affinity(kinds: list[str], expected: list[str]) -> None:
    pods = [
        make_pod("must", "n1", spec=wanting(True, "b")),
        make_pod("stays", "n1", spec=wanting(True, "a")),
        make_pod("nowhere", "n1", spec=wanting(True, "z")),
        make_pod("would", "n1", spec=wanting(False, "b")),
        make_pod("glad", "n2", spec=wanting(False, "b")),
        make_pod("plain", "n1"),
    ]
    assert proposed("RemovePodsViolatingNodeAffinity", {"nodeAffinityType": kinds}, ZONES, pods) == expected


def apart(app: str) -> dict[str, Any]:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def test_anti_affinity_takes_the_lesser_and_leaves_its_peer_in_peace() -> None:
    labels = {"labels": {"app": "x"}}
    pods = [
        make_pod("great", "n1", metadata=labels, spec={**apart("x"), "priority": 9}),
        make_pod("small", "n1", metadata=labels, spec={**apart("x"), "priority": 1}),
        make_pod("alone", "n2", metadata=labels, spec=apart("x")),
        make_pod("elsewhere", "n1", namespace="other", metadata=labels),
    ]
    name = "RemovePodsViolatingInterPodAntiAffinity"
    assert proposed(name, {}, ZONES, pods) == ["small"]
    assert proposed(name, {}, ZONES, pods, "small") == ["great"]
    assert proposed(name, {}, [make_node("n1"), make_node("n2")], pods) == []  # nobody has the key


OLD = [
    make_pod("old", "n1", metadata={"creationTimestamp": ago(500)}),
    make_pod("older", "n2", metadata={"creationTimestamp": ago(900)}),
    make_pod("edge", "n1", metadata={"creationTimestamp": ago(400)}),
    make_pod("waits", "n1", metadata={"creationTimestamp": ago(600)}, status=started(0, waiting="ImagePullBackOff")),
    make_pod("done", "n1", metadata={"creationTimestamp": ago(950)}, status={"phase": "Succeeded"}),
    make_pod(
        "failed",
        "n2",
        owner="Job/j",
        metadata={"creationTimestamp": ago(700)},
        status={"phase": "Failed", "reason": "NodeLost", **started(0, reason="Error", code=3)},
    ),
]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param({"maxPodLifeTimeSeconds": 400}, ["older", "waits", "old"], id="older-than-oldest-first"),
        pytest.param({"states": ["ImagePullBackOff"]}, ["waits"], id="waiting"),
        pytest.param({"states": ["Failed"], "maxPodLifeTimeSeconds": 1}, ["failed"], id="phase"),
        pytest.param({"states": ["NodeLost"]}, ["failed"], id="reason-of-the-pod"),
        pytest.param({"exitCodes": [3]}, ["failed"], id="exit-code"),
        pytest.param({"states": ["Failed"], "ownerKinds": {"exclude": ["Job"]}}, [], id="owners-excluded"),
        pytest.param({"states": ["Failed"], "ownerKinds": {"include": ["Job"]}}, ["failed"], id="owners-included"),
    ],
)
def test_life_time(args: dict[str, Any], expected: list[str]) -> None:
    assert proposed("PodLifeTime", args, TWO, OLD) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"minPodLifetimeSeconds": 700}, ["failed"]),
        ({"minPodLifetimeSeconds": 701}, []),
        ({}, []),
        ({"minPodLifetimeSeconds": 0, "reasons": ["NodeLost"]}, ["failed"]),
        ({"minPodLifetimeSeconds": 0, "reasons": ["Error"]}, ["failed"]),
        ({"minPodLifetimeSeconds": 0, "reasons": ["OOMKilled"]}, []),
        ({"minPodLifetimeSeconds": 0, "exitCodes": [3]}, ["failed"]),
        ({"minPodLifetimeSeconds": 0, "exitCodes": [4]}, []),
        ({"minPodLifetimeSeconds": 0, "excludeOwnerKinds": ["Job"]}, []),
    ],
)
def test_failed_pods(args: dict[str, Any], expected: list[str]) -> None:
    assert proposed("RemoveFailedPods", args, TWO, OLD) == expected


# Balance -----------------------------------------------------------------------------------------------------------


def test_duplicates_are_spread_evenly() -> None:
    pods = [make_pod(f"w{i}", "n1", owner="ReplicaSet/w") for i in range(4)]
    pods.append(make_pod("other", "n1", owner="ReplicaSet/v"))
    assert proposed("RemoveDuplicates", {}, TWO, pods) == ["w2", "w3"]
    assert proposed("RemoveDuplicates", {"excludeOwnerKinds": ["ReplicaSet"]}, TWO, pods) == []
    cordoned = [make_node("n1"), make_node("n2", unschedulable=True)]
    assert proposed("RemoveDuplicates", {}, cordoned, pods) == []


def spread(name: str, node: str, skew: int = 1, when: str = "DoNotSchedule", **more: Any) -> Pod:
    rule = {"topologyKey": "zone", "maxSkew": skew, "whenUnsatisfiable": when}
    rule["labelSelector"] = {"matchLabels": {"app": "x"}}
    return make_pod(name, node, metadata={"labels": {"app": "x"}}, spec={"topologySpreadConstraints": [rule], **more})


@pytest.mark.parametrize(
    ("pods", "args", "count"),
    [
        pytest.param([spread(f"p{i}", "n1") for i in range(5)], {}, 2, id="five-to-none"),
        pytest.param([spread(f"p{i}", "n1", 5) for i in range(5)], {}, 0, id="skew-allows"),
        pytest.param([spread(f"p{i}", "n1", when="ScheduleAnyway") for i in range(5)], {}, 0, id="soft-is-not-asked"),
        pytest.param(
            [spread(f"p{i}", "n1", when="ScheduleAnyway") for i in range(5)],
            {"constraints": ["ScheduleAnyway"]},
            2,
            id="soft-is-asked",
        ),
        pytest.param([spread("p0", "n1"), spread("p1", "n2")], {}, 0, id="even"),
    ],
)
def test_topology_spread(pods: list[Pod], args: dict[str, Any], count: int) -> None:
    assert len(proposed("RemovePodsViolatingTopologySpreadConstraint", args, ZONES, pods)) == count


def asking(name: str, node: str, cpu: str, priority: int = 0) -> Pod:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return make_pod(name, node, spec={"containers": [container], "priority": priority})


def test_low_node_utilization_moves_by_requests() -> None:
    args = {"thresholds": {"cpu": 20}, "targetThresholds": {"cpu": 50}}
    pods = [asking("great", "n1", "3", 5), asking("small", "n1", "3", 1)]
    assert proposed("LowNodeUtilization", args, TWO, pods) == ["small"]
    assert proposed("LowNodeUtilization", {**args, "numberOfNodes": 1}, TWO, pods) == []
    assert proposed("LowNodeUtilization", args, [make_node("n1"), make_node("n2", unschedulable=True)], pods) == []
    limited = {**args, "targetThresholds": {"cpu": 20}, "evictionLimits": {"node": 1}}
    assert proposed("LowNodeUtilization", limited, TWO, pods) == ["small"]


def test_high_node_utilization_empties_what_is_nearly_empty() -> None:
    args = {"thresholds": {"cpu": 20}}
    pods = [asking("lone", "n1", "1"), asking("big", "n2", "4"), make_pod("nothing", "n1")]
    assert sorted(proposed("HighNodeUtilization", args, TWO, pods)) == ["lone", "nothing"]
    only = {**args, "evictionModes": ["OnlyThresholdingResources"]}
    assert proposed("HighNodeUtilization", only, TWO, pods) == ["lone"]


# Arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("RemovePodsHavingTooManyRestarts", {}, "threshold"),
        ("RemovePodsHavingTooManyRestarts", {"podRestartThreshold": 1, "states": ["Sad"]}, "states"),
        ("RemovePodsHavingTooManyRestarts", {"podRestartThreshold": 1, "wrong": 1}, "wrong"),
        ("RemovePodsHavingTooManyRestarts", {"kind": "OtherArgs"}, "were not of type"),
        ("PodLifeTime", {}, "at least one of"),
        ("PodLifeTime", {"states": ["Sad"]}, "Sad"),
        (
            "PodLifeTime",
            {"maxPodLifeTimeSeconds": 1, "ownerKinds": {"include": ["a"], "exclude": ["b"]}},
            "owner kinds",
        ),
        ("RemoveFailedPods", {"namespaces": {"include": ["a"], "exclude": ["b"]}}, "Include/Exclude"),
        ("RemoveDuplicates", {"namespaces": {"include": ["a"], "exclude": ["b"]}}, "Include/Exclude"),
        ("RemovePodsViolatingNodeTaints", {"includedTaints": ["a"], "excludedTaints": ["b"]}, "but not both"),
        ("RemovePodsViolatingNodeAffinity", {}, "nodeAffinityType needs"),
        ("RemovePodsViolatingNodeAffinity", {"nodeAffinityType": ["x"]}, "not x"),
        ("RemovePodsViolatingTopologySpreadConstraint", {"constraints": ["x"]}, "unknown constraint x"),
        ("RemovePodsViolatingInterPodAntiAffinity", {"labelSelector": {"matchExpressions": [{"key": "a"}]}}, "label"),
        ("LowNodeUtilization", {}, "no resource threshold"),
        ("LowNodeUtilization", {"thresholds": {"cpu": 30}, "targetThresholds": {"memory": 30}}, "different resources"),
        ("LowNodeUtilization", {"thresholds": {"cpu": 30}, "targetThresholds": {"cpu": 20}}, "greater than"),
        ("LowNodeUtilization", {"thresholds": {"cpu": 130}, "targetThresholds": {"cpu": 140}}, "range"),
        (
            "LowNodeUtilization",
            {"thresholds": {"cpu": 3}, "targetThresholds": {"cpu": 4}, "metricsUtilization": {"source": "x"}},
            "LowNodeLoad",
        ),
        ("HighNodeUtilization", {"thresholds": {"cpu": 3}, "evictionModes": ["x"]}, "unknown eviction mode"),
        ("HighNodeUtilization", {"thresholds": {"cpu": 3}, "evictableNamespaces": {"include": ["a"]}}, "Exclude"),
        ("DefaultEvictor", {"minReplicas": 1}, "minReplicas"),
        ("DefaultEvictor", {"noEvictionPolicy": "x"}, "noEvictionPolicy"),
        ("DefaultEvictor", {"priorityThreshold": {"name": "a", "value": 1}}, "only one"),
        ("DefaultEvictor", {"podProtections": {"extraEnabled": ["x"]}}, "unknown protection"),
        ("DefaultEvictor", {"podProtections": {"defaultDisabled": ["x"]}}, "unknown protection"),
        ("DefaultEvictor", {"podProtections": {}, "evictDaemonSetPods": True}, "mixed"),
        ("DefaultEvictor", {"nodeSelector": "a in"}, "nodeSelector"),
    ],
)
def test_arguments_that_are_refused(name: str, args: dict[str, Any], words: str) -> None:
    made = REGISTRY[name](args)
    assert isinstance(made, list)
    assert words in "; ".join(made)


# DefaultEvictor ----------------------------------------------------------------------------------------------------

OWNED = {"owner": "ReplicaSet/w"}
VOLUME = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}


def kept(pod: Pod, args: dict[str, Any], **others: Any) -> bool:
    made = build_default_evictor(args)
    assert isinstance(made, DeschedulerPlugin), made
    snapshot = make_snapshot(TWO, (pod,), **others)
    return made.filter(pod, RoundState(snapshot)) is not None


@pytest.mark.parametrize(
    ("pod", "args", "expected"),
    [
        pytest.param(make_pod("a", "n1", **OWNED), {}, False, id="ordinary"),
        pytest.param(make_pod("a", "n1"), {}, True, id="bare"),
        pytest.param(make_pod("a", "n1"), {"evictFailedBarePods": True}, True, id="bare-not-failed"),
        pytest.param(
            make_pod("a", "n1", status={"phase": "Failed"}), {"evictFailedBarePods": True}, False, id="failed"
        ),
        pytest.param(make_pod("a", "n1", owner="DaemonSet/d"), {}, True, id="daemon"),
        pytest.param(
            make_pod("a", "n1", owner="DaemonSet/d"), {"evictDaemonSetPods": True}, False, id="daemon-allowed"
        ),
        pytest.param(make_pod("a", "n1", spec={"priority": 2_000_000_000}, **OWNED), {}, True, id="critical"),
        pytest.param(
            make_pod("a", "n1", spec={"priority": 2_000_000_000}, **OWNED),
            {"podProtections": {"defaultDisabled": ["SystemCriticalPods"]}, "priorityThreshold": {"value": 1}},
            False,
            id="critical-allowed-takes-the-threshold-with-it",
        ),
        pytest.param(make_pod("a", spec={"priority": 9}, **OWNED), {"priorityThreshold": {"value": 9}}, True, id="at"),
        pytest.param(make_pod("a", spec={"volumes": [{"name": "e", "emptyDir": {}}]}, **OWNED), {}, True, id="local"),
        pytest.param(make_pod("a", spec=VOLUME, **OWNED), {}, False, id="claim"),
        pytest.param(make_pod("a", spec=VOLUME, **OWNED), {"ignorePvcPods": True}, True, id="claim-protected"),
        pytest.param(make_pod("a", **OWNED), {"podProtections": {"extraEnabled": ["PodsWithoutPDB"]}}, True, id="pdb"),
        pytest.param(make_pod("a", **OWNED), {"minReplicas": 2}, True, id="too-few"),
        pytest.param(make_pod("a", **OWNED), {"minPodAge": "1h"}, True, id="too-young"),
        pytest.param(
            make_pod("a", status={"startTime": ago(7200)}, **OWNED), {"minPodAge": "1h"}, False, id="old-enough"
        ),
        pytest.param(make_pod("a", **OWNED), {"labelSelector": {"matchLabels": {"x": "y"}}}, True, id="labels"),
        pytest.param(
            make_pod("a", metadata={"annotations": {"descheduler.alpha.kubernetes.io/evict": "false"}}),
            {"minReplicas": 5},
            False,
            id="by-its-own-word",
        ),
        pytest.param(
            make_pod(
                "a", owner="", metadata={"annotations": {"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""}}
            ),
            {"noEvictionPolicy": "Mandatory"},
            True,
            id="prefers-to-stay",
        ),
        pytest.param(
            make_pod("a", metadata={"annotations": {"kubernetes.io/config.mirror": "x"}}), {}, True, id="mirror"
        ),
    ],
)
def test_default_evictor(pod: Pod, args: dict[str, Any], expected: bool) -> None:
    assert kept(pod, args) is expected


@pytest.mark.parametrize(("storage", "expected"), [("gold", True), ("tin", False), (None, True)])
def test_claims_are_protected_by_class(storage: str | None, expected: bool) -> None:
    claim = {"metadata": {"name": "c", "namespace": "default"}, "spec": {"storageClassName": storage}}
    held = (convert(claim, PERSISTENT_VOLUME_CLAIMS.model),) if storage else ()
    protected = {"config": {"PodsWithPVC": {"protectedStorageClasses": [{"name": "gold"}]}}}
    args = {"podProtections": {"extraEnabled": ["PodsWithPVC"], **protected}}
    pod = make_pod("a", spec=VOLUME, **OWNED)
    assert kept(pod, args, persistentvolumeclaims=held) is expected


def test_node_fit_is_a_closer_look() -> None:
    made = build_default_evictor({"nodeFit": True})
    assert isinstance(made, DeschedulerPlugin)
    pod = asking("a", "n1", "7")
    crowded = make_snapshot(TWO, (pod, asking("b", "n2", "5")))
    assert made.pre_eviction_filter(pod, RoundState(crowded)) == "it fits no other node"
    assert made.pre_eviction_filter(pod, RoundState(make_snapshot(TWO, (pod,)))) is None
