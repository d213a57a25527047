"""What a new quota is given at admission."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.koordinator.protocol import A_QUOTA_SHARED_WEIGHT, L_QUOTA_PARENT, L_QUOTA_TREE_ID, ROOT_QUOTA
from koord.manager.webhooks.admission import AdmissionAllowed, AdmissionDenied
from koord.manager.webhooks.quota.admission import mutate_quota
from tests.manager.webhooks.quota.quota_builders import quota, request, topology_of

TREE = topology_of(quota("t", is_parent=True, tree="one"), quota("p", is_parent=True))


def made(obj: dict[str, Any]) -> dict[str, Any]:
    verdict = mutate_quota(request("CREATE", obj), TREE)
    assert isinstance(verdict, AdmissionAllowed)
    return verdict.object or obj


@pytest.mark.parametrize(
    ("stated", "weights"),
    [
        pytest.param(None, {"cpu": "10", "memory": "10Gi"}, id="from-max"),
        pytest.param("", {"cpu": "10", "memory": "10Gi"}, id="empty-text"),
        pytest.param('{"cpu":10}', {"cpu": "10", "memory": "10Gi"}, id="missing-key"),
        pytest.param('{"cpu":5,"memory":1,"x":1}', {"cpu": "5", "memory": "1"}, id="extra-key"),
        pytest.param("null", {"cpu": "10", "memory": "10Gi"}, id="null"),
    ],
)
def test_weights(stated: str | None, weights: dict[str, str]) -> None:
    notes = {} if stated is None else {A_QUOTA_SHARED_WEIGHT: stated}
    assert json.loads(made(quota("a", annotations=notes))["metadata"]["annotations"][A_QUOTA_SHARED_WEIGHT]) == weights


def test_weights_for_the_same_keys_keep_their_text() -> None:
    text = '{ "memory": 5, "cpu": 1 }'
    assert made(quota("a", annotations={A_QUOTA_SHARED_WEIGHT: text}))["metadata"]["annotations"] == {
        A_QUOTA_SHARED_WEIGHT: text
    }


def test_a_quota_without_max_gets_a_null_weight() -> None:
    assert made(quota("a", min=None, max=None))["metadata"]["annotations"] == {A_QUOTA_SHARED_WEIGHT: "null"}


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        pytest.param({}, {L_QUOTA_PARENT: ROOT_QUOTA}, id="no-parent"),
        pytest.param({"parent": "t"}, {L_QUOTA_PARENT: "t", L_QUOTA_TREE_ID: "one"}, id="tree-of-the-parent"),
        pytest.param({"parent": "p"}, {L_QUOTA_PARENT: "p"}, id="parent-in-no-tree"),
        pytest.param(
            {"parent": "nope", "tree": "x"},
            {L_QUOTA_PARENT: "nope", L_QUOTA_TREE_ID: "x"},
            id="own-tree-asks-no-parent",
        ),
    ],
)
def test_place_in_the_tree(given: dict[str, Any], labels: dict[str, str]) -> None:
    assert made(quota("a", **given))["metadata"]["labels"] == labels


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        pytest.param(quota("a", parent="nope"), "fill quota a failed, parent not exist", id="unknown-parent"),
        pytest.param(
            quota("a", annotations={A_QUOTA_SHARED_WEIGHT: "{"}),
            "fillDefaultQuotaInfo unmarshal sharedWeight failed:",
            id="unreadable-weight",
        ),
    ],
)
def test_refusals(obj: dict[str, Any], words: str) -> None:
    verdict = mutate_quota(request("CREATE", obj), TREE)
    assert isinstance(verdict, AdmissionDenied)
    assert verdict.code == 400
    assert verdict.message.startswith(words)


def test_other_fields_stay_and_the_request_is_not_touched() -> None:
    given = {**quota("a"), "extra": {"kept": [1]}}
    before = json.dumps(given)
    assert made(given)["extra"] == {"kept": [1]}
    assert json.dumps(given) == before


def test_what_is_complete_is_left_alone() -> None:
    once = made(quota("a", parent="t"))
    assert mutate_quota(request("CREATE", once), TREE) == AdmissionAllowed()


@pytest.mark.parametrize(
    ("operation", "name"), [("UPDATE", "a"), ("DELETE", "a"), ("CREATE", ROOT_QUOTA)], ids=["update", "delete", "root"]
)
def test_nothing_is_done(operation: str, name: str) -> None:
    assert mutate_quota(request(operation, quota(name), quota(name)), TREE) == AdmissionAllowed()
