"""Each verb as the request it becomes, and each answer as what a program gets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import Model
from koord.kube.client.list_watch import Listing
from koord.kube.client.typed_client import Client, DeleteResult, ServerVersion
from koord.kube.transport.api_error import ApiError, ApiErrorRaised, error_from_response, unwrap
from koord.kube.transport.interface import (
    ApiRequest,
    ApiResponse,
    BytesResponseBody,
    UnstructuredBody,
    WatchFrame,
    WatchStream,
)
from koord.telemetry.clock import ManualClock


class Spec(Model, frozen=True, kw_only=True):
    size: int
    tags: tuple[str, ...] = ()


class Thing(Object, frozen=True, kw_only=True):
    spec: Spec | None = None


THINGS = Resource(group="test.koord", version="v1", kind="Thing", plural="things", namespaced=True, model=Thing)
HOSTS = Resource(group="", version="v1", kind="Host", plural="hosts", namespaced=False, model=Object)
ROOT = "/apis/test.koord/v1/namespaces/ns/things"


def thing(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": "u", "resourceVersion": "7"}, **more}


class CannedTransport:
    """A transport that gives one answer after another, or one stream."""

    def __init__(self, *answers: ApiResponse, frames: list[tuple[str, Any]] | None = None) -> None:
        self._answers = list(answers)
        self._frames = frames
        self.requests: list[ApiRequest] = []
        self.closed = 0

    @property
    def last(self) -> ApiRequest:
        return self.requests[-1]

    async def send(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        return self._answers.pop(0)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        self.requests.append(request)
        return self._answers.pop(0) if self._frames is None else Stream(self, self._frames)

    async def close(self) -> None:
        self.closed += 1


class OneFrame(msgspec.Struct, frozen=True):
    type: str
    body: Any


class Stream:
    def __init__(self, owner: CannedTransport, frames: list[tuple[str, Any]]) -> None:
        self._owner = owner
        self._frames = frames

    async def __aiter__(self) -> Any:
        for kind, obj in self._frames:
            frame: WatchFrame = OneFrame(kind, UnstructuredBody(obj))
            yield frame

    async def close(self) -> None:
        await self._owner.close()


def canned_response(plain: Any, code: int = 200) -> ApiResponse:
    return ApiResponse(status=code, body=UnstructuredBody(plain))


def error_response(code: int, reason: str, **details: Any) -> ApiResponse:
    return canned_response(
        {"kind": "Status", "status": "Failure", "reason": reason, "code": code, "details": details}, code
    )


def client(canned: CannedTransport) -> Client:
    return Client(canned, clock=ManualClock(0), burst=0)


async def request_of(verb: str, *args: Any, plain: bool = False, **more: Any) -> ApiRequest:
    canned = CannedTransport(canned_response(thing()))
    made = client(canned)
    await getattr(made.dynamic if plain else made, verb)(*args, **more)
    return canned.last


JSON, MERGE = "application/json", "application/merge-patch+json"
STRATEGIC, JSON_PATCH = "application/strategic-merge-patch+json", "application/json-patch+json"
NAMED = {"apiVersion": "test.koord/v1", "kind": "Thing"}
OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions"}

VERBS = [
    pytest.param(("get", THINGS, "a", "ns"), {}, ("GET", f"{ROOT}/a", {}, None, JSON), id="get"),
    pytest.param(
        ("get", THINGS, "a", "ns"),
        {"subresource": "status", "resource_version": "0"},
        ("GET", f"{ROOT}/a/status", {"resourceVersion": "0"}, None, JSON),
        id="get-status-at-a-version",
    ),
    pytest.param(("get", HOSTS, "h"), {}, ("GET", "/api/v1/hosts/h", {}, None, JSON), id="get-cluster-scoped"),
    pytest.param(
        ("create", THINGS, thing()),
        {},
        ("POST", ROOT, {}, {**NAMED, **thing()}, JSON),
        id="create-in-its-own-namespace",
    ),
    pytest.param(
        ("create", THINGS, Thing(spec=Spec(size=3)), "ns"),
        {"dry_run": True, "field_manager": "m", "field_validation": "Strict"},
        (
            "POST",
            ROOT,
            {"dryRun": "All", "fieldManager": "m", "fieldValidation": "Strict"},
            {**NAMED, "spec": {"size": 3}},
            JSON,
        ),
        id="create-from-a-model",
    ),
    pytest.param(
        ("create", THINGS, {"kind": "Scale"}, "ns"),
        {"name": "a", "subresource": "scale"},
        ("POST", f"{ROOT}/a/scale", {}, {"kind": "Scale"}, JSON),
        id="create-below-an-object",
    ),
    pytest.param(
        ("replace", THINGS, thing()),
        {"subresource": "status"},
        ("PUT", f"{ROOT}/a/status", {}, {**NAMED, **thing()}, JSON),
        id="replace-status",
    ),
    pytest.param(
        ("patch", THINGS, "a", {"metadata": {"labels": {"x": "y"}}}, "ns"),
        {"kind": "merge", "uid": "u", "resource_version": "7"},
        ("PATCH", f"{ROOT}/a", {}, {"metadata": {"labels": {"x": "y"}, "uid": "u", "resourceVersion": "7"}}, MERGE),
        id="merge-patch-with-preconditions",
    ),
    pytest.param(
        ("patch", THINGS, "a", {"spec": {}}, "ns"),
        {"kind": "strategic"},
        ("PATCH", f"{ROOT}/a", {}, {"spec": {}}, STRATEGIC),
        id="strategic-patch",
    ),
    pytest.param(
        ("patch", THINGS, "a", [{"op": "remove", "path": "/x"}], "ns"),
        {"kind": "json", "uid": "u"},
        (
            "PATCH",
            f"{ROOT}/a",
            {},
            [{"op": "test", "path": "/metadata/uid", "value": "u"}, {"op": "remove", "path": "/x"}],
            JSON_PATCH,
        ),
        id="json-patch-tests-first",
    ),
    pytest.param(
        ("apply", THINGS, thing()),
        {"field_manager": "m", "force": True},
        (
            "PATCH",
            f"{ROOT}/a",
            {"fieldManager": "m", "force": "true"},
            {**NAMED, **thing()},
            "application/apply-patch+yaml",
        ),
        id="apply",
    ),
    pytest.param(("delete", THINGS, "a", "ns"), {}, ("DELETE", f"{ROOT}/a", {}, None, JSON), id="delete"),
    pytest.param(
        ("delete", THINGS, "a", "ns"),
        {"uid": "u", "resource_version": "7", "grace_seconds": 0, "propagation": "Orphan", "dry_run": True},
        (
            "DELETE",
            f"{ROOT}/a",
            {},
            {
                **OPTIONS,
                "preconditions": {"uid": "u", "resourceVersion": "7"},
                "gracePeriodSeconds": 0,
                "propagationPolicy": "Orphan",
                "dryRun": ["All"],
            },
            JSON,
        ),
        id="delete-with-everything",
    ),
    pytest.param(
        ("delete_collection", THINGS, "ns"),
        {"labels": "a=b", "grace_seconds": 5},
        ("DELETE", ROOT, {"labelSelector": "a=b"}, {**OPTIONS, "gracePeriodSeconds": 5}, JSON),
        id="delete-collection",
    ),
]


@pytest.mark.parametrize("plain", [False, True], ids=["typed", "plain"])
@pytest.mark.parametrize(("call", "options", "wanted"), VERBS)
async def test_a_verb_is_one_request(
    call: tuple[Any, ...], options: dict[str, Any], wanted: tuple[Any, ...], plain: bool
) -> None:
    sent = await request_of(*call, plain=plain, **options)
    assert (sent.method, sent.path, sent.query, sent.body, sent.content_type) == wanted
    assert sent.user_agent == "koord"


async def test_bind() -> None:
    sent = await request_of("bind", "ns", "p", "n1", uid="u", annotations={"a": "b"})
    assert (sent.method, sent.path) == ("POST", "/api/v1/namespaces/ns/pods/p/binding")
    assert sent.body == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {"a": "b"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }


async def test_evict() -> None:
    sent = await request_of("evict", "ns", "p", uid="u", grace_seconds=0, dry_run=True)
    assert (sent.method, sent.path) == ("POST", "/api/v1/namespaces/ns/pods/p/eviction")
    assert sent.body["apiVersion"] == "policy/v1"
    assert sent.body["deleteOptions"] == {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 0, "dryRun": ["All"]}


@pytest.mark.parametrize(
    ("call", "options", "error"),
    [
        pytest.param(("get", THINGS, "a"), {}, "no namespace was given", id="get-without-namespace"),
        pytest.param(("delete", THINGS, "", "ns"), {}, "the name is empty", id="delete-without-name"),
        pytest.param(("delete_collection", THINGS), {}, "no namespace was given", id="delete-everything-everywhere"),
        pytest.param(("create", THINGS, {}), {}, "no namespace was given", id="create-nowhere"),
        pytest.param(("replace", THINGS, Thing(), "ns"), {"name": "a"}, "patch it instead", id="replace-with-a-model"),
        pytest.param(("apply", THINGS, Thing()), {"field_manager": "m"}, "apply only what you own", id="apply-a-model"),
        pytest.param(("patch", THINGS, "a", {}, "ns"), {"kind": "json"}, "list of operations", id="map-as-json-patch"),
        pytest.param(("patch", THINGS, "a", [], "ns"), {"kind": "merge"}, "is a map", id="list-as-merge-patch"),
    ],
)
async def test_a_programs_mistake_raises_before_anything_is_sent(
    call: tuple[Any, ...], options: dict[str, Any], error: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        await request_of(*call, **options)


async def test_the_callers_dict_is_never_changed() -> None:
    obj = thing()
    patch: dict[str, Any] = {"metadata": {"labels": {}}}
    await request_of("create", THINGS, obj)
    await request_of("patch", THINGS, "a", patch, "ns", kind="merge", uid="u")
    assert obj == thing()
    assert patch == {"metadata": {"labels": {}}}


async def test_objects_come_back_typed_or_plain() -> None:
    body = thing(spec={"size": 2})
    got = unwrap(await client(CannedTransport(canned_response(body))).get(THINGS, "a", "ns"))
    assert (got.metadata.name, got.spec) == ("a", Spec(size=2))
    assert await client(CannedTransport(canned_response(body))).dynamic.get(THINGS, "a", "ns") == body


async def test_a_refusal_is_a_value_and_ok_raises_it() -> None:
    canned = CannedTransport(error_response(404, "NotFound"), error_response(404, "NotFound"))
    got = await client(canned).get(THINGS, "a", "ns")
    assert isinstance(got, ApiError)
    assert got.not_found
    with pytest.raises(ApiErrorRaised, match="404 NotFound") as caught:
        unwrap(await client(canned).get(THINGS, "a", "ns"))
    assert caught.value.refused.not_found


async def test_an_object_that_does_not_fit_raises_and_names_the_field() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$.spec.size"):
        await client(CannedTransport(canned_response(thing(spec={"size": "big"})))).get(THINGS, "a", "ns")


class TestList:
    def page(self, *names: str, token: str = "", version: str = "9") -> ApiResponse:
        return canned_response(
            {"metadata": {"resourceVersion": version, "continue": token}, "items": [thing(n) for n in names]}
        )

    async def test_one_page(self) -> None:
        canned = CannedTransport(self.page("a", "b"))
        got = unwrap(await client(canned).list(THINGS, labels="x=y", fields="f=g", resource_version="0"))
        assert ([i.metadata.name for i in got.items], got.resource_version) == (["a", "b"], "9")
        assert canned.last.path == "/apis/test.koord/v1/things"
        assert canned.last.query == {"labelSelector": "x=y", "fieldSelector": "f=g", "resourceVersion": "0"}

    async def test_pages_are_followed_and_a_token_replaces_the_version(self) -> None:
        canned = CannedTransport(self.page("a", token="t1"), self.page("b", token="t2"), self.page("c"))
        got = unwrap(
            await client(canned).list(THINGS, "ns", limit=1, resource_version="5", resource_version_match="Exact")
        )
        assert [i.metadata.name for i in got.items] == ["a", "b", "c"]
        assert [r.query for r in canned.requests] == [
            {"limit": "1", "resourceVersion": "5", "resourceVersionMatch": "Exact"},
            {"limit": "1", "continue": "t1"},
            {"limit": "1", "continue": "t2"},
        ]

    async def test_an_expired_token_restarts_once_in_one_page(self) -> None:
        canned = CannedTransport(
            self.page("a", token="t1"), error_response(410, "Expired"), self.page("b", "c", version="10")
        )
        got = unwrap(await client(canned).list(THINGS, "ns", limit=1))
        assert ([i.metadata.name for i in got.items], got.resource_version) == (["b", "c"], "10")
        assert canned.last.query == {}

    async def test_a_second_expiry_stands(self) -> None:
        canned = CannedTransport(
            self.page("a", token="t"),
            error_response(410, "Expired"),
            self.page("b", token="t"),
            error_response(410, "Expired"),
        )
        got = await client(canned).list(THINGS, "ns", limit=1)
        assert isinstance(got, ApiError)
        assert got.expired

    async def test_an_expired_version_without_a_token_stands(self) -> None:
        got = await client(CannedTransport(error_response(410, "Expired"))).list(THINGS, resource_version="1")
        assert isinstance(got, ApiError)

    @pytest.mark.parametrize(
        "form", [UnstructuredBody, lambda plain: BytesResponseBody(msgspec.json.encode(plain))], ids=["plain", "bytes"]
    )
    async def test_one_bad_object_does_not_hide_the_others(self, form: Any) -> None:
        items = [thing("a"), thing("b", spec={"size": "big"}), thing("c", spec={"size": 1, "tags": None})]
        body = form({"metadata": {"resourceVersion": "9"}, "items": items})
        got = unwrap(await client(CannedTransport(ApiResponse(status=200, body=body))).list(THINGS))
        assert [i.metadata.name for i in got.items] == ["a", "c"]
        assert [(m.namespace, m.name) for m in got.undecodable] == [("ns", "b")]
        assert "size" in got.undecodable[0].why

    async def test_null_items_are_none(self) -> None:
        got = await client(
            CannedTransport(canned_response({"metadata": {"resourceVersion": "9"}, "items": None}))
        ).list(THINGS)
        assert isinstance(got, Listing)
        assert got.items == ()

    async def test_plain_items_keep_every_field(self) -> None:
        item = thing("a", unknown={"kept": None})
        got = unwrap(
            await client(
                CannedTransport(canned_response({"metadata": {"resourceVersion": "9"}, "items": [item]}))
            ).dynamic.list(THINGS)
        )
        assert got.items == (item,)


class TestDelete:
    async def test_a_status_says_gone(self) -> None:
        gone = canned_response({"kind": "Status", "status": "Success", "details": {"uid": "u"}})
        assert await client(CannedTransport(gone)).delete(THINGS, "a", "ns") == DeleteResult(object=None, uid="u")

    async def test_an_object_that_waits_is_lingering(self) -> None:
        body = thing()
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        got = unwrap(
            await client(CannedTransport(canned_response({"kind": "Thing", **body}))).delete(THINGS, "a", "ns")
        )
        assert (got.uid, got.is_terminating) == ("u", True)


class TestWatch:
    async def test_events_are_typed(self) -> None:
        frames = [
            ("ADDED", thing("a", spec={"size": 1})),
            ("MODIFIED", thing("b", spec={"size": "big"})),
            ("BOOKMARK", {"metadata": {"resourceVersion": "8", "annotations": {"k8s.io/initial-events-end": "true"}}}),
            ("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}),
        ]
        canned = CannedTransport(frames=frames)
        async with unwrap(await client(canned).watch(THINGS, "ns", resource_version="5", timeout_s=60)) as watch:
            added, misfit, bookmark, error = [event async for event in watch]
        assert canned.closed == 1
        assert canned.last.query == {
            "watch": "true",
            "resourceVersion": "5",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "60",
        }
        assert added.object is not None
        assert (added.object.spec, added.resource_version) == (Spec(size=1), "7")
        assert misfit.status is not None
        assert (misfit.type, misfit.object, misfit.resource_version) == ("MODIFIED", None, "7")
        assert misfit.status.undecodable
        assert "ns/b does not fit Thing" in misfit.status.message
        assert (bookmark.object, bookmark.resource_version, bookmark.initial_end) == (None, "8", True)
        assert error.status is not None
        assert error.status.expired

    async def test_a_streaming_list_says_so(self) -> None:
        canned = CannedTransport(frames=[])
        await client(canned).watch(THINGS, send_initial_events=True, bookmarks=True)
        assert canned.last.query["sendInitialEvents"] == "true"
        assert canned.last.query["resourceVersionMatch"] == "NotOlderThan"

    async def test_plain_events(self) -> None:
        canned = CannedTransport(frames=[("ADDED", thing("a")), ("ERROR", {"code": 410, "reason": "Expired"})])
        async with unwrap(await client(canned).dynamic.watch(THINGS)) as watch:
            added, error = [event async for event in watch]
        assert (added.object, added.status) == (thing("a"), None)
        assert error.status is not None
        assert error.status.expired

    async def test_a_refused_watch_is_a_value(self) -> None:
        got = await client(CannedTransport(error_response(403, "Forbidden"))).watch(THINGS)
        assert isinstance(got, ApiError)
        assert got.forbidden


async def test_server_version() -> None:
    got = await client(
        CannedTransport(canned_response({"major": "1", "minor": "35", "gitVersion": "v1.35.4"}))
    ).server_version()
    assert got == ServerVersion(major="1", minor="35", git_version="v1.35.4")


@pytest.mark.parametrize(
    ("answer", "true"),
    [
        pytest.param(error_response(404, "NotFound"), {"not_found"}, id="not-found"),
        pytest.param(error_response(409, "AlreadyExists"), {"already_exists"}, id="already-exists"),
        pytest.param(error_response(409, "Conflict"), {"conflict"}, id="conflict"),
        pytest.param(error_response(410, "Expired"), {"expired", "gone"}, id="expired"),
        pytest.param(error_response(410, "Gone"), {"expired", "gone"}, id="gone"),
        pytest.param(error_response(422, "Invalid"), {"invalid"}, id="invalid"),
        pytest.param(
            error_response(422, "Invalid", causes=[{"field": "metadata.uid"}]), {"conflict"}, id="another-uid"
        ),
        pytest.param(error_response(403, "Forbidden"), {"forbidden"}, id="forbidden"),
        pytest.param(error_response(401, "Unauthorized"), {"unauthorized"}, id="unauthorized"),
        pytest.param(error_response(429, "TooManyRequests"), {"too_many"}, id="too-many"),
        pytest.param(error_response(500, "InternalError"), set(), id="internal"),
    ],
)
def test_a_refusal_is_exactly_one_thing(answer: ApiResponse, true: set[str]) -> None:
    refused = error_from_response(answer)
    names = "not_found already_exists conflict expired gone invalid forbidden unauthorized too_many undecodable"
    assert {name for name in names.split() if getattr(refused, name)} == true


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        pytest.param(error_response(429, "TooManyRequests"), None, id="not-said"),
        pytest.param(error_response(429, "TooManyRequests", retryAfterSeconds=4), 4.0, id="in-the-details"),
        pytest.param(
            ApiResponse(status=429, body=UnstructuredBody({}), headers={"Retry-After": "3"}), 3.0, id="in-the-header"
        ),
        pytest.param(
            ApiResponse(status=429, body=UnstructuredBody({}), headers={"Retry-After": "Tue, 1 Jan"}), None, id="a-date"
        ),
    ],
)
def test_retry_after(answer: ApiResponse, seconds: float | None) -> None:
    assert error_from_response(answer).retry_after_s == seconds


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"<h1>Bad Gateway</h1>", "<h1>Bad Gateway</h1>", id="a-proxys-page"),
        pytest.param(b"", "the server answered 503", id="nothing"),
        pytest.param(b'{"unrelated":1}', '{"unrelated":1}', id="other-json"),
        pytest.param(b"[1]", "[1]", id="a-list"),
        pytest.param(b"\xff", "\N{REPLACEMENT CHARACTER}", id="not-text"),
    ],
)
def test_an_answer_that_is_no_status_still_says_what_happened(body: bytes, message: str) -> None:
    refused = error_from_response(ApiResponse(status=503, body=BytesResponseBody(body)))
    assert (refused.code, refused.reason, refused.message) == (503, "ServiceUnavailable", message)
