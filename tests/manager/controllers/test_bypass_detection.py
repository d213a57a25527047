"""Pods that no webhook changed, though a profile is for them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.manager.controllers.webhook_bypass import bypass_evidence
from koord.manager.webhooks.admission import AdmissionAllowed
from koord.manager.webhooks.colocation_profile import ProfileCache
from koord.manager.webhooks.pod_mutating import mutate_pod
from tests.manager.webhooks.admission_builders import (
    NAMESPACES,
    Obj,
    admission_context,
    container,
    pod,
    profile,
    request,
)

BE = profile("be", qosClass="BE", priorityClassName="koord-batch", selector={"matchLabels": {"app": "x"}})


def reason(obj: Obj, *profiles: ClusterColocationProfile) -> str | None:
    return bypass_evidence(convert(obj, Pod), ProfileCache(profiles).profiles, NAMESPACES.get)


def born(obj: Obj, when: str, namespace: str = "shop") -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "creationTimestamp": when, "namespace": namespace}}


def dated(when: str, **spec: Any) -> ClusterColocationProfile:
    return convert({"metadata": {"name": "be", "creationTimestamp": when}, "spec": spec}, ClusterColocationProfile)


def test_a_pod_that_lacks_its_class() -> None:
    assert reason(pod(labels={"app": "x"}), BE) == "profile be gives koordinator.sh/qosClass=BE, the pod has none"


def test_a_batch_pod_on_native_resources() -> None:
    obj = pod(container(requests={"cpu": "1", "memory": "1Gi"}), priority=5500)
    assert reason(obj, profile("b")) == "a koord-batch pod of profile b asks for cpu and memory of the node itself"


NOON, LATER = "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"


@pytest.mark.parametrize(
    ("obj", "given_profile"),
    [
        pytest.param(pod(), BE, id="no-match"),
        pytest.param(
            pod(labels={"app": "x", "koordinator.sh/qosClass": "BE"}, priority=5500), BE, id="as-it-should-be"
        ),
        pytest.param(born(pod(), NOON), dated(LATER, qosClass="BE"), id="older-than-the-profile"),
        pytest.param(born(pod(), LATER, "kube-system"), dated(NOON, qosClass="BE"), id="of-the-system"),
        pytest.param(born(pod(), LATER, "gone"), dated(NOON, qosClass="BE"), id="namespace-unknown"),
        pytest.param(pod(), profile(qosClass="BE", probability=50), id="left-to-chance"),
        pytest.param(pod(), profile(qosClass="BE", labelSuffixes={"koordinator.sh/qosClass": "?"}), id="two-writers"),
        pytest.param(
            pod(container(requests={"cpu": "1"}), priority=5500),
            profile(notes={"config.koordinator.sh/skip-update-resources": ""}),
            id="resources-are-kept",
        ),
        pytest.param(pod(container(requests={"cpu": "1"}), priority=9500), profile(), id="prod-has-no-tier"),
    ],
)
def test_no_reason_to_complain(obj: Obj, given_profile: ClusterColocationProfile) -> None:
    assert reason(obj, given_profile) is None


@settings(max_examples=500)
@given(
    specs=st.lists(
        st.fixed_dictionaries(
            {"notes": st.sampled_from([{}, {"config.koordinator.sh/skip-update-resources": ""}])},
            optional={
                "qosClass": st.sampled_from(["BE", "LS"]),
                "priorityClassName": st.sampled_from(["koord-prod", "koord-mid", "koord-batch", "koord-free"]),
                "probability": st.sampled_from([0, 50, 100]),
                "patch": st.just({"metadata": {"labels": {"koordinator.sh/qosClass": "LSR"}}}),
                "labels": st.sampled_from([{"koordinator.sh/qosClass": "LS"}, {"app": "x"}]),
                "selector": st.sampled_from([{"matchLabels": {"app": "x"}}, {"matchLabels": {"on": "1"}}]),
            },
        ),
        max_size=3,
    ),
    draw=st.integers(0, 99),
    requests=st.dictionaries(st.sampled_from(["cpu", "memory"]), st.just("1")),
)
def test_a_pod_that_went_through_is_never_blamed(specs: list[Any], draw: int, requests: Obj) -> None:
    profiles = [profile(f"p{i}", **spec) for i, spec in enumerate(specs)]
    obj = pod(container(requests=requests), labels={"on": "1"})
    verdict = mutate_pod(request(obj), admission_context(*profiles, draw=draw))
    assert isinstance(verdict, AdmissionAllowed)
    assert reason(verdict.object or obj, *profiles) is None
