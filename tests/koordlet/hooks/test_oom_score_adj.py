"""The OOM score of containers."""

from __future__ import annotations

import pytest

from koord.koordlet.hooks import oom_score_adj
from koord.koordlet.hooks.hook import HookPlan, NodeRules
from koord.koordlet.hooks.oom_score_adj import kubelet_oom_score_adj
from tests.koordlet.hooks.hook_builders import a_container, a_pod

POD, SPEC = "koordinator.sh/oom-score-adj", "koordinator.sh/oom-score-adj-spec"


@pytest.mark.parametrize(
    ("annotations", "wanted"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({POD: "-500"}, -500, id="pod"),
        pytest.param({POD: "1000"}, 1000, id="largest"),
        pytest.param({POD: "0"}, 0, id="zero-is-a-value"),
        pytest.param({POD: "1", SPEC: '{"c":-1000}'}, -1000, id="container-beats-pod"),
        pytest.param({POD: "1", SPEC: '{"other":5}'}, 1, id="other-container"),
    ],
)
def test_a_container_has_its_own_value_or_the_pods(annotations: dict[str, str], wanted: int | None) -> None:
    container = a_container(a_pod("LS", annotations=annotations))
    assert oom_score_adj.decide_container(container, NodeRules()) == HookPlan(oom_score_adj=wanted)


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({POD: "1001"}, id="too-large"),
        pytest.param({POD: "x"}, id="no-number"),
        pytest.param({POD: "1", SPEC: '{"c":-1001}'}, id="container-too-small"),
        pytest.param({POD: "1", SPEC: "{"}, id="no-json"),
        pytest.param({POD: "1", SPEC: '{"c":"5"}'}, id="text-for-a-number"),
    ],
)
def test_an_unusable_value_sets_nothing_not_even_the_pods(annotations: dict[str, str]) -> None:
    plan = oom_score_adj.decide_container(a_container(a_pod("LS", annotations=annotations)), NodeRules())
    assert "oom-score-adj" in plan.problem
    assert plan.oom_score_adj is None


def test_the_sandbox_keeps_its_own() -> None:
    sandbox = a_container(a_pod("LS", annotations={POD: "5"}), is_sandbox=True)
    assert oom_score_adj.decide_container(sandbox, NodeRules()) == HookPlan()


@pytest.mark.parametrize(
    ("kube_qos", "priority", "request_percent", "wanted"),
    [
        ("Guaranteed", 0, 50, -997),
        ("BestEffort", None, 0, 1000),
        ("Burstable", 9000, 25, 750),
        ("Burstable", 9000, 0, 999),
        ("Burstable", 9000, 100, 2),
        ("Burstable", 2_000_001_000, 0, -997),
    ],
)
def test_what_the_kubelet_gives(kube_qos: str, priority: int | None, request_percent: int, wanted: int) -> None:
    assert kubelet_oom_score_adj(kube_qos, priority, request_percent << 30, 100 << 30) == wanted
