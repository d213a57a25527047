"""Pods match reservations by owners, names, labels, taints and exact amounts."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.reservation_codecs import ReservationAffinity, ReservationSelector
from koord.api.koordinator.scheduling import Reservation, ReservationSpec, ReservationStatus
from koord.api.koordinator.scheduling import ReservationControllerReference as Controller
from koord.api.koordinator.scheduling import ReservationOwner as Who
from koord.api.kubernetes.affinity import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from koord.api.kubernetes.meta import LabelSelector, LabelSelectorRequirement, ObjectMeta, OwnerReference
from koord.api.model import ObjectReference as Ref
from koord.scheduler.plugins.reservation.matching import Mismatch, ReservationMatcher, matches_exactly
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_info import ReservationInfo, validation_error
from tests.scheduler.plugins.reservation.reservation_builders import ANY, amounts, pod, reservation_info

SET = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="u1", controller=True)
WEB = pod("web-1", labels={"app": "web"}, owners=(SET,), namespace="prod")


def labelled(key: str, operator: str, *values: str) -> Who:
    return Who(
        label_selector=LabelSelector(
            match_expressions=(LabelSelectorRequirement(key=key, operator=operator, values=values),)
        )
    )


@pytest.mark.parametrize(
    ("owners", "matches"),
    [
        pytest.param((Who(),), True, id="anyone"),
        pytest.param((Who(object=Ref(name="web-1", namespace="prod")),), True, id="object-by-name"),
        pytest.param(
            (Who(object=Ref(name="web-1", kind="Job", resource_version="9")),), True, id="kind-is-not-looked-at"
        ),
        pytest.param((Who(object=Ref(name="web-1", namespace="dev")),), False, id="object-elsewhere"),
        pytest.param((Who(object=Ref(uid="other", name="web-1")),), False, id="object-with-another-uid"),
        pytest.param((Who(object=Ref(api_version="v2")),), False, id="object-of-another-version"),
        pytest.param((Who(controller=Controller(kind="ReplicaSet", name="web")),), True, id="controller"),
        pytest.param((Who(controller=Controller(name="web", namespace="dev")),), False, id="controller-elsewhere"),
        pytest.param((Who(controller=Controller(name="web", uid="u2")),), False, id="controller-with-another-uid"),
        pytest.param((Who(controller=Controller(controller=True)),), True, id="any-controller"),
        pytest.param((Who(label_selector=LabelSelector(match_labels={"app": "web"})),), True, id="labels"),
        pytest.param((Who(label_selector=LabelSelector()),), True, id="an-empty-selector-is-everyone"),
        pytest.param((labelled("app", "In", "x", "web"),), True, id="one-of-several-values"),
        pytest.param((labelled("tier", "DoesNotExist"),), True, id="a-label-that-must-be-absent"),
        pytest.param(
            (Who(object=Ref(name="web-1"), controller=Controller(name="db")),), False, id="all-terms-must-hold"
        ),
        pytest.param(
            (Who(object=Ref(name="x")), Who(controller=Controller(name="web"))), True, id="one-owner-is-enough"
        ),
    ],
)
def test_owners(owners: tuple[Who, ...], matches: bool) -> None:
    assert reservation_info("r", *owners).matches_owner(WEB) is matches


def test_without_owners_it_is_for_nobody() -> None:
    assert not ReservationInfo(uid="u", name="r").matches_owner(WEB)


TAINT = Taint(key="team", value="a", effect="NoSchedule")
TOLERANT = (Toleration(key="team", operator="Exists"),)
ALL = (Toleration(operator="Exists"),)


def required(*terms: NodeSelectorTerm) -> ReservationAffinity:
    selector = ReservationSelector(reservation_selector_terms=terms)
    return ReservationAffinity(required_during_scheduling_ignored_during_execution=selector)


def term(key: str, operator: str, *values: str, field: bool = False) -> NodeSelectorTerm:
    made = (NodeSelectorRequirement(key=key, operator=operator, values=values),)
    return NodeSelectorTerm(match_fields=made) if field else NodeSelectorTerm(match_expressions=made)


@pytest.mark.parametrize(
    ("seeker", "held", "mismatch"),
    [
        pytest.param({}, {}, None, id="no-wishes"),
        pytest.param({}, {"unschedulable": True}, Mismatch.UNSCHEDULABLE, id="closed"),
        pytest.param(
            {"affinity": ReservationAffinity(tolerations=ALL)}, {"unschedulable": True}, None, id="closed-is-tolerated"
        ),
        pytest.param(
            {"affinity": ReservationAffinity(name="r")},
            {"unschedulable": True, "taints": (TAINT,)},
            None,
            id="by-name-whatever-it-is-like",
        ),
        pytest.param({"affinity": ReservationAffinity(name="x")}, {}, Mismatch.NAME, id="another-name"),
        pytest.param({}, {"taints": (TAINT,)}, None, id="taints-do-not-concern-pods-without-affinity"),
        pytest.param({"affinity": ANY}, {"taints": (TAINT,)}, Mismatch.TAINT, id="tainted"),
        pytest.param(
            {"affinity": ReservationAffinity(tolerations=TOLERANT)}, {"taints": (TAINT,)}, None, id="tolerated"
        ),
        pytest.param(
            {"affinity": ANY}, {"taints": (Taint(key="k", effect="PreferNoSchedule"),)}, None, id="a-soft-taint"
        ),
        pytest.param(
            {"affinity": ReservationAffinity(reservation_selector={"pool": "a"})},
            {"labels": {"pool": "a"}},
            None,
            id="by-label",
        ),
        pytest.param(
            {"affinity": ReservationAffinity(reservation_selector={"pool": "b"})},
            {"labels": {"pool": "a"}},
            Mismatch.AFFINITY,
            id="by-another-label",
        ),
        pytest.param(
            {"affinity": ReservationAffinity(reservation_selector={"zone": "z"})}, {}, None, id="by-a-label-of-the-node"
        ),
        pytest.param(
            {"affinity": ReservationAffinity(reservation_selector={"zone": "z"})},
            {"labels": {"zone": "own"}},
            Mismatch.AFFINITY,
            id="own-labels-cover-the-node's",
        ),
        pytest.param(
            {"affinity": required(term("pool", "In", "x"), term("pool", "Exists"))},
            {"labels": {"pool": "a"}},
            None,
            id="one-term-is-enough",
        ),
        pytest.param(
            {"affinity": required(term("metadata.name", "In", "r", field=True))}, {}, None, id="by-name-field"
        ),
        pytest.param(
            {"affinity": required(term("metadata.name", "In", "r", "x", field=True))},
            {},
            Mismatch.AFFINITY,
            id="a-field-takes-one-name",
        ),
        pytest.param(
            {"affinity": required(term("metadata.name", "In", "x", field=True))},
            {},
            Mismatch.AFFINITY,
            id="by-another-name-field",
        ),
        pytest.param(
            {"affinity": required(term("pool", "Near"))},
            {"labels": {"pool": "a"}},
            Mismatch.AFFINITY,
            id="an-unreadable-term",
        ),
        pytest.param({"affinity": required()}, {}, Mismatch.AFFINITY, id="no-term-at-all"),
        pytest.param({"exact_resources": ("cpu",), "requests": amounts(4)}, {}, None, id="exactly"),
        pytest.param({"exact_resources": ("cpu",), "requests": amounts(3)}, {}, Mismatch.NOT_EXACT, id="not-exactly"),
        pytest.param(
            {"exact_resources": ("cpu",), "requests": amounts(3), "affinity": ReservationAffinity(name="r")},
            {},
            Mismatch.NOT_EXACT,
            id="not-exactly-though-by-name",
        ),
    ],
)
def test_demands(seeker: dict[str, Any], held: dict[str, Any], mismatch: Mismatch | None) -> None:
    answer = ReservationMatcher(pod(**seeker)).match(reservation_info("r", **held), {"zone": "z"})
    assert answer.mismatch is mismatch
    assert (answer.taint is not None) is (mismatch is Mismatch.TAINT)


def test_labels_of_the_node_can_be_left_out() -> None:
    wish = ReservationMatcher(pod(affinity=ReservationAffinity(reservation_selector={"zone": "z"})))
    assert wish.match(reservation_info("r")).mismatch is Mismatch.AFFINITY


def test_strangers_are_told_nothing_else() -> None:
    wish = ReservationMatcher(pod(affinity=ReservationAffinity(name="r")))
    assert wish.match(reservation_info("x", Who(object=Ref(name="other")))).mismatch is Mismatch.OWNER


@pytest.mark.parametrize(
    ("names", "matches"),
    [
        pytest.param(("cpu",), True, id="equal"),
        pytest.param(("gpu",), True, id="on-neither-side"),
        pytest.param(("gpu", "memory"), False, id="the-rest-is-still-looked-at"),
        pytest.param(("disk",), False, id="on-one-side"),
        pytest.param((), True, id="nothing-demanded"),
    ],
)
def test_exact_amounts(names: tuple[str, ...], matches: bool) -> None:
    assert matches_exactly(names, {"cpu": 1, "memory": 2, "disk": 1}, {"cpu": 1, "memory": 3}) is matches


RD = "scheduling.koordinator.sh/"


def test_a_reservation_is_read_from_its_object() -> None:
    made = Reservation(
        metadata=ObjectMeta(
            name="r",
            uid="u",
            labels={RD + "reservation-order": "3"},
            annotations={
                RD + "reservation-restricted-options": '{"resources":["cpu","gpu"]}',
                "node.koordinator.sh/reservation": '{"resources":{"cpu":"1"}}',
            },
        ),
        spec=ReservationSpec(owners=(Who(),), allocate_policy="Restricted", allocate_once=False),
        status=ReservationStatus(phase="Available", node_name="n", allocatable={"cpu": "4", "memory": "4Gi"}),
    )
    found = ReservationInfo.from_reservation(made)
    assert (found.node, found.order, found.allocate_once, found.parse_error) == ("n", 3, False, "")
    assert (found.reserved, found.node_reserved, found.resource_names) == (amounts(4, 4), {"cpu": 1000}, ("cpu",))
    assert validation_error(made) == "the reservation misses the template spec"


@pytest.mark.parametrize(
    ("meta", "owners"),
    [
        pytest.param(ObjectMeta(annotations={RD + "reservation-restricted-options": "["}), (Who(),), id="options"),
        pytest.param(ObjectMeta(labels={RD + "reservation-order": "first"}), (Who(),), id="order"),
        pytest.param(ObjectMeta(), (labelled("a b", "Exists"),), id="selector"),
    ],
)
def test_what_cannot_be_read_is_told(meta: ObjectMeta, owners: tuple[Who, ...]) -> None:
    assert ReservationInfo.from_reservation(Reservation(metadata=meta, spec=ReservationSpec(owners=owners))).parse_error


def test_a_pod_is_read_from_its_object() -> None:
    def read(**annotations: str) -> ReservationRequest | MalformedAnnotation:
        notes = {RD + key.replace("_", "-"): text for key, text in annotations.items()}
        return ReservationRequest.from_pod(
            uid="u", namespace="n", name="p", labels={}, annotations=notes, owners=(), requests={}
        )

    found = read(reservation_affinity='{"name":"r"}', exact_match_reservation='{"resourceNames":["cpu"]}')
    assert isinstance(found, ReservationRequest)
    assert (found.requested_name, found.exact_resources) == ("r", ("cpu",))
    assert isinstance(read(reservation_affinity="["), MalformedAnnotation)
    empty = read(reservation_affinity="")
    assert isinstance(empty, ReservationRequest)
    assert empty.affinity == ANY
