"""Our generated CRDs on a real kube-apiserver: it must take them, and they must take and refuse the same objects."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import CUSTOM_KINDS
from koord.api.kubernetes.resource import Resource
from koord.api.schema import crd_manifests
from tests.api.koordinator.custom_resource_samples import INVALID_OBJECTS, VALID_OBJECTS
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED_WITHIN_S = 30.0


def call(plane: ControlPlane, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        plane.url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {plane.token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, context=plane.ssl(), timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        with refused:
            text = refused.read()
        try:
            return refused.code, json.loads(text)
        except ValueError:
            return refused.code, {"message": text.decode()}


def resource_of(obj: dict[str, Any]) -> Resource[Any]:
    return next(r for r in CUSTOM_KINDS if (r.api_version, r.kind) == (obj["apiVersion"], obj["kind"]))


def collection(obj: dict[str, Any]) -> str:
    return resource_of(obj).path(namespace=obj["metadata"].get("namespace"))


@pytest.fixture(scope="module")
def served(plane: ControlPlane) -> Iterator[ControlPlane]:
    """A control plane that serves every custom kind."""
    for manifest in crd_manifests():
        code, answer = call(plane, "POST", f"{CRDS}?fieldValidation=Strict", manifest)
        assert code == 201, answer
    deadline = time.monotonic() + SERVED_WITHIN_S
    waiting = [r.path() for r in CUSTOM_KINDS]
    while waiting:
        assert time.monotonic() < deadline, f"not served: {waiting}"
        waiting = [path for path in waiting if call(plane, "GET", path)[0] != 200]
    yield plane
    for manifest in crd_manifests():
        call(plane, "DELETE", f"{CRDS}/{manifest['metadata']['name']}")


def test_every_crd_is_structural_and_approved(served: ControlPlane) -> None:
    for manifest in crd_manifests():
        _, stored = call(served, "GET", f"{CRDS}/{manifest['metadata']['name']}")
        conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
        assert conditions.pop("KubernetesAPIApprovalPolicyConformant", "True") == "True", manifest["metadata"]
        assert conditions == {"NamesAccepted": "True", "Established": "True"}, manifest["metadata"]


@pytest.mark.parametrize("name", list(VALID_OBJECTS))
def test_a_valid_object_is_stored_whole(served: ControlPlane, name: str) -> None:
    sample = VALID_OBJECTS[name]
    at = collection(sample)
    code, created = call(served, "POST", f"{at}?fieldValidation=Strict", sample)
    assert code == 201, created
    try:
        if resource_of(sample).status_subresource and "status" in sample:
            here = f"{at}/{sample['metadata']['name']}/status?fieldValidation=Strict"
            code, created = call(served, "PUT", here, {**created, "status": sample["status"]})
            assert code == 200, created
        for field in sample.keys() - {"metadata"}:
            assert contains(created[field], sample[field]), field
    finally:
        call(served, "DELETE", f"{at}/{sample['metadata']['name']}")


@pytest.mark.parametrize("name", list(INVALID_OBJECTS))
def test_a_wrong_object_is_refused_by_field(served: ControlPlane, name: str) -> None:
    sample, field = INVALID_OBJECTS[name]
    code, answer = call(served, "POST", f"{collection(sample)}?dryRun=All", sample)
    assert code == 422, answer
    assert field in [cause["field"] for cause in answer["details"]["causes"]], answer["message"]


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("reservation", {"ttl": "24h", "allocateOnce": True}, id="reservation"),
        pytest.param("schedule-explanation", {"ttl": "24h"}, id="schedule-explanation"),
    ],
)
def test_defaults_are_filled(served: ControlPlane, name: str, spec: dict[str, Any]) -> None:
    sample = VALID_OBJECTS[name]
    _, created = call(served, "POST", f"{collection(sample)}?dryRun=All", sample)
    assert spec.items() <= created["spec"].items()


def test_a_migration_without_a_mode_stays_so_and_follows_the_descheduler(served: ControlPlane) -> None:
    sample = VALID_OBJECTS["pod-migration-job"]
    bare = {**sample, "spec": {"podRef": sample["spec"]["podRef"]}}
    _, created = call(served, "POST", f"{collection(sample)}?dryRun=All", bare)
    assert "mode" not in created["spec"]


def test_a_topology_written_as_v1alpha1_is_read_as_v1alpha2(served: ControlPlane) -> None:
    sample = VALID_OBJECTS["node-resource-topology-v1alpha1"]
    at = collection(sample)
    call(served, "POST", at, sample)
    newer = f"{at.replace('v1alpha1', 'v1alpha2')}/{sample['metadata']['name']}"
    try:
        code, read = call(served, "GET", newer)
        assert (code, read["apiVersion"], read["zones"]) == (200, "topology.node.k8s.io/v1alpha2", sample["zones"])
    finally:
        call(served, "DELETE", newer)


def contains(actual: Any, wanted: Any) -> bool:
    """Everything of `wanted` is in `actual`, which may have more: defaults."""
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(k in actual and contains(actual[k], v) for k, v in wanted.items())
    if isinstance(wanted, list):
        return isinstance(actual, list) and len(actual) == len(wanted) and all(map(contains, actual, wanted))
    return bool(actual == wanted)
