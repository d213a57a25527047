"""Properties of every pod lifecycle, whatever its behaviour and whenever it is observed."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.kubernetes.pod import PodStatus
from koord.api.model import convert
from koord.api.patch.strategic_merge import strategic_merge
from koord.embedded.apiserver.schema.builtin_types import builtin_types
from koord.embedded.kubelet.pod_behaviour import ContainerBehaviour, PodBehaviour
from koord.embedded.kubelet.pod_lifecycle import (
    ContainerExited,
    PodDeletion,
    PodRun,
    RunSpec,
    advance,
    next_due,
    start_run,
)
from koord.embedded.kubelet.pod_status import PodStatusFacts, pod_status, pod_status_patch
from koord.embedded.kubelet.pod_worker import recover_run
from koord.embedded.kubelet.slim_views import SharedPodTemplate, SlimContainer

LEGAL = {
    "Pending": {"Pending", "Running", "Succeeded", "Failed"},
    # A container that waits for its first start keeps a pod Pending; once all have started it never is again.
    "Running": {"Running", "Succeeded", "Failed"},
    "Succeeded": {"Succeeded"},
    "Failed": {"Failed"},
}

durations = st.sampled_from([0.0, 0.5, 1.0, 7.0, 45.0, 650.0])


@st.composite
def containers(draw: st.DrawFn, *, init: bool) -> ContainerBehaviour:
    sidecar = init and draw(st.booleans())
    run_s = draw(durations) if init and not sidecar else draw(st.none() | durations)
    return ContainerBehaviour(
        run_s=run_s, exit_code=draw(st.sampled_from([0, 0, 1])), ready_s=draw(durations), sidecar=sidecar
    )


@st.composite
def lives(draw: st.DrawFn) -> RunSpec:
    plan = PodBehaviour(
        start_s=draw(durations),
        stop_s=draw(durations),
        init=tuple(draw(st.lists(containers(init=True), max_size=3))),
        main=tuple(draw(st.lists(containers(init=False), min_size=1, max_size=3))),
    )
    deletion = draw(st.none() | st.builds(PodDeletion, st.floats(0, 2000), st.sampled_from([0.0, 2.0, 30.0])))
    return RunSpec(
        plan=plan,
        restart_policy=draw(st.sampled_from(["Always", "OnFailure", "Never"])),
        deadline_s=draw(st.none() | st.sampled_from([5.0, 300.0])),
        deletion=deletion,
        gates_open=draw(st.booleans()),
    )


moments = st.lists(st.floats(0, 3000), min_size=1, max_size=6).map(sorted)


def template_of(plan: PodBehaviour) -> SharedPodTemplate:
    return SharedPodTemplate(
        containers=tuple(SlimContainer(name=f"main-{n}", image="app") for n in range(len(plan.main))),
        init_containers=tuple(
            SlimContainer(name=f"init-{n}", image="app", restart_policy="Always" if p.sidecar else None)
            for n, p in enumerate(plan.init)
        ),
        gates=(),
        node_selector={},
        requests={},
        limits={},
        qos="BestEffort",
        host_ports=(),
    )


def about(orders: RunSpec) -> PodStatusFacts:
    return PodStatusFacts(
        uid="u", template=template_of(orders.plan), generation=1, host_ip="172.16.0.1", pod_ip="10.0.0.2"
    )


def begin(orders: RunSpec) -> PodRun:
    return start_run(orders.plan, 0.0, orders.plan.start_s or 0.0)


@given(lives(), moments)
def test_looking_more_often_changes_nothing(orders: RunSpec, times: list[float]) -> None:
    step_by_step = begin(orders)
    for moment in times:
        step_by_step = advance(step_by_step, orders, moment)
    at_once = advance(begin(orders), orders, times[-1])
    if not orders.gates_open:  # gates are looked at, they have no time of their own
        assert step_by_step.main == at_once.main
    else:
        assert step_by_step == at_once


@given(lives(), moments)
def test_phases_and_restarts_only_move_forward(orders: RunSpec, times: list[float]) -> None:
    before = begin(orders)
    for moment in times:
        after = advance(before, orders, moment)
        assert after.phase in LEGAL[before.phase]
        for was, is_ in zip((*before.init, *before.main), (*after.init, *after.main), strict=True):
            assert is_.restarts >= was.restarts
            if isinstance(was.state, ContainerExited) and before.is_over:
                assert is_ == was
        before = after


@given(lives(), st.floats(0, 3000))
def test_next_moment_is_always_in_the_future(orders: RunSpec, now: float) -> None:
    run = advance(begin(orders), orders, now)
    due = next_due(run, orders)
    assert due is None or due > now
    assert due is None or not run.is_over


@given(lives(), st.floats(0, 3000))
def test_readiness_means_that_everything_runs(orders: RunSpec, now: float) -> None:
    run = advance(begin(orders), orders, now)
    if run.ready.is_true:
        assert run.phase == "Running"
        assert run.initialized.is_true
        assert run.sandbox.is_true
        assert orders.gates_open


@given(lives())
def test_deleted_pod_ends_within_its_grace(orders: RunSpec) -> None:
    if orders.deletion is None:
        return
    run = advance(begin(orders), orders, orders.deletion.seen_at + orders.deletion.grace_s)
    assert run.is_over


@settings(max_examples=60, deadline=None)
@given(lives(), moments)
def test_patches_lead_where_statuses_are(orders: RunSpec, times: list[float]) -> None:
    """The server, told only of differences, ends up with the whole status."""
    node = builtin_types().node_for("", "v1", "Pod")
    assert node is not None
    facts = about(orders)
    run = begin(orders)
    told = pod_status(run, facts)
    first = pod_status_patch(None, told)
    server: dict[str, Any] = merged({}, {"status": first}, node)
    for moment in times:
        run = advance(run, orders, moment)
        after = pod_status(run, facts)
        patch = pod_status_patch(told, after)
        if patch is not None:
            server = merged(server, {"status": patch}, node)
        told = after
        assert by_type(server["status"]) == by_type(after)


@given(lives(), moments)
def test_a_status_tells_enough_to_go_on(orders: RunSpec, times: list[float]) -> None:
    """A fleet that takes over sees the containers as the last one left them, to the second."""
    run = advance(begin(orders), orders, times[-1])
    status = convert(pod_status(run, about(orders)), PodStatus)
    found = recover_run(status, template_of(orders.plan), orders.plan, times[-1])
    assert found.phase == run.phase
    assert [c.restarts for c in found.main] == [c.restarts for c in run.main]
    assert [type(c.state) for c in found.main] == [type(c.state) for c in run.main]
    assert found.ready.is_true == run.ready.is_true


def merged(obj: dict[str, Any], patch: dict[str, Any], node: Any) -> dict[str, Any]:
    result = strategic_merge(obj, patch, node)
    assert isinstance(result, dict), result
    return result


def by_type(status: dict[str, Any]) -> dict[str, Any]:
    return {**status, "conditions": {c["type"]: c for c in status["conditions"]}}
