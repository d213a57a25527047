"""The reservation that a job makes, and how a status changes."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.scheduling import PodMigrationJobStatus
from koord.descheduler.migration.job import find_condition, with_condition
from koord.descheduler.migration.reservation_fit import build_reservation

NOT_HERE = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def job(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "j", "uid": "u"}, "spec": {"podRef": {}, **spec}}


def pod(*, node: str = "n1", owners: bool = True, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "a", "namespace": "x", "uid": "p", "managedFields": [{}], "labels": {"l": "1"}}
    if owners:
        metadata["ownerReferences"] = [
            {"kind": "Foo", "name": "foo", "uid": "f"},
            {"kind": "ReplicaSet", "name": "rs", "uid": "r", "controller": True},
        ]
    return {"metadata": metadata, "spec": {"nodeName": node, **spec}, "status": {"phase": phase}}


def test_it_is_the_pod_for_its_successor_and_anywhere_but_here() -> None:
    made = build_reservation(job(ttl="5m"), pod(schedulerName="koord-scheduler"), 17)
    assert made["metadata"] == {
        "name": "u",
        "labels": {
            "app.kubernetes.io/created-by": "koord-descheduler",
            "scheduling.koordinator.sh/reservation-order": "17",
        },
    }
    spec = made["spec"]
    assert (spec["allocateOnce"], spec["ttl"]) == (True, "5m0s")
    assert spec["owners"] == [
        {"controller": {"kind": "ReplicaSet", "name": "rs", "uid": "r", "controller": True, "namespace": "x"}}
    ]
    template = spec["template"]
    assert "managedFields" not in template["metadata"]
    assert template["metadata"]["labels"] == {"l": "1"}
    assert "nodeName" not in template["spec"]
    assert template["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [{"matchFields": [NOT_HERE]}]


def test_every_term_of_an_affinity_excludes_the_node() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n2", "n1"]}
    terms: list[dict[str, Any]] = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"matchFields": [field]}]
    affinity = {"podAntiAffinity": {"x": 1}, "nodeAffinity": {"preferred": [1], REQUIRED: {"nodeSelectorTerms": terms}}}
    made = build_reservation(job(), pod(affinity=affinity), 0)["spec"]["template"]["spec"]["affinity"]
    assert made["podAntiAffinity"] == {"x": 1}
    assert made["nodeAffinity"]["preferred"] == [1]
    assert made["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {**terms[0], "matchFields": [NOT_HERE]},
        {"matchFields": [field, NOT_HERE]},
    ]
    assert affinity["nodeAffinity"] == {"preferred": [1], REQUIRED: {"nodeSelectorTerms": terms}}  # left as it was


def test_a_pod_without_a_node_is_its_own_successor() -> None:
    made = build_reservation(job(), pod(node="", phase="Pending"), 0)["spec"]
    assert made["owners"] == [{"object": {"kind": "Pod", "namespace": "x", "name": "a", "uid": "p"}}]
    assert "affinity" not in made["template"]["spec"]
    assert "ttl" not in made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ttl": "1h"}, {"ttl": "1h"}),
        ({"expires": "2027-01-01T00:00:00Z"}, {"expires": "2027-01-01T00:00:00Z"}),
        ({}, {"ttl": "5m0s"}),
    ],
    ids=["own-ttl", "own-end", "of-the-job"],
)
def test_a_given_template_is_kept_but_for_what_must_be(given: dict[str, Any], expected: dict[str, Any]) -> None:
    owners: list[dict[str, Any]] = [{"labelSelector": {}}]
    template = {
        "metadata": {"name": "mine", "labels": {"k": "v"}},
        "spec": {"owners": owners, "allocateOnce": False, **given},
    }
    made = build_reservation(job(ttl="5m", reservationOptions={"template": template}), pod(), 3)
    assert made["metadata"]["name"] == "mine"
    assert made["metadata"]["labels"]["k"] == "v"
    assert made["spec"]["owners"] == owners
    assert made["spec"]["allocateOnce"] is True
    assert {k: v for k, v in made["spec"].items() if k in ("ttl", "expires")} == expected


def test_claims_are_dropped_where_that_is_switched_on() -> None:
    volumes = [
        {"name": "c", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "e", "ephemeral": {}},
        {"name": "m", "configMap": {}},
    ]
    kept = build_reservation(job(), pod(volumes=volumes), 0)["spec"]["template"]["spec"]["volumes"]
    dropped = build_reservation(job(), pod(volumes=volumes), 0, drop_claims=True)["spec"]["template"]["spec"]["volumes"]
    assert (kept, dropped) == (volumes, volumes[2:])


def test_a_condition_that_says_the_same_changes_nothing() -> None:
    first = with_condition(PodMigrationJobStatus(), 100.0, "Eviction", "False", "Evicting", "m")
    assert (first.status, first.reason, first.message) == ("Eviction", "Evicting", "m")
    assert with_condition(first, 200.0, "Eviction", "False", "Evicting", "m") is first
    other = with_condition(first, 200.0, "Eviction", "False", "FailedEvict", "n")
    found = find_condition(other, "Eviction")
    assert found is not None
    assert found.last_transition_time is not None
    assert found.last_transition_time.timestamp() == 100  # its status is as before
    assert found.last_probe_time is not None
    assert found.last_probe_time.timestamp() == 200
    last = with_condition(other, 300.0, "Eviction", "True", "EvictComplete")
    found = find_condition(last, "Eviction")
    assert found is not None
    assert found.last_transition_time is not None
    assert (len(last.conditions), found.last_transition_time.timestamp()) == (1, 300)
