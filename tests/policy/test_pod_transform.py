from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.protocol import A_REPLACE_RESOURCES, L_PREEMPTION_POLICY, L_PRIORITY_CLASS
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert, to_dict
from koord.policy.qos import (
    apply_default_priority,
    apply_preemption_policy,
    replace_in_list,
    replace_resources,
)
from koord.scheduler.cache import pod_model

BATCH_CPU, BATCH_MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
NAMES = {"cpu": BATCH_CPU, "memory": BATCH_MEMORY, "x": ""}


@pytest.mark.parametrize(
    ("listed", "replaced"),
    [
        pytest.param({"cpu": "2"}, {BATCH_CPU: "2k"}, id="cpu-in-milli"),
        pytest.param({"cpu": "1500m"}, {BATCH_CPU: "1500"}, id="a-part-of-a-cpu"),
        pytest.param({"cpu": "100u"}, {BATCH_CPU: "1"}, id="less-than-a-milli-is-rounded-up"),
        pytest.param({"memory": "1Gi"}, {BATCH_MEMORY: "1Gi"}, id="memory-as-it-is"),
        pytest.param({"cpu": "2", BATCH_CPU: "500"}, {"cpu": "2", BATCH_CPU: "500"}, id="target-is-there"),
        pytest.param({"x": "1", "pods": "3"}, {"pods": "3"}, id="erased"),
        pytest.param({}, {}, id="nothing"),
    ],
)
def test_one_list(listed: dict[str, Any], replaced: dict[str, Any]) -> None:
    assert replace_in_list(listed, NAMES) == replaced


def test_names_follow_each_other() -> None:
    assert replace_in_list({"a": "1", "b": "2"}, {"a": "c", "b": "a"}) == {"c": "1", "a": "2"}


def pod(annotation: str = "", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "annotations": {A_REPLACE_RESOURCES: annotation}}, "spec": spec}


@pytest.mark.parametrize("model", [Pod, pod_model.Pod])
def test_every_place_of_a_pod_is_covered(model: type[Any]) -> None:
    amounts = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "x": "7"}}
    spec = {
        "containers": [{"name": "a", "resources": amounts}, {"name": "plain"}],
        "initContainers": [{"name": "i", "resources": amounts}],
        "overhead": {"cpu": "250m"},
    }
    made = to_dict(replace_resources(convert(pod(f"cpu:{BATCH_CPU}, x: ,bad", **spec), model)))["spec"]
    replaced = {"requests": {BATCH_CPU: "1k"}, "limits": {BATCH_CPU: "2k"}}
    assert made["containers"] == [{"name": "a", "resources": replaced}, {"name": "plain"}]
    assert made["initContainers"] == [{"name": "i", "resources": replaced}]
    assert made["overhead"] == {BATCH_CPU: "250"}


def test_without_the_annotation_it_is_the_same_pod() -> None:
    given_pod = convert({"metadata": {"name": "p"}}, Pod)
    assert replace_resources(given_pod) is given_pod


@given(
    listed=st.dictionaries(st.sampled_from(["cpu", "a", "b"]), st.integers(0, 5).map(str)),
    names=st.dictionaries(st.sampled_from(["cpu", "a", "b"]), st.sampled_from(["a", "c", ""])),
)
def test_a_name_that_nobody_replaces_keeps_its_amount(listed: dict[str, str], names: dict[str, str]) -> None:
    made = replace_in_list(listed, names)
    assert {name: made.get(name) for name in listed if name not in names} == {
        name: amount for name, amount in listed.items() if name not in names
    }
    assert len(made) <= len(listed)


@pytest.mark.parametrize(
    ("labels", "priority", "kube_qos", "seen"),
    [
        pytest.param({L_PRIORITY_CLASS: "koord-mid"}, None, "Burstable", 7500, id="class-by-label"),
        pytest.param({}, 0, "BestEffort", 5500, id="zero-counts-as-none"),
        pytest.param({L_PRIORITY_CLASS: "koord-mid"}, 9001, "Burstable", 9001, id="its-own-stays"),
        pytest.param({}, None, "", None, id="no-class"),
    ],
)
def test_default_priority(labels: dict[str, str], priority: int | None, kube_qos: str, seen: int | None) -> None:
    made = convert({"metadata": {"name": "p", "labels": labels}, "spec": {"priority": priority}}, Pod)
    assert apply_default_priority(made, kube_qos).spec.priority == seen


@pytest.mark.parametrize(
    ("stated", "policy"),
    [(None, "Never"), ("Never", "Never"), ("PreemptLowerPriority", "PreemptLowerPriority"), ("typo", "Never")],
)
def test_preemption_policy(stated: str | None, policy: str) -> None:
    labels = {} if stated is None else {L_PREEMPTION_POLICY: stated}
    made = convert({"metadata": {"labels": labels}, "spec": {"preemptionPolicy": "PreemptLowerPriority"}}, Pod)
    assert apply_preemption_policy(made).spec.preemption_policy == policy
