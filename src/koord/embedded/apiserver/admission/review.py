"""Admission reviews and verdicts: build the AdmissionReview for a webhook, parse its answer, apply its patch. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import msgspec

from koord.api.model import Obj
from koord.api.patch.merge_patch import PatchFailed
from koord.embedded.apiserver.admission.matching import object_for_hook, review_kind
from koord.embedded.apiserver.admission.webhooks import AdmissionPhase, RegisteredWebhook
from koord.embedded.apiserver.api_errors import StatusError
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.merge.json_patch import json_patch
from koord.embedded.apiserver.rest.request_context import AdmissionAttributes
from koord.embedded.apiserver.rest.virtual_resources import USER_GROUPS

ADMISSION_GROUP = "admission.k8s.io"
_DEFAULT_OPTIONS = {
    "CREATE": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    "UPDATE": {"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"},
    "DELETE": {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"},
}


class InvalidReviewError(Exception):
    """Raised when the answer of a webhook is not a valid review; the message says why."""


def admission_request(attributes: AdmissionAttributes, resource: ServedResource, uid: str) -> Obj:
    """Build the `request` of a review, in the version that the hook asked for."""
    asked = attributes.resource
    part = attributes.subresource
    request: Obj = {
        "uid": uid,
        "kind": msgspec.to_builtins(review_kind(resource, part)),
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
    }
    if part:
        request["subResource"] = part
    request["requestKind"] = msgspec.to_builtins(review_kind(asked, part))
    request["requestResource"] = {"group": asked.group, "version": asked.version, "resource": asked.plural}
    if part:
        request["requestSubResource"] = part
    if attributes.name:
        request["name"] = attributes.name
    if attributes.namespace:
        request["namespace"] = attributes.namespace
    request["operation"] = attributes.operation
    request["userInfo"] = {"username": attributes.user, "groups": list(USER_GROUPS)}
    request["object"] = object_for_hook(attributes, resource, attributes.obj)
    request["oldObject"] = object_for_hook(attributes, resource, attributes.old_obj)
    request["dryRun"] = attributes.dry_run
    request["options"] = attributes.options or _DEFAULT_OPTIONS.get(attributes.operation)
    return request


def admission_review(webhook: RegisteredWebhook, request: Obj) -> Obj:
    return {"kind": "AdmissionReview", "apiVersion": f"{ADMISSION_GROUP}/{webhook.review_version}", "request": request}


def parse_review_response(answer: Any, webhook: RegisteredWebhook, uid: str, phase: AdmissionPhase) -> AdmissionVerdict:
    """Parse the decoded answer of a webhook. Raises InvalidReviewError."""
    if not isinstance(answer, dict):
        kind = {list: "array", str: "string", bool: "bool"}.get(type(answer), "number")
        raise InvalidReviewError(
            f"failed to call webhook: couldn't get version/kind; json parse error: json: cannot unmarshal {kind} into "
            'Go value of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
            'Kind string "json:\\"kind,omitempty\\"" }'
        )
    version, kind = answer.get("apiVersion") or "", answer.get("kind") or ""
    expected = f"{ADMISSION_GROUP}/{webhook.review_version}"
    if version and not (version.startswith(f"{ADMISSION_GROUP}/v1") and kind == "AdmissionReview"):
        raise InvalidReviewError(
            f'failed to call webhook: no kind "{kind}" is registered for version "{version}" '
            'in scheme "pkg/runtime/scheme.go:111"'
        )
    response = answer.get("response")
    if not response:
        raise _invalid_response("webhook response was absent")
    if webhook.review_version == "v1":
        _check_v1(response, version, kind, expected, uid, phase)
    return _parse_verdict(response)


def _invalid_response(why: str) -> InvalidReviewError:
    return InvalidReviewError(f"received invalid webhook response: {why}")


def _check_v1(response: Obj, version: str, kind: str, expected: str, uid: str, phase: AdmissionPhase) -> None:
    if version != expected:
        raise _invalid_response(
            f"expected webhook response of {expected}, Kind=AdmissionReview, got {version}, Kind={kind}"
        )
    if response.get("uid") != uid:
        raise _invalid_response(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    patch, form = response.get("patch"), response.get("patchType")
    if phase == "validating":
        for field, value in (("patch", patch), ("patchType", form)):
            if value:
                raise _invalid_response(f"validating webhook may not return response.{field}")
    elif patch and not form:
        raise _invalid_response("webhook returned response.patch but not response.patchType")
    elif form and not patch:
        raise _invalid_response("webhook returned response.patchType but not response.patch")


def _parse_verdict(response: Obj) -> AdmissionVerdict:
    status = response.get("status") or {}
    allowed = bool(response.get("allowed"))
    return AdmissionVerdict(
        allowed=allowed,
        message=status.get("message") or "",
        code=status.get("code") or 0,
        reason=status.get("reason") or "",
        details=status.get("details"),
        patch=_decode_patch(response) if allowed else (),
        warnings=tuple(response.get("warnings") or ()),
    )


def _decode_patch(response: Obj) -> list[Obj]:
    if not response.get("patch"):
        return []
    try:
        patch = msgspec.json.decode(base64.b64decode(response["patch"], validate=True))
    except (binascii.Error, msgspec.DecodeError) as error:
        words = "unexpected end of JSON input" if "truncated" in str(error) else str(error)
        raise InvalidReviewError(f"received undecodable patch in webhook response: {words}") from None
    if not isinstance(patch, list):
        raise InvalidReviewError("received undecodable patch in webhook response: a JSON patch is a list")
    form = response.get("patchType") or "JSONPatch"
    if patch and form != "JSONPatch":
        raise InvalidReviewError(f'unsupported patch type "{form}"')
    return patch


class AdmissionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Says whether a hook allows a request and what it changes: `patch` is a JSON patch, `obj` a whole object."""

    allowed: bool = True
    message: str = ""
    code: int = 0
    reason: str = ""
    details: Obj | None = None
    patch: Sequence[Obj] = ()
    obj: Obj | None = None
    warnings: Sequence[str] = ()


ALLOWED = AdmissionVerdict()


def deny(message: str, code: int = 0, reason: str = "") -> AdmissionVerdict:
    return AdmissionVerdict(allowed=False, message=message, code=code, reason=reason)


def denial_error(name: str, verdict: AdmissionVerdict) -> StatusError:
    """Return the error of a denial in kube-apiserver's words; a code that would mean success becomes 400."""
    by = f'admission webhook "{name}" denied the request'
    why = verdict.message or verdict.reason
    message = f"{by}: {why}" if why else f"{by} without explanation"
    code = verdict.code if verdict.code >= 400 else 400
    return StatusError(code, verdict.reason, message, details=verdict.details)


class HookPatchError(Exception):
    """Raised when a patch does not apply, or its result is not an object of the kind."""


def apply_hook_patch(obj: Obj, operations: Sequence[Obj]) -> Obj:
    """Apply the patch and return a private object; the given one is shared. Raises HookPatchError."""
    whole = json_patch(obj, list(operations))
    if not isinstance(whole, PatchFailed):
        return whole
    made = obj
    for operation in operations:  # the second try finds the one to blame
        step = json_patch(made, [operation])
        if isinstance(step, PatchFailed):
            raise HookPatchError(_operation_error(operation))
        made = step
    raise HookPatchError(whole.message)


def _operation_error(operation: Obj) -> str:
    action, path = str(operation.get("op", "")), str(operation.get("path", ""))
    if action == "test":
        return f"testing value {path} failed: test failed"
    if action in ("add", "remove", "replace", "move", "copy"):
        where = str(operation.get("from", "")) if action in ("move", "copy") else path
        return f'{action} operation does not apply: doc is missing path: "{where}": missing value'
    return f"Unexpected kind: {action or 'unknown'}"
