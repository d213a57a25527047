"""A container that is killed from outside is restarted as its pod says; work that is delayed ends later."""

from __future__ import annotations

from koord.embedded.kubelet.pod_behaviour import ContainerBehaviour, PodBehaviour
from koord.embedded.kubelet.pod_lifecycle import (
    ContainerExited,
    ContainerRunning,
    RunSpec,
    advance,
    after_delay,
    after_kill,
    start_run,
)


def orders(policy: str, run_s: float | None = 100.0) -> RunSpec:
    plan = PodBehaviour(
        start_s=0.0, stop_s=1.0, init=(), main=(ContainerBehaviour(run_s=run_s, exit_code=0, ready_s=0.0),)
    )
    return RunSpec(plan=plan, restart_policy=policy)


def test_a_killed_service_comes_back() -> None:
    told = orders("Always", None)
    run = after_kill(advance(start_run(told.plan, 0.0, 0.0), told, 5.0), told, 0, 10.0, "OOMKilled")
    one = run.main[0]
    assert isinstance(one.state, ContainerRunning)
    assert (one.restarts, one.last) == (1, ContainerExited(137, "OOMKilled", 0.0, 10.0))
    assert run.phase == "Running"


def test_killed_work_that_is_not_to_be_restarted_has_failed() -> None:
    told = orders("Never")
    run = after_kill(advance(start_run(told.plan, 0.0, 0.0), told, 5.0), told, 0, 10.0, "OOMKilled")
    assert run.phase == "Failed"
    assert after_kill(run, told, 0, 11.0, "OOMKilled") is run


def test_work_that_was_held_up_ends_later() -> None:
    told = orders("Never")
    run = after_delay(advance(start_run(told.plan, 0.0, 0.0), told, 5.0), 30.0)
    assert advance(run, told, 120.0).phase == "Running"
    assert advance(run, told, 130.0).phase == "Succeeded"


def test_a_service_has_no_end_to_move() -> None:
    told = orders("Always", None)
    run = advance(start_run(told.plan, 0.0, 0.0), told, 5.0)
    assert after_delay(run, 30.0) == run
