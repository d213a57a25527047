"""Pods are transformed as gates say before anything sees them; the QoS class is that of the resources as stated."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.protocol import A_REPLACE_RESOURCES, L_PREEMPTION_POLICY, L_PRIORITY_CLASS
from koord.api.model import convert
from koord.scheduler.cache.pod_model import Pod, replace_pod_resources, set_default_priority
from koord.scheduler.configuration.feature_gates import SCHEDULER_GATES, pod_transform
from tests.scheduler.builders import make_pod, make_state

BATCH_CPU, OLD_BATCH_CPU = "kubernetes.io/batch-cpu", "koordinator.sh/batch-cpu"
TRANSFORMERS = ("PreemptionPolicyTransformer", "PriorityTransformer", "ReplaceResourcesTransformer")
TO_BATCH = {A_REPLACE_RESOURCES: f"cpu:{BATCH_CPU}"}


def transformed(pod: Pod, *on: str) -> Pod:
    transform = pod_transform({name: name in on for name in SCHEDULER_GATES})
    return pod if transform is None else transform(pod)


def test_no_gate_transforms_nothing() -> None:
    assert pod_transform({name: gate.default for name, gate in SCHEDULER_GATES.items()}) is None


def test_the_transformers_are_all_there_is() -> None:
    assert tuple(name for name, gate in SCHEDULER_GATES.items() if gate.transform is not None) == TRANSFORMERS


@pytest.mark.parametrize("gate", TRANSFORMERS)
def test_a_gate_changes_its_own_part_alone(gate: str) -> None:
    labels = {L_PRIORITY_CLASS: "koord-mid"}
    pod = make_pod("p", cpu="2", labels=labels, annotations=TO_BATCH, preemptionPolicy="PreemptLowerPriority")
    made = transformed(pod, gate).spec
    seen = (made.preemption_policy, made.priority, made.containers[0].resources.requests)
    assert seen == (
        "Never" if gate == "PreemptionPolicyTransformer" else "PreemptLowerPriority",
        7500 if gate == "PriorityTransformer" else None,
        {BATCH_CPU: "2k"} if gate == "ReplaceResourcesTransformer" else {"cpu": "2"},
    )


def test_the_default_priority_is_that_of_the_resources_as_stated() -> None:
    """Without requests of cpu and memory it would be BestEffort, whose default is that of batch."""
    pod = make_pod("p", cpu="2", annotations=TO_BATCH)
    assert transformed(pod, *TRANSFORMERS).spec.priority == 9500
    assert transformed(make_pod("q"), *TRANSFORMERS).spec.priority == 5500


@pytest.mark.parametrize("priority", [1, 9001, -5])
def test_a_priority_of_its_own_stays(priority: int) -> None:
    pod = make_pod("p", priority=priority, labels={L_PRIORITY_CLASS: "koord-mid"})
    assert set_default_priority(pod) is pod


def test_a_label_lets_a_pod_preempt() -> None:
    pod = make_pod("p", labels={L_PREEMPTION_POLICY: "PreemptLowerPriority"}, preemptionPolicy="Never")
    assert transformed(pod, "PreemptionPolicyTransformer").spec.preemption_policy == "PreemptLowerPriority"


def test_deprecated_names_are_current_before_they_are_replaced() -> None:
    pod = make_pod("p", more={OLD_BATCH_CPU: "500"}, annotations={A_REPLACE_RESOURCES: f"{BATCH_CPU}:example.com/slow"})
    assert make_state().pod_info(replace_pod_resources(pod)).requests == {"example.com/slow": 500}


def test_a_running_pod_counts_once() -> None:
    """The kubelet reports what runs under the names of the spec on the server."""
    amounts: dict[str, Any] = {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}
    pod = convert(
        {
            "metadata": {"name": "p", "uid": "u", "annotations": TO_BATCH},
            "spec": {
                "nodeName": "n0",
                "containers": [{"name": "c", "resources": amounts}],
                "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": amounts}],
            },
            "status": {
                "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "4"}, "resources": amounts}],
                "initContainerStatuses": [{"name": "i", "resources": amounts}],
            },
        },
        Pod,
    )
    made = replace_pod_resources(pod)
    assert make_state().pod_info(made).requests == {BATCH_CPU: 6000}
    seen = made.status.container_statuses[0].resources
    assert seen is not None
    assert seen.limits == {BATCH_CPU: "3k"}
