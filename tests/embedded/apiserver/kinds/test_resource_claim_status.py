"""The status of a ResourceClaim is judged as by kube-apiserver 1.35, whose answers to these requests were read off."""

from __future__ import annotations

from typing import Any

import pytest

from koord.embedded.apiserver.kinds.registry import STRATEGIES
from tests.embedded.apiserver.rest_harness import Api, fresh

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
ALLOCATION = {"devices": {"results": [{"request": "r", "driver": "d.example.com", "pool": "p", "device": "x"}]}}
CONSUMER = {"resource": "pods", "name": "a", "uid": "u1"}


@pytest.fixture
async def api() -> Api:
    return await fresh(strategies=STRATEGIES)


@pytest.fixture
async def claim(api: Api) -> None:
    spec = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
    status, _ = await api.post(CLAIMS, {"metadata": {"name": "c"}, "spec": spec})
    assert status == 201


async def write_status(api: Api, status: dict[str, Any]) -> tuple[int, str]:
    code, answer = await api.patch(f"{CLAIMS}/c/status", {"status": status})
    return code, answer.get("message", "")


@pytest.mark.usefixtures("claim")
@pytest.mark.parametrize(
    ("status", "why"),
    [
        (
            {"reservedFor": [CONSUMER]},
            "status.reservedFor: Forbidden: may not be specified when `allocated` is not set",
        ),
        (
            {"allocation": {"devices": {"results": [{"request": "z", "driver": "d", "pool": "", "device": "x"}]}}},
            'results[0].request: Invalid value: "z": must be the name of a request in the claim',
        ),
        (
            {"allocation": ALLOCATION, "reservedFor": [CONSUMER, CONSUMER]},
            'status.reservedFor[1]: Duplicate value: "u1"',
        ),
        (
            {"allocation": ALLOCATION, "reservedFor": [{"resource": "pods"}]},
            "status.reservedFor[0].uid: Required value",
        ),
        (
            {"allocation": ALLOCATION, "reservedFor": [{**CONSUMER, "uid": f"u{n}"} for n in range(257)]},
            "status.reservedFor: Too many: 257: must have at most 256 items",
        ),
        (
            {"allocation": ALLOCATION, "devices": [{"driver": "d.example.com", "pool": "p", "device": "y"}]},
            "must be an allocated device in the claim",
        ),
        (
            {"allocation": {"devices": {"config": [{"source": "X", "opaque": {"driver": "d", "parameters": {}}}]}}},
            'source: Unsupported value: "X": supported values: "FromClaim", "FromClass"',
        ),
    ],
)
async def test_wrong_statuses_are_refused(api: Api, status: dict[str, Any], why: str) -> None:
    code, message = await write_status(api, status)
    assert code == 422
    assert why in message


@pytest.mark.usefixtures("claim")
async def test_an_allocation_is_removed_whole_and_never_changed(api: Api) -> None:
    assert (await write_status(api, {"allocation": ALLOCATION, "reservedFor": [CONSUMER]}))[0] == 200
    code, message = await write_status(api, {"allocation": {"devices": {"results": []}}})
    assert (code, "status.allocation: Invalid value" in message, "immutable" in message) == (422, True, True)
    assert (await write_status(api, {"allocation": None}))[0] == 422  # somebody still uses it
    assert (await write_status(api, {"allocation": None, "reservedFor": None}))[0] == 200


@pytest.mark.usefixtures("claim")
async def test_nobody_new_uses_a_claim_that_is_being_deleted(api: Api) -> None:
    finalizers = {"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}}
    await api.patch(f"{CLAIMS}/c", finalizers)
    await write_status(api, {"allocation": ALLOCATION, "reservedFor": [CONSUMER]})
    await api.delete(f"{CLAIMS}/c")
    other = {**CONSUMER, "name": "b", "uid": "u2"}
    code, message = await write_status(api, {"reservedFor": [CONSUMER, other]})
    assert (code, "new entries may not be added" in message) == (422, True)
    assert (await write_status(api, {"reservedFor": None}))[0] == 200
