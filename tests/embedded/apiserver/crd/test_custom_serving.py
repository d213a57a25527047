"""These tests check a CRD's life cycle: served at once, changed, deleted with its objects, restored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from koord.api.schema import crd_manifests
from koord.embedded.apiserver.rest.watch import ServerWatchStream
from koord.embedded.apiserver.store.journal import StoreJournal
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.kube.transport.interface import ApiRequest
from tests.embedded.apiserver.crd.definition_fixture import (
    CRDS,
    GROUP,
    DefinitionApi,
    conditions,
    definition,
    place,
    schema,
    started,
    version,
)

Obj = dict[str, Any]
NAME = f"tops.{GROUP}"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def text(**more: Any) -> Obj:
    return {"type": "string", **more}


@pytest.fixture
async def api() -> AsyncIterator[DefinitionApi]:
    made = await started()
    yield made
    await made.server.close()


async def test_served_as_soon_as_it_is_answered(api: DefinitionApi) -> None:
    status, body = await api.post(CRDS, definition())
    assert (status, body["status"]["conditions"]) == (201, None)  # the answer is the object as it was stored
    assert (await api.make("one"))[0] == 201
    _, found = await api.get(f"/apis/{GROUP}/v1")
    (row,) = found["resources"]
    assert (row["name"], row["singularName"], row["kind"], row["namespaced"]) == ("tops", "top", "Top", True)


async def test_own_definitions_are_all_served(api: DefinitionApi) -> None:
    for manifest in crd_manifests():
        made = await api.define(manifest)
        assert conditions(made)["Established"][0] == "True"
        names, scope = made["spec"]["names"], made["spec"]["scope"]
        for one in made["spec"]["versions"]:
            where = "namespaces/default/" if scope == "Namespaced" else ""
            status, body = await api.get(f"/apis/{made['spec']['group']}/{one['name']}/{where}{names['plural']}")
            assert (status, body["kind"]) == (200, names["listKind"])


async def test_defaults_pruning_and_validation(api: DefinitionApi) -> None:
    fields = schema(color=text(default="red"), size={"type": "integer", "maximum": 9})
    await api.define(definition("tops", "Top", version(schema=fields)))
    _, made = await api.make("one", {"size": 3, "junk": 1})
    assert made["spec"] == {"color": "red", "size": 3}
    assert api.warning == '299 - "unknown field \\"spec.junk\\""'
    status, body = await api.make("two", {"size": 10})
    assert status == 422
    assert body["message"] == (
        f'Top.{GROUP} "two" is invalid: spec.size: Invalid value: 10: '
        "spec.size in body should be less than or equal to 9"
    )


async def test_generation_counts_what_is_not_status(api: DefinitionApi) -> None:
    await api.define(definition("tops", "Top", version(subresources={"status": {}})))
    _, made = await api.make("one", {"a": 1})
    assert made["metadata"]["generation"] == 1
    _, made = await api.patch(f"{place(name='one')}/status", {"status": {"x": 1}, "spec": {"a": 2}})
    assert (made["metadata"]["generation"], made["spec"], made["status"]) == (1, {"a": 1}, {"x": 1})
    _, made = await api.patch(place(name="one"), {"status": {"x": 2}, "spec": {"a": 2}})
    assert (made["metadata"]["generation"], made["spec"], made["status"]) == (2, {"a": 2}, {"x": 1})
    _, made = await api.patch(place(name="one"), {"metadata": {"labels": {"l": "m"}}})
    assert made["metadata"]["generation"] == 2


async def test_status_is_part_of_the_object_without_the_subresource(api: DefinitionApi) -> None:
    await api.define(definition())
    await api.make("one")
    _, made = await api.patch(place(name="one"), {"status": {"x": 2}})
    assert (made["metadata"]["generation"], made["status"]) == (2, {"x": 2})
    assert (await api.get(f"{place(name='one')}/status"))[0] == 404


async def test_scale(api: DefinitionApi) -> None:
    scale = {
        "specReplicasPath": ".spec.count",
        "statusReplicasPath": ".status.count",
        "labelSelectorPath": ".status.chosen",
    }
    await api.define(definition("tops", "Top", version(subresources={"status": {}, "scale": scale})))
    await api.make("one", {"count": 2})
    await api.patch(f"{place(name='one')}/status", {"status": {"count": 1, "chosen": "a=b"}})
    _, found = await api.get(f"{place(name='one')}/scale")
    assert (found["spec"], found["status"]) == ({"replicas": 2}, {"replicas": 1, "selector": "a=b"})
    await api.patch(f"{place(name='one')}/scale", {"spec": {"replicas": 7}})
    _, found = await api.get(place(name="one"))
    assert found["spec"] == {"count": 7}


async def test_columns(api: DefinitionApi) -> None:
    columns = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1}]
    await api.define(definition("tops", "Top", version(additionalPrinterColumns=columns)))
    await api.make("one", {"size": 4})
    _, table = await api.get(place(), accept=TABLE)
    assert [(c["name"], c["type"], c["priority"]) for c in table["columnDefinitions"]] == [
        ("Name", "string", 0),
        ("Size", "integer", 1),
    ]
    assert table["rows"][0]["cells"] == ["one", 4]


async def test_selectable_fields_come_with_the_definition(api: DefinitionApi) -> None:
    fields = schema(color=text(), size={"type": "integer"})
    await api.define(definition("tops", "Top", version(schema=fields)))
    await api.make("a", {"color": "red", "size": 1})
    await api.make("b", {"color": "blue"})
    status, body = await api.get(f"{place()}?fieldSelector=spec.color=red")
    assert (status, body["message"]) == (400, "field label not supported: spec.color")
    chosen = [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}]
    await api.redefine(NAME, {"versions": [version(schema=fields, selectableFields=chosen)]})
    await api.make("c", {"color": "red", "size": 2})
    _, found = await api.get(f"{place()}?fieldSelector=spec.color=red")
    assert [item["metadata"]["name"] for item in found["items"]] == ["a", "c"]
    _, found = await api.get(f"{place()}?fieldSelector=spec.color=red,spec.size!=1")
    assert [item["metadata"]["name"] for item in found["items"]] == ["c"]


async def test_deprecated_versions_say_so(api: DefinitionApi) -> None:
    old = version("v1alpha1", deprecated=True, storage=False)
    rude = version("v1beta1", deprecated=True, storage=False, deprecationWarning="go away")
    await api.define(definition("tops", "Top", version(), old, rude))
    await api.get(place("v1alpha1"))
    assert api.warning == f'299 - "{GROUP}/v1alpha1 Top is deprecated"'
    await api.get(place("v1beta1"))
    assert api.warning == '299 - "go away"'
    await api.get(place())
    assert api.warning == ""


class Test_versions:
    """These tests expect the values of a real server with the same CRDs."""

    FIRST = version("v1", schema(a=text(default="A"), x=text()))
    SECOND = version("v2", schema(b=text(default="B"), x=text()), storage=False)

    async def test_only_the_version_changes(self, api: DefinitionApi) -> None:
        await api.define(definition("tops", "Top", self.FIRST, self.SECOND))
        _, made = await api.make("one", {"x": "x"})
        assert made["spec"] == {"a": "A", "x": "x"}
        _, found = await api.get(place("v2", name="one"))
        assert (found["apiVersion"], found["spec"]) == (f"{GROUP}/v2", {"x": "x"})
        _, made = await api.make("two", {"x": "x"}, at="v2")
        assert made["spec"] == {"x": "x"}
        _, found = await api.get(place(name="two"))
        assert (found["apiVersion"], found["spec"]) == (f"{GROUP}/v1", {"a": "A", "x": "x"})
        _, listed = await api.get(place("v2"))
        assert [(i["apiVersion"], i["metadata"]["name"]) for i in listed["items"]] == [
            (f"{GROUP}/v2", "one"),
            (f"{GROUP}/v2", "two"),
        ]

    async def test_a_new_schema_is_seen_in_old_objects(self, api: DefinitionApi) -> None:
        await api.define(definition("tops", "Top", self.FIRST, self.SECOND))
        await api.make("one", {"x": "x"})
        changed = version("v1", schema(c=text(default="C"), x=text()))
        assert (await api.redefine(NAME, {"versions": [changed, self.SECOND]}))[0] == 200
        _, found = await api.get(place(name="one"))
        assert (found["spec"], found["metadata"]["generation"]) == ({"c": "C", "x": "x"}, 1)
        assert (await api.get(place("v2", name="one")))[1]["spec"] == {"x": "x"}

    async def test_another_version_is_stored(self, api: DefinitionApi) -> None:
        await api.define(definition("tops", "Top", self.FIRST, self.SECOND))
        await api.make("one", {"x": "x"})
        swapped = [{**self.FIRST, "storage": False}, {**self.SECOND, "storage": True}]
        _, body = await api.redefine(NAME, {"versions": swapped})
        assert body["status"]["storedVersions"] == ["v1", "v2"]
        _, found = await api.get(place("v2", name="one"))
        assert (found["apiVersion"], found["spec"], found["metadata"]["generation"]) == (f"{GROUP}/v2", {"x": "x"}, 1)
        _, found = await api.get(place(name="one"))
        assert (found["apiVersion"], found["spec"]) == (f"{GROUP}/v1", {"a": "A", "x": "x"})
        await api.make("two", {"x": "y"}, at="v2")
        stored = api.server.store.collection(NAME).get("default", "two")
        assert stored is not None
        assert stored.plain()["apiVersion"] == f"{GROUP}/v2"

    async def test_a_version_that_is_not_served_any_more(self, api: DefinitionApi) -> None:
        await api.define(definition("tops", "Top", self.FIRST, self.SECOND))
        await api.make("one", {"x": "x"})
        await api.redefine(NAME, {"versions": [{**self.FIRST, "served": False}, self.SECOND]})
        status, body = await api.get(place(name="one"))
        assert (status, body) == (404, "404 page not found\n")
        assert (await api.get(place("v2", name="one")))[1]["spec"] == {"x": "x"}
        _, groups = await api.get(f"/apis/{GROUP}")
        assert [v["version"] for v in groups["versions"]] == ["v2"]
        await api.make("two", {"x": "z"}, at="v2")
        assert (await api.get(place("v2", name="two")))[1]["spec"] == {"x": "z"}

    async def test_watchers_see_their_version(self, api: DefinitionApi) -> None:
        await api.define(definition("tops", "Top", self.FIRST, self.SECOND))
        stream = await api.server.watch(ApiRequest(method="GET", path=place("v2"), query={"watch": "1"}))
        assert isinstance(stream, ServerWatchStream)
        await api.make("one", {"x": "x"})
        (frame,) = await stream.next_batch()
        assert frame.body.plain()["apiVersion"] == f"{GROUP}/v2"
        stream.close_now()


class Test_deletion:
    async def test_without_objects(self, api: DefinitionApi) -> None:
        await api.define(definition())
        status, body = await api.delete(f"{CRDS}/{NAME}")
        assert status == 200
        assert body["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
        assert conditions(body)["Terminating"] == ("True", "InstanceDeletionPending")
        assert (await api.get(f"{CRDS}/{NAME}"))[0] == 404
        assert (await api.get(place()))[0] == 404
        assert (await api.get(f"/apis/{GROUP}"))[0] == 404

    async def test_objects_go_first_and_may_take_their_time(self, api: DefinitionApi) -> None:
        await api.define(definition())
        await api.make("quick")
        await api.make("slow", None, finalizers=["example.com/hold"])
        await api.delete(f"{CRDS}/{NAME}")
        assert conditions(await api.defined(NAME))["Terminating"] == ("True", "InstanceDeletionInProgress")
        _, left = await api.get(place())
        (slow,) = left["items"]
        assert slow["metadata"]["name"] == "slow"
        assert "deletionTimestamp" in slow["metadata"]
        status, body = await api.make("late")
        assert (status, body["message"]) == (
            403,
            f'tops.{GROUP} "late" is forbidden: create not allowed while custom resource definition is terminating',
        )
        await api.patch(place(name="slow"), {"metadata": {"finalizers": None}})
        assert (await api.get(f"{CRDS}/{NAME}"))[0] == 404
        assert (await api.get(place()))[0] == 404

    async def test_a_definition_made_again_starts_empty(self, api: DefinitionApi) -> None:
        await api.define(definition())
        await api.make("old")
        await api.delete(f"{CRDS}/{NAME}")
        await api.define(definition())
        assert (await api.get(place()))[1]["items"] == []

    async def test_watches_end(self, api: DefinitionApi) -> None:
        await api.define(definition())
        stream = await api.server.watch(ApiRequest(method="GET", path=place(), query={"watch": "1"}))
        assert isinstance(stream, ServerWatchStream)
        await api.delete(f"{CRDS}/{NAME}")
        assert not await stream.next_batch()


async def test_built_in_kinds_are_not_replaced(api: DefinitionApi) -> None:
    body = definition("storageclasses", "StorageClass", scope="Cluster")
    body["spec"]["group"] = "storage.k8s.io"
    body["metadata"] = {
        "name": "storageclasses.storage.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    }
    await api.define(body)
    status, made = await api.post(
        "/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": "s"}, "provisioner": "example.com/p"}
    )
    assert (status, made["provisioner"]) == (201, "example.com/p")


async def test_restart(tmp_path: Path) -> None:
    """Check that a server that finds CRDs and objects on disk serves them from the start."""
    columns = [{"name": "Color", "type": "string", "jsonPath": ".spec.color"}]
    fields = schema(color=text())
    chosen = [{"jsonPath": ".spec.color"}]
    first = await started(ObjectStore(StoreJournal(tmp_path)))
    await first.define(
        definition("tops", "Top", version(schema=fields, additionalPrinterColumns=columns, selectableFields=chosen))
    )
    await first.make("one", {"color": "red"})
    await first.make("slow", {"color": "blue"}, finalizers=["example.com/hold"])
    await first.server.close()
    second = await started(ObjectStore(StoreJournal(tmp_path)))
    _, table = await second.get(place(), accept=TABLE)
    assert [row["cells"] for row in table["rows"]] == [["one", "red"], ["slow", "blue"]]
    _, found = await second.get(f"{place()}?fieldSelector=spec.color=blue")
    assert [item["metadata"]["name"] for item in found["items"]] == ["slow"]
    await second.delete(f"{CRDS}/{NAME}")
    await second.server.close()
    third = await started(ObjectStore(StoreJournal(tmp_path)))  # in the middle of the deletion
    assert (await third.make("late", {"color": "red"}))[0] == 403
    await third.patch(place(name="slow"), {"metadata": {"finalizers": None}})
    assert (await third.get(f"{CRDS}/{NAME}"))[0] == 404
    await third.server.close()


async def test_ownership_of_the_status(api: DefinitionApi) -> None:
    made = await api.define(definition())
    managers = [(m["manager"], m.get("subresource", "")) for m in made["metadata"]["managedFields"]]
    assert ("kube-apiserver", "status") in managers
