"""ReplicaSet plans, expectations, object claims, templates and status patches, as tables and properties."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.kubernetes.meta import stored_label_selector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import ReplicaSet
from koord.api.model import convert, to_dict
from koord.api.patch.merge_patch import merge_patch
from koord.embedded.workloads import controller_context, controller_ref, pod_control, replicaset_controller
from koord.embedded.workloads.controller_context import EXPECTATION_TIMEOUT_S, ControllerExpectations
from koord.embedded.workloads.controller_ref import label_index_keys, selector_index_key
from koord.telemetry.clock import ManualClock
from koord.values.selector import Selector
from tests.embedded.workloads.builders import NOW, pod

# -- ReplicaSets


@pytest.mark.parametrize(
    ("goes", "stays"),
    [
        pytest.param(pod("a", node=""), pod("b", ready=False, phase="Pending"), id="unassigned-before-assigned"),
        pytest.param(pod("a", phase="Pending"), pod("b", ready=False), id="pending-before-running"),
        pytest.param(pod("a", ready=False), pod("b"), id="not-ready-before-ready"),
        pytest.param(
            pod("a", metadata={"annotations": {pod_control.DELETION_COST: "-5"}}),
            pod("b", age=timedelta(seconds=5)),
            id="cheap-before-young",
        ),
        pytest.param(
            pod("a", ready_for=timedelta(minutes=1)), pod("b", ready_for=timedelta(hours=9)), id="lately-ready-first"
        ),
        pytest.param(
            pod("a", containerStatuses=[{"name": "c", "restartCount": 3}]), pod("b"), id="restarted-before-steady"
        ),
        pytest.param(
            pod("a", ready=False, age=timedelta(minutes=1)),
            pod("b", ready=False, age=timedelta(days=1)),
            id="young-first",
        ),
    ],
)
def test_scale_down_order(goes: Pod, stays: Pod) -> None:
    for given_order in ((goes, stays), (stays, goes)):
        assert pod_control.pods_to_delete(given_order, 1, (), NOW) == (goes,)


def test_scale_down_thins_out_crowded_nodes() -> None:
    crowd = [pod("a", node="n1"), pod("b", node="n1"), pod("c", node="n2")]
    assert pod_control.pods_to_delete(crowd, 1, crowd, NOW)[0].spec.node_name == "n1"


@given(costs=st.lists(st.integers(-3, 3), min_size=1, max_size=8), count=st.integers(0, 10))
def test_victims_are_some_of_the_pods_and_never_dearer_than_survivors(costs: list[int], count: int) -> None:
    pods = [
        pod(f"p{number}", metadata={"annotations": {pod_control.DELETION_COST: str(cost)}})
        for number, cost in enumerate(costs)
    ]
    gone = pod_control.pods_to_delete(pods, count, (), NOW)
    assert len(gone) == min(count, len(pods))
    stay = [one for one in pods if one not in gone]
    dearest = max(map(pod_control.deletion_cost, gone), default=-9)
    assert all(dearest <= pod_control.deletion_cost(one) for one in stay)


def replica_set(replicas: int, **meta: Any) -> ReplicaSet:
    return convert({"metadata": {"name": "r", "uid": "r", **meta}, "spec": {"replicas": replicas}}, ReplicaSet)


@given(replicas=st.integers(0, 12), alive=st.integers(0, 12), ended=st.integers(0, 3), settled=st.booleans())
def test_replica_sets_close_the_gap_exactly(replicas: int, alive: int, ended: int, settled: bool) -> None:
    pods = [pod(f"p{n}") for n in range(alive)] + [pod(f"e{n}", phase="Failed") for n in range(ended)]
    view = replicaset_controller.ReplicaSetView(
        set=replica_set(replicas), pods=tuple(pods), expectations_met=settled, now=NOW
    )
    plan = replicaset_controller.decide_replicas(view)
    if settled:
        assert alive + plan.create - len(plan.delete) == replicas
        assert not (plan.create and plan.delete)
    else:
        assert plan == replicaset_controller.ReplicaSetPlan()
    counted = replicaset_controller.decide_replica_set_status(view, plan, None)
    assert counted.replicas == alive - len(plan.delete)


def test_a_set_that_is_being_deleted_does_nothing() -> None:
    leaving = replica_set(5, deletionTimestamp=NOW.isoformat())
    assert (
        replicaset_controller.decide_replicas(replicaset_controller.ReplicaSetView(set=leaving, pods=(), now=NOW))
        == replicaset_controller.ReplicaSetPlan()
    )


# -- expectations


def test_expectations_wait_for_what_was_done() -> None:
    clock = ManualClock()
    known = ControllerExpectations(clock)
    known.expect_creation("owner")
    assert not known.fulfilled("owner")
    known.created("owner", "a")
    assert not known.fulfilled("owner")
    known.observed("owner", "a")
    assert known.fulfilled("owner")


def test_expectations_know_what_was_seen_before_the_answer() -> None:
    known = ControllerExpectations(ManualClock())
    known.expect_creation("owner")
    known.observed("owner", "a")
    known.observed_deletion("owner", "a")
    known.created("owner", "a")
    assert known.fulfilled("owner")


def test_expectations_give_up_in_the_end() -> None:
    clock = ManualClock()
    known = ControllerExpectations(clock)
    known.expect_deletion("owner", "a")
    assert known.pending_deletions("owner") == {"a"}
    clock.advance(EXPECTATION_TIMEOUT_S)
    assert known.fulfilled("owner")


# -- claims and selectors


@given(
    wanted=st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3),
    labels=st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3),
)
def test_whoever_selects_an_object_is_found_by_its_labels(wanted: dict[str, str], labels: dict[str, str]) -> None:
    selector = Selector.from_label_selector(wanted)
    if selector.matches(labels):
        assert selector_index_key("ns", selector) in set(label_index_keys("ns", labels))


def test_absent_selectors_select_nothing() -> None:
    assert not stored_label_selector(None).matches({})
    assert selector_index_key("ns", stored_label_selector(None)) == ""


def test_claims() -> None:
    mine = pod("mine", metadata={"labels": {"app": "x"}})
    stray = pod("stray", metadata={"labels": {"app": "y"}})
    orphan = pod("orphan", metadata={"labels": {"app": "x"}})
    dying = pod("dying", metadata={"labels": {"app": "x"}, "deletionTimestamp": NOW.isoformat()})
    selector = Selector.from_label_selector({"app": "x"})
    claims = controller_ref.decide_object_claims(replica_set(1), selector, [mine, stray], [orphan, dying])
    assert claims == controller_ref.ObjectClaims((mine,), (orphan,), (stray,))
    leaving = replica_set(1, deletionTimestamp=NOW.isoformat())
    assert controller_ref.decide_object_claims(
        leaving, selector, [mine, stray], [orphan]
    ) == controller_ref.ObjectClaims((mine,))


# -- templates and statuses


def test_hashes_name_content_not_order() -> None:
    one: dict[str, Any] = {"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"x": 1}}
    other = {"spec": {"x": 1}, "metadata": {"labels": {"b": "2", "a": "1"}}}
    assert pod_control.template_hash(one) == pod_control.template_hash(other)
    assert pod_control.template_hash(one, 1) != pod_control.template_hash(one)
    hashed = {**one, "metadata": {"labels": {**one["metadata"]["labels"], pod_control.POD_TEMPLATE_HASH: "h"}}}
    assert pod_control.same_template(one, hashed)


@given(base=st.text("abc", min_size=1, max_size=90), seed=st.integers())
def test_generated_names_stay_labels(base: str, seed: int) -> None:
    assert len(pod_control.generate_name(base, Random(seed))) <= 63


class Report(msgspec.Struct, omit_defaults=True):
    count: int = 0
    note: str = ""
    maybe: int | None = None
    rows: tuple[str, ...] = ()
    table: dict[str, str] = {}


reports = st.builds(
    Report,
    count=st.integers(0, 3),
    note=st.sampled_from(["", "a", "b"]),
    maybe=st.none() | st.integers(0, 2),
    rows=st.lists(st.sampled_from("xy"), max_size=2).map(tuple),
    table=st.dictionaries(st.sampled_from("kl"), st.sampled_from("vw"), max_size=2),
)


@given(old=reports, new=reports)
def test_status_patches_lead_from_one_to_the_other(old: Report, new: Report) -> None:
    patch = controller_context.status_patch(old, new)
    assert (patch == {}) == (to_dict(old) == to_dict(new))
    merged = merge_patch(to_dict(old), patch)
    assert msgspec.convert(merged, Report).count == new.count
    assert to_dict(msgspec.convert(merged, Report)) == {
        **({"maybe": 0} if old.maybe is not None and new.maybe is None else {}),
        **to_dict(new),
    }
