"""What profiles do to a pod that is being created: matching, chance, the order of steps, patches, refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDenied
from koord.manager.webhooks.pod_mutating import AdmissionContext, mutate_pod
from tests.manager.webhooks.admission_builders import Obj, admission_context, container, pod, profile, request

QOS = "koordinator.sh/qosClass"
ON = {"matchLabels": {"app": "x"}}
KEEP = {"config.koordinator.sh/skip-update-resources": "false"}  # the key counts, not the value


def mutated(obj: Obj, context: AdmissionContext) -> Obj:
    before = copy.deepcopy(obj)
    verdict = mutate_pod(request(obj), context)
    assert obj == before, "what was sent must not change"
    assert isinstance(verdict, AdmissionAllowed), verdict
    return verdict.object or obj


def refusal(obj: Obj, context: AdmissionContext) -> AdmissionDenied:
    verdict = mutate_pod(request(obj), context)
    assert isinstance(verdict, AdmissionDenied)
    return verdict


@pytest.mark.parametrize(
    ("spec", "labels", "matches"),
    [
        pytest.param({}, {}, True, id="no-selectors"),
        pytest.param({"selector": {}, "namespaceSelector": {}}, {}, True, id="empty-selectors"),
        pytest.param({"selector": ON}, {"app": "x"}, True, id="labels-match"),
        pytest.param({"selector": ON}, {"app": "y"}, False, id="labels-differ"),
        pytest.param(
            {"selector": ON, "namespaceSelector": {"matchLabels": {"team": "web"}}}, {"app": "x"}, True, id="both"
        ),
        pytest.param({"namespaceSelector": {"matchLabels": {"team": "batch"}}}, {}, False, id="another-namespace"),
        pytest.param(
            {"selector": {"matchExpressions": [{"key": "app", "operator": "Near"}]}}, {}, True, id="unreadable-selector"
        ),
        pytest.param(
            {"selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}}, {}, True, id="in-without-values"
        ),
        pytest.param(
            {"selector": ON, "namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Near"}]}},
            {},
            False,
            id="one-unreadable-selector-leaves-the-other",
        ),
    ],
)
def test_matching(spec: Obj, labels: Obj, matches: bool) -> None:
    after = mutated(pod(labels=labels), admission_context(profile(labels={"seen": "1"}, **spec)))
    assert ("seen" in after["metadata"].get("labels", {})) is matches


def test_an_unknown_namespace_counts_as_a_match() -> None:
    obj = pod()
    obj["metadata"]["namespace"] = "brand-new"
    context = admission_context(profile(labels={"seen": "1"}, namespaceSelector={"matchLabels": {"team": "nobody"}}))
    assert mutated(obj, context)["metadata"]["labels"] == {"seen": "1"}


def test_an_unreadable_profile_says_so() -> None:
    broken = profile(probability="often", selector={"matchExpressions": [{"key": "app", "operator": "Near"}]})
    (compiled,) = admission_context(broken).profiles
    assert compiled.warnings == (
        "probability: invalid value for IntOrString: invalid type: string is not a percentage",
        'selector: "Near" is not a valid label selector operator; it matches everything',
    )


@pytest.mark.parametrize("namespace", ["kube-system", "koordinator-system"])
def test_the_system_is_left_alone(namespace: str) -> None:
    obj = pod(container(requests={"koordinator.sh/gpu": "100"}), priority=5500)
    obj["metadata"]["namespace"] = namespace
    assert mutate_pod(request(obj), admission_context(profile(qosClass="BE"))) == AdmissionAllowed()


def test_an_absent_namespace_is_the_requests_and_stays_absent() -> None:
    obj = pod()
    del obj["metadata"]["namespace"]
    context = admission_context(profile(qosClass="BE", namespaceSelector={"matchLabels": {"team": "web"}}))
    assert mutated(obj, context)["metadata"] == {"name": "pod", "labels": {QOS: "BE"}}


@pytest.mark.parametrize(
    ("probability", "draw", "applies"),
    [
        pytest.param(None, 99, True, id="unset"),
        pytest.param(100, 99, True, id="100"),
        pytest.param("100%", 99, True, id="all-in-percent"),
        pytest.param(0, 0, False, id="0"),
        pytest.param("0%", 0, False, id="none-in-percent"),
        pytest.param(50, 70, False, id="draw-above"),
        pytest.param("50%", 70, False, id="draw-above-in-percent"),
        pytest.param(50, 30, True, id="draw-below"),
        pytest.param(50, 50, True, id="draw-equal"),
        pytest.param(150, 99, True, id="more-than-all"),
        pytest.param(-1, 0, False, id="less-than-none"),
    ],
)
def test_chance(probability: int | str | None, draw: int, applies: bool) -> None:
    spec: Obj = {} if probability is None else {"probability": probability}
    after = mutated(pod(), admission_context(profile(labels={"seen": "1"}, **spec), draw=draw))
    assert ("labels" in after["metadata"]) is applies


def test_a_probability_that_is_no_number_fails_what_it_matches() -> None:
    context = admission_context(profile(probability="abc", selector=ON))
    words = "invalid value for IntOrString: invalid type: string is not a percentage"
    assert refusal(pod(labels={"app": "x"}), context) == AdmissionDenied(500, words)
    assert mutated(pod(), context) == pod()


def test_the_steps_come_in_order() -> None:
    context = admission_context(
        profile(
            labels={"two": "given"},
            annotations={"note": "given"},
            labelKeysMapping={"one": "copied", "two": "copied-too", "none": "empty"},
            annotationKeysMapping={"note": "noted"},
            labelSuffixes={"one": "-x", "two": "-y", "none": "-z"},
            koordinatorPriority=0,
            schedulerName="koord-scheduler",
        )
    )
    after = mutated(pod(labels={"one": "v"}, schedulerName="default-scheduler"), context)
    assert after["metadata"]["labels"] == {
        "one": "v-x",
        "two": "given-y",
        "copied": "v",
        "copied-too": "given",
        "empty": "",
        "koordinator.sh/priority": "0",
    }
    assert after["metadata"]["annotations"] == {"note": "given", "noted": "given"}
    assert after["spec"]["schedulerName"] == "koord-scheduler"


def test_later_profiles_win_and_see_the_pod_as_it_was_sent() -> None:
    context = admission_context(
        profile("b", labels={"app": "y", "who": "b"}),
        profile("a", labels={"app": "x", "who": "a"}),
        profile("c", selector=ON, labels={"never": "1"}),
    )
    assert mutated(pod(), context)["metadata"]["labels"] == {"app": "y", "who": "b"}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param("koord-batch", "PreemptLowerPriority", id="preempts"),
        pytest.param("never", "Never", id="never-preempts"),
        pytest.param("silent", None, id="says-nothing"),
    ],
)
def test_priority_and_policy_come_with_the_class(name: str, policy: str | None) -> None:
    """The API server refuses a pod whose preemptionPolicy is not that of its class."""
    spec = mutated(pod(priority=1, preemptionPolicy="Other"), admission_context(profile(priorityClassName=name)))[
        "spec"
    ]
    assert spec["priorityClassName"] == name
    assert spec.get("preemptionPolicy") == policy


def test_a_class_that_is_not_there_is_an_error() -> None:
    denied = refusal(pod(), admission_context(profile(priorityClassName="gone")))
    assert denied == AdmissionDenied(500, 'PriorityClass.scheduling.k8s.io "gone" not found')


class Test_patches:
    def test_lists_merge_by_name_and_new_containers_are_translated(self) -> None:
        side = {"name": "side", "image": "s", "resources": {"requests": {"cpu": "1"}}}
        context = admission_context(profile(priorityClassName="koord-batch", patch={"spec": {"containers": [side]}}))
        after = mutated(pod(container(requests={"memory": "1Gi"})), context)
        assert [c["resources"]["requests"] for c in after["spec"]["containers"]] == [
            {"kubernetes.io/batch-cpu": "1k"},
            {"kubernetes.io/batch-memory": "1Gi"},
        ]

    def test_nulls_take_away(self) -> None:
        context = admission_context(profile(labels={"a": "1"}, patch={"metadata": {"labels": {"a": None, "b": None}}}))
        assert mutated(pod(labels={"b": "2", "c": "3"}), context)["metadata"]["labels"] == {"c": "3"}

    def test_no_directive_is_left_over(self) -> None:
        volume = {"name": "v", "$retainKeys": ["name", "emptyDir"], "emptyDir": {}}
        patch = {"spec": {"$setElementOrder/volumes": [{"name": "v"}], "volumes": [volume]}}
        assert mutated(pod(), admission_context(profile(patch=patch)))["spec"]["volumes"] == [
            {"name": "v", "emptyDir": {}}
        ]

    @pytest.mark.parametrize(
        "patch",
        [
            pytest.param({"spec": {"containers": "all"}}, id="text-for-a-list"),
            pytest.param({"spec": {"containers": [{"image": "x"}]}}, id="no-name-to-merge-by"),
            pytest.param({"spec": {"priority": "high"}}, id="text-for-a-number"),
        ],
    )
    def test_what_makes_no_pod_is_refused(self, patch: Obj) -> None:
        assert refusal(pod(container()), admission_context(profile(patch=patch))).code == 500

    def test_fields_that_nobody_knows_survive(self) -> None:
        obj = pod(container(fromTheFuture={"x": 1}), alsoNew=[1])
        after = mutated(
            obj, admission_context(profile(priorityClassName="koord-batch", patch={"spec": {"hostNetwork": True}}))
        )
        assert after["spec"]["alsoNew"] == [1]
        assert after["spec"]["containers"][0]["fromTheFuture"] == {"x": 1}


@pytest.mark.parametrize(
    ("operation", "sub", "resource"),
    [
        pytest.param("UPDATE", "", "pods", id="update"),
        pytest.param("CREATE", "status", "pods", id="status"),
        pytest.param("CREATE", "eviction", "pods", id="eviction"),
        pytest.param("CREATE", "", "nodes", id="no-pod"),
    ],
)
def test_all_else_stays_as_it_is(operation: str, sub: str, resource: str) -> None:
    asked = request(pod(), operation=operation, sub=sub, resource=resource)
    assert mutate_pod(asked, admission_context(profile(qosClass="BE"))) == AdmissionAllowed()


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param({"metadata": {"labels": ["a"]}}, id="labels-are-a-list"),
        pytest.param({"spec": {"containers": [{"name": 1}]}}, id="a-name-is-a-number"),
    ],
)
def test_what_is_no_pod_is_refused(obj: Obj) -> None:
    assert refusal(obj, admission_context(profile(qosClass="BE"))).code == 400


def test_nulls_are_nothing() -> None:
    obj: Obj = {"metadata": {"labels": None}, "spec": {"containers": [None, {"name": "m", "resources": None}]}}
    after = mutated(
        obj, admission_context(profile(qosClass="BE", priorityClassName="koord-batch", labelSuffixes={"a": "b"}))
    )
    assert after["metadata"]["labels"] == {QOS: "BE"}


_KEYS = st.sampled_from(["a", "b", "c", "app"])
_TEXTS = st.dictionaries(_KEYS, st.sampled_from(["", "x", "y"]), max_size=3)
_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "selector": st.fixed_dictionaries({"matchLabels": _TEXTS}),
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "labelKeysMapping": st.dictionaries(_KEYS, _KEYS, max_size=2),
        "labelSuffixes": _TEXTS,
        "qosClass": st.sampled_from(["BE", "LS", "LSR"]),
        "priorityClassName": st.sampled_from(["koord-prod", "koord-mid", "koord-batch", "koord-free"]),
        "probability": st.sampled_from([0, 30, 100, "50%"]),
        "patch": st.sampled_from(
            [
                {"metadata": {"labels": {"a": None}}},
                {"spec": {"containers": [{"name": "main", "env": [{"name": "E", "value": "1"}]}]}},
                {"spec": {"overhead": {"cpu": "100m"}}},
            ]
        ),
    },
)
_AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "koordinator.sh/gpu"]),
    st.sampled_from(["1", "200"]),
    max_size=3,
)


@given(specs=st.lists(_SPECS, max_size=4), labels=_TEXTS, requests=_AMOUNTS, limits=_AMOUNTS, draw=st.integers(0, 99))
def test_nothing_given_is_ever_changed(specs: list[Any], labels: Obj, requests: Obj, limits: Obj, draw: int) -> None:
    context = admission_context(*(profile(f"p{i}", **spec) for i, spec in enumerate(specs)), draw=draw)
    patches = copy.deepcopy([p.patch for p in context.profiles])
    obj = pod(container(requests=requests, limits=limits), labels=dict(labels))
    first = mutated(obj, context)
    assert mutated(copy.deepcopy(obj), context) == first, "the same request, the same answer"
    assert [p.patch for p in context.profiles] == patches


@given(requests=_AMOUNTS, limits=_AMOUNTS, name=st.sampled_from(["koord-mid", "koord-batch"]))
def test_translated_pods_ask_nothing_of_the_node_itself(requests: Obj, limits: Obj, name: str) -> None:
    after = mutated(
        pod(container(requests=requests, limits=limits)), admission_context(profile(priorityClassName=name))
    )
    resources = after["spec"]["containers"][0].get("resources", {})
    for side in ("requests", "limits"):
        assert not {"cpu", "memory"} & resources.get(side, {}).keys()
    again = mutated(after, admission_context(profile(priorityClassName=name)))
    assert again == after, "a second time there is nothing left to do"


def test_any_profile_can_keep_resources_even_one_left_to_chance() -> None:
    obj = pod(container(requests={"cpu": "1"}))
    context = admission_context(profile("a", priorityClassName="koord-batch"), profile("b", KEEP, probability=0))
    assert mutated(obj, context)["spec"]["containers"] == obj["spec"]["containers"]


def test_a_profile_that_chance_spares_still_translates() -> None:
    after = mutated(pod(container(requests={"cpu": "1"}), priority=5999), admission_context(profile(probability=0)))
    assert after["spec"]["containers"][0]["resources"]["requests"] == {"kubernetes.io/batch-cpu": "1k"}


def test_no_profile_no_translation() -> None:
    obj = pod(container(requests={"cpu": "1"}), priority=5999)
    assert mutate_pod(request(obj), admission_context()) == AdmissionAllowed()


def test_the_gate_keeps_resources() -> None:
    obj = pod(container(requests={"cpu": "1"}), priority=5999)
    assert (
        mutate_pod(request(obj), admission_context(profile(), ColocationProfileSkipMutatingResources=True))
        == AdmissionAllowed()
    )
