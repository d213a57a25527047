"""Many jobs over many rounds: what has passed never exceeds a limit, who waits would exceed one, and nobody waits for
ever.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from koord.api.config.descheduler.plugin_args import MigrationControllerArgs
from koord.api.koordinator.protocol import A_PASSED_ARBITRATION
from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.kubernetes.pod import Pod
from koord.descheduler.framework.snapshot import ClusterSnapshot, Workload, is_available
from koord.descheduler.migration.arbitration import arbitrate
from koord.descheduler.migration.job import counts_in_arbitration, has_passed_arbitration, is_active
from koord.descheduler.migration.plugin import MigrationBudget, MigrationProtection, max_disrupted_replicas
from tests.descheduler.cluster_builders import make_node, make_snapshot
from tests.descheduler.migration_builders import arguments, make_job, make_workload, ready_pod

replace = msgspec.structs.replace
NODES = tuple(make_node(f"n{i}") for i in range(3))
WORKLOADS = ("v", "w")
limits = st.one_of(st.none(), st.integers(0, 3))
shares = st.one_of(st.none(), st.integers(0, 4), st.sampled_from(["0%", "10%", "50%"]))


class Line(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[str, Pod] = {}
        self.jobs: dict[str, PodMigrationJob] = {}
        self.count = 0
        self.replicas = dict.fromkeys(WORKLOADS, 10)

    @initialize(globally=limits, node=limits, namespace=limits, workload=shares, unavailable=shares)
    def begins(
        self,
        globally: int | None,
        node: int | None,
        namespace: int | None,
        workload: int | str | None,
        unavailable: int | str | None,
    ) -> None:
        self.args: MigrationControllerArgs = arguments(
            max_migrating_globally=globally,
            max_migrating_per_node=node,
            max_migrating_per_namespace=namespace,
            max_migrating_per_workload=workload,
            max_unavailable_per_workload=unavailable,
        )
        for i in range(12):
            self._add(f"p{i}", i)

    def _add(self, name: str, i: int) -> None:
        given = {"namespace": ("default", "other")[i % 2], "owner": f"ReplicaSet/{WORKLOADS[i % 2]}"}
        self.count += 1
        self.pods[name] = ready_pod(name, f"n{i % 3}", metadata={"uid": f"uid-{self.count}"}, **given)

    def _workloads(self) -> dict[str, Workload]:
        return {f"ReplicaSet-{name}": make_workload(name, count) for name, count in self.replicas.items()}

    def _snapshot(self) -> ClusterSnapshot:
        jobs = tuple(self.jobs.values())
        return make_snapshot(NODES, tuple(self.pods.values()), jobs=jobs, workloads=self._workloads())

    def _is_allowed(self, workload: str) -> bool:
        """Whether workloads of this size may be touched at all."""
        count = self.replicas[workload]
        most = (
            max_disrupted_replicas(count, self.args.max_migrating_per_workload),
            max_disrupted_replicas(count, self.args.max_unavailable_per_workload),
        )
        return count != 1 and count not in most

    # -- what happens

    @rule(pod=st.integers(0, 11), named=st.booleans())
    def job_is_made(self, pod: int, named: bool) -> None:
        victim = self.pods.get(f"p{pod}")
        namespace = ("default", "other")[pod % 2]
        uid = victim.metadata.uid if victim is not None and named else ""
        self.count += 1
        name = f"j{self.count}"
        self.jobs[name] = make_job(name, f"p{pod}", namespace=namespace, uid=uid, ttl="5m")

    @rule(which=st.integers(0, 30), phase=st.sampled_from(["Running", "Succeeded", "Failed"]))
    def job_goes_on(self, which: int, phase: str) -> None:
        moving = [name for name, job in self.jobs.items() if has_passed_arbitration(job) and is_active(job)]
        if moving:
            name = moving[which % len(moving)]
            self.jobs[name] = replace(self.jobs[name], status=replace(self.jobs[name].status, phase=phase))

    @rule(pod=st.integers(0, 11), ready=st.booleans())
    def pod_changes(self, pod: int, ready: bool) -> None:
        found = self.pods.get(f"p{pod}")
        if found is not None:
            conditions = ready_pod("x").status.conditions if ready else ()
            self.pods[f"p{pod}"] = replace(found, status=replace(found.status, conditions=conditions))

    @rule(pod=st.integers(0, 11))
    def pod_is_replaced(self, pod: int) -> None:
        self._add(f"p{pod}", pod)

    @rule(pod=st.integers(0, 11))
    def pod_goes(self, pod: int) -> None:
        self.pods.pop(f"p{pod}", None)

    @rule(workload=st.sampled_from(WORKLOADS), replicas=st.sampled_from([0, 1, 3, 10, 40]))
    def workload_is_scaled(self, workload: str, replicas: int) -> None:
        self.replicas[workload] = replicas

    @rule()
    def round(self) -> None:
        self._round()

    def _round(self) -> int:
        """How many left the line."""
        waiting = [job for job in self.jobs.values() if is_active(job) and not has_passed_arbitration(job)]
        snapshot = self._snapshot()
        verdicts = arbitrate(waiting, snapshot, MigrationProtection(self.args), MigrationBudget(self.args))
        assert sorted(v.job.metadata.name for v in verdicts) == sorted(job.metadata.name for job in waiting)
        left = 0
        for verdict in verdicts:
            job = verdict.job
            if verdict.forbidden:
                self.jobs[job.metadata.name] = replace(job, status=replace(job.status, phase="Failed"))
            elif verdict.passes:
                marked = {**job.metadata.annotations, A_PASSED_ARBITRATION: "true"}
                self.jobs[job.metadata.name] = replace(job, metadata=replace(job.metadata, annotations=marked))
            pod = self._pod_of(job)
            if pod is not None and not verdict.forbidden:
                # A limit decides, and nothing else: right after this one, with all that passed until then.
                assert verdict.passes == (self._exceeded_limits(pod) == [])
            left += not verdict.waits
        return left

    def _pod_of(self, job: PodMigrationJob) -> Pod | None:
        ref = job.spec.pod_ref
        assert ref is not None
        pod = self.pods.get(ref.name)
        return pod if pod is not None and ref.uid in ("", pod.metadata.uid) else None

    def _exceeded_limits(self, pod: Pod) -> list[str]:
        """Return the limits that are exceeded with this pod among those that move."""
        args, meta = self.args, pod.metadata
        moving: dict[tuple[str, str, str], Pod | None] = {(meta.namespace, meta.name, meta.uid): pod}
        for job in self.jobs.values():
            if counts_in_arbitration(job):
                ref, found = job.spec.pod_ref, self._pod_of(job)
                assert ref is not None
                uid = found.metadata.uid if found is not None else ref.uid
                moving[ref.namespace, ref.name, uid] = found
        here = [p for p in moving.values() if p is not None]
        owner = meta.owner_references[0]
        replicas = self.replicas[owner.name]
        members = [p for p in self.pods.values() if p.metadata.owner_references[0].uid == owner.uid]
        gone = {p.metadata.uid for p in here} & {p.metadata.uid for p in members}
        away = gone | {p.metadata.uid for p in members if not is_available(p)}
        counts = {
            "globally": (args.max_migrating_globally, len(moving)),
            "node": (args.max_migrating_per_node, sum(p.spec.node_name == pod.spec.node_name for p in here)),
            "namespace": (args.max_migrating_per_namespace, sum(key[0] == meta.namespace for key in moving)),
            "workload": (max(max_disrupted_replicas(replicas, args.max_migrating_per_workload), 1), len(gone)),
            "unavailable": (max(max_disrupted_replicas(replicas, args.max_unavailable_per_workload), 1), len(away)),
        }
        return [name for name, (limit, count) in counts.items() if limit and count > limit]

    @invariant()
    def ended_jobs_never_come_back(self) -> None:
        assert all(job.status.phase in ("", "Pending", "Running", "Succeeded", "Failed") for job in self.jobs.values())

    def teardown(self) -> None:
        """Once whatever passed is done with and everybody is well, the line moves in every round until it is empty."""
        if not hasattr(self, "args"):
            return
        ready = ready_pod("x").status
        while any(is_active(job) and not has_passed_arbitration(job) for job in self.jobs.values()):
            for name, job in self.jobs.items():
                if has_passed_arbitration(job) and is_active(job):
                    self.jobs[name] = replace(job, status=replace(job.status, phase="Succeeded"))
            self.pods = {name: replace(pod, status=ready) for name, pod in self.pods.items()}
            assert self._round() > 0, "room appeared, and nobody went"


Line.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestLine = Line.TestCase
