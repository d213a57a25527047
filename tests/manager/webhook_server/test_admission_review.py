"""Reviews as bytes: both versions, and everything that is not one."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.manager.webhook_server import handlers
from koord.manager.webhook_server.handlers import DecodedReview, MalformedReview, ReviewAnswer


def body(version: str = "v1", **changes: Any) -> bytes:
    request = {
        "uid": "u1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "default",
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}},
        "oldObject": None,
        "options": None,
        "userInfo": {"username": "someone"},
        **changes,
    }
    return json.dumps(
        {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview", "request": request}
    ).encode()


DEEP_REVIEW = body(object={"metadata": {"annotations": "DEEP"}}).replace(
    b'"DEEP"', b'{"a":' * 10_000 + b"1" + b"}" * 10_000
)


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_answer_is_in_the_version_of_the_question(version: str) -> None:
    asked = handlers.decode_review(body(version))
    assert isinstance(asked, DecodedReview)
    answer = json.loads(handlers.encode_review(asked, ReviewAnswer(patch=[{"op": "add", "path": "/a", "value": 1}])))
    assert answer["apiVersion"] == f"admission.k8s.io/{version}"
    assert answer["kind"] == "AdmissionReview"
    response = answer["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u1", True, "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == [{"op": "add", "path": "/a", "value": 1}]


def test_a_denial_has_code_and_words_and_says_false() -> None:
    asked = handlers.decode_review(body())
    assert isinstance(asked, DecodedReview)
    response = json.loads(handlers.encode_review(asked, ReviewAnswer(allowed=False, code=400, message="no")))[
        "response"
    ]
    assert response["allowed"] is False
    assert (response["status"]["code"], response["status"]["message"]) == (400, "no")
    assert "patch" not in response


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        pytest.param(b"", "not an AdmissionReview", id="nothing"),
        pytest.param(b"{}", "<no kind>", id="empty-object"),
        pytest.param(b"\xff", "not", id="not-utf8"),
        pytest.param(b"[1]", "not an AdmissionReview", id="a-list"),
        pytest.param(body("v2"), "admission.k8s.io/v2", id="unknown-version"),
        pytest.param(DEEP_REVIEW, "is nested too deeply: 100 levels are allowed", id="10000-levels"),
        pytest.param(b"[" * 1_000_000, "is nested too deeply: 100 levels are allowed", id="1000000-levels"),
        pytest.param(b" " * (17 << 20), "is too long", id="17-MiB"),
        pytest.param(body(uid=""), "no uid", id="no-uid"),
        pytest.param(body(uid=7), "not an AdmissionReview", id="wrong-type"),
        pytest.param(body(operation="READ"), "'READ'", id="unknown-operation"),
        pytest.param(body(object=None), "without an object", id="create-of-nothing"),
        pytest.param(b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}', "no request", id="no-request"),
    ],
)
def test_what_is_no_review_is_named(sent: bytes, says: str) -> None:
    found = handlers.decode_review(sent)
    assert isinstance(found, MalformedReview)
    assert says in found.why
    assert json.loads(handlers.encode_rejection(found.why))["response"]["status"]["code"] == 400


@given(st.binary(max_size=200))
def test_no_bytes_raise(sent: bytes) -> None:
    assert isinstance(handlers.decode_review(sent), MalformedReview)


def test_a_delete_has_only_the_old_object() -> None:
    asked = handlers.decode_review(body(operation="DELETE", object=None, oldObject={"metadata": {"name": "p"}}))
    assert isinstance(asked, DecodedReview)
    assert asked.request.old_object == {"metadata": {"name": "p"}}
