"""PUT and PATCH: conflicts, immutable fields, no-ops, the status subresource, and each patch type."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from koord.embedded.apiserver.api_errors import OPTIMISTIC_LOCK_ERROR, invalid_value
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes, AdmissionChain
from tests.embedded.apiserver.rest_harness import APPLY, JSON6902, MERGE, NS, STRATEGIC, Api, config_map, fresh, pod

CM = f"{NS}/configmaps/a"
STALE_TEXT = f'Operation cannot be fulfilled on configmaps "a": {OPTIMISTIC_LOCK_ERROR}'


@pytest.fixture
async def api() -> Api:
    made = await fresh()
    await made.post(f"{NS}/configmaps", config_map("a", labels={"x": "y"}))
    return made


async def test_same_object_again_keeps_the_revision(api: Api) -> None:
    _, before = await api.get(CM)
    status, after = await api.put(CM, before)
    assert (status, after) == (200, before)


async def test_server_owned_metadata_survives_a_bare_put(api: Api) -> None:
    _, before = await api.get(CM)
    api.clock.advance(60)
    status, after = await api.put(CM, config_map("a", {"k": "new"}))
    assert status == 200
    for key in ("uid", "creationTimestamp"):
        assert after["metadata"][key] == before["metadata"][key]
    assert "labels" not in after["metadata"]
    assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])


REFUSED_PUTS: list[Any] = [
    pytest.param({"resourceVersion": "1"}, 409, STALE_TEXT, id="stale-version"),
    pytest.param({"name": "zz"}, 400, "the name of the object (zz) does not match the name on the URL (a)", id="name"),
    pytest.param(
        {"name": ""},
        400,
        "the name of the object (a based on URL) was undeterminable: name must be provided",
        id="no-name",
    ),
    pytest.param(
        {"namespace": "other"},
        400,
        "the namespace of the provided object does not match the namespace sent on the request",
        id="namespace",
    ),
    pytest.param(
        {"deletionTimestamp": "2020-01-01T00:00:00Z"},
        422,
        'ConfigMap "a" is invalid: metadata.deletionTimestamp: Invalid value: "2020-01-01T00:00:00Z": '
        "field is immutable",
        id="own-death",
    ),
    pytest.param(
        {"resourceVersion": "abc"}, 500, 'strconv.ParseUint: parsing "abc": invalid syntax', id="not-a-number"
    ),
    pytest.param({"labels": {"x": "not valid"}}, 422, None, id="bad-label"),
]


@pytest.mark.parametrize(("meta", "status", "message"), REFUSED_PUTS)
async def test_put_refusals(api: Api, meta: dict[str, Any], status: int, message: str | None) -> None:
    _, before = await api.get(CM)
    body = copy.deepcopy(before)
    body["metadata"].update(meta)
    body["data"] = {"k": "changed"}
    got, answer = await api.put(CM, body)
    assert got == status
    if message is not None:
        assert answer["message"] == message
    assert (await api.get(CM))[1] == before


async def test_put_for_another_uid_is_a_conflict_and_a_patch_of_it_is_invalid(api: Api) -> None:
    status, body = await api.put(CM, config_map("a", uid="x"))
    assert (status, body["reason"]) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: x" in body["message"]
    status, body = await api.patch(CM, {"metadata": {"uid": "x"}})
    assert (status, body["details"]["causes"][0]["field"]) == (422, "metadata.uid")


async def test_put_of_nothing_is_not_found_unless_the_kind_creates_on_update(api: Api) -> None:
    assert (await api.put(f"{NS}/configmaps/no", config_map("no")))[0] == 404
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    assert (await api.put(f"{leases}/l", {"metadata": {"name": "l"}, "spec": {}}))[0] == 201
    status, body = await api.put(f"{leases}/l", {"metadata": {"name": "l"}, "spec": {}})
    assert status == 422
    assert body["message"] == (
        'leases.coordination.k8s.io "l" is invalid: metadata.resourceVersion: Invalid value: 0: '
        "must be specified for an update"
    )


async def test_main_door_ignores_status_and_status_door_ignores_the_rest(api: Api) -> None:
    await api.post(f"{NS}/pods", pod("p"))
    _, body = await api.patch(f"{NS}/pods/p", {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}})
    assert (body["status"], body["metadata"]["labels"]) == ({}, {"a": "b"})
    _, body = await api.patch(f"{NS}/pods/p/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "n"}})
    assert (body["status"], "nodeName" in body["spec"]) == ({"phase": "Running"}, False)
    assert (await api.get(f"{NS}/pods/p/status"))[1] == body


async def test_dry_run_of_an_update_changes_nothing(api: Api) -> None:
    _, before = await api.get(CM)
    _, shown = await api.patch(f"{CM}?dryRun=All", {"data": {"n": "1"}})
    assert shown["data"] == {"k": "v", "n": "1"}
    assert (await api.get(CM))[1] == before


PATCHES: list[Any] = [
    pytest.param(MERGE, {"data": {"k": None, "n": "1"}}, {"n": "1"}, id="merge"),
    pytest.param(STRATEGIC, {"data": {"n": "1"}}, {"k": "v", "n": "1"}, id="strategic"),
    pytest.param(JSON6902, [{"op": "add", "path": "/data/n", "value": "1"}], {"k": "v", "n": "1"}, id="json"),
]


@pytest.mark.parametrize(("media", "patch", "data"), PATCHES)
async def test_patch_types(api: Api, media: str, patch: Any, data: dict[str, str]) -> None:
    status, body = await api.patch(CM, patch, media)
    assert (status, body["data"]) == (200, data)


REFUSED_PATCHES: list[Any] = [
    pytest.param("application/json", {}, 415, "415: Unsupported Media Type", id="not-a-patch-type"),
    pytest.param(
        JSON6902,
        [{"op": "test", "path": "/data/k", "value": "no"}],
        422,
        "the server rejected our request due to an error in our request",
        id="failed-test",
    ),
    pytest.param(
        MERGE,
        b"{bad",
        400,
        "error decoding patch: invalid character 'b' looking for beginning of object key string",
        id="not-json",
    ),
    pytest.param(MERGE, {"metadata": {"resourceVersion": "1"}}, 409, STALE_TEXT, id="stale-version"),
    pytest.param(STRATEGIC, {"foo": 1}, 200, None, id="unknown-field-is-dropped"),
]


@pytest.mark.parametrize(("media", "patch", "status", "message"), REFUSED_PATCHES)
async def test_patch_refusals(api: Api, media: str, patch: Any, status: int, message: str | None) -> None:
    got, body = await api.patch(CM, patch, media)
    assert (got, body.get("message")) == (status, message)


async def test_strict_validation_blames_the_patch(api: Api) -> None:
    status, body = await api.patch(f"{CM}?fieldValidation=Strict", {"foo": 1}, STRATEGIC)
    assert (status, body["message"]) == (
        422,
        ' "" is invalid: patch: Invalid value: "map[foo:1]": strict decoding error: unknown field "foo"',
    )


async def test_force_belongs_to_apply(api: Api) -> None:
    status, body = await api.patch(f"{CM}?force=true", {"data": {}})
    assert (status, body["details"]["causes"][0]["field"]) == (422, "force")
    status, body = await api.patch(CM, {}, APPLY)
    assert (status, body["details"]["causes"][0]["field"]) == (422, "fieldManager")


class Test_server_side_apply:
    @staticmethod
    def config(name: str = "ap", **data: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}

    async def test_apply_creates_then_changes_then_forgets_fields(self, api: Api) -> None:
        path = f"{NS}/configmaps/ap?fieldManager=me"
        status, made = await api.patch(path, self.config(a="1", b="2"), APPLY)
        assert (status, made["data"]) == (201, {"a": "1", "b": "2"})
        status, same = await api.patch(path, self.config(a="1", b="2"), APPLY)
        assert (status, same) == (200, made)
        _, less = await api.patch(path, self.config(a="1"), APPLY)
        assert less["data"] == {"a": "1"}

    async def test_two_managers_conflict_until_one_forces(self, api: Api) -> None:
        await api.patch(f"{NS}/configmaps/ap?fieldManager=me", self.config(a="1"), APPLY)
        status, body = await api.patch(f"{NS}/configmaps/ap?fieldManager=you", self.config(a="2"), APPLY)
        assert (status, body["message"]) == (409, 'Apply failed with 1 conflict: conflict with "me": .data.a')
        status, body = await api.patch(f"{NS}/configmaps/ap?fieldManager=you&force=true", self.config(a="2"), APPLY)
        assert (status, body["data"]) == (200, {"a": "2"})

    async def test_untracked_objects_conflict_with_before_first_apply(self, api: Api) -> None:
        await api.post(f"{NS}/configmaps", config_map("ap", {"a": "1"}), track_managed_fields=False)
        status, body = await api.patch(f"{NS}/configmaps/ap?fieldManager=me", self.config(a="2"), APPLY)
        assert (status, body["details"]["causes"][0]["message"]) == (409, 'conflict with "before-first-apply" using v1')

    async def test_untracked_writers_give_up_fields_of_tracked_objects(self, api: Api) -> None:
        await api.patch(f"{NS}/configmaps/ap?fieldManager=me", self.config(a="1"), APPLY)
        await api.patch(f"{NS}/configmaps/ap", {"data": {"a": "2"}}, track_managed_fields=False, agent="program")
        status, body = await api.patch(f"{NS}/configmaps/ap?fieldManager=me", self.config(a="1"), APPLY)
        assert (status, body["details"]["causes"][0]["message"]) == (409, 'conflict with "program" using v1')

    async def test_uid_of_nothing_is_a_conflict(self, api: Api) -> None:
        config = self.config()
        config["metadata"]["uid"] = "x"
        status, body = await api.patch(f"{NS}/configmaps/ap?fieldManager=me", config, APPLY)
        assert status == 409
        assert body["message"].endswith(
            "uid mismatch: the provided object specified uid x, and no existing object was found"
        )


class Intruder:
    """An admission plugin during whose wait someone else writes the same object."""

    def __init__(self) -> None:
        self.api: Api | None = None
        self.left = 0

    async def admit(self, attributes: AdmissionAttributes) -> None:
        if self.left and attributes.operation == "UPDATE" and self.api is not None:
            self.left -= 1
            await self.api.patch(CM, {"data": {f"intruder{self.left}": "was here"}})


async def intruded(times: int) -> tuple[Api, Intruder]:
    intruder = Intruder()
    api = await fresh(admission=AdmissionChain(mutating=[intruder]))
    intruder.api = api
    await api.post(f"{NS}/configmaps", config_map("a"))
    return api, intruder


async def test_patch_is_done_again_when_admission_waited_too_long() -> None:
    api, intruder = await intruded(1)
    intruder.left = 2
    status, body = await api.patch(CM, {"data": {"mine": "1"}})
    assert (status, set(body["data"])) == (200, {"k", "mine", "intruder0", "intruder1"})


async def test_put_that_names_its_version_loses_the_race() -> None:
    api, intruder = await intruded(1)
    _, before = await api.get(CM)
    intruder.left = 1
    status, body = await api.put(CM, {**before, "data": {"mine": "1"}})
    assert (status, body["message"]) == (409, STALE_TEXT)


async def test_strategy_decides_on_private_objects() -> None:
    def default(obj: dict[str, Any]) -> None:
        obj.setdefault("data", {}).setdefault("filled", "in")

    strategy = KindStrategy(
        default=default,
        prepare_create=lambda new: new["metadata"].update(generation=1),
        prepare_update=lambda new, old: new["metadata"].update(generation=old["metadata"]["generation"] + 1),
        validate_update=lambda new, old: (
            [invalid_value("data.k", new["data"]["k"], "is fixed")] if new["data"]["k"] != old["data"]["k"] else []
        ),
    )
    api = await fresh(strategies={("", "ConfigMap"): strategy})
    _, made = await api.post(f"{NS}/configmaps", config_map("a"))
    assert (made["data"], made["metadata"]["generation"]) == ({"k": "v", "filled": "in"}, 1)
    _, moved = await api.patch(CM, {"data": {"n": "1"}})
    assert moved["metadata"]["generation"] == 2
    status, body = await api.patch(CM, {"data": {"k": "other"}})
    assert (status, body["message"]) == (422, 'ConfigMap "a" is invalid: data.k: Invalid value: "other": is fixed')
    assert (await api.get(CM))[1] == moved
