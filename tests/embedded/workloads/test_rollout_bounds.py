"""A rolling update keeps to its bounds and completes, however its steps interleave."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from koord.api.kubernetes.meta import LabelSelector, ObjectMeta
from koord.api.kubernetes.pod import Pod, PodCondition, PodSpec, PodStatus
from koord.api.kubernetes.workload import (
    Deployment,
    DeploymentSpec,
    DeploymentStrategy,
    ReplicaSet,
    ReplicaSetStatus,
    RollingUpdateDeployment,
)
from koord.api.model import convert
from koord.embedded.workloads import deployment_plan as controller
from koord.embedded.workloads import deployment_rollout, replicaset_controller
from koord.embedded.workloads.pod_control import desired_replicas, is_pod_active, is_pod_ready, same_template

START = datetime(2026, 1, 1, tzinfo=UTC)
replace = msgspec.structs.replace


def template(version: int) -> dict[str, Any]:
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": f"i:{version}"}]}}


class Rollout(RuleBasedStateMachine):
    """One Deployment controller and one ReplicaSet controller that see each other's work late and in any order."""

    @initialize(
        replicas=st.integers(1, 8),
        surge=st.one_of(st.integers(0, 4), st.sampled_from(["0%", "25%", "100%"])),
        unavailable=st.one_of(st.integers(0, 4), st.sampled_from(["0%", "25%", "100%"])),
    )
    def begin(self, replicas: int, surge: int | str, unavailable: int | str) -> None:
        rolling = RollingUpdateDeployment(max_surge=surge, max_unavailable=unavailable)
        self.deployment = Deployment(
            metadata=ObjectMeta(name="web", namespace="d", uid="dep", generation=1),
            spec=DeploymentSpec(
                replicas=replicas,
                selector=LabelSelector(match_labels={"app": "web"}),
                template=template(0),
                strategy=DeploymentStrategy(type="RollingUpdate", rolling_update=rolling),
            ),
        )
        self.bounds = deployment_rollout.rollout_bounds(self.deployment)
        self.sets: dict[str, ReplicaSet] = {}
        self.cache: dict[str, ReplicaSet] = {}
        self.written: dict[str, int] = {}  # set -> the version that the controller made
        self.pending: dict[str, ReplicaSetStatus] = {}
        self.pods: dict[str, Pod] = {}
        self.serial = itertools.count(1)
        self.now = START
        self.finish()
        assert self.complete()

    # -- steps of the world

    @rule()
    def deployment_looks(self) -> None:
        """The controller waits until its cache shows its own writes."""
        if any(name not in self.cache or self.seen(name) < version for name, version in self.written.items()):
            return
        self.now += timedelta(seconds=1)
        seen = controller.DeploymentView(deployment=self.deployment, sets=tuple(self.cache.values()), now=self.now)
        plan = controller.decide_deployment(seen)
        self.deployment = replace(self.deployment, status=plan.status)
        if plan.create is not None:
            body = controller.replica_set_body(self.deployment, plan.create)
            name = body["metadata"]["name"]
            if name not in self.sets:
                made = convert(body, ReplicaSet)
                meta = replace(
                    made.metadata, uid=name, generation=1, creation_timestamp=self.now, resource_version=self.version()
                )
                self.sets[name] = replace(made, metadata=meta)
                self.written[name] = int(meta.resource_version)
        for change in plan.changes:
            stored = self.sets[change.set.metadata.name]
            if stored.metadata.resource_version != change.set.metadata.resource_version:
                break  # the server refuses a write over an older version
            meta = replace(
                stored.metadata,
                resource_version=self.version(),
                annotations={**stored.metadata.annotations, **change.annotations},
                generation=stored.metadata.generation + (change.replicas is not None),
            )
            spec = stored.spec
            if change.replicas is not None:
                spec = replace(spec, replicas=change.replicas)
            self.sets[meta.name] = replace(stored, metadata=meta, spec=spec)
            self.written[meta.name] = int(meta.resource_version)

    def seen(self, name: str) -> int:
        return int(self.cache[name].metadata.resource_version)

    def version(self) -> str:
        return str(next(self.serial))

    def pick(self, number: int) -> str:
        return sorted(self.sets)[number % len(self.sets)]

    @rule(number=st.integers(0, 9))
    def cache_hears_of_a_set(self, number: int) -> None:
        name = self.pick(number)
        self.cache[name] = self.sets[name]

    @rule(number=st.integers(0, 9))
    def set_controller_looks(self, number: int) -> None:
        name = self.pick(number)
        stored = self.sets[name]
        pods = tuple(pod for pod in self.pods.values() if pod.metadata.labels["set"] == name)
        seen = replicaset_controller.ReplicaSetView(set=stored, pods=pods, now=self.now)
        plan = replicaset_controller.decide_replicas(seen)
        self.pending[name] = replicaset_controller.decide_replica_set_status(seen, plan, None)
        for _ in range(plan.create):
            uid = self.version()
            meta = ObjectMeta(name=uid, uid=uid, labels={"app": "web", "set": name}, creation_timestamp=self.now)
            self.pods[uid] = Pod(metadata=meta, spec=PodSpec(node_name="n"), status=PodStatus(phase="Pending"))
        for pod in plan.delete:
            del self.pods[pod.metadata.uid]

    @rule(number=st.integers(0, 9))
    def set_status_arrives(self, number: int) -> None:
        name = self.pick(number)
        if name in self.pending:
            stored = self.sets[name]
            meta = replace(stored.metadata, resource_version=self.version())
            self.sets[name] = replace(stored, metadata=meta, status=self.pending.pop(name))

    @rule(number=st.integers(0, 30))
    def pod_becomes_ready(self, number: int) -> None:
        waiting = sorted(uid for uid, pod in self.pods.items() if not is_pod_ready(pod))
        if waiting:
            pod = self.pods[waiting[number % len(waiting)]]
            condition = PodCondition(type="Ready", status="True", last_transition_time=self.now)
            self.pods[pod.metadata.uid] = replace(pod, status=PodStatus(phase="Running", conditions=(condition,)))

    @precondition(lambda self: self.deployment.metadata.generation < 5)
    @rule(version=st.integers(0, 2))
    def user_changes_the_template(self, version: int) -> None:
        meta = replace(self.deployment.metadata, generation=self.deployment.metadata.generation + 1)
        self.deployment = replace(
            self.deployment, metadata=meta, spec=replace(self.deployment.spec, template=template(version))
        )

    # -- promises

    @invariant()
    def never_above_the_surge(self) -> None:
        if hasattr(self, "pods"):
            assert sum(is_pod_active(pod) for pod in self.pods.values()) <= max(
                self.bounds.max_replicas, self.most_wanted()
            )

    def most_wanted(self) -> int:
        """Sets never want more than the bounds in sum; pods follow their sets one by one."""
        wanted = sum(desired_replicas(s) for s in self.sets.values())
        assert wanted <= self.bounds.max_replicas
        return sum(
            max(
                desired_replicas(s),
                sum(pod.metadata.labels["set"] == name for pod in self.pods.values()),
            )
            for name, s in self.sets.items()
        )

    @invariant()
    def never_below_the_floor(self) -> None:
        if getattr(self, "started", False):
            assert sum(is_pod_ready(pod) for pod in self.pods.values()) >= self.bounds.min_available

    def complete(self) -> bool:
        replicas = self.bounds.replicas
        fresh = [s for s in self.sets.values() if same_template(s.spec.template, self.deployment.spec.template)]
        return len(self.pods) == replicas == sum(desired_replicas(s) for s in fresh) and all(
            map(is_pod_ready, self.pods.values())
        )

    def finish(self) -> None:
        """Everyone does their work until nothing is left to do."""
        for _ in range(30):
            self.deployment_looks()
            for number in range(len(self.sets)):
                self.set_controller_looks(number)
                self.set_status_arrives(number)
            for _ in range(len(self.pods)):
                self.pod_becomes_ready(0)
            for number in range(len(self.sets)):
                self.set_controller_looks(number)
                self.set_status_arrives(number)
                self.cache_hears_of_a_set(number)
        self.started = True

    def teardown(self) -> None:
        if hasattr(self, "pods"):
            self.finish()
            assert self.complete(), (self.sets, self.pods)


Rollout.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRollout = Rollout.TestCase


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        pytest.param(10, None, None, (13, 8), id="defaults-are-a-quarter-up-and-a-quarter-down"),
        pytest.param(3, None, None, (4, 3), id="a-quarter-of-three-rounds-apart"),
        pytest.param(4, 0, 0, (4, 3), id="both-nothing-means-one-unavailable"),
        pytest.param(1, "1%", "1%", (2, 1), id="small-shares-round-up-for-surge"),
        pytest.param(5, 2, "100%", (7, 0), id="all-may-be-unavailable"),
        pytest.param(2, 0, 7, (2, 0), id="more-than-all-is-all"),
        pytest.param(0, None, None, (0, 0), id="nothing-wanted"),
    ],
)
def test_bounds(
    replicas: int, surge: int | str | None, unavailable: int | str | None, expected: tuple[int, int]
) -> None:
    rolling = RollingUpdateDeployment(max_surge=surge, max_unavailable=unavailable)
    spec = DeploymentSpec(replicas=replicas, strategy=DeploymentStrategy(rolling_update=rolling))
    bounds = deployment_rollout.rollout_bounds(Deployment(spec=spec))
    assert (bounds.max_replicas, bounds.min_available) == expected


def family(new: tuple[int, int], *old: tuple[int, int], before: int, most: int) -> deployment_rollout.ReplicaSetFamily:
    """(size, available) of each set, sized for `before` replicas."""
    notes = {
        "deployment.kubernetes.io/desired-replicas": str(before),
        "deployment.kubernetes.io/max-replicas": str(most),
    }

    def one(name: str, age: int, numbers: tuple[int, int]) -> ReplicaSet:
        meta = ObjectMeta(name=name, annotations=notes, creation_timestamp=START - timedelta(hours=age))
        return ReplicaSet(
            metadata=meta,
            spec=msgspec.structs.replace(ReplicaSet().spec, replicas=numbers[0]),
            status=ReplicaSetStatus(replicas=numbers[0], available_replicas=numbers[1]),
        )

    return deployment_rollout.ReplicaSetFamily(
        one("new", 0, new), tuple(one(f"old{index}", 9 - index, numbers) for index, numbers in enumerate(old))
    )


@pytest.mark.parametrize(
    ("seen", "replicas", "sizes"),
    [
        pytest.param(family((10, 10), before=10, most=13), 20, {"new": 20}, id="one-set-takes-all"),
        pytest.param(
            family((5, 5), (8, 8), before=10, most=13), 20, {"new": 10, "old0": 15}, id="two-sets-share-growth"
        ),
        pytest.param(family((5, 5), (8, 8), before=10, most=13), 5, {"new": 3, "old0": 4}, id="two-sets-share-loss"),
        pytest.param(family((5, 5), (8, 8), before=10, most=13), 0, {"new": 0, "old0": 0}, id="down-to-nothing"),
        pytest.param(family((0, 0), (0, 0), before=4, most=5), 4, {"new": 4}, id="the-current-set-comes-back-first"),
        pytest.param(family((4, 4), (2, 2), before=4, most=5), 4, {"old0": 0}, id="a-full-current-set-ends-the-old"),
    ],
)
def test_scaling_between_revisions(
    seen: deployment_rollout.ReplicaSetFamily, replicas: int, sizes: dict[str, int]
) -> None:
    assert deployment_rollout.scale_step(Deployment(spec=DeploymentSpec(replicas=replicas)), seen) == sizes


def test_a_set_whose_status_is_of_before_its_last_change_shrinks_nothing() -> None:
    seen = family((4, 4), (4, 4), before=4, most=8)
    deployment = Deployment(spec=DeploymentSpec(replicas=4))
    assert deployment_rollout.roll_step(deployment, seen) == {"old0": 0}
    (old,) = seen.old
    changed = replace(
        old, metadata=replace(old.metadata, generation=3), status=replace(old.status, observed_generation=2)
    )
    assert deployment_rollout.roll_step(deployment, replace(seen, old=(changed,))) == {}
