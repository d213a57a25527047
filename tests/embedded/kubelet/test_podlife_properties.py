"""Properties of every pod lifecycle, whatever its behaviour and whenever it is observed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.merge.strategic import strategic_merge
from koord.api.model import convert
from koord.api.pod import PodStatus
from koord.embedded.apiserver.schema.builtin import builtin
from koord.embedded.kubelet.behaviour import ContainerPlan, Plan
from koord.embedded.kubelet.podlife import Deletion, Exited, Orders, Run, admitted, advance, next_due
from koord.embedded.kubelet.podstatus import About, patch_between, status_of
from koord.embedded.kubelet.recovery import run_of
from koord.embedded.kubelet.view import ContainerView, Template

LEGAL = {
    "Pending": {"Pending", "Running", "Succeeded", "Failed"},
    # A container that waits for its first start keeps a pod Pending; once all have started it never is again.
    "Running": {"Running", "Succeeded", "Failed"},
    "Succeeded": {"Succeeded"},
    "Failed": {"Failed"},
}

durations = st.sampled_from([0.0, 0.5, 1.0, 7.0, 45.0, 650.0])


@st.composite
def containers(draw: st.DrawFn, *, init: bool) -> ContainerPlan:
    sidecar = init and draw(st.booleans())
    run_s = draw(durations) if init and not sidecar else draw(st.none() | durations)
    return ContainerPlan(
        run_s=run_s, exit_code=draw(st.sampled_from([0, 0, 1])), ready_s=draw(durations), sidecar=sidecar
    )


@st.composite
def lives(draw: st.DrawFn) -> Orders:
    plan = Plan(
        start_s=draw(durations),
        stop_s=draw(durations),
        init=tuple(draw(st.lists(containers(init=True), max_size=3))),
        main=tuple(draw(st.lists(containers(init=False), min_size=1, max_size=3))),
    )
    deletion = draw(st.none() | st.builds(Deletion, st.floats(0, 2000), st.sampled_from([0.0, 2.0, 30.0])))
    return Orders(
        plan=plan,
        restart_policy=draw(st.sampled_from(["Always", "OnFailure", "Never"])),
        deadline_s=draw(st.none() | st.sampled_from([5.0, 300.0])),
        deletion=deletion,
        gates_open=draw(st.booleans()),
    )


moments = st.lists(st.floats(0, 3000), min_size=1, max_size=6).map(sorted)


def template_of(plan: Plan) -> Template:
    return Template(
        containers=tuple(ContainerView(name=f"main-{n}", image="app") for n in range(len(plan.main))),
        init_containers=tuple(
            ContainerView(name=f"init-{n}", image="app", restart_policy="Always" if p.sidecar else None)
            for n, p in enumerate(plan.init)
        ),
        gates=(),
        node_selector={},
        requests={},
        limits={},
        qos="BestEffort",
        host_ports=(),
    )


def about(orders: Orders) -> About:
    return About(uid="u", template=template_of(orders.plan), generation=1, host_ip="172.16.0.1", pod_ip="10.0.0.2")


def begin(orders: Orders) -> Run:
    return admitted(orders.plan, 0.0, orders.plan.start_s or 0.0)


@given(lives(), moments)
def test_looking_more_often_changes_nothing(orders: Orders, times: list[float]) -> None:
    step_by_step = begin(orders)
    for moment in times:
        step_by_step = advance(step_by_step, orders, moment)
    at_once = advance(begin(orders), orders, times[-1])
    if not orders.gates_open:  # gates are looked at, they have no time of their own
        assert step_by_step.main == at_once.main
    else:
        assert step_by_step == at_once


@given(lives(), moments)
def test_phases_and_restarts_only_move_forward(orders: Orders, times: list[float]) -> None:
    before = begin(orders)
    for moment in times:
        after = advance(before, orders, moment)
        assert after.phase in LEGAL[before.phase]
        for was, is_ in zip((*before.init, *before.main), (*after.init, *after.main), strict=True):
            assert is_.restarts >= was.restarts
            if isinstance(was.state, Exited) and before.over:
                assert is_ == was
        before = after


@given(lives(), st.floats(0, 3000))
def test_next_moment_is_always_in_the_future(orders: Orders, now: float) -> None:
    run = advance(begin(orders), orders, now)
    due = next_due(run, orders)
    assert due is None or due > now
    assert due is None or not run.over


@given(lives(), st.floats(0, 3000))
def test_readiness_means_that_everything_runs(orders: Orders, now: float) -> None:
    run = advance(begin(orders), orders, now)
    if run.ready.up:
        assert run.phase == "Running"
        assert run.initialized.up
        assert run.sandbox.up
        assert orders.gates_open


@given(lives())
def test_deleted_pod_ends_within_its_grace(orders: Orders) -> None:
    if orders.deletion is None:
        return
    run = advance(begin(orders), orders, orders.deletion.seen_at + orders.deletion.grace_s)
    assert run.over


@settings(max_examples=60, deadline=None)
@given(lives(), moments)
def test_patches_lead_where_statuses_are(orders: Orders, times: list[float]) -> None:
    """The server, told only of differences, ends up with the whole status."""
    node = builtin().node_for("", "v1", "Pod")
    assert node is not None
    facts = about(orders)
    run = begin(orders)
    told = status_of(run, facts)
    first = patch_between(None, told)
    server: dict[str, Any] = merged({}, {"status": first}, node)
    for moment in times:
        run = advance(run, orders, moment)
        after = status_of(run, facts)
        patch = patch_between(told, after)
        if patch is not None:
            server = merged(server, {"status": patch}, node)
        told = after
        assert by_type(server["status"]) == by_type(after)


@given(lives(), moments)
def test_a_status_tells_enough_to_go_on(orders: Orders, times: list[float]) -> None:
    """A fleet that takes over sees the containers as the last one left them, to the second."""
    run = advance(begin(orders), orders, times[-1])
    status = convert(status_of(run, about(orders)), PodStatus)
    found = run_of(status, template_of(orders.plan), orders.plan, times[-1])
    assert found.phase == run.phase
    assert [c.restarts for c in found.main] == [c.restarts for c in run.main]
    assert [type(c.state) for c in found.main] == [type(c.state) for c in run.main]
    assert found.ready.up == run.ready.up


def merged(obj: dict[str, Any], patch: dict[str, Any], node: Any) -> dict[str, Any]:
    result = strategic_merge(obj, patch, node)
    assert isinstance(result, dict), result
    return result


def by_type(status: dict[str, Any]) -> dict[str, Any]:
    return {**status, "conditions": {c["type"]: c for c in status["conditions"]}}
