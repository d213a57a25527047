"""Profiles on reservations: the object gets labels, its template gets what a scheduler reads."""

from __future__ import annotations

from typing import Any

import pytest

from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDenied
from koord.manager.webhooks.pod_mutating import mutate_reservation
from tests.manager.webhooks.admission_builders import Obj, admission_context, profile, request

TEMPLATE: Obj = {"spec": {"containers": [{"name": "m", "resources": {"requests": {"cpu": "1"}}}]}}
FULL: Obj = {
    "selector": {"matchLabels": {"on": "1"}},
    "namespaceSelector": {"matchLabels": {"never": "never"}},
    "labels": {"x": "y"},
    "annotations": {"an": "1"},
    "qosClass": "BE",
    "priorityClassName": "koord-batch",
    "koordinatorPriority": 7,
    "schedulerName": "koord-scheduler",
}


def reservation(template: Obj | None = TEMPLATE, **labels: str) -> Obj:
    spec: Obj = {"owners": [{"labelSelector": {"matchLabels": {"a": "b"}}}], "ttl": "1h"}
    return {
        "metadata": {"name": "r", "labels": labels},
        "spec": {**spec, **({"template": template} if template else {})},
    }


def mutated(obj: Obj, **spec: Any) -> Obj:
    verdict = mutate_reservation(request(obj, resource="reservations"), admission_context(profile(**spec)))
    assert isinstance(verdict, AdmissionAllowed), verdict
    return verdict.object or obj


def test_labels_go_on_the_object_and_the_rest_into_the_template() -> None:
    after = mutated(reservation(on="1"), **FULL)
    labels = {"on": "1", "x": "y", "koordinator.sh/qosClass": "BE", "koordinator.sh/priority": "7"}
    assert after["metadata"] == {"name": "r", "labels": labels, "annotations": {"an": "1"}}
    assert after["spec"]["template"]["spec"] == {
        **TEMPLATE["spec"],
        "schedulerName": "koord-scheduler",
        "priorityClassName": "koord-batch",
        "priority": 5000,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def test_without_a_template_only_the_object_changes() -> None:
    after = mutated(reservation(None, on="1"), **FULL)
    assert after["spec"] == reservation(None)["spec"]
    assert after["metadata"]["labels"]["x"] == "y"


def test_patches_merge_containers_of_the_template() -> None:
    patch = {"spec": {"ttl": "2h", "template": {"spec": {"containers": [{"name": "n"}]}}}}
    after = mutated(reservation(), patch=patch)
    assert after["spec"]["ttl"] == "2h"
    assert [c["name"] for c in after["spec"]["template"]["spec"]["containers"]] == ["n", "m"]


def test_chance_spares_reservations_too() -> None:
    assert mutated(reservation(), probability=0, labels={"x": "y"}) == reservation()


@pytest.mark.parametrize(
    ("obj", "operation", "resource"),
    [
        pytest.param(reservation(other="1"), "CREATE", "reservations", id="another-label"),
        pytest.param(reservation(on="1"), "UPDATE", "reservations", id="update"),
        pytest.param(reservation(on="1"), "CREATE", "pods", id="no-reservation"),
    ],
)
def test_all_else_stays_as_it_is(obj: Obj, operation: str, resource: str) -> None:
    asked = request(obj, operation=operation, resource=resource)
    assert mutate_reservation(asked, admission_context(profile(**FULL))) == AdmissionAllowed()


@pytest.mark.parametrize(
    ("obj", "spec", "code"),
    [
        pytest.param(reservation(), {"probability": "abc"}, 500, id="probability"),
        pytest.param(reservation(), {"priorityClassName": "gone"}, 500, id="class"),
        pytest.param(reservation(), {"patch": {"spec": {"ttl": 5}}}, 500, id="patch"),
        pytest.param({"metadata": {"labels": []}}, {}, 400, id="no-reservation"),
    ],
)
def test_refusals(obj: Obj, spec: Obj, code: int) -> None:
    verdict = mutate_reservation(request(obj, resource="reservations"), admission_context(profile(**spec)))
    assert isinstance(verdict, AdmissionDenied)
    assert verdict.code == code
