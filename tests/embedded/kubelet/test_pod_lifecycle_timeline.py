"""The state of a pod at points of its lifecycle, for every behaviour."""

from __future__ import annotations

from typing import Any

import pytest

from koord.embedded.kubelet.pod_behaviour import InvalidAnnotation, parse_behaviour
from koord.embedded.kubelet.pod_lifecycle import (
    ContainerExited,
    ContainerRunning,
    ContainerWaiting,
    PodDeletion,
    PodRun,
    RunSpec,
    advance,
    after_reboot,
    next_due,
    start_run,
)
from koord.embedded.kubelet.slim_views import SharedPodTemplate, SlimContainer


def template(
    main: tuple[str, ...] = ("main",), init: tuple[str, ...] = (), sidecars: tuple[str, ...] = ()
) -> SharedPodTemplate:
    before = [SlimContainer(name=name) for name in init]
    before += [SlimContainer(name=name, restart_policy="Always") for name in sidecars]
    return SharedPodTemplate(
        containers=tuple(SlimContainer(name=name) for name in main),
        init_containers=tuple(before),
        gates=(),
        node_selector={},
        requests={},
        limits={},
        qos="BestEffort",
        host_ports=(),
    )


def orders(
    policy: str = "Always", made: SharedPodTemplate | None = None, says: dict[str, str] | None = None, **more: Any
) -> RunSpec:
    annotations = {f"sim.koord.sh/{key}": value for key, value in (says or {}).items()}
    plan = parse_behaviour(annotations, made or template(), policy)
    assert not isinstance(plan, InvalidAnnotation), plan
    return RunSpec(plan=plan, restart_policy=policy, **more)


def live(given: RunSpec, until: float) -> PodRun:
    return advance(start_run(given.plan, 0.0, given.plan.start_s or 0.0), given, until)


def looks(run: PodRun) -> str:
    """A pod in one line: phase, readiness, and each container's state."""

    def state(container: Any) -> str:
        match container.state:
            case ContainerWaiting(reason=reason):
                shown = reason
            case ContainerRunning(ready=ready):
                shown = "ready" if ready else "running"
            case ContainerExited(code=code):
                shown = f"exit{code}"
        return f"{shown}/{container.restarts}" if container.restarts else shown

    parts = [run.phase, "Ready" if run.ready.is_true else "-", *map(state, run.init), "|", *map(state, run.main)]
    return " ".join(parts)


TIMELINES = [
    pytest.param(orders(says={"start-seconds": "2"}), [
        (0, "Pending - | ContainerCreating"),
        (1.9, "Pending - | ContainerCreating"),
        (2, "Running Ready | ready"),
        (9999, "Running Ready | ready"),
    ], id="service-starts-and-stays"),
    pytest.param(orders(says={"start-seconds": "1", "ready-seconds": "5"}), [
        (1, "Running - | running"),
        (6, "Running Ready | ready"),
    ], id="readiness-comes-later"),
    pytest.param(orders("Never", says={"start-seconds": "1", "run-seconds": "10"}), [
        (10.9, "Running Ready | ready"),
        (11, "Succeeded - | exit0"),
    ], id="job-completes"),
    pytest.param(orders("Never", says={"start-seconds": "1", "run-seconds": "10", "exit-code": "3"}), [
        (11, "Failed - | exit3"),
    ], id="job-fails-for-good"),
    pytest.param(orders("Never", says={"start-seconds": "0"}), [
        (4.9, "Running Ready | ready"),
        (5, "Succeeded - | exit0"),
    ], id="job-without-a-word-ends-by-default"),
    pytest.param(orders("OnFailure", says={"start-seconds": "0", "run-seconds": "1", "exit-code": "1"}), [
        (1, "Running Ready | ready/1"),
        (2, "Running - | CrashLoopBackOff/1"),
        (11.9, "Running - | CrashLoopBackOff/1"),
        (12, "Running Ready | ready/2"),
        (13, "Running - | CrashLoopBackOff/2"),
        (33, "Running Ready | ready/3"),
    ], id="failing-container-backs-off-twice-as-long"),
    pytest.param(orders("Always", says={"start-seconds": "0", "run-seconds": "700"}), [
        (700, "Running Ready | ready/1"),
        (1400, "Running Ready | ready/2"),
        (2100, "Running Ready | ready/3"),
    ], id="long-runs-never-back-off"),
    pytest.param(orders(made=template(init=("one", "two")), says={"start-seconds": "1"}), [
        (0, "Pending - PodInitializing PodInitializing | PodInitializing"),
        (1, "Pending - ready PodInitializing | PodInitializing"),
        (2, "Pending - exit0 ready | PodInitializing"),
        (3, "Running Ready exit0 exit0 | ready"),
    ], id="init-containers-take-turns"),
    pytest.param(orders("Never", template(init=("one",)), {"start-seconds": "0", "exit-code.one": "9"}), [
        (1, "Failed - exit9 | PodInitializing"),
    ], id="failed-init-fails-a-job"),
    pytest.param(orders("Always", template(init=("one",)), {"start-seconds": "0", "exit-code.one": "9"}), [
        (1, "Pending - ready/1 | PodInitializing"),
        (2, "Pending - CrashLoopBackOff/1 | PodInitializing"),
    ], id="failed-init-of-a-service-is-tried-again"),
    pytest.param(orders("Never", template(sidecars=("proxy",)), {"start-seconds": "0", "run-seconds": "5"}), [
        (0, "Running Ready ready | ready"),
        (5, "Succeeded - exit0 | exit0"),
    ], id="sidecar-ends-with-the-work"),
    pytest.param(orders("Never", template(sidecars=("proxy",)),
                        {"start-seconds": "0", "run-seconds": "30", "run-seconds.proxy": "3"}), [
        (3, "Running Ready ready/1 | ready"),
        (16, "Running Ready ready/2 | ready"),
        (30, "Succeeded - exit0/2 | exit0"),
    ], id="sidecar-is-restarted-while-work-goes-on"),
    pytest.param(orders(deletion=PodDeletion(10.0, 30.0), says={"start-seconds": "0", "stop-seconds": "4"}), [
        (13.9, "Running Ready | ready"),
        (14, "Succeeded - | exit0"),
    ], id="deleted-service-stops-in-its-own-time"),
    pytest.param(orders(deletion=PodDeletion(10.0, 2.0), says={"start-seconds": "0", "stop-seconds": "60"}), [
        (12, "Failed - | exit137"),
    ], id="slow-service-is-killed-after-its-grace"),
    pytest.param(orders(deletion=PodDeletion(0.5, 30.0), says={"start-seconds": "2"}), [
        (0.5, "Failed - | ContainerCreating"),
    ], id="deleted-before-it-started"),
    pytest.param(orders("Never", deletion=PodDeletion(5.0, 30.0), says={"start-seconds": "0", "run-seconds": "5.5",
                                                                    "stop-seconds": "9", "exit-code": "2"}), [
        (5.5, "Failed - | exit2"),
    ], id="work-that-ends-while-being-stopped-keeps-its-own-code"),
    pytest.param(orders(deadline_s=60, says={"start-seconds": "0", "stop-seconds": "1"}), [
        (60, "Running Ready | ready"),
        (61, "Failed - | exit0"),
    ], id="past-its-deadline"),
    pytest.param(orders(gates_open=False, says={"start-seconds": "0"}), [
        (1, "Running - | ready"),
    ], id="closed-readiness-gate"),
    pytest.param(orders("Never", template(main=("a", "b")), {"start-seconds": "0", "run-seconds.a": "1",
                                                           "exit-code.a": "1", "run-seconds.b": "2"}), [
        (1, "Running - | exit1 ready"),
        (2, "Failed - | exit1 exit0"),
    ], id="one-bad-container-fails-the-pod"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), TIMELINES)
def test_timeline(given: RunSpec, expected: list[tuple[float, str]]) -> None:
    run = start_run(given.plan, 0.0, given.plan.start_s or 0.0)
    seen = []
    for moment, _ in expected:
        run = advance(run, given, moment)
        seen.append((moment, looks(run)))
    assert seen == expected


def test_deadline_is_told_as_the_reason() -> None:
    run = live(orders(deadline_s=60, says={"start-seconds": "0"}), 100)
    assert (run.phase, run.reason) == ("Failed", "DeadlineExceeded")


def test_back_off_never_exceeds_five_minutes() -> None:
    given = orders(says={"start-seconds": "0", "run-seconds": "1", "exit-code": "1"})
    run = live(given, 5000.0)
    before = run.main[0].restarts
    run = advance(run, given, 5000.0 + 10 * 301)
    assert run.main[0].restarts - before == 10


def test_shorter_grace_shortens_the_stop() -> None:
    given = orders(deletion=PodDeletion(10.0, 60.0), says={"start-seconds": "0", "stop-seconds": "50"})
    run = live(given, 11.0)
    assert next_due(run, given) == 60.0
    hurried = orders(deletion=PodDeletion(12.0, 1.0), says={"start-seconds": "0", "stop-seconds": "50"})
    run = advance(run, hurried, 13.0)
    assert looks(run) == "Failed - | exit137"


@pytest.mark.parametrize(("policy", "after"), [
    pytest.param("Always", "Running Ready | ready/1", id="service-is-restarted"),
    pytest.param("OnFailure", "Running Ready | ready/1", id="retryable-work-is-restarted"),
    pytest.param("Never", "Failed - | exit255", id="work-is-lost"),
])  # fmt: skip
def test_reboot(policy: str, after: str) -> None:
    given = orders(policy, says={"start-seconds": "0", "run-seconds": "forever"})
    run = advance(after_reboot(live(given, 50.0), given, 60.0, 90.0), given, 90.0)
    assert looks(run) == after


@pytest.mark.parametrize(("key", "value", "rule"), [
    pytest.param("run-seconds", "soon", "must be a number", id="not-a-number"),
    pytest.param("run-seconds", "-1", "finite number, 0 or more", id="negative"),
    pytest.param("start-seconds", "nan", "finite number, 0 or more", id="not-finite"),
    pytest.param("exit-code", "256", "from 0 to 255", id="exit-code-too-high"),
    pytest.param("exit-code", "1.5", "from 0 to 255", id="exit-code-in-parts"),
    pytest.param("run-time", "1", "there is no such key", id="unknown-key"),
    pytest.param("run-seconds.other", "1", "no container other", id="unknown-container"),
    pytest.param("stop-seconds.main", "1", "said of a whole pod", id="pod-key-with-a-container"),
])  # fmt: skip
def test_wrong_annotation_is_named(key: str, value: str, rule: str) -> None:
    found = parse_behaviour({f"sim.koord.sh/{key}": value}, template(), "Always")
    assert isinstance(found, InvalidAnnotation)
    assert f"sim.koord.sh/{key}" in str(found)
    assert rule in str(found)


def test_machine_that_is_down_does_no_work() -> None:
    given = orders(says={"start-seconds": "20"})
    run = after_reboot(live(given, 5.0), given, 10.0, 100.0)
    assert looks(advance(run, given, 109.0)) == "Pending - | ContainerCreating"
    assert looks(advance(run, given, 110.0)) == "Running Ready | ready"


def test_crash_ends_containers_when_the_machine_died_and_starts_them_when_it_is_back() -> None:
    given = orders(says={"start-seconds": "0"})
    container = advance(after_reboot(live(given, 5.0), given, 10.0, 100.0), given, 100.0).main[0]
    assert container.last == ContainerExited(255, "Unknown", 0.0, 10.0)
    assert isinstance(container.state, ContainerRunning)
    assert container.state.since == 100.0


def test_work_that_was_done_before_the_crash_stays_done() -> None:
    given = orders("Never", says={"start-seconds": "0", "run-seconds": "8"})
    assert looks(after_reboot(live(given, 5.0), given, 10.0, 100.0)) == "Succeeded - | exit0"
