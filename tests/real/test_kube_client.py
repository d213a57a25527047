"""The client against a real kube-apiserver: every verb, preconditions, paging, and watches with their endings."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    POD_DISRUPTION_BUDGETS,
    PODS,
)
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.kube.client.retrying_caller import NEVER_RETRY, RetryPolicy
from koord.kube.client.typed_client import Client
from koord.kube.config.kubeconfig import ConnectionOverrides
from koord.kube.config.loader import load_connection
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.http import HttpTransport
from koord.kube.transport.interface import ApiRequest, Unreachable
from koord.telemetry.clock import WallClock
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real


def connect(plane: ControlPlane, retry: RetryPolicy = RetryPolicy(), **choice: Any) -> Client:  # noqa: B008
    clock = WallClock()
    connection = load_connection({}, clock, path=str(plane.kubeconfig), choice=ConnectionOverrides(**choice))
    return Client(HttpTransport(connection, clock), clock=clock, burst=0, retry=retry)


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[Client]:
    async with connect(plane) as made:
        yield made


@pytest.fixture
async def ns(client: Client) -> AsyncIterator[str]:
    name = f"client-{secrets.token_hex(4)}"
    unwrap(await client.create(NAMESPACES, {"metadata": {"name": name}}))
    yield name
    # No controller empties namespaces here: pods first, then the namespace without its finalizer.
    await client.delete_collection(PODS, name, grace_seconds=0)
    await client.delete(NAMESPACES, name)
    left = unwrap(await client.dynamic.get(NAMESPACES, name))
    await client.dynamic.replace(NAMESPACES, {**left, "spec": {"finalizers": []}}, subresource="finalize")


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def refused(result: object) -> ApiError:
    assert isinstance(result, ApiError), result
    return result


async def test_the_version_is_read(client: Client) -> None:
    assert unwrap(await client.server_version()).git_version.startswith("v1.")


async def test_an_object_lives_through_every_verb(client: Client, ns: str) -> None:
    made = unwrap(await client.create(CONFIG_MAPS, config_map("m", a="1"), ns, field_manager="maker"))
    assert refused(await client.create(CONFIG_MAPS, config_map("m"), ns)).already_exists
    uid = made.metadata.uid
    assert unwrap(await client.get(CONFIG_MAPS, "m", ns)).data == {"a": "1"}
    patched = unwrap(await client.patch(CONFIG_MAPS, "m", {"data": {"b": "2"}}, ns, kind="merge", uid=uid))
    assert patched.data == {"a": "1", "b": "2"}
    add = [{"op": "add", "path": "/data/c", "value": "3"}]
    assert unwrap(await client.patch(CONFIG_MAPS, "m", add, ns, kind="json", uid=uid)).data["c"] == "3"
    whole = unwrap(await client.dynamic.get(CONFIG_MAPS, "m", ns))
    replaced = unwrap(await client.replace(CONFIG_MAPS, {**whole, "data": {"z": "0"}}))
    assert replaced.data == {"z": "0"}
    assert refused(await client.replace(CONFIG_MAPS, {**whole, "data": {}})).conflict
    gone = unwrap(await client.delete(CONFIG_MAPS, "m", ns, uid=uid))
    assert (gone.uid, gone.is_terminating) == (uid, False)
    assert refused(await client.get(CONFIG_MAPS, "m", ns)).not_found


@pytest.mark.parametrize("kind", ["merge", "strategic"])
async def test_a_write_for_another_object_or_version_is_a_conflict(client: Client, ns: str, kind: Any) -> None:
    made = unwrap(await client.create(CONFIG_MAPS, config_map("m"), ns))
    change = {"data": {"a": "1"}}
    other = refused(await client.patch(CONFIG_MAPS, "m", change, ns, kind=kind, uid="another"))
    assert (other.conflict, other.invalid, other.code) == (True, False, 422)
    old = refused(await client.patch(CONFIG_MAPS, "m", change, ns, kind=kind, resource_version="1"))
    assert (old.conflict, old.code) == (True, 409)
    assert refused(await client.delete(CONFIG_MAPS, "m", ns, uid="another")).conflict
    assert unwrap(await client.get(CONFIG_MAPS, "m", ns)).metadata.resource_version == made.metadata.resource_version


async def test_a_failed_json_test_is_refused_but_not_told_apart(client: Client, ns: str) -> None:
    unwrap(await client.create(CONFIG_MAPS, config_map("m"), ns))
    got = refused(await client.patch(CONFIG_MAPS, "m", [], ns, kind="json", uid="another"))
    assert (got.code, got.invalid, got.conflict) == (422, True, False)


async def test_apply_owns_fields_and_force_takes_them(client: Client, ns: str) -> None:
    first = {"metadata": {"name": "m", "namespace": ns}, "data": {"a": "1"}}
    unwrap(await client.apply(CONFIG_MAPS, first, field_manager="one"))
    second = {**first, "data": {"a": "2"}}
    clash = refused(await client.apply(CONFIG_MAPS, second, field_manager="two"))
    assert clash.conflict
    assert 'conflict with "one"' in clash.message
    assert unwrap(await client.apply(CONFIG_MAPS, second, field_manager="two", force=True)).data == {"a": "2"}


async def test_dry_runs_leave_nothing(client: Client, ns: str) -> None:
    unwrap(await client.create(CONFIG_MAPS, config_map("m"), ns, dry_run=True))
    assert refused(await client.get(CONFIG_MAPS, "m", ns)).not_found
    unwrap(await client.create(CONFIG_MAPS, config_map("m"), ns))
    unwrap(await client.patch(CONFIG_MAPS, "m", {"data": {"a": "1"}}, ns, kind="merge", dry_run=True))
    unwrap(await client.delete(CONFIG_MAPS, "m", ns, dry_run=True))
    assert unwrap(await client.get(CONFIG_MAPS, "m", ns)).data == {}


async def test_unknown_fields_are_refused_when_strict(client: Client, ns: str) -> None:
    odd = {**config_map("m"), "spec": {}}
    got = refused(await client.create(CONFIG_MAPS, odd, ns, field_validation="Strict"))
    assert 'unknown field "spec"' in got.message


async def test_lists_page_and_select(client: Client, ns: str) -> None:
    for number in range(7):
        unwrap(await client.create(PODS, pod(f"p{number}", parity="odd" if number % 2 else "even"), ns))
    whole = unwrap(await client.list(PODS, ns))
    paged = unwrap(await client.list(PODS, ns, limit=3))
    assert [p.metadata.name for p in whole.items] == [p.metadata.name for p in paged.items]
    assert len(whole.items) == 7
    odd = unwrap(await client.list(PODS, ns, labels="parity=odd", fields="spec.nodeName="))
    assert [p.metadata.name for p in odd.items] == ["p1", "p3", "p5"]
    everywhere = unwrap(await client.list(PODS, fields=f"metadata.namespace={ns}", resource_version="0"))
    assert len(everywhere.items) == 7
    assert refused(await client.list(PODS, ns, labels="!!")).code == 400
    assert await client.delete_collection(PODS, ns, labels="parity=odd", grace_seconds=0) is None
    assert len(unwrap(await client.list(PODS, ns)).items) == 4


async def test_bind_is_for_one_uid_once_and_carries_annotations(client: Client, ns: str) -> None:
    made = unwrap(await client.create(PODS, pod("p"), ns))
    assert refused(await client.bind(ns, "p", "n1", uid="another")).conflict
    assert await client.bind(ns, "p", "n1", uid=made.metadata.uid, annotations={"k": "v"}) is None
    bound = unwrap(await client.get(PODS, "p", ns))
    assert (bound.spec.node_name, bound.metadata.annotations) == ("n1", {"k": "v"})
    assert refused(await client.bind(ns, "p", "n2", uid=made.metadata.uid)).conflict


async def test_evict_obeys_uid_dry_run_and_budgets(client: Client, ns: str) -> None:
    made = unwrap(await client.create(PODS, pod("p", app="a"), ns))
    unwrap(await client.bind(ns, "p", "n1", uid=made.metadata.uid))
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    unwrap(await client.patch(PODS, "p", {"status": ready}, ns, kind="merge", subresource="status"))
    assert await client.evict(ns, "p", dry_run=True) is None
    assert refused(await client.evict(ns, "p", uid="another")).conflict
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}
    placed = unwrap(await client.create(POD_DISRUPTION_BUDGETS, budget, ns))
    seen = {"observedGeneration": placed.metadata.generation, "disruptionsAllowed": 0}
    counts = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    change = {"status": {**seen, **counts}}
    unwrap(await client.patch(POD_DISRUPTION_BUDGETS, "b", change, ns, kind="merge", subresource="status"))
    spared = refused(await client.evict(ns, "p"))
    assert (spared.too_many, spared.reason) == (True, "TooManyRequests")
    unwrap(await client.delete(POD_DISRUPTION_BUDGETS, "b", ns))
    assert await client.evict(ns, "p", uid=made.metadata.uid, grace_seconds=0) is None
    assert refused(await client.get(PODS, "p", ns)).not_found


async def test_a_watch_sees_a_life_and_ends_by_itself(client: Client, ns: str) -> None:
    start = unwrap(await client.list(PODS, ns)).resource_version
    made = unwrap(await client.create(PODS, pod("p"), ns))
    unwrap(await client.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, ns, kind="merge"))
    unwrap(await client.delete(PODS, "p", ns, grace_seconds=0))
    watch = unwrap(await client.watch(PODS, ns, resource_version=start, bookmarks=False, timeout_s=1))
    events = [event async for event in watch]
    # A pod that is deleted without grace is first marked with a deletion time, then removed: two events.
    assert [event.type for event in events] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]
    assert {event.object.metadata.uid for event in events if event.object} == {made.metadata.uid}


async def test_a_streaming_list_ends_with_its_bookmark(client: Client, ns: str) -> None:
    for name in ("a", "b"):
        unwrap(await client.create(PODS, pod(name), ns))
    seen: list[str] = []
    async with unwrap(await client.watch(PODS, ns, send_initial_events=True, timeout_s=5)) as watch:
        async for event in watch:
            if event.initial_end:
                break
            assert event.object is not None
            seen.append(event.object.metadata.name)
    assert seen == ["a", "b"]


async def test_a_watch_from_before_the_servers_memory_is_expired_inside_the_stream(client: Client) -> None:
    """A kind that is served only now has no memory of earlier versions, which needs no waiting for compaction."""
    names = {"plural": "relics", "singular": "relic", "kind": "Relic", "listKind": "RelicList"}
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    definition = {
        "metadata": {"name": "relics.client.test"},
        "spec": {"group": "client.test", "scope": "Cluster", "names": names, "versions": [version]},
    }
    relics = Resource(group="client.test", version="v1", kind="Relic", plural="relics", namespaced=False, model=Object)
    unwrap(await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition))
    try:
        await established(client, "relics.client.test")
        async with unwrap(await client.watch(relics, resource_version="1", timeout_s=10)) as watch:
            events = [event async for event in watch]
    finally:
        unwrap(await client.delete(CUSTOM_RESOURCE_DEFINITIONS, "relics.client.test"))
    assert [event.type for event in events] == ["ERROR"]
    assert events[0].status is not None
    assert events[0].status.expired


async def established(client: Client, name: str) -> None:
    only = f"metadata.name={name}"
    async with unwrap(await client.dynamic.watch(CUSTOM_RESOURCE_DEFINITIONS, fields=only, timeout_s=30)) as watch:
        async for event in watch:
            conditions = event.object.get("status", {}).get("conditions") or []
            if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return
    pytest.fail(f"{name} was not established")


async def test_another_person_is_impersonated(plane: ControlPlane) -> None:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    request = ApiRequest(method="POST", path="/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
    async with connect(plane, as_user="bob", as_groups=("team",), as_uid="7") as client:
        answer = await client.raw(request)
    info = answer.body.plain()["status"]["userInfo"]
    assert (info["username"], info["uid"], info["groups"]) == ("bob", "7", ["team", "system:authenticated"])


async def test_a_wrong_token_is_unauthorized(plane: ControlPlane) -> None:
    async with connect(plane, token="nonsense") as client:
        assert refused(await client.list(PODS)).unauthorized


async def test_a_server_that_is_not_there_is_unreachable(plane: ControlPlane) -> None:
    async with connect(plane, NEVER_RETRY, server="https://127.0.0.1:1") as client:
        with pytest.raises(Unreachable) as caught:
            await client.list(PODS)
    assert not caught.value.sent
