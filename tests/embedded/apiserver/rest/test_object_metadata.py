"""ObjectMeta validation: the errors for names, labels, owners and finalizers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.embedded.apiserver.rest_harness import NS, Api, config_map, fresh

SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


@pytest.fixture
async def api() -> Api:
    return await fresh()


def causes(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(cause["field"], cause["message"]) for cause in body["details"]["causes"]]


REFUSED: list[Any] = [
    pytest.param({"name": "Bad_Name"}, [("metadata.name", f'Invalid value: "Bad_Name": {SUBDOMAIN}')], id="name"),
    pytest.param(
        {"name": "a", "generation": -1},
        [("metadata.generation", "Invalid value: -1: must be greater than or equal to 0")],
        id="generation",
    ),
    pytest.param(
        {"name": "a", "finalizers": ["bad", "ok.io/x"]},
        [
            (
                "metadata.finalizers[0]",
                'Invalid value: "bad": name is neither a standard finalizer name nor is it fully qualified',
            )
        ],
        id="finalizer",
    ),
    pytest.param(
        {"name": "a", "finalizers": ["orphan", "foregroundDeletion"]},
        [
            (
                "metadata.finalizers",
                'Invalid value: ["orphan","foregroundDeletion"]: finalizer orphan and foregroundDeletion cannot be '
                "both set",
            )
        ],
        id="both-finalizers",
    ),
    pytest.param(
        {"name": "a", "ownerReferences": [{"apiVersion": "", "kind": "", "name": "", "uid": ""}]},
        [
            ("metadata.ownerReferences.apiVersion", 'Invalid value: "": version must not be empty'),
            ("metadata.ownerReferences.kind", 'Invalid value: "": must not be empty'),
            ("metadata.ownerReferences.name", 'Invalid value: "": must not be empty'),
            ("metadata.ownerReferences.uid", 'Invalid value: "": must not be empty'),
        ],
        id="empty-owner",
    ),
]


@pytest.mark.parametrize(("meta", "expected"), REFUSED)
async def test_refusals(api: Api, meta: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    status, body = await api.post(f"{NS}/configmaps", {"metadata": meta})
    assert (status, causes(body)) == (422, expected)


async def test_bad_label_key_and_value_are_told_apart(api: Api) -> None:
    _, body = await api.post(f"{NS}/configmaps", config_map("a", labels={"-x": "y y"}, annotations={"bad key": "v"}))
    assert [field for field, _ in causes(body)] == ["metadata.labels", "metadata.labels", "metadata.annotations"]
    assert [message.split(":")[1].strip() for _, message in causes(body)] == ['"-x"', '"y y"', '"bad key"']


async def test_generated_prefix_is_judged_with_its_name(api: Api) -> None:
    _, body = await api.post(f"{NS}/configmaps", {"metadata": {"generateName": "Gen_"}})
    assert [field for field, _ in causes(body)] == ["metadata.generateName", "metadata.name"]


async def test_two_controllers_are_refused_by_name(api: Api) -> None:
    owners = [
        {"apiVersion": "apps/v1", "kind": kind, "name": "x", "uid": kind, "controller": True}
        for kind in ("ReplicaSet", "DaemonSet")
    ]
    _, body = await api.post(f"{NS}/configmaps", config_map("a", ownerReferences=owners))
    assert causes(body)[0][1].endswith('Found "true" in references for ReplicaSet/x and DaemonSet/x')


NAMES: list[Any] = [
    pytest.param("/api/v1/namespaces", "with.dots", "must not contain dots", id="namespace"),
    pytest.param(f"{NS}/services", "1st", "a DNS-1035 label must consist of", id="service"),
    pytest.param("/apis/rbac.authorization.k8s.io/v1/clusterroles", "a/b", "may not contain '/'", id="role"),
]


@pytest.mark.parametrize(("path", "name", "why"), NAMES)
async def test_names_follow_their_kind(api: Api, path: str, name: str, why: str) -> None:
    status, body = await api.post(path, {"metadata": {"name": name}})
    assert status == 422
    assert why in causes(body)[0][1]


async def test_role_names_may_hold_colons(api: Api) -> None:
    body = {"metadata": {"name": "system:node"}, "rules": []}
    assert (await api.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", body))[0] == 201
