"""ServiceAccount admission gives pods their account, its token's volume and its pull secrets, or refuses them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from koord.embedded.apiserver.server import ApiServer
from koord.telemetry.clock import ManualClock
from tests.embedded.apiserver.admission.admitted_objects import PODS
from tests.embedded.apiserver.admission.service_account_cases import ACCOUNTS, CASES, PATH, outcome, pod
from tests.embedded.apiserver.rest_harness import Api

Obj = dict[str, Any]
MOUNT = {"name": "kube-api-access-*", "readOnly": True, "mountPath": PATH}
PROJECTION = {
    "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
            }
        },
    ],
    "defaultMode": 420,
}
VOLUME = {"name": "kube-api-access-*", "projected": PROJECTION}


async def admitted(case: str | Obj) -> Obj:
    clock, chance = ManualClock(), random.Random(5)
    server = ApiServer(clock=clock, chance=chance, service_accounts=True)
    await server.start()
    api = Api(server, clock, chance)
    try:
        for account in ACCOUNTS:
            status, body = await api.post("/api/v1/namespaces/default/serviceaccounts", account)
            assert status == 201, body
        return outcome(*await api.post(PODS, CASES[case] if isinstance(case, str) else case))
    finally:
        await server.close()


async def test_a_plain_pod_runs_as_default_with_its_token() -> None:
    found = await admitted("plain")
    assert (found["serviceAccountName"], found["serviceAccount"]) == ("default", "default")
    assert found["volumes"] == [VOLUME]
    assert found["mounts"] == {"c": [MOUNT]}


@pytest.mark.parametrize(
    ("case", "mounted"),
    [("pod-opts-out", False), ("account-opts-out", False), ("pod-before-account", True), ("mirror", False)],
)
async def test_who_opts_out_gets_no_token(case: str, mounted: bool) -> None:
    found = await admitted(case)
    assert found["volumes"] == ([VOLUME] if mounted else [])
    assert found["mounts"] == {"c": [MOUNT] if mounted else []}


async def test_pull_secrets_are_the_accounts_unless_the_pod_has_its_own() -> None:
    assert (await admitted("pull-secrets-of-the-account"))["imagePullSecrets"] == [
        {"name": "first"},
        {"name": "second"},
    ]
    assert (await admitted("deprecated-field"))["serviceAccountName"] == "pulls"
    assert (await admitted("pull-secrets-of-the-pod"))["imagePullSecrets"] == [{"name": "mine"}]
    assert "imagePullSecrets" not in await admitted("plain")


async def test_containers_that_have_something_there_keep_it() -> None:
    assert [one["name"] for one in (await admitted("own-mount-at-the-path"))["volumes"]] == ["data"]
    found = await admitted("own-mount-in-one-of-two")
    assert [mount["name"] for mount in found["mounts"]["c-data"]] == ["data"]
    assert found["mounts"]["c"] == [MOUNT]
    assert len((await admitted("own-mount-elsewhere"))["mounts"]["c-data"]) == 2
    assert (await admitted("init-container"))["mounts"] == {"i": [MOUNT], "c": [MOUNT]}


async def test_a_volume_of_that_name_is_taken() -> None:
    found = await admitted("own-volume")
    assert found["volumes"] == [{"name": "kube-api-access-mine", "emptyDir": {}}]
    assert found["mounts"]["c"] == [{**MOUNT, "name": "kube-api-access-mine"}]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("no-such-account", 'error looking up service account default/nobody: serviceaccount "nobody" not found'),
        ("mirror-with-account", "a mirror pod may not reference service accounts"),
        ("mirror-with-token", "a mirror pod may not use ServiceAccountToken volume projections"),
    ],
)
async def test_refusals(case: str, why: str) -> None:
    assert await admitted(case) == {"status": 403, "message": f'pods "p" is forbidden: {why}'}


async def test_an_update_changes_nothing() -> None:
    clock, chance = ManualClock(), random.Random(5)
    server = ApiServer(clock=clock, chance=chance, service_accounts=True)
    await server.start()
    api = Api(server, clock, chance)
    await api.post("/api/v1/namespaces/default/serviceaccounts", ACCOUNTS[0])
    _, made = await api.post(PODS, pod())
    made["metadata"]["labels"] = {"a": "b"}
    status, after = await api.put(f"{PODS}/p", made)
    assert status == 200
    assert after["spec"] == made["spec"]
    await server.close()
