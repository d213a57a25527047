"""Each rule tells a violation from what is just allowed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESOURCE_STATUS, L_QUOTA_NAME
from tests import cluster_rules

Json = dict[str, Any]


def pod(name: str, node: str = "n0", *, quota: str = "", annotations: Json | None = None, **requests: str) -> Json:
    labels = {L_QUOTA_NAME: quota} if quota else {}
    written = {key: json.dumps(value) for key, value in (annotations or {}).items()}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": written},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": requests}}, {}]},
        "status": {},
    }


def node(**allocatable: str) -> Json:
    return {"metadata": {"name": "n0"}, "status": {"allocatable": {"pods": "10", **allocatable}}}


@pytest.mark.parametrize(
    ("requests", "wrong"),
    [
        pytest.param(["1", "1"], 0, id="just-full"),
        pytest.param(["1", "1001m"], 1, id="a-milli-too-much"),
        pytest.param(["2", "1u"], 1, id="less-than-a-milli-too-much"),
    ],
)
def test_overcommitted_nodes(requests: list[str], wrong: int) -> None:
    pods = [pod(str(number), cpu=cpu) for number, cpu in enumerate(requests)]
    assert len(cluster_rules.overcommitted_nodes(pods, [node(cpu="2")])) == wrong
    assert cluster_rules.overcommitted_nodes(pods, [node(cpu="2")], ("memory",)) == []


def test_nodes_have_room_for_so_many_pods() -> None:
    pods = [pod(str(number)) for number in range(11)]
    assert cluster_rules.overcommitted_nodes(pods[:10], [node()]) == []
    assert cluster_rules.overcommitted_nodes(pods, [node()]) == ["node n0: 11 of pods are more than it has"]


def test_a_resource_that_a_node_lacks_is_none() -> None:
    assert len(cluster_rules.overcommitted_nodes([pod("a", memory="1")], [node(cpu="2")])) == 1


def cpus(name: str, text: str, on: str = "n0") -> Json:
    return pod(name, on, annotations={A_RESOURCE_STATUS: {"cpuset": text}})


def test_cpus_given_twice() -> None:
    assert cluster_rules.cpus_given_twice([cpus("a", "0-1"), cpus("b", "2"), cpus("c", "0", "n1"), pod("d")]) == []
    assert cluster_rules.cpus_given_twice([cpus("a", "0-1"), cpus("b", "1-2")]) == ["CPU 1 of n0: ['a', 'b']"]


def card(name: str, percent: str, minor: int = 0) -> Json:
    held = {"gpu": [{"minor": minor, "resources": {cluster_rules.PERCENT_OF_A_CARD: percent}}]}
    return pod(name, annotations={A_DEVICE_ALLOCATED: held})


def test_cards_given_twice() -> None:
    assert cluster_rules.cards_given_twice([card("a", "50"), card("b", "50"), card("c", "100", 1)]) == []
    assert cluster_rules.cards_given_twice([card("a", "50"), card("b", "51")]) == ["card 0 of n0: 101 percent"]


def test_quotas_exceeded() -> None:
    pods = [
        pod("a", quota="q", cpu="1"),
        pod("b", quota="q", cpu="2"),
        pod("c", "", quota="q", cpu="9"),
        pod("d", cpu="9"),
    ]
    assert cluster_rules.quotas_exceeded(pods, {"q": {"cpu": "3", "memory": "1Gi"}, "other": {"cpu": "0"}}) == []
    assert cluster_rules.quotas_exceeded(pods, {"q": {"cpu": "2900m"}}) == ["quota q: 3 of cpu, 2900m allowed"]


@pytest.mark.parametrize(("bound", "partial"), [(0, []), (1, ["g"]), (2, ["g"]), (3, [])])
def test_partial_gangs(bound: int, partial: list[str]) -> None:
    members = [pod(f"g-{number}", "n0" if number < bound else "") for number in range(4)]

    def gang_of(member: Json) -> tuple[str, int] | None:
        return ("g", 3) if member["metadata"]["name"].startswith("g-") else None

    assert cluster_rules.partial_gangs([*members, pod("single")], gang_of) == partial


def test_refused_though_bound() -> None:
    refused = {"conditions": [{"type": "PodScheduled", "status": "False"}]}
    taken = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    bound, waiting = pod("a") | {"status": refused}, pod("b", "") | {"status": refused}
    assert cluster_rules.refused_though_bound([waiting, pod("c") | {"status": taken}]) == []
    (said,) = cluster_rules.refused_though_bound([bound, waiting])
    assert said.startswith("pod a is bound and has PodScheduled=False")


@pytest.mark.parametrize(
    ("before", "now", "wrong"), [("", "", 0), ("", "n0", 0), ("n0", "n0", 0), ("n0", "n1", 1), ("n0", "", 1)]
)
def test_moved_though_bound(before: str, now: str, wrong: int) -> None:
    assert len(cluster_rules.moved_though_bound(pod("a", now), before)) == wrong


def test_bound_twice() -> None:
    def line(name: str, code: int, subresource: str = "binding") -> Json:
        return {
            "objectRef": {"namespace": "x", "name": name, "subresource": subresource},
            "responseStatus": {"code": code},
        }

    assert cluster_rules.bound_twice([line("a", 201), line("a", 409), line("b", 201), line("a", 201, "status")]) == []
    assert cluster_rules.bound_twice([line("a", 201), line("a", 201)]) == ["pod x/a was bound 2 times"]
