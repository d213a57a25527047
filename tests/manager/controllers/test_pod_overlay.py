"""Which waiting pods a profile covers, and what it leaves on them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.profiles import ClusterColocationProfile
from koord.api.koordinator.protocol import L_PRIORITY, L_QOS_CLASS
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert
from koord.api.patch.merge_patch import create_merge_patch
from koord.api.patch.merge_patch import merge_patch as merged
from koord.manager.controllers.colocation_profile import (
    ProfileCoverage,
    compile_coverage,
    is_covered,
    overlay_profile,
    stable_draw,
)

ALL: dict[str, Any] = {"selector": {}}


def ready(**spec: Any) -> ProfileCoverage:
    made = compile_coverage(
        convert({"metadata": {"name": "profile"}, "spec": {**ALL, **spec}}, ClusterColocationProfile)
    )
    assert isinstance(made, ProfileCoverage)
    return made


def pod(labels: dict[str, str] | None = None, uid: str = "u", **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": more.pop("namespace", "team"), "uid": uid, "labels": labels or {}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], **more.pop("spec", {})},
        **more,
    }


@pytest.mark.parametrize(
    ("spec", "obj", "around", "covered"),
    [
        pytest.param({}, pod(), {}, True, id="everything"),
        pytest.param({"selector": None}, pod(), {}, False, id="no-selector-covers-none"),
        pytest.param({"selector": {"matchLabels": {"a": "b"}}}, pod({"a": "b"}), {}, True, id="selected"),
        pytest.param({"selector": {"matchLabels": {"a": "b"}}}, pod(), {}, False, id="not-selected"),
        pytest.param({"namespaceSelector": {"matchLabels": {"x": "y"}}}, pod(), {"x": "y"}, True, id="namespace"),
        pytest.param({"namespaceSelector": {"matchLabels": {"x": "y"}}}, pod(), {}, False, id="other-namespace"),
        pytest.param({"namespaceSelector": {"matchLabels": {"x": "y"}}}, pod(), None, False, id="namespace-gone"),
        pytest.param({"namespaceSelector": {}}, pod(), None, True, id="every-namespace"),
        pytest.param({}, pod(spec={"nodeName": "n"}), {}, False, id="placed"),
        pytest.param({}, pod(status={"phase": "Running"}), {}, False, id="running"),
        pytest.param({}, pod(status={"phase": "Pending"}), {}, True, id="pending"),
        pytest.param({}, pod(namespace="kube-system"), {}, False, id="the-system's-own"),
        pytest.param({"probability": 0}, pod(), {}, False, id="never"),
        pytest.param({"probability": "100%"}, pod(), {}, True, id="always"),
    ],
)
def test_coverage(spec: dict[str, Any], obj: dict[str, Any], around: dict[str, str] | None, covered: bool) -> None:
    assert is_covered(ready(**spec), convert(obj, Pod), around) is covered


@pytest.mark.parametrize(
    "spec",
    [{"probability": "often"}, {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}],
    ids=["probability", "selector"],
)
def test_a_profile_that_cannot_be_read_is_not_applied(spec: dict[str, Any]) -> None:
    assert isinstance(compile_coverage(convert({"spec": {**ALL, **spec}}, ClusterColocationProfile)), str)


def test_a_share_of_the_pods_stays_a_share() -> None:
    half = ready(probability=50)
    for _ in range(3):  # rounds
        chosen = {uid for uid in map(str, range(1000)) if is_covered(half, convert(pod(uid=uid), Pod), {})}
        assert chosen == {uid for uid in map(str, range(1000)) if stable_draw("profile", uid) <= 50}
        assert 430 < len(chosen) < 590


def test_what_is_written_and_what_is_not() -> None:
    profile = ready(
        labels={"a": "1"},
        annotations={"b": "2"},
        qosClass="BE",
        koordinatorPriority=1000,
        schedulerName="koord-scheduler",
        priorityClassName="koord-batch",
        patch={"metadata": {"labels": {"patched": "yes"}}},
    ).profile
    given = pod({"own": "kept"})
    made = overlay_profile(given, profile)
    assert isinstance(made, dict)
    assert made["metadata"]["labels"] == {
        "own": "kept",
        "a": "1",
        L_QOS_CLASS: "BE",
        L_PRIORITY: "1000",
        "patched": "yes",
    }
    assert made["metadata"]["annotations"] == {"b": "2"}
    assert made["spec"] == given["spec"]


labels = st.dictionaries(st.sampled_from(["src", "dst", "x"]), st.sampled_from(["", "v", "v-s", "w"]))
profiles = st.fixed_dictionaries(
    {},
    optional={
        "labels": labels,
        "labelKeysMapping": st.just({"src": "dst"}),
        "labelSuffixes": st.just({"src": "-s"}),
        "qosClass": st.just("BE"),
        "patch": st.just({"spec": {"tolerations": [{"key": "k", "operator": "Exists"}]}}),
    },
)


@given(spec=profiles, own=labels)
def test_applying_twice_changes_nothing(spec: dict[str, Any], own: dict[str, str]) -> None:
    profile = ready(**spec).profile
    given = pod(own)
    before = copy.deepcopy(given)
    once = overlay_profile(given, profile)
    assert given == before
    assert isinstance(once, dict)
    assert overlay_profile(once, profile) == once


json_objects = st.recursive(
    st.one_of(st.booleans(), st.integers(0, 1), st.sampled_from(["a", ""])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from("abc"), json_objects, max_size=3)


@given(old=documents, new=documents)
def test_a_patch_leads_where_it_should(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = create_merge_patch(old, new)
    assert repr(sorted_deep(merged(old, patch))) == repr(sorted_deep(new))
    assert create_merge_patch(new, new) == {}


def sorted_deep(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sorted_deep(value[key]) for key in sorted(value)}
    return [sorted_deep(item) for item in value] if isinstance(value, list) else value
