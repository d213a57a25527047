"""What the webhook says to new, changed and deleted quotas, word for word."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.koordinator.protocol import (
    A_QUOTA_GUARANTEED,
    A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS,
    A_QUOTA_NAMESPACES,
    A_QUOTA_SHARED_WEIGHT,
    L_QUOTA_IS_PARENT,
    L_QUOTA_PARENT,
)
from koord.api.kubernetes.admission import AdmissionRequest
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDenied
from koord.manager.webhooks.quota.topology import QuotaDeleteAdmitted, QuotaTopology, QuotaWriteAdmitted
from tests.manager.webhooks.quota.quota_builders import LARGE, Pods, quota, quota_info, request, ruling, topology_of

KEYS = "failed to check sub and parent group quotaKey, err: checkSubAndParentGroupQuotaKey failed: "
PARENT = quota("p", min={"cpu": 10, "memory": "10Gi"}, max={"cpu": 20, "memory": "20Gi"}, is_parent=True)
CHILD = quota("c1", max={"cpu": 20, "memory": "20Gi"}, parent="p")
STRICT = A_QUOTA_MAX_STRICT_CHECK_RESOURCE_KEYS
ROOM = {"cpu": 20, "memory": "20Gi"}


def said(asked: AdmissionRequest, tree: QuotaTopology, pods: Pods | None = None, **gates: bool) -> str | None:
    """The refusal, or None."""
    verdict = ruling(asked, tree, pods, **gates).verdict
    if isinstance(verdict, AdmissionDenied):
        assert verdict.code == 400
        return verdict.message
    return None


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        pytest.param(quota("a"), None, id="plain"),
        pytest.param(quota("a", min=None, max=None), None, id="empty"),
        pytest.param(quota("a", min=None), None, id="no-min"),
        pytest.param(
            quota("a", max=None),
            "resourceKey cpu of quota a is included in min, which is not included in max",
            id="no-max",
        ),
        pytest.param(
            quota("a", max={"cpu": -1, "memory": "-1Gi"}),
            "a quota.Spec.Max's value < 0, in dimensions :[cpu memory]",
            id="negative-max",
        ),
        pytest.param(
            quota("a", min={"cpu": "-1"}), "a quota.Spec.Min's value < 0, in dimensions :[cpu]", id="negative-min"
        ),
        pytest.param(
            quota("a", annotations={A_QUOTA_SHARED_WEIGHT: '{"cpu":"-1"}'}),
            "a quota.Annotation[quota.scheduling.koordinator.sh/shared-weight]'s value < 0, in dimension :[cpu]",
            id="negative-weight",
        ),
        pytest.param(quota("a", min={"cpu": 12}), "resourceKey cpu of quota a min 12 > max 10", id="min-above-max"),
        pytest.param(
            quota("a", min={"memory": "2Mi"}, max={"memory": "1Mi"}),
            "resourceKey memory of quota a min 2097152 > max 1048576",
            id="amounts-in-whole-units",
        ),
        pytest.param(
            quota("a", min={"cpu": "500m"}, max={"cpu": "100m"}),
            "resourceKey cpu of quota a min 500m > max 100m",
            id="exact-where-rounding-hides-it",
        ),
        pytest.param(
            quota(
                "a", max={"memory": 1048576}, min=None, used={"memory": 10485760}, annotations={STRICT: '["memory"]'}
            ),
            "resourceKey memory of quota a max 1048576 < used 10485760",
            id="max-below-use",
        ),
        pytest.param(
            quota("a", max={"cpu": 1}, min=None, used={"memory": 5}, annotations={STRICT: '["cpu","memory"]'}),
            "resourceKey memory of quota a is included in used,"
            " which is not included in max but should check max >= used",
            id="max-without-what-is-used",
        ),
        pytest.param(
            quota("a", max={"cpu": 5, "memory": 1}, min=None, used={"memory": 5}, annotations={STRICT: '["cpu"]'}),
            None,
            id="use-of-another-resource",
        ),
        pytest.param(quota("a", annotations={STRICT: '["cpu"]'}), None, id="nothing-used"),
        pytest.param(quota("a", annotations={A_QUOTA_NAMESPACES: "notjson"}), None, id="unreadable-namespaces"),
    ],
)
def test_a_quota_by_itself(obj: dict[str, Any], words: str | None) -> None:
    assert said(request("CREATE", obj), QuotaTopology()) == words


@pytest.mark.parametrize("text", ["{", "xx", '{"cpu":"much"}'])
def test_weights_that_cannot_be_read(text: str) -> None:
    assert said(request("CREATE", quota("a", annotations={A_QUOTA_SHARED_WEIGHT: text})), QuotaTopology())


def test_strict_keys_that_cannot_be_read() -> None:
    words = said(request("CREATE", quota("a", annotations={STRICT: "["})), QuotaTopology())
    assert words is not None
    assert words.startswith(f"a quota.Annotation[{STRICT}]'s value is invalid: ")


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        pytest.param(quota("p"), "AddQuota quota already exist:p", id="known"),
        pytest.param(quota("p", namespace="elsewhere"), "AddQuota quota already exist:p", id="known-elsewhere"),
        pytest.param(
            quota("a", namespaces=["free", "taken"]),
            "AddQuota quota a's annotation namespace taken is already bound to quota n",
            id="namespace-of-another",
        ),
        pytest.param(
            quota("a", parent="nope"), "a has parentName nope but not find parentInfo in quotaInfoMap", id="no-parent"
        ),
        pytest.param(
            quota("a", parent="n"),
            "a has parentName n but the parentQuotaInfo's IsParent is false",
            id="parent-is-leaf",
        ),
        pytest.param(
            quota("a", parent="p", min={"cpu": 1}, max={"cpu": 20}),
            KEYS + "p's max keys are not the same with a's",
            id="fewer-keys",
        ),
        pytest.param(
            quota("a", parent="p", max={**ROOM, "x": 1}),
            KEYS + "p's max keys are not the same with a's",
            id="more-keys",
        ),
        pytest.param(quota("a", parent="p", min={"cpu": 1}, max=ROOM), None, id="fewer-keys-in-min"),
        pytest.param(quota("a", parent="p", max={"cpu": 200, "memory": "200Gi"}), None, id="max-above-the-parent's"),
        pytest.param(
            quota("a", parent="p", min={"cpu": 10}, max=ROOM),
            "checkMinQuotaSum all brothers' MinQuota > parent MinQuota, parent: p",
            id="sum-above-parent",
        ),
        pytest.param(quota("a", parent="p", min={"cpu": 10}, max=ROOM, force=True), None, id="sum-above-but-forced"),
        pytest.param(quota("a", parent="p", min={"cpu": 9}, max=ROOM), None, id="sum-just-fits"),
        pytest.param(
            quota("a", parent="p", max=ROOM, tree="t"),
            "a tree id is different from parent p, [t] vs []",
            id="tree-of-its-own",
        ),
        pytest.param(
            quota("a", parent="t1", max=ROOM),
            "a tree id is different from parent t1, [] vs [one]",
            id="tree-not-inherited",
        ),
        pytest.param(quota("koordinator-root-quota", parent="nope"), None, id="root-has-no-place-to-check"),
    ],
)
def test_a_new_quota_in_the_tree(obj: dict[str, Any], words: str | None) -> None:
    tree = topology_of(
        PARENT, CHILD, quota("n", namespaces=["taken"]), quota("t1", max=ROOM, is_parent=True, tree="one", is_root=True)
    )
    assert said(request("CREATE", obj), tree) == words


def test_min_keys_are_judged_before_sums() -> None:
    tree = topology_of(quota("p", min={"cpu": 10}, max=ROOM, is_parent=True))
    assert said(request("CREATE", quota("a", parent="p", max=ROOM)), tree) == (
        KEYS + "a's min keys are not all included in p's"
    )


def test_keys_may_differ_behind_the_gate() -> None:
    tree = topology_of(PARENT)
    fewer = request("CREATE", quota("a", parent="p", min={"cpu": 1}, max={"cpu": 20}))
    more = request("CREATE", quota("a", parent="p", max={**ROOM, "x": 1}))
    assert said(fewer, tree, update_resource_key=True) is None
    assert said(more, tree, update_resource_key=True) == KEYS + "a's max keys are not all included in p's"


@pytest.mark.parametrize(
    ("new", "old", "words"),
    [
        pytest.param(quota("zz"), quota("zz"), None, id="nothing-asked-of-an-unknown-one"),
        pytest.param(quota("zz", min={}), quota("zz"), "UpdateQuota quota not exist in quotaInfoMap:zz", id="unknown"),
        pytest.param(
            quota("koordinator-root-quota", min={}),
            quota("koordinator-root-quota"),
            "invalid quota koordinator-root-quota",
            id="root",
        ),
        pytest.param(
            quota("koordinator-system-quota", min={}),
            quota("koordinator-system-quota"),
            "invalid quota koordinator-system-quota",
            id="system",
        ),
        pytest.param(quota("a", min={"cpu": 99}), quota("a"), "resourceKey cpu of quota a min 99 > max 10", id="bad"),
        pytest.param(
            quota("a", namespaces=["taken"]),
            quota("a"),
            "UpdadteQuota, quota a update namespaces, but namespace taken is already bound to quota n",
            id="namespace-of-another",
        ),
        pytest.param(quota("n", namespaces=["taken", "more"]), quota("n"), None, id="own-namespace"),
        pytest.param(
            quota("a", parent="nope"),
            quota("a"),
            "a has parentName nope but not find parentInfo in quotaInfoMap",
            id="moved-to-nowhere",
        ),
        pytest.param(quota("a", tree="t"), quota("a"), "a tree id changed [] vs [t]", id="another-tree"),
        pytest.param(
            quota("p", max=ROOM, is_parent=False),
            PARENT,
            "quota has children, isParent is forbidden to modify as false, quotaName:p",
            id="parent-no-more",
        ),
        pytest.param(
            quota("p", min={"cpu": 10}, max={"cpu": 20}, is_parent=True),
            PARENT,
            KEYS + "c1's max keys are not the same with p's",
            id="fewer-keys-than-the-child",
        ),
        pytest.param(
            quota("p", min={"cpu": "500m", "memory": "10Gi"}, max=ROOM, is_parent=True),
            PARENT,
            "checkMinQuotaSum all children's MinQuota > current MinQuota, current: p",
            id="less-than-the-children",
        ),
        pytest.param(
            quota("p", max=ROOM, is_parent=True, min={"cpu": "500m", "memory": "10Gi"}, force=True),
            PARENT,
            None,
            id="less-than-the-children-but-forced",
        ),
    ],
)
def test_a_changed_quota(new: dict[str, Any], old: dict[str, Any], words: str | None) -> None:
    tree = topology_of(PARENT, CHILD, quota("a"), quota("n", namespaces=["taken"]))
    assert said(request("UPDATE", new, old), tree) == words


@pytest.mark.parametrize(
    ("pods", "refused"),
    [
        pytest.param(Pods(), False, id="no-pods"),
        pytest.param(Pods({"a": ["x"]}), True, id="by-label"),
        pytest.param(Pods(namespaces=["a"]), True, id="by-the-namespace-of-its-name"),
        pytest.param(Pods(namespaces=["claimed"]), True, id="by-a-claimed-namespace"),
        pytest.param(Pods({"b": ["x"]}, ["b"]), False, id="pods-of-another"),
    ],
)
def test_a_quota_with_pods_does_not_become_a_parent(pods: Pods, refused: bool) -> None:
    old = quota("a", namespaces=["claimed"])
    words = said(request("UPDATE", quota("a", is_parent=True), old), topology_of(old), pods)
    expected = "quota has bound pods, isParent is forbidden to modify as true, quotaName: a"
    assert words == (expected if refused else None)


@pytest.mark.parametrize("below", ["top", "middle", "bottom"])
def test_a_quota_is_never_put_below_itself(below: str) -> None:
    top, middle, bottom = (
        quota(name, is_parent=True, parent=parent)
        for name, parent in (("top", ""), ("middle", "top"), ("bottom", "middle"))
    )
    words = said(request("UPDATE", quota("top", is_parent=True, parent=below), top), topology_of(top, middle, bottom))
    assert words == f"top has parentName {below} but {below} is top itself or below it"


class TestGuarantee:
    """Tree `t`: root, parent and a child that wants a larger min."""

    @staticmethod
    def quota(name: str, least: int, guaranteed: int, **more: Any) -> dict[str, Any]:
        notes = {A_QUOTA_GUARANTEED: json.dumps({"cpu": guaranteed})}
        return quota(name, min={"cpu": least}, max={"cpu": 1000}, tree="t", annotations=notes, **more)

    def said(self, wanted: int, root_guarantees: int, parent_guarantees: int) -> str | None:
        tree = topology_of(
            self.quota("root", 50, root_guarantees, is_parent=True, is_root=True),
            self.quota("parent", 50, parent_guarantees, is_parent=True, parent="root"),
            self.quota("other", 0, 10, parent="parent"),
            old := self.quota("child", 40, 40, parent="parent", force=False),
        )
        new = self.quota("child", wanted, 40, parent="parent")
        tree.handle(
            QuotaWriteAdmitted(
                quota_info(self.quota("parent", 100, parent_guarantees, is_parent=True, parent="root")), 0.0
            )
        )
        return said(request("UPDATE", new, old), tree, guarantee_usage=True)

    def test_the_parent_has_room(self) -> None:
        assert self.said(60, root_guarantees=0, parent_guarantees=100) is None

    def test_the_root_has_room(self) -> None:
        assert self.said(60, root_guarantees=100, parent_guarantees=50) is None

    def test_nobody_has_room(self) -> None:
        assert self.said(60, root_guarantees=99, parent_guarantees=50) == (
            "tree root quota root can't guarantee for min child"
        )

    def test_less_than_is_guaranteed_needs_nobody(self) -> None:
        assert self.said(30, root_guarantees=0, parent_guarantees=0) is None


@pytest.mark.parametrize(
    ("name", "pods", "words"),
    [
        pytest.param(
            "koordinator-default-quota", [], "can not delete quotaGroup :koordinator-default-quota", id="builtin"
        ),
        pytest.param("zz", [], "not found quota:zz", id="unknown"),
        pytest.param("p", [], "delete quota failed, quota p has 1 child quotas", id="children"),
        pytest.param("c1", ["x"], "delete quota failed, quota c1 has 1 child pods: x", id="one-pod"),
        pytest.param("c1", ["z", "y", "x"], "delete quota failed, quota c1 has 3 child pods: x, y, ...", id="pods"),
        pytest.param("c1", [], None, id="free"),
    ],
)
def test_deleting(name: str, pods: list[str], words: str | None) -> None:
    assert said(request("DELETE", None, quota(name)), topology_of(PARENT, CHILD), Pods({name: pods})) == words


def test_what_is_admitted_is_remembered() -> None:
    made = ruling(request("CREATE", quota("a")), QuotaTopology())
    assert made.event == QuotaWriteAdmitted(quota_info(quota("a")), 0.0)
    assert ruling(request("DELETE", None, CHILD), topology_of(PARENT, CHILD)).event == QuotaDeleteAdmitted("c1", 0.0)
    assert ruling(request("CREATE", quota("p")), topology_of(PARENT)).event is None


names = st.sampled_from(["a", "b", "p", "koordinator-root-quota"])
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "x"]), st.one_of(st.integers(-2, 12), st.sampled_from(["1Gi", "500m", "", "q"]))
)
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["a", "metadata"]), inner)),
    max_leaves=4,
)
objects = st.one_of(
    junk.filter(lambda value: value is None or isinstance(value, dict)),
    st.fixed_dictionaries(
        {
            "metadata": st.fixed_dictionaries(
                {"name": names},
                optional={
                    "labels": st.dictionaries(
                        st.sampled_from([L_QUOTA_PARENT, L_QUOTA_IS_PARENT]),
                        st.sampled_from(["a", "b", "p", "true", ""]),
                    ),
                    "annotations": st.dictionaries(
                        st.sampled_from([STRICT, A_QUOTA_SHARED_WEIGHT, A_QUOTA_NAMESPACES, A_QUOTA_GUARANTEED]),
                        st.sampled_from(["", "null", "{}", "[]", '["cpu"]', '{"cpu":1}', '{"cpu":{}}', "["]),
                    ),
                },
            )
        },
        optional={
            "spec": st.fixed_dictionaries({}, optional={"min": amounts, "max": amounts}),
            "status": st.fixed_dictionaries({}, optional={"used": amounts}),
        },
    ),
)


@given(
    operation=st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT"]), obj=objects, old=objects, gate=st.booleans()
)
def test_any_object_gets_a_verdict_R28(operation: str, obj: Any, old: Any, gate: bool) -> None:
    tree = topology_of(PARENT, CHILD, quota("a", max=LARGE))
    asked = AdmissionRequest(operation=operation, object=obj, old_object=old, namespace="team")
    made = ruling(asked, tree, guarantee_usage=gate, update_resource_key=gate)
    assert isinstance(made.verdict, AdmissionAllowed | AdmissionDenied)
    if isinstance(made.event, QuotaWriteAdmitted):
        bounds = made.event.quota
        assert all(bounds.min[key] <= bounds.max[key] for key in bounds.min)


@given(moves=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "a", "b", "c", "d"])), max_size=12))
def test_no_sequence_of_admitted_moves_makes_a_circle(moves: list[tuple[str, str]]) -> None:
    tree = topology_of(*(quota(name, is_parent=True, force=True) for name in "abcd"))
    for name, parent in moves:
        known = tree.quotas[name]
        old = quota(name, is_parent=True, force=True, parent=known.parent)
        made = ruling(request("UPDATE", quota(name, is_parent=True, force=True, parent=parent), old), tree)
        if made.event is not None:
            tree.handle(made.event)
    for name in "abcd":
        assert name not in [above.name for above in tree.ancestors(name)]
