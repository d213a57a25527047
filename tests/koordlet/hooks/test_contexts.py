"""Contexts of hooks from a pod's spec and from what a runtime tells."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.protocol import BEST_EFFORT, BURSTABLE, GUARANTEED
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.host.cgroup.layout import CGROUPFS, SYSTEMD, CgroupLayout
from koord.koordlet.hooks import batch_resource
from koord.koordlet.hooks.contexts import (
    cgroup_resources,
    container_context,
    container_contexts_of_meta,
    environment,
    pod_context,
    pod_context_of_meta,
    sandbox_context,
)
from koord.koordlet.hooks.hook import CgroupResources, ExtendedAmounts, NodeRules, PodContext
from koord.koordlet.inputs.pod_meta import PodMeta, pod_meta_in_layout

CPU, MEMORY, GI = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory", 1 << 30
SPEC = "node.koordinator.sh/extended-resource-spec"
HALF_A_CORE = (
    '{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"500"},"limits":{"kubernetes.io/batch-cpu":500}}}}'
)
UID = "1a-2b"


def amounts(cpu: str = "", memory: str = "") -> dict[str, str]:
    return {name: text for name, text in (("cpu", cpu), ("memory", memory)) if text}


def a_container(name: str, requests: dict[str, str], limits: dict[str, str], **changes: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests, "limits": limits}, **changes}


def meta_of(*containers: dict[str, Any], driver: str = CGROUPFS, **changes: Any) -> PodMeta:
    raw: dict[str, Any] = {
        "metadata": {"uid": UID, "namespace": "ns", "name": "p"} | changes.pop("metadata", {}),
        "spec": {"containers": list(containers)} | changes.pop("spec", {}),
        "status": {"phase": "Running"} | changes.pop("status", {}),
    }
    return pod_meta_in_layout(convert(raw, Pod), CgroupLayout(driver))


def annotated(text: str) -> dict[str, Any]:
    return {"labels": {"koordinator.sh/qosClass": "BE"}, "annotations": {SPEC: text}}


class TestFromSpec:
    def test_what_a_pod_is(self) -> None:
        meta = meta_of(
            a_container("main", amounts("100m"), {}),
            spec={"runtimeClassName": "kata", "hostNetwork": True},
            status={"podIP": "10.0.0.7", "qosClass": "Burstable"},
        )
        pod = pod_context_of_meta(meta)
        assert (pod.uid, pod.full_name, pod.group) == (UID, "ns/p", f"kubepods/burstable/pod{UID}")
        assert (pod.kube_qos, pod.runtime_class, pod.host_network, pod.ip) == (BURSTABLE, "kata", True, "10.0.0.7")

    @pytest.mark.parametrize(
        ("containers", "spec", "wanted"),
        [
            pytest.param(
                [a_container("a", amounts("500m", "1Gi"), amounts("1", "2Gi"))],
                {},
                CgroupResources(shares=512, quota_us=100_000, memory_bytes=2 * GI),
                id="one",
            ),
            pytest.param(
                [
                    a_container("a", amounts("500m"), amounts("1", "1Gi")),
                    a_container("b", amounts("250m"), amounts("500m")),
                ],
                {},
                CgroupResources(shares=768, quota_us=150_000, memory_bytes=-1),
                id="a-limit-only-where-all-have-one",
            ),
            pytest.param(
                [a_container("a", {}, {})], {}, CgroupResources(shares=2, quota_us=-1, memory_bytes=-1), id="0"
            ),
            pytest.param(
                [a_container("a", amounts("100m"), amounts("1"))],
                {"initContainers": [a_container("once", {}, {})]},
                CgroupResources(shares=102, quota_us=-1, memory_bytes=-1),
                id="an-init-container-without-a-limit",
            ),
            pytest.param(
                [a_container("a", {}, {})],
                {"resources": {"requests": amounts("1"), "limits": amounts("2", "1Gi")}},
                CgroupResources(shares=1024, quota_us=200_000, memory_bytes=GI),
                id="stated-for-the-pod",
            ),
        ],
    )
    def test_a_pod_has_the_resources_that_the_kubelet_gives_it(
        self, containers: list[dict[str, Any]], spec: dict[str, Any], wanted: CgroupResources
    ) -> None:
        assert pod_context_of_meta(meta_of(*containers, spec=spec)).resources == wanted

    def test_containers_have_their_own(self) -> None:
        meta = meta_of(
            a_container("main", amounts("500m"), amounts("1", "1Gi")),
            a_container("plain", {}, {}),
            a_container("limited", {}, amounts("2")),
            spec={"initContainers": [a_container("once", amounts("1"), {})]},
            status={
                "qosClass": "Burstable",
                "containerStatuses": [{"name": "main", "containerID": "containerd://aa"}],
                "initContainerStatuses": [{"name": "once", "containerID": "containerd://bb"}],
            },
            driver=SYSTEMD,
        )
        pod = pod_context_of_meta(meta)
        main, plain, limited, once = container_contexts_of_meta(pod, meta)
        assert (main.name, main.id, main.group) == ("main", "aa", f"{pod.group}/cri-containerd-aa.scope")
        assert main.resources == CgroupResources(shares=512, quota_us=100_000, memory_bytes=GI)
        assert (plain.id, plain.group) == ("", "")
        assert plain.resources == CgroupResources(shares=2, quota_us=-1, memory_bytes=-1)
        assert limited.resources == CgroupResources(shares=2048, quota_us=200_000, memory_bytes=-1)
        assert (once.id, once.resources.shares, once.pod) == ("bb", 1024, pod)

    def test_the_spec_tells_batch_resources_before_the_annotation(self) -> None:
        meta = meta_of(
            a_container("main", {CPU: "1500"}, {CPU: "2k", MEMORY: "1Gi"}),
            a_container("plain", amounts("1"), {}),
            spec={
                "initContainers": [
                    a_container("once", {CPU: "9000"}, {}),
                    a_container("stays", {CPU: "100"}, {}, restartPolicy="Always"),
                ]
            },
            metadata=annotated(HALF_A_CORE),
        )
        assert pod_context_of_meta(meta).extended == {
            "main": ExtendedAmounts(requests={CPU: 1500}, limits={CPU: 2000, MEMORY: GI}),
            "stays": ExtendedAmounts(requests={CPU: 100}),
        }

    def test_the_annotation_stands_in_for_a_spec_without_them(self) -> None:
        meta = meta_of(a_container("main", {}, {}), metadata=annotated(HALF_A_CORE))
        wanted = {"main": ExtendedAmounts(requests={CPU: 500}, limits={CPU: 500})}
        assert pod_context_of_meta(meta).extended == wanted

    def test_the_sandbox(self) -> None:
        pod = pod_context_of_meta(meta_of(a_container("main", {}, {})))
        sandbox = sandbox_context(pod, "g")
        assert (sandbox.is_sandbox, sandbox.group, sandbox.pod, sandbox.name) == (True, "g", pod, "")


def told(cgroup_parent: str, driver: str = CGROUPFS, annotations: dict[str, str] | None = None) -> PodContext:
    return pod_context(
        uid=UID,
        namespace="ns",
        name="p",
        labels={"koordinator.sh/qosClass": "BE"},
        annotations=annotations or {},
        cgroup_parent=cgroup_parent,
        layout=CgroupLayout(driver),
        runtime_handler="kata",
    )


class TestFromTheRuntime:
    @pytest.mark.parametrize(
        ("driver", "parent", "group", "kube_qos"),
        [
            pytest.param(CGROUPFS, "/kubepods/podx", "kubepods/podx", GUARANTEED, id="guaranteed"),
            pytest.param(CGROUPFS, "/kubepods/burstable/podx", "kubepods/burstable/podx", BURSTABLE, id="burstable"),
            pytest.param(
                SYSTEMD,
                "kubepods-besteffort-podx.slice",
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice",
                BEST_EFFORT,
                id="systemd",
            ),
            pytest.param(CGROUPFS, "", "", "", id="not-told"),
        ],
    )
    def test_a_pod(self, driver: str, parent: str, group: str, kube_qos: str) -> None:
        pod = told(parent, driver)
        assert (pod.group, pod.kube_qos, pod.runtime_class, pod.qos) == (group, kube_qos, "kata", "BE")
        assert pod.resources == CgroupResources(), "nobody told them"

    @pytest.mark.parametrize(
        ("annotations", "wanted"),
        [
            pytest.param({}, None, id="none"),
            pytest.param({SPEC: "{}"}, None, id="no-containers"),
            pytest.param(
                {SPEC: '{"containers":{"a":{}}}'}, {"a": ExtendedAmounts()}, id="a-container-without-amounts-counts"
            ),
            pytest.param(
                {SPEC: '{"containers":{"a":{"requests":{"kubernetes.io/batch-cpu":"1k","cpu":"2"}}}}'},
                {"a": ExtendedAmounts(requests={CPU: 1000})},
                id="batch-resources-alone",
            ),
        ],
    )
    def test_batch_resources_come_from_the_annotation(
        self, annotations: dict[str, str], wanted: dict[str, ExtendedAmounts] | None
    ) -> None:
        assert told("/kubepods/podx", annotations=annotations).extended == wanted

    @pytest.mark.parametrize("text", ["{", '{"containers":{"a":{"limits":{"kubernetes.io/batch-cpu":"x"}}}}'])
    def test_an_unreadable_annotation_is_a_problem_of_batch_resources(self, text: str) -> None:
        pod = told("/kubepods/podx", annotations={SPEC: text})
        assert pod.extended is None
        plan = batch_resource.decide_pod(pod, NodeRules())
        assert SPEC in plan.problem
        assert plan.values == ()

    @pytest.mark.parametrize(
        ("driver", "annotations", "runtime", "name"),
        [
            pytest.param(SYSTEMD, {}, "containerd", "cri-containerd-aa.scope", id="containerd"),
            pytest.param(SYSTEMD, {}, "cri-o", "crio-aa.scope", id="cri-o"),
            pytest.param(CGROUPFS, {}, "containerd", "aa", id="cgroupfs"),
            pytest.param(
                SYSTEMD, {"io.kubernetes.docker.type": "container"}, "containerd", "docker-aa.scope", id="docker"
            ),
        ],
    )
    def test_a_container(self, driver: str, annotations: dict[str, str], runtime: str, name: str) -> None:
        pod = told("/kubepods/podx", driver, annotations)
        resources = cgroup_resources(quota_us=5000)
        found = container_context(
            pod=pod,
            name="c",
            id="aa",
            layout=CgroupLayout(driver),
            resources=resources,
            env={"A": "b"},
            runtime=runtime,
        )
        assert (found.group, found.id, found.pod, found.env) == (f"kubepods/podx/{name}", "aa", pod, {"A": "b"})
        assert found.resources.quota_us == 5000
        coming = container_context(pod=pod, name="c", layout=CgroupLayout(driver))
        assert (coming.group, coming.id, coming.env) == ("", "", {})


@pytest.mark.parametrize(
    ("told_amounts", "wanted"),
    [
        pytest.param({}, CgroupResources(), id="nothing-is-set"),
        pytest.param(
            {"shares": 2, "quota_us": -1, "memory_bytes": 5, "cpus": "0"},
            CgroupResources(shares=2, quota_us=-1, memory_bytes=5, cpus="0"),
            id="all-set",
        ),
        pytest.param({"memory_bytes": -7}, CgroupResources(memory_bytes=-1), id="no-memory-limit"),
    ],
)
def test_zero_is_not_set(told_amounts: dict[str, Any], wanted: CgroupResources) -> None:
    assert cgroup_resources(**told_amounts) == wanted


def test_environment() -> None:
    assert environment(["A=1", "B=x=y", "=c", "D=", "E", "A=2"]) == {"A": "2", "B": "x=y"}
