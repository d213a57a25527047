"""Reserve pods are built from Reservations, and operating pods are read as reservations."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.scheduling import Reservation, ReservationSpec, ReservationStatus
from koord.api.kubernetes.meta import ObjectMeta
from koord.api.kubernetes.pod import (
    Container,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    PodTemplateSpec,
    ResourceRequirements,
)
from koord.api.kubernetes.pod_resources import pod_requests
from koord.scheduler.cache.reserve_pod import MAX_PRIORITY, build_reserve_pod
from koord.scheduler.plugins.reservation.reservation_index import ReservationIndex
from koord.scheduler.plugins.reservation.reservation_info import current_owner_of, reservation_info_of_pod
from tests.scheduler.plugins.reservation.reservation_builders import amounts, pod

SD = "scheduling.koordinator.sh/"
FOUR = (Container(name="c", resources=ResourceRequirements(requests={"cpu": "4", "memory": "4Gi"})),)


def made(status: ReservationStatus | None = None, labels: dict[str, str] | None = None, **spec: Any) -> Reservation:
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels={"app": "template", "tier": "t"}, annotations={"note": "template"}),
        spec=PodSpec(containers=FOUR, **spec),
    )
    return Reservation(
        metadata=ObjectMeta(name="r", uid="u-1", labels={"app": "own", **(labels or {})}),
        spec=ReservationSpec(template=template, pre_allocation=True),
        status=status or ReservationStatus(),
    )


def test_while_it_waits() -> None:
    found = build_reserve_pod(made(node_name="wished"))
    meta = found.metadata
    assert (meta.name, meta.uid, meta.namespace) == ("u-1", "u-1", "default")
    assert meta.labels == {"app": "own", "tier": "t"}
    assert meta.annotations == {
        "note": "template",
        SD + "reserve-pod": "true",
        SD + "reservation-name": "r",
        SD + "is-pre-allocation": "true",
        SD + "reservation-node": "wished",
    }
    assert (found.spec.node_name, found.spec.scheduler_name, found.spec.priority) == (
        "",
        "default-scheduler",
        MAX_PRIORITY,
    )
    assert pod_requests(found.spec) == amounts(4, 4)


@pytest.mark.parametrize(
    ("labels", "spec", "priority"),
    [
        pytest.param({"koordinator.sh/priority": "7"}, {}, 7, id="by-label"),
        pytest.param({"koordinator.sh/priority": "7"}, {"priority": 9}, 9, id="by-template"),
        pytest.param({"koordinator.sh/priority": "x"}, {}, MAX_PRIORITY, id="unreadable"),
    ],
)
def test_priority(labels: dict[str, str], spec: dict[str, Any], priority: int) -> None:
    assert build_reserve_pod(made(labels=labels, **spec)).spec.priority == priority


def test_what_it_holds_counts() -> None:
    status = ReservationStatus(phase="Available", node_name="n", allocatable={"cpu": "3", "memory": "4Gi"})
    found = build_reserve_pod(made(status))
    assert found.spec.node_name == "n"
    assert pod_requests(found.spec) == amounts(3, 4)
    assert [container.name for container in found.spec.containers] == ["c", "__internal_fake_container__"]
    same = ReservationStatus(phase="Available", node_name="n", allocatable={"cpu": "4", "memory": "4Gi"})
    assert len(build_reserve_pod(made(same)).spec.containers) == 1


def test_its_end_shows() -> None:
    assert build_reserve_pod(made(ReservationStatus(phase="Failed"))).status.phase == "Failed"
    assert build_reserve_pod(made(ReservationStatus(phase="Available"))).status.phase == ""


def real(ready: bool = True, phase: str = "Running", mode: str = "Reservation", **annotations: str) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name="p",
            uid="u",
            labels={SD + "operating-mode": mode},
            annotations={SD + key.replace("_", "-"): text for key, text in annotations.items()},
        ),
        spec=PodSpec(containers=FOUR, node_name="n"),
        status=PodStatus(phase=phase, conditions=(PodCondition(type="Ready", status="True" if ready else "False"),)),
    )


ALL = '[{"labelSelector":{}}]'


@pytest.mark.parametrize(
    ("stands", "matchable"),
    [
        pytest.param(real(reservation_owners=ALL), True, id="running-and-ready"),
        pytest.param(real(ready=False, reservation_owners=ALL), False, id="not-ready"),
        pytest.param(real(phase="Pending", reservation_owners=ALL), False, id="not-running"),
        pytest.param(real(reservation_owners="["), False, id="unreadable-owners"),
        pytest.param(real(reservation_restricted_options="[", reservation_owners=ALL), False, id="unreadable-options"),
        pytest.param(real(), False, id="for-nobody"),
    ],
)
def test_a_pod_as_reservation(stands: Pod, matchable: bool) -> None:
    found = reservation_info_of_pod(stands)
    assert found is not None
    assert (found.reserved, found.allocate_once, found.effective_policy) == (amounts(4, 4), True, "Aligned")
    assert bool(ReservationIndex.build([found], []).candidates(pod())) is matchable


def test_its_owner_has_all_of_it() -> None:
    stands = real(reservation_owners=ALL, reservation_current_owner='{"uid":"o"}')
    found, owner = reservation_info_of_pod(stands), current_owner_of(stands)
    assert found is not None
    assert owner is not None
    assert not isinstance(owner, MalformedAnnotation)
    register = ReservationIndex.build([found], [owner])
    assert not register.candidates(pod())
    assert register.on_node("n")[0].unallocated() == {}


def test_others_are_ordinary_pods() -> None:
    assert reservation_info_of_pod(real(mode="Runnable")) is None
    assert current_owner_of(real()) is None
    assert isinstance(current_owner_of(real(reservation_current_owner="[")), MalformedAnnotation)
