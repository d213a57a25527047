"""AdmissionReview (v1 and v1beta1) and ConversionReview as bytes in and bytes out. Pure; handlers decide."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from koord.api.admission import AdmissionRequest, AdmissionResponse, AdmissionReview
from koord.api.meta import Status

VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
KIND = "AdmissionReview"
OPERATIONS = ("CREATE", "UPDATE", "DELETE", "CONNECT")

_DECODER = msgspec.json.Decoder(AdmissionReview)


class Review(msgspec.Struct, frozen=True):
    api_version: str  # the answer is given in the version of the question
    request: AdmissionRequest


class Malformed(msgspec.Struct, frozen=True):
    why: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to send back. `patch` leads from the object that was sent to the desired one."""

    allowed: bool = True
    code: int = 0
    message: str = ""
    patch: Sequence[dict[str, Any]] = ()
    warnings: tuple[str, ...] = ()


def read(body: bytes) -> Review | Malformed:
    try:
        review = _DECODER.decode(body)
    except msgspec.DecodeError as error:  # a wrong type is a ValidationError, which is one of these
        return Malformed(f"the body is not an AdmissionReview: {error}")
    except UnicodeDecodeError as error:
        return Malformed(f"the body is not UTF-8: {error}")
    if review.kind != KIND or review.api_version not in VERSIONS:
        asked = f"{review.api_version or '<no apiVersion>'} {review.kind or '<no kind>'}"
        return Malformed(f"{asked} is not understood here; AdmissionReview of {' or '.join(VERSIONS)} is")
    request = review.request
    if request is None:
        return Malformed("the AdmissionReview has no request")
    if not request.uid:
        return Malformed("the request has no uid")
    if request.operation not in OPERATIONS:
        return Malformed(f"operation {request.operation!r} is none of {', '.join(OPERATIONS)}")
    if request.operation in ("CREATE", "UPDATE") and request.object is None:
        return Malformed(f"a {request.operation} without an object")
    return Review(review.api_version, request)


def written(review: Review, answer: Answer) -> bytes:
    patch = base64.b64encode(msgspec.json.encode(list(answer.patch))).decode() if answer.patch else None
    status = None
    if not answer.allowed or answer.message:
        status = Status(status="" if answer.allowed else "Failure", code=answer.code, message=answer.message)
    response = AdmissionResponse(
        uid=review.request.uid,
        allowed=answer.allowed,
        status=status,
        patch=patch,
        patch_type="JSONPatch" if patch else None,
        warnings=answer.warnings,
    )
    return msgspec.json.encode(AdmissionReview(api_version=review.api_version, kind=KIND, response=response))


def complaint(why: str) -> bytes:
    """Return the body of an HTTP 400: a denying review, for callers that show it."""
    response = AdmissionResponse(uid="", allowed=False, status=Status(status="Failure", code=400, message=why))
    return msgspec.json.encode(AdmissionReview(api_version=VERSIONS[0], kind=KIND, response=response))
