"""Admission reviews and verdicts: build the AdmissionReview for a webhook, parse its answer, and apply its
patch. Pure.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from koord.embedded.apiserver.admission.registration import Phase, Webhook
from koord.embedded.apiserver.admission.subject import kind_of, shown
from koord.embedded.apiserver.admission.verdict import Verdict
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.rest.admission_chain import Attributes

Obj = dict[str, Any]

GROUP = "admission.k8s.io"
_GROUPS = ("system:masters", "system:authenticated")  # whoever gets in may do everything here
_NO_OPTIONS = {
    "CREATE": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    "UPDATE": {"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"},
    "DELETE": {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"},
}


class BadReview(Exception):
    """Raised when the answer of a webhook is not a valid review; the message says why."""


def request_of(attributes: Attributes, resource: ServedResource, uid: str) -> Obj:
    """Build the `request` of a review, in the version that the hook asked for."""
    asked = attributes.resource
    part = attributes.subresource
    request: Obj = {
        "uid": uid,
        "kind": msgspec.to_builtins(kind_of(resource, part)),
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
    }
    if part:
        request["subResource"] = part
    request["requestKind"] = msgspec.to_builtins(kind_of(asked, part))
    request["requestResource"] = {"group": asked.group, "version": asked.version, "resource": asked.plural}
    if part:
        request["requestSubResource"] = part
    if attributes.name:
        request["name"] = attributes.name
    if attributes.namespace:
        request["namespace"] = attributes.namespace
    request["operation"] = attributes.operation
    request["userInfo"] = {"username": attributes.user, "groups": list(_GROUPS)}
    request["object"] = shown(attributes, resource, attributes.obj)
    request["oldObject"] = shown(attributes, resource, attributes.old)
    request["dryRun"] = attributes.dry_run
    request["options"] = attributes.options or _NO_OPTIONS.get(attributes.operation)
    return request


def review_of(webhook: Webhook, request: Obj) -> Obj:
    return {"kind": "AdmissionReview", "apiVersion": f"{GROUP}/{webhook.review_version}", "request": request}


def verdict_of(answer: Any, webhook: Webhook, uid: str, phase: Phase) -> Verdict:
    """Parse the decoded answer of a webhook. Raises InvalidReviewError."""
    if not isinstance(answer, dict):
        kind = {list: "array", str: "string", bool: "bool"}.get(type(answer), "number")
        raise BadReview(
            f"failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal {kind} into "
            'Go value of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
            'Kind string "json:\\"kind,omitempty\\"" }'
        )
    version, kind = answer.get("apiVersion") or "", answer.get("kind") or ""
    expected = f"{GROUP}/{webhook.review_version}"
    if version and not (version.startswith(f"{GROUP}/v1") and kind == "AdmissionReview"):
        raise BadReview(
            f'failed to call webhook: no kind "{kind}" is registered for version "{version}" '
            'in scheme "pkg/runtime/scheme.go:111"'
        )
    response = answer.get("response")
    if not response:
        raise _invalid("webhook response was absent")
    if webhook.review_version == "v1":
        _check_v1(response, version, kind, expected, uid, phase)
    return _verdict(response)


def _invalid(why: str) -> BadReview:
    return BadReview(f"received invalid webhook response: {why}")


def _check_v1(response: Obj, version: str, kind: str, expected: str, uid: str, phase: Phase) -> None:
    if version != expected:
        raise _invalid(f"expected webhook response of {expected}, Kind=AdmissionReview, got {version}, Kind={kind}")
    if response.get("uid") != uid:
        raise _invalid(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    patch, form = response.get("patch"), response.get("patchType")
    if phase == "validating":
        for field, value in (("patch", patch), ("patchType", form)):
            if value:
                raise _invalid(f"validating webhook may not return response.{field}")
    elif patch and not form:
        raise _invalid("webhook returned response.patch but not response.patchType")
    elif form and not patch:
        raise _invalid("webhook returned response.patchType but not response.patch")


def _verdict(response: Obj) -> Verdict:
    status = response.get("status") or {}
    allowed = bool(response.get("allowed"))
    return Verdict(
        allowed=allowed,
        message=status.get("message") or "",
        code=status.get("code") or 0,
        reason=status.get("reason") or "",
        details=status.get("details"),
        patch=_patch(response) if allowed else (),
        warnings=tuple(response.get("warnings") or ()),
    )


def _patch(response: Obj) -> list[Obj]:
    if not response.get("patch"):
        return []
    try:
        patch = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
    except (binascii.Error, msgspec.DecodeError) as error:
        words = "unexpected end of JSON input" if "truncated" in str(error) else str(error)
        raise BadReview(f"received undecodable patch in webhook response: {words}") from None
    if not isinstance(patch, list):
        raise BadReview("received undecodable patch in webhook response: a JSON patch is a list")
    form = response.get("patchType") or "JSONPatch"
    if patch and form != "JSONPatch":
        raise BadReview(f'unsupported patch type "{form}"')
    return patch
