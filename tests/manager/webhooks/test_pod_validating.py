"""What pods are refused for: classes, whole CPUs, quotas, GPU shapes, labels that an operator demands."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDenied
from koord.manager.webhooks.pod_mutating import AdmissionContext
from koord.manager.webhooks.pod_validating import RequiredLabelRule, parse_rules, validate_pod
from koord.policy.qos import is_legal
from tests.manager.webhooks.admission_builders import Obj, admission_context, container, pod, quota, request

QOS, SUB, CLASS = "koordinator.sh/qosClass", "koordinator.sh/priority", "koordinator.sh/priority-class"
QUOTA, PREEMPTIBLE = "quota.scheduling.koordinator.sh/name", "quota.scheduling.koordinator.sh/preemptible"
CPU = "kubernetes.io/batch-cpu"
GPU, SHARED, CORE = "koordinator.sh/gpu", "koordinator.sh/gpu.shared", "koordinator.sh/gpu-core"
MEMORY, RATIO = "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"

NEEDS_BE = f"labels.{QOS}: Required value: must specify koordinator QoS BE with koordinator colocation resources"
REQUESTS = "pod.spec.containers[*].resources.requests"
NO_CPUS = f"{REQUESTS}: Required value: LSR Pod must declare the requested CPUs"


def fraction(shown: str) -> str:
    return f'{REQUESTS}: Invalid value: "{shown}": the requested CPUs of LSR Pod must be integer'


def fixed(path: str, value: str) -> str:
    return f'{path}: Invalid value: "{value}": field is immutable'


def pair(qos: str, priority_class: str) -> str:
    return f"Pod: Forbidden: {QOS}={qos} and priorityClass={priority_class} cannot be used in combination"


def refusal(
    obj: Obj,
    old: Obj | None = None,
    context: AdmissionContext | None = None,
    rules: tuple[RequiredLabelRule, ...] = (),
) -> str | None:
    verdict = validate_pod(request(obj, old), context or admission_context(), rules)
    if isinstance(verdict, AdmissionDenied):
        assert verdict.code == 400
        return verdict.message
    assert verdict == AdmissionAllowed()
    return None


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        pytest.param(pod(container()), None, id="plain"),
        pytest.param(pod(container(requests={CPU: "1"}), labels={QOS: "BE"}, priority=5500), None, id="batch"),
        pytest.param(pod(container(requests={CPU: "1"}), labels={QOS: "LS"}), NEEDS_BE, id="batch-cpu-of-LS"),
        pytest.param(pod(container(requests={CPU: "0"})), None, id="none-of-it"),
        pytest.param(pod(container(limits={CPU: "5"})), None, id="limits-are-no-requests"),
        pytest.param(pod(initContainers=[container(requests={CPU: "5"})]), NEEDS_BE, id="in-an-init-container"),
        pytest.param(pod(labels={QOS: "BE"}), pair("BE", ""), id="BE-without-priority"),
        pytest.param(pod(labels={QOS: "BE"}, priority=9500), pair("BE", "koord-prod"), id="BE-prod"),
        pytest.param(pod(labels={QOS: "BE"}, priority=3500), None, id="BE-free"),
        pytest.param(pod(labels={QOS: "BE", CLASS: "odd"}, priority=5500), pair("BE", ""), id="an-odd-label-is-none"),
        pytest.param(pod(labels={QOS: "BE", CLASS: "koord-batch"}, priority=9500), None, id="label-before-number"),
        pytest.param(pod(container(requests={"cpu": "2"}), labels={QOS: "LSE"}, priority=5500), None, id="LSE-batch"),
        pytest.param(pod(labels={QOS: "misspelt"}), None, id="an-odd-class-is-none"),
        pytest.param(pod(container(requests={"cpu": "1"}), labels={QOS: "LSR"}, priority=9500), None, id="LSR"),
        pytest.param(pod(container(), labels={QOS: "LSR"}, priority=9500), NO_CPUS, id="LSR-without-cpus"),
        pytest.param(pod(container(limits={"cpu": "1"}), labels={QOS: "LSE"}), NO_CPUS, id="LSE-with-limits-only"),
        pytest.param(
            pod(container(requests={"cpu": "100m"}), labels={QOS: "LSR"}, priority=9500),
            fraction("100m"),
            id="fraction",
        ),
        pytest.param(
            pod(
                container("a", requests={"cpu": "500m"}),
                container("b", requests={"cpu": "1500m"}),
                labels={QOS: "LSR"},
                priority=9500,
            ),
            None,
            id="whole-in-sum",
        ),
        pytest.param(
            pod(container(requests={"cpu": "1"}), labels={QOS: "LSR"}, priority=9500, overhead={"cpu": "100m"}),
            fraction("1100m"),
            id="overhead-counts",
        ),
        pytest.param(
            pod(container(requests={CPU: "5"}), labels={QOS: "LSR"}, priority=3500),
            f"[{NEEDS_BE}, {pair('LSR', 'koord-free')}, {NO_CPUS}]",
            id="several-at-once",
        ),
        pytest.param(
            pod(labels={QOS: "BE"}, annotations={"scheduling.koordinator.sh/reserve-pod": ""}),
            "annotations.scheduling.koordinator.sh/reserve-pod: Forbidden: cannot set in annotations",
            id="a-reservation-in-disguise",
        ),
        pytest.param(
            pod(container(requests={"cpu": "much"})),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            id="no-quantity",
        ),
    ],
)
def test_creation(obj: Obj, why: str | None) -> None:
    assert refusal(obj) == why


@pytest.mark.parametrize(
    ("new", "old", "why"),
    [
        pytest.param(pod(labels={QOS: "LS"}), pod(labels={QOS: "LS"}), None, id="same"),
        pytest.param(pod(labels={QOS: "LS"}), pod(), fixed(f"labels.{QOS}", "LS"), id="class-added"),
        pytest.param(pod(), pod(labels={QOS: "LS"}), fixed(f"labels.{QOS}", ""), id="class-removed"),
        pytest.param(pod(labels={QOS: "XX"}), pod(), None, id="odd-classes-are-none"),
        pytest.param(pod(priority=9500), pod(priority=9001), None, id="within-a-band"),
        pytest.param(pod(priority=9500), pod(priority=1), fixed("spec.priority", "koord-prod"), id="another-band"),
        pytest.param(pod(labels={SUB: "8"}), pod(labels={SUB: "1"}), fixed(f"labels.{SUB}", "8"), id="sub-priority"),
        pytest.param(
            pod(labels={QOS: "LS", SUB: "2"}, priority=9500),
            pod(labels={QOS: "BE", SUB: "1"}, priority=5500),
            f"[{fixed(f'labels.{QOS}', 'LS')}, {fixed('spec.priority', 'koord-prod')}, {fixed(f'labels.{SUB}', '2')}]",
            id="everything",
        ),
        pytest.param(
            pod(labels={PREEMPTIBLE: "false"}), pod(), "Preemptible label is forbidden modify now.", id="preemptible"
        ),
    ],
)
def test_updates(new: Obj, old: Obj, why: str | None) -> None:
    assert refusal(new, old) == why


def test_sub_priority_may_change_behind_a_gate() -> None:
    context = admission_context(ColocationProfileSkipValidatingPriority=True)
    assert refusal(pod(labels={SUB: "8"}), pod(labels={SUB: "1"}), context) is None


_QOS = st.sampled_from(["LSE", "LSR", "LS", "BE", "SYSTEM", ""])
_CLASSES = st.sampled_from(["koord-prod", "koord-mid", "koord-batch", "koord-free", ""])


@given(qos=_QOS, priority_class=_CLASSES)
def test_only_legal_pairs_pass(qos: str, priority_class: str) -> None:
    labels = {key: value for key, value in ((QOS, qos), (CLASS, priority_class)) if value}
    why = refusal(pod(container(requests={"cpu": "1"}), labels=labels))
    assert why == (None if is_legal(qos, priority_class) else pair(qos, priority_class))


class Test_quotas:
    QUOTAS = (quota("parent", namespaces='["shop"]', is_parent="true"), quota("child", parent="parent"))
    LINKED = "pod can not be linked to a parentQuotaGroup,quota:parent, pod:pod"

    @pytest.mark.parametrize(
        ("labels", "why"),
        [
            pytest.param({QUOTA: "parent"}, LINKED, id="by-label"),
            pytest.param({}, LINKED, id="by-namespace"),
            pytest.param({QUOTA: "child"}, None, id="a-leaf"),
            pytest.param({QUOTA: "unknown"}, None, id="unknown"),
        ],
    )
    def test_parents_take_no_pods(self, labels: Obj, why: str | None) -> None:
        assert refusal(pod(labels=labels), context=admission_context(quotas=self.QUOTAS)) == why
        assert refusal(pod(labels=labels), pod(), admission_context(quotas=self.QUOTAS)) == why

    def test_a_gate_lets_them(self) -> None:
        assert refusal(pod(), context=admission_context(quotas=self.QUOTAS, SupportParentQuotaSubmitPod=True)) is None

    def test_without_a_default_only_labels_count(self) -> None:
        assert refusal(pod(), context=admission_context(quotas=self.QUOTAS, DisableDefaultQuota=True)) is None


@pytest.mark.parametrize(
    ("requests", "why"),
    [
        pytest.param({GPU: "50"}, None, id="half-a-card"),
        pytest.param({GPU: "200"}, None, id="two-cards"),
        pytest.param({GPU: "120"}, 'Invalid value: "120": the requested GPU must be percentage of 100', id="odd"),
        pytest.param({GPU: "0"}, 'Invalid value: "0": the requested GPU must be greater than zero', id="no-card"),
        pytest.param(
            {GPU: "100", SHARED: "1"}, "Forbidden: Forbidden declare GPU and GPU share at same time", id="two-ways"
        ),
        pytest.param(
            {SHARED: "0"}, 'Invalid value: "0": the requested GPU must be greater than zero', id="share-of-none"
        ),
        pytest.param({SHARED: "1"}, "Forbidden: GPU memory and GPU memory ratio all is zero", id="no-memory"),
        pytest.param(
            {SHARED: "1", MEMORY: "1Gi", RATIO: "50"},
            "Forbidden: declare GPU memory and GPU memory ratio at same time",
            id="memory-twice",
        ),
        pytest.param({SHARED: "2", CORE: "150", RATIO: "150"}, None, id="even-shares"),
        pytest.param(
            {SHARED: "2", CORE: "151", RATIO: "100"},
            'Invalid value: "151": the requested gpuCore must multiple of shared',
            id="uneven-core",
        ),
        pytest.param(
            {SHARED: "2", CORE: "100", RATIO: "151"},
            'Invalid value: "151": the requested gpuMemoryRatio must multiple of shared',
            id="uneven-ratio",
        ),
        pytest.param({SHARED: "1", "huawei.com/npu-core": "4"}, None, id="another-make"),
        pytest.param({CORE: "151"}, None, id="core-alone"),
    ],
)
def test_gpu_shapes(requests: Obj, why: str | None) -> None:
    obj = pod(container("a", requests=requests), container("b", requests=requests))
    assert refusal(obj, context=admission_context(ValidatePodDeviceResource=True)) == (why and f"{REQUESTS}: {why}")
    assert refusal(obj) is None


class Test_demanded_labels:
    RULES = (
        RequiredLabelRule(name="a", required_labels=("one", "two"), namespace_whitelist=("night",)),
        RequiredLabelRule(required_labels=("x",)),
    )

    @pytest.mark.parametrize(
        ("labels", "why"),
        [
            pytest.param({"x": ""}, "required labels are missing: [one two]", id="two"),
            pytest.param({"one": "", "x": ""}, "required label 'two' is missing", id="one"),
            pytest.param({"one": "", "two": ""}, "required label 'x' is missing", id="the-next-rule"),
            pytest.param({"one": "", "two": "", "x": ""}, None, id="none"),
            pytest.param({"pod.koordinator.sh/skip-enhanced-validation": "true"}, None, id="excused"),
        ],
    )
    def test_missing(self, labels: Obj, why: str | None) -> None:
        assert (
            refusal(pod(labels=labels), rules=self.RULES, context=admission_context(EnablePodEnhancedValidator=True))
            == why
        )
        assert refusal(pod(labels=labels), rules=self.RULES) is None

    def test_excused_namespaces(self) -> None:
        obj = pod(labels={"x": ""})
        obj["metadata"]["namespace"] = "night"
        assert refusal(obj, rules=self.RULES, context=admission_context(EnablePodEnhancedValidator=True)) is None

    @pytest.mark.parametrize(
        ("data", "found"),
        [
            pytest.param({}, (), id="absent"),
            pytest.param({"enable": "false", "rules": '[{"requiredLabels":["x"]}]'}, (), id="off"),
            pytest.param({"enable": " TRUE\n", "rules": '[{"requiredLabels":["x"]}]'}, RULES[1:], id="on"),
            pytest.param({"enable": "true"}, (), id="without-rules"),
        ],
    )
    def test_reading(self, data: dict[str, str], found: tuple[RequiredLabelRule, ...]) -> None:
        assert parse_rules(data) == found

    def test_unreadable(self) -> None:
        with pytest.raises(msgspec.DecodeError):
            parse_rules({"enable": "true", "rules": "[{"})


@pytest.mark.parametrize(
    ("operation", "sub", "resource"),
    [
        pytest.param("DELETE", "", "pods", id="deletion"),
        pytest.param("CREATE", "binding", "pods", id="subresource"),
        pytest.param("CREATE", "", "nodes", id="no-pod"),
    ],
)
def test_all_else_passes(operation: str, sub: str, resource: str) -> None:
    asked = request(pod(labels={QOS: "BE"}), operation=operation, sub=sub, resource=resource)
    assert validate_pod(asked, admission_context()) == AdmissionAllowed()


def test_the_system_is_left_alone() -> None:
    obj = pod(labels={QOS: "BE"}, priority=9500)
    obj["metadata"]["namespace"] = "kube-system"
    assert refusal(obj) is None


def test_what_is_no_pod_is_refused() -> None:
    assert refusal({"metadata": {"labels": ["a"]}}) is not None
