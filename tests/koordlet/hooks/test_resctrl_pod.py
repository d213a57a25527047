"""Cache ways and memory bandwidth of single pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.koordlet.hooks import resctrl_pod
from koord.koordlet.hooks.hook import HookPlan, NodeRules, PodContext
from koord.koordlet.hooks.resctrl_pod import AMD, INTEL
from koord.koordlet.inputs.machine import L3Cache
from tests.koordlet.hooks.hook_builders import a_container, a_pod


def on(vendor: str = INTEL, mask: int = 0x3FF, ids: tuple[int, ...] = (0, 1)) -> NodeRules:
    return NodeRules(cache=L3Cache(mask=mask, ids=ids, vendor=vendor))


def asking(annotation: Any) -> PodContext:
    text = annotation if isinstance(annotation, str) else json.dumps(annotation)
    return a_pod("LS", annotations={"node.koordinator.sh/resctrl": text})


def llc(*span: int, **per_cache: list[int]) -> dict[str, Any]:
    return {
        "llc": {
            "schemata": {"range": list(span)},
            "schemataPerCache": [{"cacheID": int(name[1:]), "range": one} for name, one in per_cache.items()],
        }
    }


def mb(percent: int = 0, **per_cache: int) -> dict[str, Any]:
    return {
        "mb": {
            "schemata": {"percent": percent},
            "schemataPerCache": [{"cacheID": int(name[1:]), "percent": one} for name, one in per_cache.items()],
        }
    }


def lines(plan: HookPlan) -> dict[str, dict[int, str]]:
    return {one.resource: dict(one.by_cache) for one in plan.schemata}


@pytest.mark.parametrize(
    ("annotation", "rules", "wanted"),
    [
        pytest.param(llc(10, 80), on(), {"L3": {0: "fe", 1: "fe"}}, id="ways"),
        pytest.param(llc(10, 50), on(mask=0x7FF), {"L3": {0: "3c", 1: "3c"}}, id="eleven-ways"),
        pytest.param(llc(0, 30), on(mask=0x7FF), {"L3": {0: "f", 1: "f"}}, id="from-zero"),
        pytest.param(llc(0, 50, c1=[0, 100]), on(), {"L3": {0: "1f", 1: "3ff"}}, id="one-cache-differs"),
        pytest.param(llc(c0=[0, 50], c1=[50, 100]), on(), {"L3": {0: "1f", 1: "3e0"}}, id="each-cache-its-own"),
        pytest.param(mb(60), on(), {"MB": {0: "60", 1: "60"}}, id="bandwidth"),
        pytest.param(mb(85), on(), {"MB": {0: "90", 1: "90"}}, id="bandwidth-in-tens"),
        pytest.param(mb(60, c1=40), on(), {"MB": {0: "60", 1: "40"}}, id="bandwidth-of-one-cache"),
        pytest.param(mb(100), on(AMD), {"MB": {0: "2048", 1: "2048"}}, id="amd-all"),
        pytest.param(mb(60), on(AMD), {"MB": {0: "96", 1: "96"}}, id="amd-a-part"),
        pytest.param(llc(0, 30) | mb(50), on(), {"L3": {0: "7", 1: "7"}, "MB": {0: "50", 1: "50"}}, id="both"),
        pytest.param({"LLC": {"Schemata": {"Range": [0, 30]}}}, on(), {"L3": {0: "7", 1: "7"}}, id="any-case"),
        pytest.param(llc(0, 50, c7=[0, 50]), on(ids=(0, 7)), {"L3": {0: "1f", 7: "1f"}}, id="ids-with-gaps"),
        pytest.param({}, on(), {}, id="a-group-without-limits"),
    ],
)
def test_a_pod_has_its_shares_in_a_group_of_its_own(
    annotation: Any, rules: NodeRules, wanted: dict[str, dict[int, str]]
) -> None:
    plan = resctrl_pod.decide_pod(asking(annotation), rules)
    assert (plan.problem, plan.resctrl_group) == ("", "koordlet-u")
    assert lines(plan) == wanted
    container = resctrl_pod.decide_container(a_container(asking(annotation)), rules)
    assert container == HookPlan(resctrl_group="koordlet-u")


@pytest.mark.parametrize(
    ("annotation", "wanted", "said"),
    [
        pytest.param(llc(80, 10) | mb(60), {"MB": {0: "60", 1: "60"}}, "llc: 80-10% is no share", id="backwards"),
        pytest.param(llc(10) | mb(60), {"MB": {0: "60", 1: "60"}}, "llc: 10% is no share", id="half-a-range"),
        pytest.param(llc(0, 30) | mb(101), {"L3": {0: "7", 1: "7"}}, "mb: 101% is no share", id="too-much"),
        pytest.param(llc(c0=[0, 50]), {}, "llc: cache 1 has no share", id="one-cache-has-none"),
        pytest.param(llc(0, 50, c9=[0, 50]), {}, "llc: there is no cache 9", id="no-such-cache"),
        pytest.param(llc(0, 50, c1=[]), {}, "llc: none% is no share", id="an-empty-range"),
        pytest.param(mb(c0=10), {}, "mb: cache 1 has no share", id="bandwidth-of-one-cache-alone"),
    ],
)
def test_a_line_that_cannot_be_written_whole_is_left_out(
    annotation: Any, wanted: dict[str, dict[int, str]], said: str
) -> None:
    plan = resctrl_pod.decide_pod(asking(annotation), on())
    assert said in plan.problem
    assert (lines(plan), plan.resctrl_group) == (wanted, "koordlet-u")


@pytest.mark.parametrize(
    ("pod", "rules", "said"),
    [
        pytest.param(asking("{"), on(), "resctrl", id="no-json"),
        pytest.param(asking(llc(0, 50)), NodeRules(), "cannot divide", id="no-such-machine"),
        pytest.param(
            a_pod("LS", uid="a/b", annotations={"node.koordinator.sh/resctrl": "{}"}), on(), "a/b", id="no-name"
        ),
    ],
)
def test_without_a_group_there_is_nothing(pod: PodContext, rules: NodeRules, said: str) -> None:
    plan = resctrl_pod.decide_pod(pod, rules)
    assert said in plan.problem
    assert plan == HookPlan(problem=plan.problem)
    assert resctrl_pod.decide_container(a_container(pod), rules) == HookPlan()


def test_other_pods_stay_in_the_groups_of_their_classes() -> None:
    assert resctrl_pod.decide_pod(a_pod("LS"), on()) == HookPlan()
    assert resctrl_pod.decide_container(a_container(a_pod("LS")), on()) == HookPlan()
    sandbox = a_container(asking(llc(0, 50)), is_sandbox=True)
    assert resctrl_pod.decide_container(sandbox, on()) == HookPlan()
