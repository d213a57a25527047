"""What follows from a pod's resources at creation: tiers, the annotation for runtimes, quota pools, GPU shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.kubernetes.meta import LabelSelector, LabelSelectorRequirement
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDenied
from koord.manager.webhooks.pod_mutating import AdmissionContext, mutate_pod
from tests.manager.webhooks.admission_builders import Obj, admission_context, container, pod, profile, quota, request

CPU, MEMORY = "kubernetes.io/batch-cpu", "kubernetes.io/batch-memory"
NOTE = "node.koordinator.sh/extended-resource-spec"
QUOTA = "quota.scheduling.koordinator.sh/name"
GPU, CORE, RATIO = "koordinator.sh/gpu", "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"
SHARED, GPU_MEMORY = "koordinator.sh/gpu.shared", "koordinator.sh/gpu-memory"


def mutated(obj: Obj, context: AdmissionContext) -> Obj:
    verdict = mutate_pod(request(obj), context)
    assert isinstance(verdict, AdmissionAllowed), verdict
    return verdict.object or obj


@pytest.mark.parametrize(
    ("spec", "labels", "requests"),
    [
        pytest.param({"priority": 5000}, {}, {CPU: "1k"}, id="lowest-batch"),
        pytest.param({"priority": 5999}, {}, {CPU: "1k"}, id="highest-batch"),
        pytest.param({"priority": 6000}, {}, {"cpu": "1"}, id="between-bands"),
        pytest.param({"priority": 7500}, {}, {"kubernetes.io/mid-cpu": "1k"}, id="mid"),
        pytest.param({"priority": 3500}, {}, {"cpu": "1"}, id="free-has-no-tier"),
        pytest.param({"priority": 9500}, {}, {"cpu": "1"}, id="prod"),
        pytest.param({}, {}, {"cpu": "1"}, id="none"),
        pytest.param({}, {"koordinator.sh/qosClass": "BE"}, {CPU: "1k"}, id="by-qos"),
        pytest.param({"priority": 9500}, {"koordinator.sh/priority-class": "koord-batch"}, {CPU: "1k"}, id="by-label"),
        pytest.param(
            {"priority": 5500}, {"koordinator.sh/priority-class": "odd"}, {"cpu": "1"}, id="odd-label-is-none"
        ),
    ],
)
def test_the_class_decides(spec: Obj, labels: Obj, requests: Obj) -> None:
    after = mutated(pod(container(requests={"cpu": "1"}), labels=labels, **spec), admission_context(profile()))
    assert after["spec"]["containers"][0]["resources"]["requests"] == requests


@pytest.mark.parametrize(
    ("given", "made"),
    [
        pytest.param(
            {"limits": {"cpu": "2", "memory": "2Gi"}},
            {"limits": {CPU: "2k", MEMORY: "2Gi"}, "requests": {CPU: "2k", MEMORY: "2Gi"}},
            id="limits-become-requests",
        ),
        pytest.param(
            {"requests": {"cpu": "500m", "memory": "1.5Gi"}},
            {"requests": {CPU: "500", MEMORY: "1536Mi"}},
            id="requests-stay-alone",
        ),
        pytest.param({"requests": {"cpu": "0.3335"}}, {"requests": {CPU: "334"}}, id="rounded-up"),
        pytest.param({"requests": {"cpu": "25"}}, {"requests": {CPU: "25k"}}, id="canonical-text"),
        pytest.param({"requests": {"cpu": "0"}}, {"requests": {CPU: "0"}}, id="zero"),
        pytest.param(
            {"requests": {"cpu": "1", CPU: "7"}, "limits": {"cpu": "2", CPU: "7"}},
            {"requests": {CPU: "1k"}, "limits": {CPU: "2k"}},
            id="native-wins",
        ),
        pytest.param(
            {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
            {"requests": {CPU: "1k", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
            id="others-stay",
        ),
        pytest.param({"limits": {CPU: "5"}}, {"limits": {CPU: "5"}, "requests": {CPU: "5"}}, id="batch-limit-alone"),
    ],
)
def test_forms(given: Obj, made: Obj) -> None:
    after = mutated(pod({"name": "main", "resources": given}, priority=5500), admission_context(profile()))
    assert after["spec"]["containers"][0]["resources"] == made


def test_init_containers_and_overhead_too() -> None:
    obj = pod(
        container(), priority=5500, initContainers=[container("i", requests={"cpu": "1"})], overhead={"memory": "1Mi"}
    )
    spec = mutated(obj, admission_context(profile()))["spec"]
    assert spec["initContainers"][0]["resources"]["requests"] == {CPU: "1k"}
    assert spec["overhead"] == {MEMORY: "1Mi"}


def test_a_text_that_is_no_quantity_is_refused() -> None:
    verdict = mutate_pod(request(pod(container(requests={"cpu": "lots"}), priority=5500)), admission_context(profile()))
    assert isinstance(verdict, AdmissionDenied)
    assert verdict.code == 400


class Test_extended_resource_spec:
    def test_repeats_batch_resources_of_normal_containers(self) -> None:
        obj = pod(
            container("a", requests={CPU: "1000", "cpu": "1"}, limits={MEMORY: "1Gi"}),
            container("b", requests={"kubernetes.io/mid-cpu": "5"}),
            initContainers=[container("i", requests={CPU: "5"})],
        )
        note = mutated(obj, admission_context())["metadata"]["annotations"][NOTE]
        assert note == f'{{"containers":{{"a":{{"limits":{{"{MEMORY}":"1Gi"}},"requests":{{"{CPU}":"1k"}}}}}}}}'

    def test_the_truth_is_left_alone(self) -> None:
        note = json.dumps({"containers": {"main": {"requests": {CPU: "1000"}}}})
        assert (
            mutate_pod(request(pod(container(requests={CPU: "1k"}), annotations={NOTE: note})), admission_context())
            == AdmissionAllowed()
        )

    def test_what_is_no_longer_true_goes(self) -> None:
        note = json.dumps({"containers": {"main": {"requests": {CPU: "1000"}}}})
        assert mutated(pod(container(), annotations={NOTE: note}), admission_context())["metadata"]["annotations"] == {
            NOTE: "{}"
        }

    def test_what_cannot_be_read_is_an_error(self) -> None:
        verdict = mutate_pod(request(pod(annotations={NOTE: "{x"})), admission_context())
        assert isinstance(verdict, AdmissionDenied)
        assert verdict.code == 500

    def test_can_be_switched_off(self) -> None:
        obj = pod(container(requests={CPU: "1"}))
        assert mutate_pod(request(obj), admission_context(DisableExtendedResourceSpec=True)) == AdmissionAllowed()


class Test_quota_pools:
    POOL = LabelSelector(
        match_labels={"pool": "a", "arch": "arm"},
        match_expressions=(LabelSelectorRequirement(key="gpu", operator="DoesNotExist"),),
    )
    ADDED: list[Obj] = [
        {"key": "arch", "operator": "In", "values": ["arm"]},
        {"key": "pool", "operator": "In", "values": ["a"]},
        {"key": "gpu", "operator": "DoesNotExist"},
    ]

    def context(self, pool: LabelSelector | None = None, gate: bool = True) -> AdmissionContext:
        quotas = (
            quota("leaf", tree_id="t"),
            quota("shop-quota", namespaces='["shop"]', tree_id="t"),
            quota("treeless"),
        )
        return admission_context(quotas=quotas, pools={"t": pool or self.POOL}, MultiQuotaTree=gate)

    def terms(self, obj: Obj, context: AdmissionContext) -> Any:
        affinity = mutated(obj, context)["spec"].get("affinity", {}).get("nodeAffinity", {})
        return affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")

    @pytest.mark.parametrize(
        ("labels", "joins"),
        [
            pytest.param({QUOTA: "leaf"}, True, id="by-label"),
            pytest.param({}, True, id="by-namespace"),
            pytest.param({QUOTA: "unknown"}, True, id="unknown-falls-back-to-namespace"),
            pytest.param({QUOTA: "treeless"}, False, id="a-quota-without-tree-decides"),
        ],
    )
    def test_joins(self, labels: Obj, joins: bool) -> None:
        assert self.terms(pod(labels=labels), self.context()) == ([{"matchExpressions": self.ADDED}] if joins else None)

    def test_every_term_that_is_there_gets_it(self) -> None:
        mine: Obj = {"key": "zone", "operator": "Exists"}
        terms = [{"matchExpressions": [mine]}, {"matchFields": [{"key": "metadata.name", "operator": "In"}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        obj = pod(labels={QUOTA: "leaf"}, affinity={"nodeAffinity": required})
        assert self.terms(obj, self.context()) == [
            {"matchExpressions": [mine, *self.ADDED]},
            {**terms[1], "matchExpressions": self.ADDED},
        ]

    def test_a_pool_of_all_nodes_adds_nothing(self) -> None:
        """A term without requirements would match no node."""
        assert self.terms(pod(labels={QUOTA: "leaf"}), self.context(LabelSelector())) is None

    def test_can_be_switched_off(self) -> None:
        assert self.terms(pod(labels={QUOTA: "leaf"}), self.context(gate=False)) is None


@pytest.mark.parametrize(
    ("given", "made"),
    [
        pytest.param({GPU: "200"}, {CORE: "200", RATIO: "200", SHARED: "2"}, id="two-cards"),
        pytest.param({GPU: "50"}, {CORE: "50", RATIO: "50", SHARED: "1"}, id="half-a-card"),
        pytest.param({RATIO: "50"}, {RATIO: "50", SHARED: "1"}, id="half-the-memory"),
        pytest.param({RATIO: "200"}, {RATIO: "200", SHARED: "2"}, id="memory-of-two"),
        pytest.param({RATIO: "150"}, {RATIO: "150", SHARED: "1"}, id="odd-share"),
        pytest.param({CORE: "300", GPU_MEMORY: "8Gi"}, {CORE: "300", GPU_MEMORY: "8Gi", SHARED: "3"}, id="by-core"),
        pytest.param({CORE: "300", RATIO: "100"}, {CORE: "300", RATIO: "100", SHARED: "1"}, id="ratio-before-core"),
        pytest.param({SHARED: "2", CORE: "100"}, {SHARED: "2", CORE: "100"}, id="stated"),
        pytest.param({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "2"}, id="another-name"),
    ],
)
def test_gpu_shapes(given: Obj, made: Obj) -> None:
    after = mutated(pod(container(requests=given, limits=given)), admission_context())
    assert after["spec"]["containers"][0]["resources"] == {"requests": made, "limits": made}


def test_gpu_shapes_make_the_maps_that_they_need() -> None:
    after = mutated(pod(container(requests={GPU: "100"})), admission_context())
    whole = {CORE: "100", RATIO: "100", SHARED: "1"}
    assert after["spec"]["containers"][0]["resources"] == {"requests": whole, "limits": whole}


def test_gpu_shapes_of_init_containers_stay() -> None:
    obj = pod(container(), initContainers=[container("i", requests={GPU: "100"})])
    assert mutate_pod(request(obj), admission_context()) == AdmissionAllowed()


def test_gpu_shapes_can_be_switched_off() -> None:
    obj = pod(container(requests={GPU: "100"}))
    assert mutate_pod(request(obj), admission_context(DisableDeviceResourceSpec=True)) == AdmissionAllowed()
