"""Nodes at admission: amplified allocatable in their status, and labels that pick one strategy each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.manager.webhooks import node_admission
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDenied
from koord.manager.webhooks.configmap import node_strategy_groups
from tests.manager.webhooks.admission_builders import Obj, request

RATIO = "node.koordinator.sh/resource-amplification-ratio"
RAW = "node.koordinator.sh/raw-allocatable"


def node(cpu: str = "10", memory: str = "10Gi", labels: Obj | None = None, **annotations: str) -> Obj:
    notes = {{"ratio": RATIO, "raw": RAW}[key]: value for key, value in annotations.items()}
    meta = {"name": "n1", "annotations": notes, "labels": labels or {}}
    return {"metadata": meta, "status": {"allocatable": {"cpu": cpu, "memory": memory, "pods": "110"}}}


def mutated(new: Obj, old: Obj) -> Obj | AdmissionDenied:
    verdict = node_admission.mutate_node_status(request(new, old, resource="nodes", sub="status"))
    if isinstance(verdict, AdmissionDenied):
        return verdict
    return verdict.object or new


@pytest.mark.parametrize(
    ("new", "old", "made"),
    [
        pytest.param(
            node(ratio='{"cpu":2}'),
            node(),
            node("20", ratio='{"cpu":2}', raw='{"cpu":"10","memory":"10Gi"}'),
            id="first",
        ),
        pytest.param(
            node("7", "9Gi", ratio='{"cpu":1.33,"memory":1.25}'),
            node("7", "9Gi"),
            node("9310m", "11520Mi", ratio='{"cpu":1.33,"memory":1.25}', raw='{"cpu":"7","memory":"9Gi"}'),
            id="both-truncated",
        ),
        pytest.param(
            node("20", ratio='{"cpu":3}', raw='{"cpu":"10"}'),
            node("20"),
            node("30", ratio='{"cpu":3}', raw='{"cpu":"10"}'),
            id="unchanged-allocatable-is-amplified-already",
        ),
        pytest.param(
            node("8", ratio='{"cpu":2}', raw='{"cpu":"10","memory":"10Gi"}'),
            node("20"),
            node("16", ratio='{"cpu":2}', raw='{"cpu":"8","memory":"10Gi"}'),
            id="the-kubelet-reported",
        ),
        pytest.param(
            node(ratio='{"cpu":1,"memory":0.5}'),
            node(),
            node(ratio='{"cpu":1,"memory":0.5}', raw='{"cpu":"10","memory":"10Gi"}'),
            id="one-or-less-does-nothing",
        ),
        pytest.param(node("20", raw='{"cpu":"10"}'), node("20"), node("20"), id="the-ratio-is-gone"),
        pytest.param(node(ratio="", raw="{}"), node(), node(ratio=""), id="the-ratio-is-empty"),
        pytest.param(node(), node(), node(), id="plain"),
    ],
)
def test_amplification(new: Obj, old: Obj, made: Obj) -> None:
    assert mutated(new, old) == made


@pytest.mark.parametrize(
    ("new", "code", "words"),
    [
        pytest.param(node(ratio="{x"), 500, "failed to unmarshal node resource amplification ratio: ", id="ratio"),
        pytest.param(node(ratio='{"cpu":2}', raw="{x"), 500, "failed to unmarshal node raw allocatable: ", id="raw"),
        pytest.param(node("many", ratio='{"cpu":2}'), 400, "quantities must match", id="amount"),
        pytest.param({"metadata": {"annotations": {RATIO: 2}}}, 400, "Expected `str`", id="no-node"),
    ],
)
def test_unreadable(new: Obj, code: int, words: str) -> None:
    denied = mutated(new, node())
    assert isinstance(denied, AdmissionDenied)
    assert denied.code == code
    assert denied.message.startswith(words)


@pytest.mark.parametrize(
    ("operation", "sub", "resource"),
    [
        pytest.param("CREATE", "status", "nodes", id="creation"),
        pytest.param("UPDATE", "", "nodes", id="not-the-status"),
        pytest.param("UPDATE", "status", "pods", id="no-node"),
    ],
)
def test_all_else_stays_as_it_is(operation: str, sub: str, resource: str) -> None:
    asked = request(node(ratio='{"cpu":2}'), node(), operation=operation, sub=sub, resource=resource)
    assert node_admission.mutate_node_status(asked) == AdmissionAllowed()


@given(cpu_milli=st.integers(0, 10**9), ratio=st.floats(1.01, 10), rounds=st.integers(1, 3))
def test_saying_it_again_never_amplifies_twice(cpu_milli: int, ratio: float, rounds: int) -> None:
    old = node(f"{cpu_milli}m")
    first = mutated(node(f"{cpu_milli}m", ratio=json.dumps({"cpu": ratio})), old)
    assert isinstance(first, dict)
    now = first
    for _ in range(rounds):
        again = mutated(now, now)
        assert again == first
        assert isinstance(again, dict)
        now = again


CONFIG = {
    "colocation-config": json.dumps(
        {
            "enable": True,
            "nodeConfigs": [
                {"name": "a", "nodeSelector": {"matchLabels": {"g": "a"}}},
                {"name": "b", "nodeSelector": {"matchLabels": {"h": "b"}}},
            ],
        }
    ),
    "cpu-burst-config": "{not json",
    "resource-threshold-config": json.dumps({"nodeStrategies": [{"name": "everywhere"}, {"name": "again"}]}),
    "system-config": json.dumps({"nodeStrategies": [{"name": "s", "nodeSelector": {"matchLabels": {"s": "1"}}}]}),
}
CONFLICT = (
    '___{"reason":"ExistNodeConfict","message":{"config":"colocation-config","strategies":["a","b"],'
    '"exampleNodes":["n1"]}}___'
)


@pytest.mark.parametrize(
    ("new", "old", "config", "why"),
    [
        pytest.param({"g": "a", "h": "b"}, {"g": "a"}, CONFIG, CONFLICT, id="two-strategies"),
        pytest.param({"g": "a", "s": "1"}, {}, CONFIG, None, id="one-of-each-document"),
        pytest.param({"g": "a", "h": "b"}, {"g": "a", "h": "b"}, CONFIG, None, id="as-before"),
        pytest.param({"g": "a", "h": "b"}, {}, None, None, id="no-config"),
    ],
)
def test_labels(new: Obj, old: Obj, config: dict[str, str] | None, why: str | None) -> None:
    asked = request(node(labels=new), node(labels=old), resource="nodes")
    assert node_admission.validate_node(asked, config) == (AdmissionDenied(400, why) if why else AdmissionAllowed())


def test_a_new_node_is_let_in() -> None:
    asked = request(node(labels={"g": "a", "h": "b"}), resource="nodes")
    assert node_admission.validate_node(asked, CONFIG) == AdmissionAllowed()


def test_documents_that_cannot_be_judged_are_left_out() -> None:
    assert [group.key for group in node_strategy_groups(CONFIG)] == ["colocation-config", "system-config"]


def test_qos_is_judged_only_beside_a_readable_system_config() -> None:
    assert [group.key for group in node_strategy_groups({"resource-qos-config": "{}"})] == []
    both = {"resource-qos-config": "{}", "system-config": "{}"}
    assert [group.key for group in node_strategy_groups(both)] == ["resource-qos-config", "system-config"]


def node_slo(**threshold: Any) -> Obj:
    return {"metadata": {"name": "n1"}, "spec": {"resourceUsedThresholdWithBE": threshold}}


@pytest.mark.parametrize(
    ("obj", "old", "why"),
    [
        pytest.param(node_slo(cpuSuppressThresholdPercent=65), None, None, id="good"),
        pytest.param(
            node_slo(memoryEvictThresholdPercent=0, cpuSuppressPolicy="all"),
            None,
            "spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent is 0, must be from 1 to 100; "
            "spec.resourceUsedThresholdWithBE.cpuSuppressPolicy is \"all\", must be one of 'cpuset', 'cfsQuota', "
            "'idleCpuset'",
            id="several",
        ),
        pytest.param(
            node_slo(cpuEvictTimeWindowSeconds=-5),
            node_slo(cpuEvictTimeWindowSeconds=5),
            "spec.resourceUsedThresholdWithBE.cpuEvictTimeWindowSeconds is -5, must be greater than 0",
            id="update",
        ),
        pytest.param(
            node_slo(memoryEvictThresholdPercent=0, enable=True),
            node_slo(memoryEvictThresholdPercent=0),
            None,
            id="it-was-there-before",
        ),
    ],
)
def test_node_slo(obj: Obj, old: Obj | None, why: str | None) -> None:
    verdict = node_admission.validate_node_slo(request(obj, old, resource="nodeslos"))
    assert verdict == (AdmissionAllowed() if why is None else AdmissionDenied(400, why))
