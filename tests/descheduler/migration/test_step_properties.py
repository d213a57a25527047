"""One job in a world where everything happens in any order: its pod is safe, and it comes to an end."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from koord.api.koordinator.scheduling import PodMigrationJob, Reservation, ReservationOptions
from koord.api.kubernetes.pod import Pod
from koord.api.model import ObjectReference
from koord.descheduler.migration.job import is_active
from koord.descheduler.migration.step import (
    CreateReservation,
    DeleteJobReservation,
    EvictPod,
    MigrationFacts,
    MigrationStep,
    SetPodUid,
    next_step,
)
from tests.descheduler.cluster_builders import NOW_S
from tests.descheduler.migration_builders import make_job, make_reservation, ready_pod

replace = msgspec.structs.replace
TTL_S = 300.0
MOST_STEPS = 12
EVENTS = (
    "clock 1",
    "clock 120",
    "clock -3600",
    "reservation Pending",
    "reservation Available n1",
    "reservation Available n2",
    "reservation Available n2 x",
    "reservation Succeeded n2 x",
    "reservation Failed",
    "reservation Failed n2",
    "reservation deleted",
    "successor ready",
    "successor late",
    "pod gone",
    "pod replaced",
    "paused yes",
    "paused no",
    "limited",
    "denied",
)


class OneJob(RuleBasedStateMachine):
    """What the program does in a turn is done here by hand, so that it can die between any two writes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = NOW_S
        self.uids = 0
        self.evicted: list[str] = []
        self.reservation: Reservation | None = None
        self.seen: Reservation | None = None  # as a watch shows it, which may be late
        self.limited = ""
        self.denied = False
        self.successor: Pod | None = None
        self.knows = False  # the process that runs knows that no earlier one evicted the pod
        self.died = False

    @initialize(mode=st.sampled_from(["ReservationFirst", "EvictDirectly", ""]), named=st.booleans())
    def begins(self, mode: str, named: bool) -> None:
        self.mode = mode or "ReservationFirst"
        self.pod: Pod | None = self._pod()
        self.victim = self.pod.metadata.uid
        self.job: PodMigrationJob = make_job(uid=self.victim if named else "", ttl="5m", mode=mode, passed=True)

    def _pod(self, name: str = "a", node: str = "n1") -> Pod:
        self.uids += 1
        return ready_pod(name, node, metadata={"uid": f"uid-{self.uids}"})

    # The program -------------------------------------------------------------------------------------------------

    @rule(dies_after=st.one_of(st.none(), st.integers(0, 6)))
    def turn(self, dies_after: int | None) -> None:
        """`dies_after` so many writes it is killed, and the next turn is another process."""
        left = 1_000 if dies_after is None else dies_after
        if dies_after is not None:
            self.died = True
        for _ in range(MOST_STEPS):
            if self.pod is not None and self.pod.metadata.uid == self.victim:
                self.knows = True
            facts = MigrationFacts(
                now_s=self.now_s,
                default_mode="ReservationFirst",
                pod=self.pod,
                reservation=self.seen,
                successor=self.successor,
                rate_limit_reason=self.limited,
                may_have_been_evicted=not self.knows or bool(self.evicted),
            )
            now = next_step(self.job, facts)
            if isinstance(now.action, EvictPod) and facts.reservation is not None:
                now = next_step(self.job, replace(facts, reservation=self.reservation))
            writes = (now.action is not None) + (now.status is not None)
            if now.action is not None:
                if left <= 0:
                    self.knows = False
                    return
                left -= 1
                if not self._acts(now):
                    return
            if now.status is not None and now.status != self.job.status:
                if left <= 0:
                    self.knows = False
                    return
                left -= 1
                self.job = replace(self.job, status=now.status)
                self.knows = True
            if now.requeue_after_s is not None or not writes:
                return
        raise AssertionError(f"no end of steps: {self.job.status}")

    def _acts(self, now: MigrationStep) -> bool:
        action = now.action
        if isinstance(action, SetPodUid):
            assert self.pod is not None
            self._refer(uid=action.uid)
            if self.victim not in self.evicted:
                self.victim = action.uid
        elif isinstance(action, CreateReservation):
            if self.reservation is None:
                self.reservation = self.seen = make_reservation("r")
            options = ReservationOptions(reservation_ref=ObjectReference(name="r"))
            self.job = replace(self.job, spec=replace(self.job.spec, reservation_options=options))
        elif isinstance(action, DeleteJobReservation):
            self.reservation = self.seen = None
        elif isinstance(action, EvictPod):
            return self._evicts(action.pod)
        return True

    def _refer(self, **change: Any) -> None:
        ref = self.job.spec.pod_ref
        assert ref is not None
        self.job = replace(self.job, spec=replace(self.job.spec, pod_ref=replace(ref, **change)))

    def _evicts(self, pod: Pod) -> bool:
        assert pod.metadata.uid == self.victim, "only the very pod that is meant"
        assert pod.metadata.uid not in self.evicted, "nobody is evicted twice"
        assert not self.job.spec.paused
        assert not self.limited
        if self.mode == "ReservationFirst":
            place = self.reservation
            assert place is not None, "nobody leaves without a place"
            assert place.status.phase == "Available"
            assert place.status.node_name not in ("", pod.spec.node_name)
            assert not place.status.current_owners
        if self.denied:
            return False
        self.evicted.append(pod.metadata.uid)
        going = replace(pod.metadata, deletion_timestamp=datetime.fromtimestamp(NOW_S, UTC))
        self.pod = replace(pod, metadata=going)
        return True

    # The world ---------------------------------------------------------------------------------------------------

    @rule(dies_after=st.sampled_from([None, 1, 2, 3]), until=st.sampled_from([1, 2, 2, 3]))
    def all_goes_well(self, dies_after: int | None, until: int) -> None:
        """The straight way, on which rarely tried states lie; somewhere on it the program dies."""
        self.job = replace(self.job, spec=replace(self.job.spec, paused=False))
        self.limited, self.denied = "", False
        self.turn(None if until > 1 else dies_after)
        if self.reservation is not None and until > 1:
            self._reservation_becomes("Available", "n2")
            self.seen = self.reservation
            self.turn(None if until > 2 else dies_after)
        if self.evicted and until > 2:
            self.pod = None
            self.turn(dies_after)

    @rule(event=st.sampled_from(EVENTS), shown=st.booleans())
    def something_happens(self, event: str, shown: bool) -> None:
        """`shown` is whether the watch tells of it at once."""
        place = self.reservation
        match event.split():
            case ["clock", seconds]:
                self.now_s += float(seconds)
            case ["reservation", "deleted"]:
                self.reservation = None
            case ["reservation", phase, *more] if place is not None:
                self._reservation_becomes(phase, *more)
            case ["successor", state] if place is not None and self.pod is None:
                self._successor_comes(ready=state == "ready")
            case ["pod", "gone"]:
                self.pod = None
            case ["pod", "replaced"]:
                self.pod = self._pod(node="n3")
            case ["paused", value]:
                self.job = replace(self.job, spec=replace(self.job.spec, paused=value == "yes"))
            case ["limited"]:
                self.limited = "another pod was evicted a moment ago"
            case ["denied"]:
                self.denied = True
        if shown:
            self.seen = self.reservation

    def _reservation_becomes(self, phase: str, node: str = "", owner: str = "") -> None:
        assert self.reservation is not None
        owners = (ObjectReference(name=owner, uid=owner),) if owner else ()
        status = replace(self.reservation.status, phase=phase, node_name=node, current_owners=owners)
        self.reservation = replace(self.reservation, status=status)

    def _successor_comes(self, *, ready: bool) -> None:
        assert self.reservation is not None
        self.successor = self._pod("b", "n2")
        if not ready:
            self.successor = replace(self.successor, status=replace(self.successor.status, conditions=()))
        owner = ObjectReference(namespace="default", name="b", uid=self.successor.metadata.uid)
        status = replace(self.reservation.status, phase="Succeeded", node_name="n2", current_owners=(owner,))
        self.reservation = self.seen = replace(self.reservation, status=status)

    def teardown(self) -> None:
        if not hasattr(self, "job"):
            return
        self.job = replace(self.job, spec=replace(self.job.spec, paused=False))
        self.now_s = max(self.now_s, NOW_S) + TTL_S + 3
        self.turn(None)
        assert not is_active(self.job), self.job.status
        status = self.job.status
        assert status.phase in ("Succeeded", "Failed")
        assert status.reason if status.phase == "Failed" else status.message
        if status.phase == "Succeeded":
            assert self.evicted == [self.victim] or self.died, "who knows what an earlier process did"
        if self.evicted:
            assert status.reason != "MissingPod", "it is this job that moved the pod"
        self.turn(None)
        assert self.job.status is status, "what is over stays as it is"


OneJob.TestCase.settings = settings(max_examples=250, stateful_step_count=12, deadline=None)
TestOneJob = OneJob.TestCase
