"""A pod's requests, limits, scoring requests and QoS class against Kubernetes' own answers and by rule."""

from __future__ import annotations

import functools
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.pod import Pod, PodSpec, PodStatus
from koord.api.kubernetes.pod_resources import (
    compute_qos_class,
    nonzero_requests,
    pod_limits,
    pod_requests,
    recorded_qos_class,
    resource_amounts,
)
from koord.api.model import convert

# 240 random pods with what Kubernetes 1.35.4 computes for them: PodRequests and PodLimits with status, PodRequests
# without, the scheduler's non-zero cpu and memory, and the QoS class.
CASES = Path(__file__).parent / "pod_resource_cases.json.gz"

MI = 1024 * 1024
GI = 1024 * MI


@functools.cache
def _cases() -> list[dict[str, Any]]:
    with gzip.open(CASES) as file:
        cases: list[dict[str, Any]] = json.load(file)
    return cases


@pytest.mark.parametrize("number", range(240))
def test_same_as_kubernetes(number: int) -> None:
    case = _cases()[number]
    pod = convert(case["pod"], Pod)
    nonzero = nonzero_requests(pod.spec, pod.status)
    assert pod_requests(pod.spec, pod.status) == case["requests"]
    assert pod_requests(pod.spec) == case["spec"]
    assert pod_limits(pod.spec, pod.status) == case["limits"]
    assert [nonzero["cpu"], nonzero["memory"]] == case["non0"]
    assert compute_qos_class(pod.spec) == case["qos"]


def test_the_cases_cover_what_makes_pods_different() -> None:
    pods = [case["pod"] for case in _cases()]
    assert {case["qos"] for case in _cases()} == {"Guaranteed", "Burstable", "BestEffort"}
    assert any(case["requests"] != case["spec"] for case in _cases()), "a resize that counts"
    assert any("Infeasible" in json.dumps(pod) for pod in pods)
    assert any("overhead" in pod["spec"] and "resources" in pod["spec"] for pod in pods)
    assert any("Always" in json.dumps(pod["spec"].get("initContainers")) for pod in pods)


def _spec(**fields: Any) -> PodSpec:
    return convert(fields, PodSpec)


def _box(name: str = "c", *, always: bool = False, limits: dict[str, str] | None = None, **requests: str) -> Any:
    box: dict[str, Any] = {"name": name, "resources": {"requests": requests, "limits": limits or {}}}
    return box | ({"restartPolicy": "Always"} if always else {})


@pytest.mark.parametrize(
    ("spec", "requests"),
    [
        pytest.param(_spec(containers=[]), {}, id="empty"),
        pytest.param(_spec(containers=[_box(cpu="1"), _box("d", cpu="250m")]), {"cpu": 1250}, id="containers-add-up"),
        pytest.param(
            _spec(containers=[_box(cpu="1", memory="1Gi")], initContainers=[_box("i", cpu="3")]),
            {"cpu": 3000, "memory": GI},
            id="init-container-is-a-floor",
        ),
        pytest.param(
            _spec(
                containers=[_box(cpu="1")],
                initContainers=[_box("s", cpu="1", always=True), _box("i", cpu="2"), _box("t", cpu="4", always=True)],
            ),
            {"cpu": 6000},
            id="sidecars-count-beside-containers",
        ),
        pytest.param(
            _spec(
                containers=[_box(cpu="1")],
                initContainers=[_box("i", cpu="5"), _box("s", cpu="1", always=True)],
            ),
            {"cpu": 5000},
            id="a-later-sidecar-is-not-under-an-earlier-init-container",
        ),
        pytest.param(
            _spec(
                containers=[_box(cpu="1")],
                initContainers=[_box("s", cpu="1", always=True), _box("i", cpu="5")],
            ),
            {"cpu": 6000},
            id="an-earlier-sidecar-is-under-a-later-init-container",
        ),
        pytest.param(
            _spec(containers=[_box(cpu="1")], overhead={"cpu": "250m", "memory": "120Mi"}),
            {"cpu": 1250, "memory": 120 * MI},
            id="overhead-comes-on-top",
        ),
        pytest.param(
            _spec(
                containers=[{"name": "c", "resources": {"requests": {"cpu": "1", "example.com/gpu": "2"}}}],
                resources={"requests": {"cpu": "3", "hugepages-2Mi": "4Mi"}},
                overhead={"cpu": "1"},
            ),
            {"cpu": 4000, "example.com/gpu": 2, "hugepages-2Mi": 4 * MI},
            id="pod-level-replaces-the-sum-before-overhead",
        ),
        pytest.param(
            _spec(containers=[_box(memory="500m"), _box("d", memory="500m")]),
            {"memory": 1},
            id="rounded-once-at-the-end",
        ),
        pytest.param(_spec(containers=[_box(cpu="0.0001")]), {"cpu": 1}, id="rounded-up"),
        pytest.param(
            _spec(containers=[{"name": "c", "resources": {"requests": {"kubernetes.io/batch-cpu": "1500"}}}]),
            {"kubernetes.io/batch-cpu": 1500},
            id="batch-cpu-is-whole-units",
        ),
    ],
)
def test_requests(spec: PodSpec, requests: dict[str, int]) -> None:
    assert pod_requests(spec) == requests


RESIZED = _spec(containers=[_box(cpu="4", limits={"cpu": "8"})])


def _status(reason: str | None = None, **container: Any) -> PodStatus:
    conditions = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    return convert({"containerStatuses": [{"name": "c", **container}], "conditions": conditions}, PodStatus)


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        pytest.param(_status(), 4000, id="nothing-reported"),
        pytest.param(_status(allocatedResources={"cpu": "6"}), 4000, id="admitted-without-actual-is-not-looked-at"),
        pytest.param(_status(resources={"requests": {"cpu": "5"}}), 5000, id="shrinking-still-holds-the-actual"),
        pytest.param(
            _status(resources={"requests": {"cpu": "1"}}, allocatedResources={"cpu": "6"}), 6000, id="admitted-counts"
        ),
        pytest.param(
            _status(reason="Deferred", resources={"requests": {"cpu": "1"}}), 4000, id="deferred-growth-is-reserved"
        ),
        pytest.param(
            _status(reason="Infeasible", resources={"requests": {"cpu": "1"}}, allocatedResources={"cpu": "2"}),
            2000,
            id="infeasible-growth-is-not",
        ),
    ],
)
def test_resize(status: PodStatus, cpu: int) -> None:
    assert pod_requests(RESIZED, status) == {"cpu": cpu}


@pytest.mark.parametrize(
    ("status", "cpu"),
    [
        pytest.param(_status(resources={"limits": {"cpu": "9"}}), 9000, id="larger-actual-limit"),
        pytest.param(_status(reason="Infeasible", resources={"limits": {"cpu": "2"}}), 2000, id="infeasible"),
        pytest.param(
            _status(resources={"limits": {"cpu": "1"}}, allocatedResources={"cpu": "99"}),
            8000,
            id="admitted-has-no-limit",
        ),
    ],
)
def test_resized_limits(status: PodStatus, cpu: int) -> None:
    assert pod_limits(RESIZED, status) == {"cpu": cpu}


def test_overhead_widens_only_real_limits() -> None:
    spec = _spec(
        containers=[_box(limits={"cpu": "1", "memory": "0"})],
        overhead={"cpu": "1", "memory": "1Mi", "ephemeral-storage": "1Gi"},
    )
    assert pod_limits(spec) == {"cpu": 2000, "memory": 0}


@pytest.mark.parametrize(
    ("spec", "nonzero"),
    [
        pytest.param(
            _spec(containers=[{"name": "a"}, {"name": "b"}]), {"cpu": 200, "memory": 400 * MI}, id="one-default-each"
        ),
        pytest.param(
            _spec(containers=[_box(cpu="0", memory="0")]), {"cpu": 0, "memory": 0}, id="an-explicit-zero-is-believed"
        ),
        pytest.param(
            _spec(containers=[{"name": "a"}], resources={"requests": {"cpu": "2", "memory": "1Gi"}}),
            {"cpu": 2000, "memory": GI},
            id="pod-level-is-believed",
        ),
        pytest.param(
            _spec(containers=[{"name": "a"}, {"name": "b"}], resources={"requests": {"cpu": "2"}}),
            {"cpu": 2000, "memory": 400 * MI},
            id="default-for-what-no-level-mentions",
        ),
    ],
)
def test_nonzero(spec: PodSpec, nonzero: dict[str, int]) -> None:
    assert nonzero_requests(spec) == nonzero


def test_amounts_of_any_list() -> None:
    assert resource_amounts({"cpu": "15500m", "memory": "1Gi", "pods": 110, "kubernetes.io/batch-cpu": "4k"}) == {
        "cpu": 15500,
        "memory": GI,
        "pods": 110,
        "kubernetes.io/batch-cpu": 4000,
    }


def _same(**amount: str) -> Any:
    return {"name": "c", "resources": {"requests": amount, "limits": amount}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(_spec(containers=[{"name": "c"}]), "BestEffort", id="nothing-asked"),
        pytest.param(_spec(containers=[_same(cpu="1", memory="1Gi")]), "Guaranteed", id="limits-equal-requests"),
        pytest.param(_spec(containers=[_same(cpu="1")]), "Burstable", id="memory-without-limit"),
        pytest.param(
            _spec(containers=[_same(cpu="1", memory="1Gi"), {"name": "d"}]), "Burstable", id="one-container-without"
        ),
        pytest.param(
            _spec(containers=[_same(cpu="1", memory="1Gi")], initContainers=[{"name": "i"}]),
            "Burstable",
            id="init-containers-count",
        ),
        pytest.param(
            _spec(containers=[_box(cpu="1", memory="1Gi", limits={"cpu": "1000m", "memory": "1024Mi"})]),
            "Guaranteed",
            id="spelling-does-not-matter",
        ),
        pytest.param(
            _spec(containers=[{"name": "c", "resources": {"requests": {"ephemeral-storage": "1Gi", "cpu": "0"}}}]),
            "BestEffort",
            id="zero-and-other-resources-do-not-count",
        ),
        pytest.param(
            _spec(containers=[_same(cpu="1", memory="1Gi")], resources={"requests": {"cpu": "1"}}),
            "Burstable",
            id="pod-level-hides-containers",
        ),
        pytest.param(
            _spec(
                containers=[{"name": "c"}],
                resources={"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
            ),
            "Guaranteed",
            id="pod-level-alone-is-enough",
        ),
    ],
)
def test_qos(spec: PodSpec, expected: str) -> None:
    assert compute_qos_class(spec) == expected


def test_recorded_qos_wins() -> None:
    pod = convert({"spec": {"containers": [_same(cpu="1", memory="1Gi")]}, "status": {"qosClass": "Burstable"}}, Pod)
    assert recorded_qos_class(pod) == "Burstable"
    assert recorded_qos_class(Pod(spec=pod.spec)) == "Guaranteed"


CPU = st.integers(0, 5_000).map(lambda milli: f"{milli}m")
INIT = st.lists(st.tuples(CPU, st.booleans()), max_size=4)


def _with(containers: list[str], init: list[tuple[str, bool]]) -> PodSpec:
    return _spec(
        containers=[_box(f"c{n}", cpu=cpu) for n, cpu in enumerate(containers)],
        initContainers=[_box(f"i{n}", cpu=cpu, always=always) for n, (cpu, always) in enumerate(init)],
    )


def _cpu(spec: PodSpec) -> int:
    return pod_requests(spec).get("cpu", 0)


@given(containers=st.lists(CPU, max_size=4), init=INIT, more=CPU)
def test_more_containers_never_ask_for_less(containers: list[str], init: list[tuple[str, bool]], more: str) -> None:
    before = _cpu(_with(containers, init))
    assert _cpu(_with([*containers, more], init)) >= before
    assert _cpu(_with(containers, [*init, (more, False)])) >= before
    assert _cpu(_with(containers, [*init, (more, True)])) >= before


@given(containers=st.permutations(["1m", "20m", "300m"]), init=INIT)
def test_order_of_containers_does_not_matter(containers: list[str], init: list[tuple[str, bool]]) -> None:
    assert _cpu(_with(containers, init)) == _cpu(_with(["1m", "20m", "300m"], init))


@given(init=st.lists(CPU, min_size=1, max_size=4))
def test_plain_init_containers_share_one_moment(init: list[str]) -> None:
    assert _cpu(_with([], [(cpu, False) for cpu in init])) == max(int(cpu[:-1]) for cpu in init)
    assert _cpu(_with([], [(cpu, True) for cpu in init])) == sum(int(cpu[:-1]) for cpu in init)
